// A weight packed for the level and the threads of one pool.
#pragma once
#include <memory>
#include <vector>

#include "level.hpp"
#include "memory.hpp"
#include "pool.hpp"

namespace outrider {

// Values or codes of a weight before packing, by row and column.
class Source {
public:
    virtual ~Source() = default;
    // Of a dense format.
    virtual float value(int, int) const { return 0.0f; }
    // Of a quantised one: whole numbers; scale and minimum of a group as half-precision bits.
    virtual int code(int, int) const { return 0; }
    virtual uint16_t scale(int, int) const { return 0; }
    virtual uint16_t minimum(int, int) const { return 0; }
};

struct MatrixShape {
    Format format;
    InputKind inputs_as;
    Gate gate;
    bool grouped = false;
    bool minimums = false;
    int zero_point = 0;
    int rows = 0;  // of the source; outputs are half as many when gated
    int inputs = 0;
};

class Matrix {
public:
    // Packs the source; `scales` by source row (q8 without groups) and `bias` by source row may be null.
    Matrix(std::shared_ptr<Pool> pool, const MatrixShape& shape, const Source& source, const float* scales,
           const float* bias);

    const Packed& packed() const { return packed_; }
    const std::shared_ptr<Pool>& pool() const { return pool_; }
    int outputs() const { return packed_.outputs; }
    int inputs() const { return packed_.inputs; }
    size_t nbytes() const { return data_.size() + scales_.size() + bias_.size(); }

    // The blocks that are a thread's to begin with: parts()[thread] to parts()[thread + 1].
    const std::vector<int>& parts() const { return parts_; }
    // Where a thread's part of the weights begins, and what follows a block: what to fetch ahead.
    const char* begin(int thread) const;
    const char* after(int block) const;

    // The product of `rows` rows, one behind the other, with everything that belongs to it.
    void multiply(const float* x, int rows, float* out) const;
    // Row `output` of the weights as products see them.
    void read_row(int output, float* out) const;

private:
    void lay_out(const MatrixShape& shape);
    void pack_block(const Block& block, const MatrixShape& shape, const Source& source, const float* scales,
                    const float* bias);
    void pack_step(char* at, const Block& block, int step, const MatrixShape& shape, const Source& source);
    int source_row(int vector, int lane) const;
    uint8_t encoded(int code) const;
    int decoded(uint8_t byte) const;

    std::shared_ptr<Pool> pool_;
    Packed packed_;
    Memory data_, scales_, bias_;
    std::vector<Block> blocks_;
    std::vector<int> parts_, block_of_vector_;
};

// Inputs of a product, as prepared by one thread or by all.
class Prepared {
public:
    // Room for `rows` rows of any matrix of this many inputs.
    void reserve(int rows, int inputs);
    Inputs view(const Packed& packed) const;
    void prepare(const Level& level, const Packed& packed, int row, const float* values);

private:
    Memory data_, scale_, sum_;
};

}  // namespace outrider
