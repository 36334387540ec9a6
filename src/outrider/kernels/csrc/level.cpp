// Compiled once for each instruction-set level, OUTRIDER_LEVEL, with that level's flags. Everything here lives in a
// namespace of its own, so that no code for a new processor is ever linked in for an old one.
#include "level.hpp"
#include "numbers.hpp"

#define OUTRIDER_JOIN_(a, b) a##b
#define OUTRIDER_JOIN(a, b) OUTRIDER_JOIN_(a, b)
#define OUTRIDER_CODE OUTRIDER_JOIN(code_, OUTRIDER_LEVEL)
#define OUTRIDER_TEXT_(a) #a
#define OUTRIDER_TEXT(a) OUTRIDER_TEXT_(a)

#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#else
#include <cmath>
#endif

namespace outrider {
namespace OUTRIDER_CODE {

#if defined(__AVX512F__)
#include "simd/avx512.hpp"
#elif defined(__AVX2__)
#include "simd/avx2.hpp"
#else
#include "simd/portable.hpp"
#endif
#include "tiles.hpp"
#include "quant_tiles.hpp"
#include "vectors.hpp"
#include "product.hpp"
#include "attention.hpp"
#include "listed.hpp"

}  // namespace OUTRIDER_CODE

// Constant, so that loading the library runs no code of this level.
extern const Level OUTRIDER_JOIN(level_, OUTRIDER_LEVEL);
constexpr Level OUTRIDER_JOIN(level_, OUTRIDER_LEVEL) = {
    OUTRIDER_TEXT(OUTRIDER_LEVEL), OUTRIDER_CODE::kLanes,       OUTRIDER_CODE::kWide,
    OUTRIDER_CODE::kNarrow,        OUTRIDER_CODE::kBf16Inputs,  OUTRIDER_CODE::multiply,
    OUTRIDER_CODE::prepare_row,    OUTRIDER_CODE::norm_row,     OUTRIDER_CODE::add_row,
    OUTRIDER_CODE::rotate,         OUTRIDER_CODE::store_query,  OUTRIDER_CODE::append,
    OUTRIDER_CODE::expect,         OUTRIDER_CODE::expect_block, OUTRIDER_CODE::copy_position,
    OUTRIDER_CODE::attend_block,   OUTRIDER_CODE::merge,        OUTRIDER_CODE::finish,
    OUTRIDER_CODE::attend_listed,
};

}  // namespace outrider
