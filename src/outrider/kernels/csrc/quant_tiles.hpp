// Tiles of quantised weights: codes of eight or four bits, a scale for each output or for each group of 32 inputs.
#pragma once

// The j-th code of every lane as a float.
template <int j, bool Signed>
static inline F code_at(I codes) {
    if constexpr (Signed) return to_float(right_signed<24>(left<24 - 8 * j>(codes)));
    return to_float(and_i(right<8 * j>(codes), set1_i(0xff)));
}

// Four inputs of every lane, for two vectors, times the inputs of R rows; `x` is the first row's four inputs. Two
// vectors at a time, and inputs read anew for the next two (hence the pointer that the compiler must not know): all of
// them at once would not fit the registers.
template <int R, int NV, bool Narrow, bool Signed>
static inline void quad_products(Sums<R, NV>& s, int v, const I (&codes)[2], const char* x, size_t stride,
                                 const CodeTables& tables) {
    asm volatile("" : "+r"(x));
    if constexpr (Narrow) {
        I one[2], two[2];
        tables.pairs(codes[0], one[0], two[0]);
        tables.pairs(codes[1], one[1], two[1]);
        EACH (r, R) {
            const I first = broadcast(x + r * stride), second = broadcast(x + r * stride + 4);
            EACH (i, 2) s.c[r][v + i] = dot2(dot2(s.c[r][v + i], one[i], first), two[i], second);
        }
    } else {
        EACH (i, 2) {
            const F w0 = code_at<0, Signed>(codes[i]), w1 = code_at<1, Signed>(codes[i]);
            const F w2 = code_at<2, Signed>(codes[i]), w3 = code_at<3, Signed>(codes[i]);
            EACH (r, R) {
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
            UNROLL
            for (int v = 0; v < NV; v += 2) {
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
            EACH (v, NV) codes[v] = load_i(w + v * kVector);
            ask(run, i);
            EACH (r, R) {
                const I x = broadcast(run.x + r * run.stride + size_t(i) * 4);
                EACH (v, NV) s.c[r][v] = dot4(s.c[r][v], codes[v], x);
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
            const GroupView<NV, Bits> group{run.weights + size_t(g) * NV * run.matrix->vector_step,
                                            run.matrix->minimums};
            const char* x = run.x + size_t(g) * GroupView<NV, Bits>::kQuads * quad_bytes;
            ask(run, g);
            Sums<R, NV> s;
            s.clear();
            for (int quad = 0; quad < GroupView<NV, Bits>::kQuads; ++quad) UNROLL
            for (int v = 0; v < NV; v += 2) {
                const I codes[2] = {group.codes(quad, v), group.codes(quad, v + 1)};
                quad_products<R, NV, Narrow, Bits == 8>(s, v, codes, x + quad * quad_bytes, run.stride, tables);
            }
            EACH (v, NV) {
                const F scale = group.scale(v);
                const F minimum =
                    run.matrix->minimums ? group.minimum(v) : mul(scale, set1(-float(run.matrix->zero_point)));
                EACH (r, R) {
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
            const GroupView<NV, Bits> group{run.weights + size_t(g) * NV * run.matrix->vector_step,
                                            run.matrix->minimums};
            const char* x = run.x + size_t(g) * kGroup;
            ask(run, g);
            IntSums<R, NV> s;
            s.clear();
            UNROLL
            for (int quad = 0; quad < GroupView<NV, Bits>::kQuads; ++quad) {
                I codes[NV];
                EACH (v, NV) codes[v] = group.codes(quad, v);
                EACH (r, R) {
                    const I inputs = broadcast(x + r * run.stride + quad * 4);
                    EACH (v, NV) s.c[r][v] = dot4(s.c[r][v], codes[v], inputs);
                }
            }
            EACH (r, R) {
                const float input_scale = run.scale[r * run.groups + g];
                const int input_sum = int(bits_of(run.sum[r * run.groups + g]));
                const I shift = set1_i(run.matrix->minimums ? 0 : input_sum * run.matrix->zero_point);
                EACH (v, NV) {
                    float* acc = run.acc + r * run.acc_stride + v * kLanes;
                    const F scale = mul(group.scale(v), set1(input_scale));
                    F total = fma(to_float(sub_i(s.c[r][v], shift)), scale, load(acc));
                    if (run.matrix->minimums)
                        total = fma(group.minimum(v), set1(input_scale * float(input_sum)), total);
                    store(acc, total);
                }
            }
        }
    }
};

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
            if (integer)
                return m.grouped ? quant_tile<GroupIntKind<8>>(rows, vectors) : quant_tile<Q8IntKind>(rows, vectors);
            if (m.grouped)
                return narrow ? quant_tile<GroupKind<8, kBf16Inputs>>(rows, vectors)
                              : quant_tile<GroupKind<8, false>>(rows, vectors);
            return narrow ? quant_tile<Q8Kind<kBf16Inputs>>(rows, vectors) : quant_tile<Q8Kind<false>>(rows, vectors);
        case Format::q4:
            if (integer) return quant_tile<GroupIntKind<4>>(rows, vectors);
            return narrow ? quant_tile<GroupKind<4, kBf16Inputs>>(rows, vectors)
                          : quant_tile<GroupKind<4, false>>(rows, vectors);
    }
    return nullptr;
}

static int most_rows(Format format) {
    return format == Format::f32 || format == Format::bf16 ? kMaxRows : kMaxQuantRows;
}
