#include "decoder.hpp"

#include <algorithm>
#include <cstring>
#include <set>
#include <string>

#include "checks.hpp"
#include "numbers.hpp"
#include "step.hpp"

namespace outrider {

PaddedVector::PaddedVector(const float* values, int size) : memory_(padded_row(size) * sizeof(float)) {
    std::memcpy(memory_.as<float>(), values, size * sizeof(float));
}

Decoder::Decoder(std::shared_ptr<Pool> pool, const DecoderShape& shape, MatrixPtr embedding, MatrixPtr head,
                 const float* norm, Rotations global, Rotations local)
    : pool_(std::move(pool)),
      shape_(shape),
      embedding_(std::move(embedding)),
      head_(std::move(head)),
      norm_(norm, shape.hidden_size),
      global_(std::move(global)),
      local_(std::move(local)),
      slots_(pool_->level(), shape.num_layers, shape.slots, shape.num_kv_heads, shape.head_dim, shape.positions,
             shape.bf16_kv),
      phases_(*pool_),
      scratch_(pool_->threads()),
      prepared_(pool_->threads()) {
    check_matrix("embedding", *embedding_, pool_, shape.vocab_size, shape.hidden_size, false);
    check_matrix("head", *head_, pool_, shape.vocab_size, shape.hidden_size, false);
}

void Decoder::add_layer(Layer layer) {
    std::lock_guard<std::mutex> lock(turn_);
    const DecoderShape& s = shape_;
    if (int(layers_.size()) == s.num_layers) refuse("the decoder has all of its " + text(s.num_layers) + " layers");
    check_matrix("qkv", *layer.qkv, pool_, (s.num_heads + 2 * s.num_kv_heads) * s.head_dim, s.hidden_size, false);
    check_matrix("out", *layer.out, pool_, s.hidden_size, s.num_heads * s.head_dim, false);
    check_matrix("gate_up", *layer.gate_up, pool_, layer.gate_up->outputs(), s.hidden_size, true);
    check_matrix("down", *layer.down, pool_, s.hidden_size, layer.gate_up->outputs(), false);
    layers_.push_back(std::move(layer));
}

size_t Decoder::nbytes() const {
    std::set<const Matrix*> matrices{embedding_.get(), head_.get()};
    for (const Layer& layer : layers_)
        matrices.insert({layer.qkv.get(), layer.out.get(), layer.gate_up.get(), layer.down.get()});
    size_t bytes = 0;
    for (const Matrix* matrix : matrices) bytes += matrix->nbytes();
    return bytes;
}

void Decoder::check(const Batch& batch) const {
    check_layers("the decoder", layers_.size(), shape_.num_layers);
    for (int row = 0; row < batch.rows; ++row) check_range("token", batch.tokens[row], shape_.vocab_size);
    for (int i = 0; i < batch.wanted; ++i) check_range("wanted row", batch.wanted_rows[i], batch.rows);
    for (int i = 0; i < batch.layers; ++i) check_range("layer", batch.layer_list[i], shape_.num_layers + 1);
    std::vector<bool> taken(slots_.count());
    int rows = 0;
    for (int f = 0; f < batch.feeds; ++f) {
        const int slot = batch.slots[f], start = batch.starts[f], count = batch.counts[f],
                  written = slots_.written(slot);
        if (taken[slot]) refuse("slot " + text(slot) + " has two feeds");
        taken[slot] = true;
        if (start < 0 || start > written)
            refuse("start " + text(start) + " of slot " + text(slot) + " is not in 0.." + text(written) +
                   ", what was written");
        if (count < 1 || count > slots_.positions() - start)
            refuse("count " + text(count) + " at " + text(start) + " does not fit " + text(slots_.positions()) +
                   " positions");
        if (count > batch.rows - rows) refuse("counts are more than the " + text(batch.rows) + " tokens");
        rows += count;
    }
    if (rows != batch.rows) refuse("counts are " + text(rows) + " in all, tokens " + text(batch.rows));
    if (batch.parents != nullptr) check_tree(batch);
}

void Decoder::check_tree(const Batch& batch) const {
    int first = 0;
    for (int f = 0; f < batch.feeds; ++f) {
        for (int i = 0; i < batch.counts[f]; ++i) {
            const int parent = batch.parents[first + i];
            if (parent < -1 || parent >= i)
                refuse("parent " + text(parent) + " of row " + text(i) + " does not come before it");
        }
        first += batch.counts[f];
    }
}

void Decoder::open(int slot) {
    std::lock_guard<std::mutex> lock(turn_);
    slots_.open(slot);
}

void Decoder::close(int slot) {
    std::lock_guard<std::mutex> lock(turn_);
    slots_.close(slot);
}

void Decoder::move(int slot, const int* sources, int count, int target) {
    std::lock_guard<std::mutex> lock(turn_);
    slots_.move(slot, sources, count, target);
}

void Decoder::step(const Batch& batch) {
    std::lock_guard<std::mutex> lock(turn_);
    check(batch);
    if (batch.rows == 0) return;
    Step step(*this, batch);
    pool_->run([&](int thread) { step.run(thread); });
    for (int f = 0; f < batch.feeds; ++f) slots_.set_written(batch.slots[f], batch.starts[f] + batch.counts[f]);
}

}  // namespace outrider
