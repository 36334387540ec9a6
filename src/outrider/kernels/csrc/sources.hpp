// What a matrix can be packed from.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "matrix.hpp"
#include "numbers.hpp"

namespace outrider {

class FloatSource final : public Source {
public:
    FloatSource(const float* values, int columns) : values_(values), columns_(columns) {}
    float value(int row, int column) const override { return values_[size_t(row) * columns_ + column]; }

private:
    const float* values_;
    int columns_;
};

class Bf16Source final : public Source {
public:
    Bf16Source(const uint16_t* values, int columns) : values_(values), columns_(columns) {}
    float value(int row, int column) const override { return from_bf16(values_[size_t(row) * columns_ + column]); }

private:
    const uint16_t* values_;
    int columns_;
};

// Symmetric int8 of given values: the largest of an output, or of 32 inputs, becomes 127.
class Int8Source final : public Source {
public:
    Int8Source(const float* values, int rows, int columns, bool grouped)
        : values_(values),
          columns_(columns),
          width_(grouped ? kGroup : columns),
          groups_((columns + width_ - 1) / width_),
          grouped_(grouped),
          scales_(size_t(rows) * groups_) {
        for (int row = 0; row < rows; ++row) {
            for (int group = 0; group < groups_; ++group) {
                float top = 0.0f, nothing = 0.0f;
                for (int i = group * width_; i < std::min(columns, (group + 1) * width_); ++i) {
                    const float value = values[size_t(row) * columns + i];
                    top = std::max(top, std::fabs(value));
                    nothing += value * 0.0f;
                }
                // A scale that is no number says of its weights what their codes cannot.
                const float scale = top / 127.0f + nothing;
                scales_[size_t(row) * groups_ + group] = grouped ? from_half(to_half(scale)) : scale;
            }
        }
    }
    const float* scales() const { return grouped_ ? nullptr : scales_.data(); }
    uint16_t scale(int row, int group) const override { return to_half(scales_[size_t(row) * groups_ + group]); }
    int code(int row, int column) const override {
        const float scale = scales_[size_t(row) * groups_ + column / width_];
        if (!(scale > 0.0f)) return 0;
        return int(std::nearbyint(std::clamp(values_[size_t(row) * columns_ + column] / scale, -127.0f, 127.0f)));
    }

private:
    const float* values_;
    int columns_, width_, groups_;
    bool grouped_;
    std::vector<float> scales_;
};

enum class BlockKind { q8_0, q4_0, q4_1 };

inline int bytes_of_block(BlockKind kind) { return kind == BlockKind::q8_0 ? 34 : kind == BlockKind::q4_0 ? 18 : 20; }

// Blocks of 32 as GGUF stores them: a half-precision scale, for Q4_1 a minimum, then codes; of four-bit codes, the
// first sixteen are low halves of bytes.
class BlockSource final : public Source {
public:
    BlockSource(const uint8_t* bytes, int stride, BlockKind kind) : bytes_(bytes), stride_(stride), kind_(kind) {}
    uint16_t scale(int row, int group) const override { return half(block(row, group)); }
    uint16_t minimum(int row, int group) const override { return half(block(row, group) + 2); }
    int code(int row, int column) const override {
        const uint8_t* codes = block(row, column / kGroup) + (kind_ == BlockKind::q4_1 ? 4 : 2);
        const int i = column % kGroup;
        if (kind_ == BlockKind::q8_0) return int8_t(codes[i]);
        return i < 16 ? codes[i] & 15 : codes[i - 16] >> 4;
    }
    bool has_code(int wanted, int rows, int columns) const {
        if (kind_ != BlockKind::q8_0) return false;
        for (int row = 0; row < rows; ++row)
            for (int column = 0; column < columns; ++column)
                if (code(row, column) == wanted) return true;
        return false;
    }

private:
    const uint8_t* block(int row, int group) const {
        return bytes_ + size_t(row) * stride_ + group * bytes_of_block(kind_);
    }
    static uint16_t half(const uint8_t* at) {
        uint16_t bits;
        std::memcpy(&bits, at, 2);
        return bits;
    }

    const uint8_t* bytes_;
    int stride_;
    BlockKind kind_;
};

}  // namespace outrider
