// The inner loops of every product: R rows by NV vectors of outputs, accumulators in registers.
//
// An output is summed over inputs in their order, whatever R and NV are: this is what makes a row's bits its own.
#pragma once

#define UNROLL _Pragma("GCC unroll 16")

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

template <int R, int NV>
struct Sums {
    F c[R][NV];
    void read(const float* acc, int stride) {
        UNROLL for (int r = 0; r < R; ++r) UNROLL for (int v = 0; v < NV; ++v) c[r][v] = load(acc + r * stride + v * kLanes);
    }
    void write(float* acc, int stride) const {
        UNROLL for (int r = 0; r < R; ++r) UNROLL for (int v = 0; v < NV; ++v) store(acc + r * stride + v * kLanes, c[r][v]);
    }
    void clear() {
        UNROLL for (int r = 0; r < R; ++r) UNROLL for (int v = 0; v < NV; ++v) c[r][v] = zero();
    }
};

template <int R, int NV>
struct IntSums {
    I c[R][NV];
    void read(const float* acc, int stride) {
        UNROLL for (int r = 0; r < R; ++r) UNROLL for (int v = 0; v < NV; ++v) c[r][v] = load_i(acc + r * stride + v * kLanes);
    }
    void write(float* acc, int stride) const {
        UNROLL for (int r = 0; r < R; ++r) UNROLL for (int v = 0; v < NV; ++v) store_i(acc + r * stride + v * kLanes, c[r][v]);
    }
    void clear() {
        UNROLL for (int r = 0; r < R; ++r) UNROLL for (int v = 0; v < NV; ++v) c[r][v] = zero_i();
    }
};

