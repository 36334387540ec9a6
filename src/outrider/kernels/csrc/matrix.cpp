#include "matrix.hpp"

#include <algorithm>
#include <cstring>

#include "numbers.hpp"

namespace outrider {

namespace {

size_t vector_step(const Packed& m, int lanes) {
    const size_t vector = size_t(lanes) * 4;
    if (!m.grouped) return vector;
    const size_t halves = size_t(lanes) * 2 * (m.minimums ? 2 : 1);
    return halves + vector * (m.format == Format::q8 ? 8 : 4);
}

// Where a code lies among the codes of a group or step: low or high half of a byte for q4.
struct CodePlace {
    size_t byte;
    bool high;
};

CodePlace code_place(const Packed& m, int lanes, const Block& block, int vector, int lane, int column) {
    const size_t quad = column / 4, bytes = size_t(lanes) * 4;
    const size_t within = size_t(lane) * 4 + column % 4;
    if (m.format == Format::q4) return {((quad / 2) * block.vectors + vector) * bytes + within, quad % 2 == 1};
    return {(quad * block.vectors + vector) * bytes + within, false};
}

}  // namespace

Matrix::Matrix(std::shared_ptr<Pool> pool, const MatrixShape& shape, const Source& source, const float* scales,
               const float* bias)
    : pool_(std::move(pool)) {
    lay_out(shape);
    const size_t by_output = size_t(block_of_vector_.size()) * pool_->level().lanes * sizeof(float);
    if (scales != nullptr) scales_ = Memory(by_output);
    if (bias != nullptr) bias_ = Memory(by_output);
    packed_.data = data_.as<char>();
    packed_.blocks = blocks_.data();
    packed_.scales = scales_.as<float>();
    packed_.bias = bias_.as<float>();
    pool_->each(int(blocks_.size()), [&](int b) { pack_block(blocks_[b], shape, source, scales, bias); });
}

void Matrix::lay_out(const MatrixShape& shape) {
    const Level& level = pool_->level();
    packed_ = Packed{};
    packed_.format = shape.format;
    packed_.gate = shape.gate;
    packed_.inputs_as = shape.inputs_as;
    packed_.grouped = shape.grouped;
    packed_.minimums = shape.minimums;
    packed_.zero_point = shape.zero_point;
    packed_.codes = shape.inputs_as == InputKind::i8     ? Codes::offset
                    : shape.inputs_as == InputKind::bf16 ? Codes::sign_magnitude
                                                         : Codes::twos_complement;
    packed_.inputs = shape.inputs;
    packed_.outputs = shape.gate == Gate::none ? shape.rows : shape.rows / 2;
    packed_.steps = (shape.inputs + inputs_of_step(packed_) - 1) / inputs_of_step(packed_);
    packed_.vector_step = vector_step(packed_, level.lanes);

    const int lanes_of_unit = (shape.gate == Gate::none ? level.narrow : level.narrow / 2) * level.lanes;
    const int units = (packed_.outputs + lanes_of_unit - 1) / lanes_of_unit, threads = pool_->threads();
    size_t offset = 0;
    parts_.push_back(0);
    for (int thread = 0; thread < threads; ++thread) {
        int vector = int(int64_t(units) * thread / threads) * level.narrow;
        const int end = int(int64_t(units) * (thread + 1) / threads) * level.narrow;
        while (vector < end) {
            const int vectors = end - vector >= level.wide ? level.wide : level.narrow;
            block_of_vector_.resize(vector + vectors, int(blocks_.size()));
            blocks_.push_back({offset, vector, vectors});
            offset += packed_.vector_step * packed_.steps * vectors;
            vector += vectors;
        }
        parts_.push_back(int(blocks_.size()));
    }
    data_ = Memory(offset, true);
}

const char* Matrix::begin(int thread) const {
    const int block = std::min(parts_[thread], int(blocks_.size()) - 1);
    return packed_.data + blocks_[block].offset;
}

int Matrix::source_row(int vector, int lane) const {
    const int lanes = pool_->level().lanes;
    if (packed_.gate == Gate::none) {
        const int output = vector * lanes + lane;
        return output < packed_.outputs ? output : -1;
    }
    // Vectors of the gate and of the up projection alternate, so that one thread has both.
    const int output = vector / 2 * lanes + lane;
    return output < packed_.outputs ? output + vector % 2 * packed_.outputs : -1;
}

void Matrix::pack_block(const Block& block, const MatrixShape& shape, const Source& source, const float* scales,
                        const float* bias) {
    const int lanes = pool_->level().lanes;
    char* data = data_.as<char>() + block.offset;
    for (int step = 0; step < packed_.steps; ++step)
        pack_step(data + size_t(step) * block.vectors * packed_.vector_step, block, step, shape, source);
    for (int v = 0; v < block.vectors; ++v) {
        for (int lane = 0; lane < lanes; ++lane) {
            const int row = source_row(block.first_vector + v, lane);
            const size_t at = size_t(block.first_vector + v) * lanes + lane;
            if (row >= 0 && scales != nullptr) scales_.as<float>()[at] = scales[row];
            if (row >= 0 && bias != nullptr) bias_.as<float>()[at] = bias[row];
        }
    }
}

void Matrix::pack_step(char* at, const Block& block, int step, const MatrixShape& shape, const Source& source) {
    const int lanes = pool_->level().lanes, width = inputs_of_step(packed_), first = step * width;
    const size_t halves = size_t(block.vectors) * lanes;
    char* codes = packed_.grouped ? at + halves * (packed_.minimums ? 4 : 2) : at;
    for (int v = 0; v < block.vectors; ++v) {
        for (int lane = 0; lane < lanes; ++lane) {
            const int row = source_row(block.first_vector + v, lane);
            if (packed_.grouped && row >= 0) {
                uint16_t* half = reinterpret_cast<uint16_t*>(at) + v * lanes + lane;
                half[0] = source.scale(row, step);
                if (packed_.minimums) half[halves] = source.minimum(row, step);
            }
            for (int i = 0; i < width; ++i) {
                const bool inside = row >= 0 && first + i < shape.inputs;
                const size_t element = (size_t(v) * lanes + lane) * width + i;
                if (shape.format == Format::f32) {
                    const float value = inside ? source.value(row, first + i) : 0.0f;
                    std::memcpy(codes + element * 4, &value, 4);
                } else if (shape.format == Format::bf16) {
                    const uint16_t bits = inside ? to_bf16(source.value(row, first + i)) : 0;
                    std::memcpy(codes + element * 2, &bits, 2);
                } else {
                    const CodePlace place = code_place(packed_, lanes, block, v, lane, i);
                    const int code = inside ? source.code(row, first + i) : 0;
                    if (shape.format == Format::q8) codes[place.byte] = char(encoded(code));
                    else codes[place.byte] = char(codes[place.byte] | (code << (place.high ? 4 : 0)));
                }
            }
        }
    }
}

uint8_t Matrix::encoded(int code) const {
    switch (packed_.codes) {
        case Codes::offset: return uint8_t(code + 128);
        case Codes::sign_magnitude: return uint8_t(code < 0 ? 0x80 | -code : code);
        case Codes::twos_complement: return uint8_t(int8_t(code));
    }
    return 0;
}

int Matrix::decoded(uint8_t byte) const {
    switch (packed_.codes) {
        case Codes::offset: return int(byte) - 128;
        case Codes::sign_magnitude: return byte & 0x80 ? -int(byte & 0x7f) : byte;
        case Codes::twos_complement: return int8_t(byte);
    }
    return 0;
}

void Matrix::read_row(int output, float* out) const {
    const int lanes = pool_->level().lanes, vector = output / lanes, lane = output % lanes;
    const Block& block = blocks_[block_of_vector_[vector]];
    const int v = vector - block.first_vector, width = inputs_of_step(packed_);
    const size_t halves = size_t(block.vectors) * lanes, step_bytes = block.vectors * packed_.vector_step;
    for (int column = 0; column < packed_.inputs; ++column) {
        const char* at = packed_.data + block.offset + size_t(column / width) * step_bytes;
        const size_t element = (size_t(v) * lanes + lane) * width + column % width;
        if (packed_.format == Format::f32) {
            std::memcpy(out + column, at + element * 4, 4);
        } else if (packed_.format == Format::bf16) {
            uint16_t bits;
            std::memcpy(&bits, at + element * 2, 2);
            out[column] = from_bf16(bits);
        } else {
            const uint16_t* half = reinterpret_cast<const uint16_t*>(at) + v * lanes + lane;
            const char* codes = packed_.grouped ? at + halves * (packed_.minimums ? 4 : 2) : at;
            const CodePlace place = code_place(packed_, lanes, block, v, lane, column % width);
            const uint8_t byte = uint8_t(codes[place.byte]);
            if (packed_.format == Format::q4) {
                const float scale = from_half(half[0]), code = float(place.high ? byte >> 4 : byte & 15);
                const float least = packed_.minimums ? from_half(half[halves]) : -scale * float(packed_.zero_point);
                out[column] = scale * code + least;
            } else {
                const float scale =
                    packed_.grouped ? from_half(half[0]) : packed_.scales[size_t(vector) * lanes + lane];
                out[column] = scale * float(decoded(byte));
            }
        }
    }
}

void Matrix::multiply(const float* x, int rows, float* out) const {
    if (rows == 0) return;
    const Level& level = pool_->level();
    Prepared prepared;
    prepared.reserve(rows, packed_.inputs);
    const Memory padded(padded_row(packed_.inputs) * sizeof(float));
    for (int row = 0; row < rows; ++row) {
        std::memcpy(padded.as<float>(), x + size_t(row) * packed_.inputs, packed_.inputs * sizeof(float));
        prepared.prepare(level, packed_, row, padded.as<float>());
    }
    const Sink sink{reinterpret_cast<char*>(out), packed_.outputs * sizeof(float), InputKind::f32, false};
    const Inputs inputs = prepared.view(packed_);
    const size_t sums = product_scratch(level, rows);
    const Memory scratch(sums * blocks_.size());
    pool_->each(int(blocks_.size()), [&](int b) {
        level.multiply(packed_, inputs, rows, b, after(b), sink, scratch.as<float>() + b * sums / sizeof(float));
    });
}

const char* Matrix::after(int block) const {
    return block + 1 < int(blocks_.size()) ? packed_.data + blocks_[block + 1].offset : packed_.data;
}

void Prepared::reserve(int rows, int inputs) {
    const size_t padded = padded_row(inputs);
    data_.reserve(rows * padded * 4);
    scale_.reserve(rows * (padded / kGroup) * 4);
    sum_.reserve(rows * (padded / kGroup) * 4);
}

Inputs Prepared::view(const Packed& packed) const {
    return {data_.as<char>(), padded_row(packed.inputs) * element_bytes(packed.inputs_as), scale_.as<float>(),
            sum_.as<float>(), packed.grouped ? packed.steps : 1};
}

void Prepared::prepare(const Level& level, const Packed& packed, int row, const float* values) {
    const Inputs inputs = view(packed);
    const size_t first = size_t(row) * inputs.groups;
    level.prepare(packed, values, data_.as<char>() + row * inputs.stride, scale_.as<float>() + first,
                  sum_.as<float>() + first);
}

}  // namespace outrider
