// A SPIRe draft: a few Llama blocks whose queries come from the draft's own residual stream, and whose keys and values
// are made of memory vectors: a target's states for committed positions, and for the draft's own a mixture over the
// depth of its stream.
#pragma once
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "decoder.hpp"
#include "matrix.hpp"
#include "memory.hpp"
#include "phases.hpp"
#include "pool.hpp"
#include "spire_ring.hpp"

namespace outrider {

struct SpireShape {
    int vocab_size, draft_vocab_size, hidden_size, num_heads, num_kv_heads, head_dim, num_layers;
    float norm_eps;
    int window;  // 0: everything earlier is seen
    int sink;
    bool sees_itself;  // a position is among its own keys, by its layer's input
    int slots, ring, positions;
    int group() const { return num_heads / num_kv_heads; }
    int attended() const { return num_heads * head_dim; }
    int kv_width() const { return 2 * num_kv_heads * head_dim; }
};

struct SpireLayer {
    PaddedVector input_norm, mlp_norm;
    MatrixPtr q, kv, out, gate_up, down;
};

// Matrices whose products are one phase: their blocks are its units, each thread's own first.
struct Products {
    struct Unit {
        int matrix, block;
    };

    Products() = default;
    explicit Products(std::vector<const Matrix*> matrices);
    const char* begin(int thread) const;

    std::vector<const Matrix*> matrices;
    std::vector<Unit> units;
    std::vector<int> bounds;  // of threads among the units
};

// One draft token of each of some sequences, checked.
struct SpireBatch {
    int rows;
    const int *tokens, *slots, *positions;
    float* logits;
};

// Positions to be remembered, checked: `states` is (layers, rows, hidden).
struct SpireStates {
    int rows;
    const int *slots, *positions;
    const float* states;
};

class SpireDraft {
public:
    // `mix` is (layers, layers + 1). Throws std::invalid_argument when a matrix has not the sizes that are asked for.
    SpireDraft(std::shared_ptr<Pool> pool, const SpireShape& shape, MatrixPtr embedding, MatrixPtr head,
               const float* norm, const float* mix, Rotations turns);

    // Throws std::invalid_argument when a matrix has not the sizes that the shape asks for.
    void add_layer(SpireLayer layer);
    void open(int slot);
    void close(int slot);
    // These throw std::invalid_argument for anything that does not fit; then nothing has changed.
    void remember(const SpireStates& states);
    void step(const SpireBatch& batch);
    const SpireShape& shape() const { return shape_; }
    // Of the matrices that a step multiplies with, each once.
    size_t nbytes() const;

private:
    friend class SpireStep;
    void check_places(int rows, const int* slots, const int* positions) const;

    std::shared_ptr<Pool> pool_;
    std::mutex turn_;  // callers take turns, whatever they call
    SpireShape shape_;
    MatrixPtr embedding_, head_;
    PaddedVector norm_;
    std::vector<float> mix_;
    Rotations turns_;
    std::vector<SpireLayer> layers_;
    SpireRing ring_;

    // One of each for every layer but the last two, which are of all layers: a step's end makes logits and memories.
    // Queries come with keys and values where a position sees itself.
    std::vector<Products> q_, out_, gate_up_, down_;
    Products memories_, last_;

    // Room that steps share.
    Memory stream_, depths_, queries_, attended_, inner_, remembered_;
    Phases phases_;
    std::vector<Memory> scratch_;
    std::vector<std::vector<Prepared>> prepared_;  // by thread, then by matrix of a phase
};

}  // namespace outrider
