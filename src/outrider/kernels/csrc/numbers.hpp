// Scalar conversions between storage formats. Static, so that every level compiles its own.
#pragma once
#include <cstdint>
#include <cstring>

static inline uint32_t bits_of(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    return bits;
}

static inline float float_of(uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}

static inline float from_bf16(uint16_t bits) { return float_of(uint32_t(bits) << 16); }

// To nearest, ties to even; a NaN stays one.
static inline uint16_t to_bf16(float value) {
    const uint32_t bits = bits_of(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return uint16_t(bits >> 16) | 0x40;
    return uint16_t((bits + 0x7fffu + ((bits >> 16) & 1)) >> 16);
}

static inline float from_half(uint16_t half) {
    const uint32_t sign = uint32_t(half & 0x8000) << 16, rest = half & 0x7fff;
    if (rest >= 0x7c00) return float_of(sign | 0x7f800000u | ((rest & 0x3ff) << 13));
    // The exponent is rebased by a product, which is exact and covers subnormal halves too.
    return float_of(sign | bits_of(float_of(rest << 13) * 0x1p112f));
}

// To nearest, ties to even; too large becomes infinity.
static inline uint16_t to_half(float value) {
    const uint32_t sign = (bits_of(value) >> 16) & 0x8000, rest = bits_of(value) & 0x7fffffffu;
    if (rest > 0x7f800000u) return uint16_t(sign | 0x7e00);
    if (rest >= 0x477ff000u) return uint16_t(sign | 0x7c00);
    if (rest < 0x38800000u) {
        // Below the smallest normal half, the float adder rounds at the right bit.
        return uint16_t(sign | (bits_of(float_of(rest) + 0.5f) - bits_of(0.5f)));
    }
    return uint16_t(sign | ((rest - 0x38000000u + 0xfffu + ((rest >> 13) & 1)) >> 13));
}

static inline int round_up(int value, int step) { return (value + step - 1) / step * step; }
