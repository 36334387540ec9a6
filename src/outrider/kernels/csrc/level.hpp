// What one instruction-set level offers: sizes of its vectors, and its kernels as plain functions.
#pragma once
#include <cstddef>
#include <cstdint>

#include "numbers.hpp"

namespace outrider {

enum class Format { f32, bf16, q8, q4 };
enum class Gate { none, silu, gelu_tanh };

// How a row of inputs is stored for a product.
enum class InputKind { f32, f32_rounded, bf16, i8 };

// The kinds of code a quantised weight is stored as: what the level unpacks fastest.
enum class Codes { offset, twos_complement, sign_magnitude };

constexpr int kGroup = 32;      // inputs that share a scale in a grouped format
constexpr int kPadding = 64;    // floats; rows of activations are padded with zeros to this
constexpr int kKeyBlock = 128;  // keys whose softmax is taken together, at fixed absolute positions

// A run of outputs, stored as `vectors` vectors for each step of inputs.
struct Block {
    size_t offset;
    int first_vector;
    int vectors;
};

// A matrix as a level reads it. A step is one input (f32), two (bf16), four (q8) or, when grouped, 32 inputs.
struct Packed {
    Format format;
    Gate gate;
    InputKind inputs_as;
    Codes codes;
    bool grouped;
    bool minimums;   // Q4_1: every group has a minimum beside its scale
    int zero_point;  // code that means zero, where codes are offset
    int inputs, outputs;
    int steps;
    size_t vector_step;  // bytes of one vector's share of a step
    const char* data;
    const Block* blocks;
    const float* scales;  // by output, when not grouped (q8)
    const float* bias;    // by packed output, or null
};

// Rows as a product reads them: `scale` and `sum` have `groups` entries a row (sums are int32 bits for i8).
struct Inputs {
    const char* data;
    size_t stride;
    const float* scale;
    const float* sum;
    int groups;
};

// Rows that a product or attention writes: `stride` bytes apart, stored as `as` says; `add` is for f32 only.
struct Sink {
    char* out;
    size_t stride;
    InputKind as;
    bool add;
};

// The keys and values of one head in one slot of one layer: blocks of kKeyBlock positions, `block_stride` bytes apart.
struct Cache {
    char* keys;
    char* values;
    size_t block_stride;
    int head_dim;
    bool bf16;
};

// One block of attention for rows of `group` queries each; row r sees keys [low[r], high[r]) of the block, at least
// one.
struct Attend {
    Cache cache;
    const char* query;  // prepared, by row and head of the group, `query_stride` bytes apart
    size_t query_stride;
    int rows, group;
    int block;
    const int *low, *high;
    float* state;  // by query: maximum, sum, and from `lanes` on the weighted values
    char* scratch;
};

// Attention of one key/value head's queries over the keys that `entries` lists, at least one. Rows of keys, values and
// queries are `stride` floats apart, padded with zeros to whole vectors of every level.
struct Listed {
    const float *keys, *values;
    size_t stride;
    int head_dim;
    const int* entries;
    int count;
    const float* query;
    int group;
    float* scores;  // scratch: padded_row(count) floats by query
    float* out;     // (group, head_dim)
};

struct Level {
    const char* name;
    int lanes;         // floats in a vector
    int wide, narrow;  // vectors of a full and of a last block; whole blocks of keys are wide
    bool bf16_inputs;  // bfloat16 inputs stay narrow

    void (*multiply)(const Packed&, const Inputs&, int rows, int block, const char* then, const Sink&, float* scratch);
    void (*prepare)(const Packed&, const float* row, char* data, float* scale, float* sum);
    void (*norm)(float* out, const float* row, const float* weight, int width, float eps);
    void (*add)(float* out, const float* row, int width);
    void (*rotate)(float* head, const float* cosines, const float* sines, int half, float scale);
    void (*store_query)(const Cache&, const float* head, char* out);
    void (*append)(const Cache&, int position, const float* key, const float* value);
    void (*expect)(const Cache&, int position);
    void (*expect_block)(const Cache&, int block);
    void (*copy)(const Cache& from, int source, const Cache& to, int target);
    void (*attend)(const Attend&);
    void (*merge)(float* state, const float* part, int width);
    void (*finish)(InputKind as, char* out, const float* state, int head_dim);
    void (*attend_listed)(const Listed&);
};

// Floats of a row with its padding.
static inline size_t padded_row(int width) { return size_t(round_up(width, kPadding)); }

static inline size_t element_bytes(InputKind kind) {
    return kind == InputKind::i8 ? 1 : kind == InputKind::bf16 ? 2 : 4;
}

// Inputs that a step reads.
static inline int inputs_of_step(const Packed& m) {
    if (m.grouped) return kGroup;
    return m.format == Format::f32 ? 1 : m.format == Format::bf16 ? 2 : 4;
}

// Whether rows can be written as they are read; int8 and grouped inputs are prepared from a whole row.
static inline bool read_as_written(const Packed& m) { return m.inputs_as != InputKind::i8 && !m.grouped; }

// Bytes of scratch that a product of `rows` rows needs, and an attention of `queries`.
static inline size_t product_scratch(const Level& level, int rows) {
    return size_t(rows) * level.wide * level.lanes * sizeof(float);
}
static inline int padded_dim(const Level& level, int head_dim) {
    return round_up(head_dim, level.narrow * level.lanes);
}
static inline size_t attend_scratch(int queries) { return size_t(queries) * kKeyBlock * 8; }
static inline int state_stride(const Level& level, int head_dim) { return level.lanes + padded_dim(level, head_dim); }

}  // namespace outrider
