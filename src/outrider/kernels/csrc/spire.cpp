#include "spire.hpp"

#include <set>

#include "checks.hpp"
#include "spire_step.hpp"

namespace outrider {

Products::Products(std::vector<const Matrix*> list) : matrices(std::move(list)) {
    const int threads = int(matrices[0]->parts().size()) - 1;
    bounds.push_back(0);
    for (int thread = 0; thread < threads; ++thread) {
        for (int m = 0; m < int(matrices.size()); ++m) {
            const std::vector<int>& parts = matrices[m]->parts();
            for (int block = parts[thread]; block < parts[thread + 1]; ++block) units.push_back({m, block});
        }
        bounds.push_back(int(units.size()));
    }
}

// Where the weights that a thread reads first begin.
const char* Products::begin(int thread) const { return matrices[0]->begin(thread); }

SpireDraft::SpireDraft(std::shared_ptr<Pool> pool, const SpireShape& shape, MatrixPtr embedding, MatrixPtr head,
                       const float* norm, const float* mix, Rotations turns)
    : pool_(std::move(pool)),
      shape_(shape),
      embedding_(std::move(embedding)),
      head_(std::move(head)),
      norm_(norm, shape.hidden_size),
      mix_(mix, mix + size_t(shape.num_layers) * (shape.num_layers + 1)),
      turns_(std::move(turns)),
      ring_(shape.num_layers, shape.slots, shape.num_kv_heads, shape.head_dim, shape.sink, shape.ring),
      phases_(*pool_),
      scratch_(pool_->threads()) {
    check_sizes("embedding", *embedding_, shape.vocab_size, shape.hidden_size, false);
    check_matrix("head", *head_, pool_, shape.draft_vocab_size, shape.hidden_size, false);
    prepared_.resize(pool_->threads());
    for (std::vector<Prepared>& each : prepared_) each.resize(shape.num_layers + 1);
}

void SpireDraft::add_layer(SpireLayer layer) {
    std::lock_guard<std::mutex> lock(turn_);
    const SpireShape& s = shape_;
    if (int(layers_.size()) == s.num_layers) refuse("the draft has all of its " + text(s.num_layers) + " layers");
    check_matrix("q", *layer.q, pool_, s.attended(), s.hidden_size, false);
    check_matrix("kv", *layer.kv, pool_, s.kv_width(), s.hidden_size, false);
    check_matrix("out", *layer.out, pool_, s.hidden_size, s.attended(), false);
    check_matrix("gate_up", *layer.gate_up, pool_, layer.gate_up->outputs(), s.hidden_size, true);
    check_matrix("down", *layer.down, pool_, s.hidden_size, layer.gate_up->outputs(), false);
    layers_.push_back(std::move(layer));
    if (int(layers_.size()) < s.num_layers) return;
    std::vector<const Matrix*> memories;
    for (const SpireLayer& each : layers_) {
        q_.push_back(shape_.sees_itself ? Products({each.q.get(), each.kv.get()}) : Products({each.q.get()}));
        out_.push_back(Products({each.out.get()}));
        gate_up_.push_back(Products({each.gate_up.get()}));
        down_.push_back(Products({each.down.get()}));
        memories.push_back(each.kv.get());
    }
    memories_ = Products(memories);
    memories.push_back(head_.get());
    last_ = Products(memories);
}

size_t SpireDraft::nbytes() const {
    std::set<const Matrix*> matrices{head_.get()};
    for (const SpireLayer& layer : layers_)
        matrices.insert({layer.q.get(), layer.kv.get(), layer.out.get(), layer.gate_up.get(), layer.down.get()});
    size_t bytes = 0;
    for (const Matrix* matrix : matrices) bytes += matrix->nbytes();
    return bytes;
}

void SpireDraft::open(int slot) {
    std::lock_guard<std::mutex> lock(turn_);
    ring_.open(slot);
}

void SpireDraft::close(int slot) {
    std::lock_guard<std::mutex> lock(turn_);
    ring_.close(slot);
}

void SpireDraft::check_places(int rows, const int* slots, const int* positions) const {
    for (int row = 0; row < rows; ++row) {
        ring_.need_open(slots[row]);
        check_range("position", positions[row], shape_.positions);
    }
}

void SpireDraft::remember(const SpireStates& states) {
    std::lock_guard<std::mutex> lock(turn_);
    check_layers("the draft", layers_.size(), shape_.num_layers);
    check_places(states.rows, states.slots, states.positions);
    if (states.rows == 0) return;
    SpireStep step(*this, states);
    pool_->run([&](int thread) { step.remember(thread); });
    for (int row = 0; row < states.rows; ++row) ring_.mark(states.slots[row], states.positions[row]);
}

void SpireDraft::step(const SpireBatch& batch) {
    std::lock_guard<std::mutex> lock(turn_);
    check_layers("the draft", layers_.size(), shape_.num_layers);
    check_places(batch.rows, batch.slots, batch.positions);
    std::vector<bool> taken(shape_.slots);
    for (int row = 0; row < batch.rows; ++row) {
        check_range("token", batch.tokens[row], shape_.vocab_size);
        if (taken[batch.slots[row]]) refuse("slot " + text(batch.slots[row]) + " has two tokens");
        taken[batch.slots[row]] = true;
    }
    if (batch.rows == 0) return;
    SpireStep step(*this, batch);
    pool_->run([&](int thread) { step.run(thread); });
    for (int row = 0; row < batch.rows; ++row) ring_.mark(batch.slots[row], batch.positions[row]);
}

}  // namespace outrider
