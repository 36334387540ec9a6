// Eight lanes, with FMA and half-precision loads; byte products in one instruction where the processor has AVX-VNNI.
#pragma once
#include <immintrin.h>

using F = __m256;
using I = __m256i;

constexpr int kLanes = 8, kWide = 2, kNarrow = 2, kMaxRows = 5, kMaxQuantRows = 4;
constexpr bool kBf16Inputs = false;

static inline F zero() { return _mm256_setzero_ps(); }
static inline F set1(float x) { return _mm256_set1_ps(x); }
static inline F load(const float* p) { return _mm256_loadu_ps(p); }
static inline void store(float* p, F x) { _mm256_storeu_ps(p, x); }
static inline F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
static inline F add(F a, F b) { return _mm256_add_ps(a, b); }
static inline F sub(F a, F b) { return _mm256_sub_ps(a, b); }
static inline F mul(F a, F b) { return _mm256_mul_ps(a, b); }
static inline F div(F a, F b) { return _mm256_div_ps(a, b); }
static inline F max(F a, F b) { return _mm256_max_ps(a, b); }
static inline F min(F a, F b) { return _mm256_min_ps(a, b); }
static inline F absolute(F a) { return _mm256_andnot_ps(set1(-0.0f), a); }
static inline F round(F a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }

static inline float total(F a) {
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
static inline float highest(F a) {
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

static inline I load_i(const void* p) { return _mm256_loadu_si256(static_cast<const I*>(p)); }
static inline void store_i(void* p, I x) { _mm256_storeu_si256(static_cast<I*>(p), x); }
static inline I zero_i() { return _mm256_setzero_si256(); }
static inline I set1_i(int x) { return _mm256_set1_epi32(x); }
static inline I add_i(I a, I b) { return _mm256_add_epi32(a, b); }
static inline I sub_i(I a, I b) { return _mm256_sub_epi32(a, b); }
static inline I and_i(I a, I b) { return _mm256_and_si256(a, b); }
template <int n>
static inline I left(I a) {
    return _mm256_slli_epi32(a, n);
}
template <int n>
static inline I right(I a) {
    return _mm256_srli_epi32(a, n);
}
template <int n>
static inline I right_signed(I a) {
    return _mm256_srai_epi32(a, n);
}
static inline F as_float(I a) { return _mm256_castsi256_ps(a); }
static inline I as_int(F a) { return _mm256_castps_si256(a); }
static inline F to_float(I a) { return _mm256_cvtepi32_ps(a); }
static inline I to_int(F a) { return _mm256_cvtps_epi32(a); }

static inline I where_nan(F x, I a, I b) { return _mm256_blendv_epi8(b, a, as_int(_mm256_cmp_ps(x, x, _CMP_UNORD_Q))); }

// Lanes [low, high) of a; others from b.
static inline F keep(F a, int low, int high, F b) {
    const I lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const I inside = _mm256_andnot_si256(_mm256_cmpgt_epi32(set1_i(low), lane), _mm256_cmpgt_epi32(set1_i(high), lane));
    return _mm256_blendv_ps(b, a, as_float(inside));
}

static inline F load_half(const uint16_t* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
// The low 16 bits of every lane, in order.
static inline void store_low16(void* p, I x) {
    const I low = _mm256_and_si256(x, set1_i(0xffff));
    const I packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(low, low), 0xd8);
    _mm_storeu_si128(static_cast<__m128i*>(p), _mm256_castsi256_si128(packed));
}
static inline void store_low8(void* p, I x) {
    alignas(32) int32_t lanes[8];
    store_i(lanes, x);
    for (int i = 0; i < 8; ++i) static_cast<int8_t*>(p)[i] = int8_t(lanes[i]);
}
static inline void prefetch(const char* p) { _mm_prefetch(p, _MM_HINT_T1); }

static inline F dot2(F c, I, I) { return c; }
struct CodeTables {
    void pairs(I, I&, I&) const {}
};

#ifdef __AVXVNNI__
static inline I dot4(I c, I codes, I inputs) { return _mm256_dpbusd_avx_epi32(c, codes, inputs); }
#else
static inline I dot4(I c, I codes, I inputs) {
    const I even = _mm256_and_si256(codes, _mm256_set1_epi16(0xff)), odd = _mm256_srli_epi16(codes, 8);
    const I even_x = _mm256_srai_epi16(_mm256_slli_epi16(inputs, 8), 8), odd_x = _mm256_srai_epi16(inputs, 8);
    return add_i(c, add_i(_mm256_madd_epi16(even, even_x), _mm256_madd_epi16(odd, odd_x)));
}
#endif
