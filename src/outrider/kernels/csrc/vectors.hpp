// Operations on one row: exponential, norms, activations, and rounding rows for products.
#pragma once

// e^x in single precision: x = n ln 2 + r, |r| <= ln 2 / 2, then Taylor's series to r^7 (error below one unit in the
// last place), and n into the exponent. Below -87 the result is that of -87, above 88 that of 88.
static inline F exponential(F x) {
    // In this order what is not a number stays one.
    x = max(set1(-87.0f), min(set1(88.0f), x));
    const F n = round(mul(x, set1(1.44269504f)));
    // ln 2 in two parts, the first short enough that n times it is exact.
    F r = fma(n, set1(-0.693359375f), x);
    r = fma(n, set1(2.12194440e-4f), r);
    F p = set1(1.0f / 5040);
    p = fma(p, r, set1(1.0f / 720));
    p = fma(p, r, set1(1.0f / 120));
    p = fma(p, r, set1(1.0f / 24));
    p = fma(p, r, set1(1.0f / 6));
    p = fma(p, r, set1(0.5f));
    p = fma(p, r, set1(1.0f));
    p = fma(p, r, set1(1.0f));
    return as_float(add_i(as_int(p), left<23>(to_int(n))));
}

static inline F activated(Gate gate, F x) {
    if (gate == Gate::silu) return div(x, add(set1(1.0f), exponential(sub(zero(), x))));
    // 0.5 x (1 + tanh u) = x / (1 + e^-2u), u = sqrt(2 / pi) (x + 0.044715 x^3).
    const F cubic = fma(mul(mul(x, x), x), set1(0.044715f), x);
    return div(x, add(set1(1.0f), exponential(mul(cubic, set1(-1.5957691216f)))));
}

// To bfloat16, to nearest, ties to even, in the low half of every lane; NaN stays NaN.
static inline I rounded_bits(F x) {
    const I bits = as_int(x);
    const I odd = and_i(right<16>(bits), set1_i(1));
    // A NaN would round to an infinity or overflow: it becomes the plain one.
    return where_nan(x, set1_i(0x7fc0), right<16>(add_i(bits, add_i(odd, set1_i(0x7fff)))));
}
#if !defined(__AVX512BF16__)
static inline void store_bf16(void* p, F x) { store_low16(p, rounded_bits(x)); }
#endif
static inline F rounded(F x) { return as_float(left<16>(rounded_bits(x))); }

// RMS norm (Zhang & Sennrich 2019); rows are padded with zeros, and so are weights.
static void norm_row(float* out, const float* row, const float* weight, int width, float eps) {
    const int padded = round_up(width, kPadding);
    F squares = zero();
    for (int i = 0; i < padded; i += kLanes) squares = fma(load(row + i), load(row + i), squares);
    const F scale = set1(1.0f / __builtin_sqrtf(total(squares) / float(width) + eps));
    for (int i = 0; i < padded; i += kLanes) store(out + i, mul(mul(load(row + i), scale), load(weight + i)));
    // The padding of a row that is not finite would not be zero.
    for (int i = width; i < padded; ++i) out[i] = 0.0f;
}

static void add_row(float* out, const float* row, int width) {
    for (int i = 0; i < round_up(width, kPadding); i += kLanes) store(out + i, add(load(out + i), load(row + i)));
}

// Whole vectors of a row as products read them.
static void round_row(InputKind kind, const float* row, int width, char* data) {
    if (kind == InputKind::bf16) {
        for (int i = 0; i < width; i += kLanes) store_bf16(data + i * 2, load(row + i));
    } else if (kind == InputKind::f32_rounded) {
        for (int i = 0; i < width; i += kLanes) store(reinterpret_cast<float*>(data) + i, rounded(load(row + i)));
    } else {
        std::memcpy(data, row, size_t(width) * sizeof(float));
    }
}

// Symmetric int8, to nearest: `width` inputs, a multiple of 32, share one scale.
static void quantise(const float* row, int width, char* data, float* scale, float* sum) {
    F largest = zero(), nothing = zero();
    for (int i = 0; i < width; i += kLanes) {
        largest = max(absolute(load(row + i)), largest);
        nothing = fma(load(row + i), zero(), nothing);
    }
    const float top = highest(largest);
    // What is not finite is not a number once it is multiplied by zero; the scale says so, since a code cannot.
    const float finite = total(nothing);
    const float step = top / 127.0f;
    // Of numbers too small to divide by nothing is left.
    const F inverse = set1(step > 0x1p-120f ? 1.0f / step : 0.0f);
    I codes_sum = zero_i();
    for (int i = 0; i < width; i += kLanes) {
        const I codes = finite == 0.0f ? to_int(mul(load(row + i), inverse)) : zero_i();
        codes_sum = add_i(codes_sum, codes);
        store_low8(data + i, codes);
    }
    alignas(64) int32_t lanes[kLanes];
    store_i(lanes, codes_sum);
    int32_t all = 0;
    for (int i = 0; i < kLanes; ++i) all += lanes[i];
    *scale = step + finite;
    *sum = float_of(uint32_t(all));
}

static void prepare_row(const Packed& m, const float* row, char* data, float* scale, float* sum) {
    const int width = round_up(m.inputs, kPadding);
    if (m.inputs_as != InputKind::i8) {
        round_row(m.inputs_as, row, width, data);
        if (!m.grouped) return;
        for (int g = 0; g < m.steps; ++g) {
            F part = zero();
            for (int i = 0; i < kGroup; i += kLanes) {
                const F x = load(row + g * kGroup + i);
                part = add(part, m.inputs_as == InputKind::f32 ? x : rounded(x));
            }
            sum[g] = total(part);
        }
    } else if (m.grouped) {
        for (int g = 0; g < m.steps; ++g) quantise(row + g * kGroup, kGroup, data + g * kGroup, scale + g, sum + g);
    } else {
        quantise(row, width, data, scale, sum);
    }
}
