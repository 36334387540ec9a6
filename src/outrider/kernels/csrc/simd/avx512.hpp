// Sixteen lanes. With AVX-512 BF16, VNNI and VBMI, products of narrow numbers are single instructions.
#pragma once
#include <immintrin.h>

using F = __m512;
using I = __m512i;

constexpr int kLanes = 16, kWide = 4, kNarrow = 2, kMaxRows = 6, kMaxQuantRows = 5;

static inline F zero() { return _mm512_setzero_ps(); }
static inline F set1(float x) { return _mm512_set1_ps(x); }
static inline F load(const float* p) { return _mm512_loadu_ps(p); }
static inline void store(float* p, F x) { _mm512_storeu_ps(p, x); }
static inline F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
static inline F add(F a, F b) { return _mm512_add_ps(a, b); }
static inline F sub(F a, F b) { return _mm512_sub_ps(a, b); }
static inline F mul(F a, F b) { return _mm512_mul_ps(a, b); }
static inline F div(F a, F b) { return _mm512_div_ps(a, b); }
static inline F max(F a, F b) { return _mm512_max_ps(a, b); }
static inline F min(F a, F b) { return _mm512_min_ps(a, b); }
static inline F absolute(F a) { return _mm512_abs_ps(a); }
static inline F round(F a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
static inline float total(F a) { return _mm512_reduce_add_ps(a); }
static inline float highest(F a) { return _mm512_reduce_max_ps(a); }

static inline I load_i(const void* p) { return _mm512_loadu_si512(p); }
static inline void store_i(void* p, I x) { _mm512_storeu_si512(p, x); }
static inline I zero_i() { return _mm512_setzero_si512(); }
static inline I set1_i(int x) { return _mm512_set1_epi32(x); }
static inline I add_i(I a, I b) { return _mm512_add_epi32(a, b); }
static inline I sub_i(I a, I b) { return _mm512_sub_epi32(a, b); }
static inline I and_i(I a, I b) { return _mm512_and_si512(a, b); }
template <int n>
static inline I left(I a) {
    return _mm512_slli_epi32(a, n);
}
template <int n>
static inline I right(I a) {
    return _mm512_srli_epi32(a, n);
}
template <int n>
static inline I right_signed(I a) {
    return _mm512_srai_epi32(a, n);
}
static inline F as_float(I a) { return _mm512_castsi512_ps(a); }
static inline I as_int(F a) { return _mm512_castps_si512(a); }
static inline F to_float(I a) { return _mm512_cvtepi32_ps(a); }
static inline I to_int(F a) { return _mm512_cvtps_epi32(a); }

static inline I where_nan(F x, I a, I b) { return _mm512_mask_mov_epi32(b, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), a); }

// Lanes [low, high) of a; others from b.
static inline F keep(F a, int low, int high, F b) {
    const unsigned upper = high >= kLanes ? 0xffffu : high <= 0 ? 0u : (1u << high) - 1;
    const unsigned lower = low >= kLanes ? 0xffffu : low <= 0 ? 0u : (1u << low) - 1;
    return _mm512_mask_mov_ps(b, __mmask16(upper & ~lower), a);
}

static inline F load_half(const uint16_t* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
// The low 16 bits of every lane, in order.
static inline void store_low16(void* p, I x) {
    _mm256_storeu_si256(static_cast<__m256i*>(p), _mm512_cvtepi32_epi16(x));
}
static inline void store_low8(void* p, I x) { _mm_storeu_si128(static_cast<__m128i*>(p), _mm512_cvtepi32_epi8(x)); }
static inline void prefetch(const char* p) { _mm_prefetch(p, _MM_HINT_T1); }

#ifdef __AVX512BF16__
constexpr bool kBf16Inputs = true;
static inline F dot2(F c, I weights, I inputs) {
    return _mm512_dpbf16_ps(c, reinterpret_cast<__m512bh>(weights), reinterpret_cast<__m512bh>(inputs));
}
static inline I dot4(I c, I codes, I inputs) { return _mm512_dpbusd_epi32(c, codes, inputs); }
static inline void store_bf16(void* p, F x) {
    _mm256_storeu_si256(static_cast<__m256i*>(p), reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x)));
}

// bfloat16 of 0..127 as low and high bytes, and how the bytes of two results are put together again.
struct CodeBytes {
    uint8_t low[128], high[128], order[2][64];
};
static constexpr CodeBytes code_bytes() {
    CodeBytes bytes{};
    for (int code = 1; code < 128; ++code) {
        int exponent = 0;
        while (code >> (exponent + 1)) ++exponent;
        const int bits = ((127 + exponent) << 7) | ((code << (7 - exponent)) & 127);
        bytes.low[code] = uint8_t(bits);
        bytes.high[code] = uint8_t(bits >> 8);
    }
    for (int byte = 0; byte < 64; ++byte)
        for (int half = 0; half < 2; ++half)
            bytes.order[half][byte] = uint8_t(byte / 4 * 4 + half * 2 + byte % 4 / 2 + byte % 2 * 64);
    return bytes;
}
alignas(64) static constexpr CodeBytes kCodeBytes = code_bytes();

// The compiler would rather read a known table from memory every time.
static inline I in_register(const void* p) {
    I x = load_i(p);
    asm("" : "+v"(x));
    return x;
}

// Codes (sign and magnitude) of four inputs a lane become two vectors of bfloat16 pairs, by table.
struct CodeTables {
    I low0 = in_register(kCodeBytes.low), low1 = in_register(kCodeBytes.low + 64);
    I high0 = in_register(kCodeBytes.high), high1 = in_register(kCodeBytes.high + 64);
    I first = in_register(kCodeBytes.order[0]), second = in_register(kCodeBytes.order[1]);

    void pairs(I codes, I& one, I& two) const {
        const I lows = _mm512_permutex2var_epi8(low0, codes, low1);
        const I bare = _mm512_permutex2var_epi8(high0, codes, high1);
        const I highs =
            _mm512_ternarylogic_epi32(bare, codes, set1_i(int(0x80808080u)), 0xf8);  // bare | (codes & sign)
        one = _mm512_permutex2var_epi8(lows, first, highs);
        two = _mm512_permutex2var_epi8(lows, second, highs);
    }
};
#else
constexpr bool kBf16Inputs = false;
static inline F dot2(F c, I, I) { return c; }
struct CodeTables {
    void pairs(I, I&, I&) const {}
};
static inline I dot4(I c, I codes, I inputs) {
    const I even = _mm512_and_si512(codes, _mm512_set1_epi16(0xff)), odd = _mm512_srli_epi16(codes, 8);
    const I even_x = _mm512_srai_epi16(_mm512_slli_epi16(inputs, 8), 8), odd_x = _mm512_srai_epi16(inputs, 8);
    return add_i(c, add_i(_mm512_madd_epi16(even, even_x), _mm512_madd_epi16(odd, odd_x)));
}
#endif
