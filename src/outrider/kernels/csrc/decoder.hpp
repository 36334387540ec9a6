// A decoder's weights and its key/value slots; one step is one packed forward.
#pragma once
#include <memory>
#include <mutex>
#include <vector>

#include "matrix.hpp"
#include "memory.hpp"
#include "phases.hpp"
#include "pool.hpp"
#include "slots.hpp"

namespace outrider {

using MatrixPtr = std::shared_ptr<Matrix>;

// A vector padded with zeros, as rows are; empty when the model has none.
class PaddedVector {
public:
    PaddedVector() = default;
    PaddedVector(const float* values, int size);
    const float* data() const { return memory_.as<float>(); }

private:
    Memory memory_;
};

struct DecoderShape {
    int vocab_size, hidden_size, num_heads, num_kv_heads, head_dim, num_layers;
    float norm_eps, attention_scale, embedding_scale;
    int window;  // 0: none
    int slots, positions;
    bool bf16_kv;
    int group() const { return num_heads / num_kv_heads; }
};

struct Layer {
    bool local;
    PaddedVector input_norm, q_norm, k_norm, post_attention_norm, mlp_norm, post_mlp_norm;
    MatrixPtr qkv, out, gate_up, down;
};

// Cosines and sines by position, (positions, head_dim / 2).
struct Rotations {
    std::vector<float> cosines, sines;
};

// One packed forward, checked. Rows of a feed follow each other; `parents` is null for chains.
struct Batch {
    int rows, feeds, wanted;
    const int *tokens, *slots, *starts, *counts, *wanted_rows, *parents;
    float* logits;
    float* hidden;  // or null
    int layers;     // states are asked for after so many layers, listed in `layer_list`
    const int* layer_list;
    float* states;  // (layers, rows, hidden): of every row
};

class Decoder {
public:
    Decoder(std::shared_ptr<Pool> pool, const DecoderShape& shape, MatrixPtr embedding, MatrixPtr head,
            const float* norm, Rotations global, Rotations local);

    // Throws std::invalid_argument when a matrix has not the sizes that the shape asks for.
    void add_layer(Layer layer);
    // Throws std::invalid_argument for anything that does not fit; then nothing has changed.
    void step(const Batch& batch);

    void open(int slot);
    void close(int slot);
    void move(int slot, const int* sources, int count, int target);
    const DecoderShape& shape() const { return shape_; }
    size_t nbytes() const;

private:
    friend class Step;
    void check(const Batch& batch) const;
    void check_tree(const Batch& batch) const;

    std::shared_ptr<Pool> pool_;
    std::mutex turn_;  // callers take turns, whatever they call
    DecoderShape shape_;
    MatrixPtr embedding_, head_;
    PaddedVector norm_;
    Rotations global_, local_;
    std::vector<Layer> layers_;
    Slots slots_;

    // Room that steps share.
    Memory stream_, projected_, attended_, inner_, side_, queries_, parts_, joined_;
    Phases phases_;
    std::vector<Memory> scratch_;
    std::vector<Prepared> prepared_;
};

}  // namespace outrider
