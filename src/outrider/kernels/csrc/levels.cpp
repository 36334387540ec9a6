#include "levels.hpp"

#include <stdexcept>

namespace outrider {

#ifdef OUTRIDER_HAS_AVX512BF16
extern const Level level_avx512bf16;
#endif
#ifdef OUTRIDER_HAS_AVX512
extern const Level level_avx512;
#endif
#ifdef OUTRIDER_HAS_AVX2VNNI
extern const Level level_avx2vnni;
#endif
#ifdef OUTRIDER_HAS_AVX2
extern const Level level_avx2;
#endif
extern const Level level_portable;

std::vector<const Level*> available_levels() {
    std::vector<const Level*> levels;
#if defined(__x86_64__)
    __builtin_cpu_init();
    [[maybe_unused]] const bool avx2 =
        __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
    [[maybe_unused]] const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                                         __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                                         __builtin_cpu_supports("avx512dq");
#ifdef OUTRIDER_HAS_AVX512BF16
    if (avx512 && __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni") &&
        __builtin_cpu_supports("avx512vbmi"))
        levels.push_back(&level_avx512bf16);
#endif
#ifdef OUTRIDER_HAS_AVX512
    if (avx512) levels.push_back(&level_avx512);
#endif
#ifdef OUTRIDER_HAS_AVX2VNNI
    if (avx2 && __builtin_cpu_supports("avxvnni")) levels.push_back(&level_avx2vnni);
#endif
#ifdef OUTRIDER_HAS_AVX2
    if (avx2) levels.push_back(&level_avx2);
#endif
#endif
    levels.push_back(&level_portable);
    return levels;
}

const Level& level_named(const std::string& name) {
    std::string known;
    for (const Level* level : available_levels()) {
        if (name == level->name) return *level;
        known += std::string(known.empty() ? "" : ", ") + level->name;
    }
    throw std::invalid_argument("level '" + name + "' cannot run here; there are " + known);
}

}  // namespace outrider
