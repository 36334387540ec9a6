// The inner loops of every product: R rows by NV vectors of outputs, accumulators in registers.
//
// An output is summed over inputs in their order, whatever R and NV are: this is what makes a row's bits its own.
#pragma once

// Loops that are unrolled whatever the compiler thinks of it, so that their arrays live in registers.
#define UNROLL _Pragma("GCC unroll 16")
#define EACH(i, count) _Pragma("GCC unroll 16") for (int i = 0; i < count; ++i)

constexpr size_t kVector = kLanes * sizeof(float);

// How many bytes ahead of a single pass memory is asked for, for few rows and for many: measured, see dev/LOG.md.
constexpr int kNear = 4096, kFar = 8192;

// One tile's work. `acc` holds the sums so far, int32 for integer kinds that have no groups.
struct Run {
    const char* weights;
    int steps;
    const char* x;
    size_t stride;
    float* acc;
    int acc_stride;
    const char* ahead;  // read soon: `ahead_lines` cache lines a step are asked for
    int ahead_lines;
    const Packed* matrix;
    const float* scale;  // of row 0 at the first step's group; rows are `groups` apart
    const float* sum;
    int groups;
};

static inline void ask(const Run& run, int step) {
    const char* line = run.ahead + size_t(step) * run.ahead_lines * 64;
    for (int i = 0; i < run.ahead_lines; ++i) prefetch(line + i * 64);
}

static inline I widen_low(I pairs) { return left<16>(pairs); }
static inline I widen_high(I pairs) { return and_i(pairs, set1_i(int(0xffff0000u))); }

static inline I broadcast(const char* p) {
    int32_t bits;
    std::memcpy(&bits, p, 4);
    return set1_i(bits);
}
static inline F broadcast_f(const char* p) { return as_float(broadcast(p)); }

struct FloatVector {
    using V = F;
    static V read(const float* p) { return load(p); }
    static void write(float* p, V x) { store(p, x); }
};
struct IntVector {
    using V = I;
    static V read(const float* p) { return load_i(p); }
    static void write(float* p, V x) { store_i(p, x); }
};

template <class Vector, int R, int NV>
struct SumsOf {
    typename Vector::V c[R][NV];
    void read(const float* acc, int stride) {
        EACH (r, R)
            EACH (v, NV) c[r][v] = Vector::read(acc + r * stride + v * kLanes);
    }
    void write(float* acc, int stride) const {
        EACH (r, R)
            EACH (v, NV) Vector::write(acc + r * stride + v * kLanes, c[r][v]);
    }
    void clear() {
        EACH (r, R)
            EACH (v, NV) c[r][v] = typename Vector::V{};
    }
};
template <int R, int NV>
using Sums = SumsOf<FloatVector, R, NV>;
template <int R, int NV>
using IntSums = SumsOf<IntVector, R, NV>;

struct F32Kind {
    template <int R, int NV>
    static void tile(const Run& run) {
        Sums<R, NV> s;
        s.read(run.acc, run.acc_stride);
        for (int i = 0; i < run.steps; ++i) {
            const char* w = run.weights + size_t(i) * NV * kVector;
            F weights[NV];
            EACH (v, NV) weights[v] = as_float(load_i(w + v * kVector));
            ask(run, i);
            EACH (r, R) {
                const F x = broadcast_f(run.x + r * run.stride + size_t(i) * 4);
                EACH (v, NV) s.c[r][v] = fma(weights[v], x, s.c[r][v]);
            }
        }
        s.write(run.acc, run.acc_stride);
    }
};

struct Bf16Kind {
    template <int R, int NV>
    static void tile(const Run& run) {
        Sums<R, NV> s;
        s.read(run.acc, run.acc_stride);
        for (int i = 0; i < run.steps; ++i) {
            const char* w = run.weights + size_t(i) * NV * kVector;
            I weights[NV];
            EACH (v, NV) weights[v] = load_i(w + v * kVector);
            ask(run, i);
            EACH (r, R) {
                if constexpr (kBf16Inputs) {
                    const I x = broadcast(run.x + r * run.stride + size_t(i) * 4);
                    EACH (v, NV) s.c[r][v] = dot2(s.c[r][v], weights[v], x);
                } else {
                    const char* pair = run.x + r * run.stride + size_t(i) * 8;
                    const F x = broadcast_f(pair), y = broadcast_f(pair + 4);
                    EACH (v, NV) {
                        s.c[r][v] = fma(as_float(widen_low(weights[v])), x, s.c[r][v]);
                        s.c[r][v] = fma(as_float(widen_high(weights[v])), y, s.c[r][v]);
                    }
                }
            }
        }
        s.write(run.acc, run.acc_stride);
    }
};

using Tile = void (*)(const Run&);

template <class Kind, int R>
static Tile tile_of_width(int vectors) {
    if constexpr (kWide == kNarrow) return Kind::template tile<R, kWide>;
    return vectors == kWide ? Kind::template tile<R, kWide> : Kind::template tile<R, kNarrow>;
}

template <class Kind, int R = 1, int Most = 1>
static Tile tile_of(int rows, int vectors) {
    if constexpr (R < Most) {
        if (rows > R) return tile_of<Kind, R + 1, Most>(rows, vectors);
    }
    return tile_of_width<Kind, R>(vectors);
}

template <class Kind>
static Tile dense_tile(int rows, int vectors) {
    return tile_of<Kind, 1, kMaxRows>(rows, vectors);
}
