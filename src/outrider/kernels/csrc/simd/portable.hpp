// Four lanes in the compiler's own vectors: SSE2, NEON or whatever the processor's baseline is.
#pragma once
#include <cmath>

typedef float F __attribute__((vector_size(16)));
typedef int32_t I __attribute__((vector_size(16)));
typedef uint32_t U __attribute__((vector_size(16)));

constexpr int kLanes = 4, kWide = 2, kNarrow = 2, kMaxRows = 4, kMaxQuantRows = 4;
constexpr bool kBf16Inputs = false;

static inline F set1(float x) { return F{x, x, x, x}; }
static inline F zero() { return set1(0.0f); }
static inline F load(const float* p) {
    F x;
    std::memcpy(&x, p, sizeof x);
    return x;
}
static inline void store(float* p, F x) { std::memcpy(p, &x, sizeof x); }
// Rounded twice, on every processor alike: a fused product would be a library call on a bare x86.
static inline F fma(F a, F b, F c) { return a * b + c; }
static inline F add(F a, F b) { return a + b; }
static inline F sub(F a, F b) { return a - b; }
static inline F mul(F a, F b) { return a * b; }
static inline F div(F a, F b) { return a / b; }
static inline F max(F a, F b) { return a > b ? a : b; }
static inline F min(F a, F b) { return a < b ? a : b; }
static inline F as_float(I a) { return (F)a; }
static inline I as_int(F a) { return (I)a; }
static inline F absolute(F a) { return as_float(as_int(a) & 0x7fffffff); }
// Adding and taking away 1.5 * 2^23 leaves the nearest whole number, for the small numbers that are rounded here.
static inline F round(F a) { return (a + 12582912.0f) - 12582912.0f; }
static inline float total(F a) { return (a[0] + a[2]) + (a[1] + a[3]); }
static inline float highest(F a) {
    const float x = a[0] > a[2] ? a[0] : a[2], y = a[1] > a[3] ? a[1] : a[3];
    return x > y ? x : y;
}

static inline I load_i(const void* p) {
    I x;
    std::memcpy(&x, p, sizeof x);
    return x;
}
static inline void store_i(void* p, I x) { std::memcpy(p, &x, sizeof x); }
static inline I set1_i(int x) { return I{x, x, x, x}; }
static inline I zero_i() { return set1_i(0); }
// Unsigned inside: what a NaN leaves behind may overflow.
static inline I add_i(I a, I b) { return (I)((U)a + (U)b); }
static inline I sub_i(I a, I b) { return (I)((U)a - (U)b); }
static inline I and_i(I a, I b) { return a & b; }
template <int n>
static inline I left(I a) {
    return (I)((U)a << n);
}
template <int n>
static inline I right(I a) {
    return (I)((U)a >> n);
}
template <int n>
static inline I right_signed(I a) {
    return a >> n;
}
static inline F to_float(I a) { return __builtin_convertvector(a, F); }
static inline I to_int(F a) { return __builtin_convertvector(round(a), I); }

static inline I where_nan(F x, I a, I b) { return x != x ? a : b; }

// Lanes [low, high) of a; others from b.
static inline F keep(F a, int low, int high, F b) {
    const I lane = {0, 1, 2, 3};
    return (lane >= low) & (lane < high) ? a : b;
}

static inline F load_half(const uint16_t* p) {
    return F{from_half(p[0]), from_half(p[1]), from_half(p[2]), from_half(p[3])};
}
// The low 16 bits of every lane, in order.
static inline void store_low16(void* p, I x) {
    for (int i = 0; i < 4; ++i) static_cast<uint16_t*>(p)[i] = uint16_t(x[i]);
}
static inline void store_low8(void* p, I x) {
    for (int i = 0; i < 4; ++i) static_cast<int8_t*>(p)[i] = int8_t(x[i]);
}
static inline void prefetch(const char* p) { __builtin_prefetch(p, 0, 2); }

static inline F dot2(F c, I, I) { return c; }
struct CodeTables {
    void pairs(I, I&, I&) const {}
};
static inline I dot4(I c, I codes, I inputs) {
    c = c + (codes & 0xff) * right_signed<24>(left<24>(inputs));
    c = c + (right<8>(codes) & 0xff) * right_signed<24>(left<16>(inputs));
    c = c + (right<16>(codes) & 0xff) * right_signed<24>(left<8>(inputs));
    return c + right<24>(codes) * right_signed<24>(inputs);
}