struct F32Kind {
    template <int R, int NV>
    static void tile(const Run& run) {
        Sums<R, NV> s;
        s.read(run.acc, run.acc_stride);
        for (int i = 0; i < run.steps; ++i) {
            const char* w = run.weights + size_t(i) * NV * kVector;
            F weights[NV];
            UNROLL for (int v = 0; v < NV; ++v) weights[v] = as_float(load_i(w + v * kVector));
            ask(run, i);
            UNROLL for (int r = 0; r < R; ++r) {
                const F x = broadcast_f(run.x + r * run.stride + size_t(i) * 4);
                UNROLL for (int v = 0; v < NV; ++v) s.c[r][v] = fma(weights[v], x, s.c[r][v]);
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
            UNROLL for (int v = 0; v < NV; ++v) weights[v] = load_i(w + v * kVector);
            ask(run, i);
            UNROLL for (int r = 0; r < R; ++r) {
                if constexpr (kBf16Inputs) {
                    const I x = broadcast(run.x + r * run.stride + size_t(i) * 4);
                    UNROLL for (int v = 0; v < NV; ++v) s.c[r][v] = dot2(s.c[r][v], weights[v], x);
                } else {
                    const char* pair = run.x + r * run.stride + size_t(i) * 8;
                    const F x = broadcast_f(pair), y = broadcast_f(pair + 4);
                    UNROLL for (int v = 0; v < NV; ++v) {
                        s.c[r][v] = fma(as_float(widen_low(weights[v])), x, s.c[r][v]);
                        s.c[r][v] = fma(as_float(widen_high(weights[v])), y, s.c[r][v]);
                    }
                }
            }
        }
        s.write(run.acc, run.acc_stride);
    }
};

// The j-th code of every lane as a float.
template <int j, bool Signed>
static inline F code_at(I codes) {
    if constexpr (Signed) return to_float(right_signed<24>(left<24 - 8 * j>(codes)));
    return to_float(and_i(right<8 * j>(codes), set1_i(0xff)));
}

// Four inputs of every lane, for two vectors, times the inputs of R rows; `x` is the first row's four inputs. Two vectors at
// a time, and inputs read anew for the next two (hence the pointer that the compiler must not know): all of them at once would
// not fit the registers.
template <int R, int NV, bool Narrow, bool Signed>
static inline void quad_products(Sums<R, NV>& s, int v, const I (&codes)[2], const char* x, size_t stride,
                                 const CodeTables& tables) {
    asm volatile("" : "+r"(x));
    if constexpr (Narrow) {
        I one[2], two[2];
        tables.pairs(codes[0], one[0], two[0]);
        tables.pairs(codes[1], one[1], two[1]);
        UNROLL for (int r = 0; r < R; ++r) {
            const I first = broadcast(x + r * stride), second = broadcast(x + r * stride + 4);
            UNROLL for (int i = 0; i < 2; ++i) s.c[r][v + i] = dot2(dot2(s.c[r][v + i], one[i], first), two[i], second);
        }
    } else {
        UNROLL for (int i = 0; i < 2; ++i) {
            const F w0 = code_at<0, Signed>(codes[i]), w1 = code_at<1, Signed>(codes[i]);
            const F w2 = code_at<2, Signed>(codes[i]), w3 = code_at<3, Signed>(codes[i]);
            UNROLL for (int r = 0; r < R; ++r) {
                const char* at = x + r * stride;
                s.c[r][v + i] = fma(w0, broadcast_f(at), s.c[r][v + i]);
                s.c[r][v + i] = fma(w1, broadcast_f(at + 4), s.c[r][v + i]);
                s.c[r][v + i] = fma(w2, broadcast_f(at + 8), s.c[r][v + i]);
                s.c[r][v + i] = fma(w3, broadcast_f(at + 12), s.c[r][v + i]);
            }
            asm volatile("" : "+r"(x));
        }
    }
}

// Quantised weights by output, floating inputs: the scale waits for the end.
template <bool Narrow>
struct Q8Kind {
    template <int R, int NV>
    static void tile(const Run& run) {
        const CodeTables tables;
        constexpr size_t quad = Narrow ? 8 : 16;
        Sums<R, NV> s;
        s.read(run.acc, run.acc_stride);
        for (int i = 0; i < run.steps; ++i) {
            const char* w = run.weights + size_t(i) * NV * kVector;
            ask(run, i);
            UNROLL for (int v = 0; v < NV; v += 2) {
                const I codes[2] = {load_i(w + v * kVector), load_i(w + (v + 1) * kVector)};
                quad_products<R, NV, Narrow, true>(s, v, codes, run.x + i * quad, run.stride, tables);
            }
        }
        s.write(run.acc, run.acc_stride);
    }
};

// Quantised weights by output, int8 inputs: exact integer sums.
struct Q8IntKind {
    template <int R, int NV>
    static void tile(const Run& run) {
        IntSums<R, NV> s;
        s.read(run.acc, run.acc_stride);
        for (int i = 0; i < run.steps; ++i) {
            const char* w = run.weights + size_t(i) * NV * kVector;
            I codes[NV];
            UNROLL for (int v = 0; v < NV; ++v) codes[v] = load_i(w + v * kVector);
            ask(run, i);
            UNROLL for (int r = 0; r < R; ++r) {
                const I x = broadcast(run.x + r * run.stride + size_t(i) * 4);
                UNROLL for (int v = 0; v < NV; ++v) s.c[r][v] = dot4(s.c[r][v], codes[v], x);
            }
        }
        s.write(run.acc, run.acc_stride);
    }
};

// A group's vectors: scales, minimums where there are any, then codes, eight bits or four to a code.
template <int NV, int Bits>
struct GroupView {
    static constexpr int kQuads = kGroup / 4;
    const char* at;
    bool minimums;
    F scale(int v) const { return load_half(reinterpret_cast<const uint16_t*>(at) + v * kLanes); }
    F minimum(int v) const { return load_half(reinterpret_cast<const uint16_t*>(at) + (NV + v) * kLanes); }
    I codes(int quad, int v) const {
        const char* data = at + (minimums ? 2 : 1) * NV * kLanes * 2;
        if constexpr (Bits == 8) return load_i(data + (size_t(quad) * NV + v) * kVector);
        const I both = load_i(data + (size_t(quad / 2) * NV + v) * kVector);
        return and_i(quad % 2 ? right<4>(both) : both, set1_i(0x0f0f0f0f));
    }
};

template <int Bits, bool Narrow>
struct GroupKind {
    template <int R, int NV>
    static void tile(const Run& run) {
        const CodeTables tables;
        constexpr size_t quad_bytes = Narrow ? 8 : 16;
        for (int g = 0; g < run.steps; ++g) {
            const GroupView<NV, Bits> group{run.weights + size_t(g) * NV * run.matrix->vector_step, run.matrix->minimums};
            const char* x = run.x + size_t(g) * GroupView<NV, Bits>::kQuads * quad_bytes;
            ask(run, g);
            Sums<R, NV> s;
            s.clear();
            for (int quad = 0; quad < GroupView<NV, Bits>::kQuads; ++quad)
                UNROLL for (int v = 0; v < NV; v += 2) {
                    const I codes[2] = {group.codes(quad, v), group.codes(quad, v + 1)};
                    quad_products<R, NV, Narrow, Bits == 8>(s, v, codes, x + quad * quad_bytes, run.stride, tables);
                }
            UNROLL for (int v = 0; v < NV; ++v) {
                const F scale = group.scale(v);
                const F minimum = run.matrix->minimums ? group.minimum(v) : mul(scale, set1(-float(run.matrix->zero_point)));
                UNROLL for (int r = 0; r < R; ++r) {
                    float* acc = run.acc + r * run.acc_stride + v * kLanes;
                    F total = fma(s.c[r][v], scale, load(acc));
                    if (Bits == 4) total = fma(minimum, set1(run.sum[r * run.groups + g]), total);
                    store(acc, total);
                }
            }
        }
    }
};

template <int Bits>
struct GroupIntKind {
    template <int R, int NV>
    static void tile(const Run& run) {
        for (int g = 0; g < run.steps; ++g) {
            const GroupView<NV, Bits> group{run.weights + size_t(g) * NV * run.matrix->vector_step, run.matrix->minimums};
            const char* x = run.x + size_t(g) * kGroup;
            ask(run, g);
            IntSums<R, NV> s;
            s.clear();
            UNROLL for (int quad = 0; quad < GroupView<NV, Bits>::kQuads; ++quad) {
                I codes[NV];
                UNROLL for (int v = 0; v < NV; ++v) codes[v] = group.codes(quad, v);
                UNROLL for (int r = 0; r < R; ++r) {
                    const I inputs = broadcast(x + r * run.stride + quad * 4);
                    UNROLL for (int v = 0; v < NV; ++v) s.c[r][v] = dot4(s.c[r][v], codes[v], inputs);
                }
            }
            UNROLL for (int r = 0; r < R; ++r) {
                const float input_scale = run.scale[r * run.groups + g];
                const int input_sum = int(bits_of(run.sum[r * run.groups + g]));
                const I shift = set1_i(run.matrix->minimums ? 0 : input_sum * run.matrix->zero_point);
                UNROLL for (int v = 0; v < NV; ++v) {
                    float* acc = run.acc + r * run.acc_stride + v * kLanes;
                    const F scale = mul(group.scale(v), set1(input_scale));
                    F total = fma(to_float(sub_i(s.c[r][v], shift)), scale, load(acc));
                    if (run.matrix->minimums) total = fma(group.minimum(v), set1(input_scale * float(input_sum)), total);
                    store(acc, total);
                }
            }
        }
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
template <class Kind>
static Tile quant_tile(int rows, int vectors) {
    return tile_of<Kind, 1, kMaxQuantRows>(rows, vectors);
}

static Tile find_tile(const Packed& m, int rows, int vectors) {
    const bool narrow = kBf16Inputs && m.inputs_as == InputKind::bf16, integer = m.inputs_as == InputKind::i8;
    switch (m.format) {
        case Format::f32: return dense_tile<F32Kind>(rows, vectors);
        case Format::bf16: return dense_tile<Bf16Kind>(rows, vectors);
        case Format::q8:
            if (integer) return m.grouped ? quant_tile<GroupIntKind<8>>(rows, vectors) : quant_tile<Q8IntKind>(rows, vectors);
            if (m.grouped)
                return narrow ? quant_tile<GroupKind<8, kBf16Inputs>>(rows, vectors) : quant_tile<GroupKind<8, false>>(rows, vectors);
            return narrow ? quant_tile<Q8Kind<kBf16Inputs>>(rows, vectors) : quant_tile<Q8Kind<false>>(rows, vectors);
        case Format::q4:
            if (integer) return quant_tile<GroupIntKind<4>>(rows, vectors);
            return narrow ? quant_tile<GroupKind<4, kBf16Inputs>>(rows, vectors) : quant_tile<GroupKind<4, false>>(rows, vectors);
    }
    return nullptr;
}

static int most_rows(Format format) {
    return format == Format::f32 || format == Format::bf16 ? kMaxRows : kMaxQuantRows;
}
