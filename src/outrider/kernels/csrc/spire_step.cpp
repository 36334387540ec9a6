#include "spire_step.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "numbers.hpp"

namespace outrider {

namespace {

// Up to so many rows, each thread prepares all inputs itself: cheaper than meeting.
constexpr int kRowsAlone = 8;
// Where inputs are prepared together, every product is two phases.
constexpr int kPhasesOfLayer = 9, kPhasesBeside = 4;

// A row with zeros behind it.
void copy_padded(float* out, const float* values, int width) {
    std::memcpy(out, values, width * sizeof(float));
    std::memset(out + width, 0, (padded_row(width) - width) * sizeof(float));
}

}  // namespace

SpireStep::SpireStep(SpireDraft& draft, const SpireBatch& batch)
    : d_(draft),
      shape_(draft.shape_),
      level_(draft.pool_->level()),
      rows_(batch.rows),
      slots_(batch.slots),
      positions_(batch.positions),
      batch_(&batch) {
    int inner = 0, most_seen = 0;
    for (const SpireLayer& layer : d_.layers_) inner = std::max(inner, layer.down->inputs());
    inner_stride_ = padded_row(inner);
    for (int row = 0; row < rows_; ++row) {
        seen_bounds_.push_back(int(seen_.size()));
        d_.ring_.list_seen(slots_[row], positions_[row], shape_.window, seen_);
        if (shape_.sees_itself) seen_.push_back(d_.ring_.entry(positions_[row]));
        most_seen = std::max(most_seen, int(seen_.size()) - seen_bounds_[row]);
    }
    seen_bounds_.push_back(int(seen_.size()));
    take_memory(std::max({shape_.hidden_size, shape_.attended(), inner}), shape_.num_layers + 1);
    d_.stream_.reserve(rows_ * stream_stride_ * 4);
    d_.depths_.reserve(rows_ * stream_stride_ * 4 * shape_.num_layers);
    d_.queries_.reserve(rows_ * query_stride_ * 4);
    d_.attended_.reserve(rows_ * attended_stride_ * 4);
    d_.inner_.reserve(rows_ * inner_stride_ * 4);
    query_bytes_ = shape_.group() * d_.ring_.stride() * 4;
    for (Memory& scratch : d_.scratch_)
        scratch.reserve(query_bytes_ + shape_.group() * padded_row(std::max(most_seen, 1)) * 4);
}

SpireStep::SpireStep(SpireDraft& draft, const SpireStates& states)
    : d_(draft),
      shape_(draft.shape_),
      level_(draft.pool_->level()),
      rows_(states.rows),
      slots_(states.slots),
      positions_(states.positions),
      states_(&states) {
    take_memory(shape_.hidden_size, shape_.num_layers);
}

void SpireStep::take_memory(int most_inputs, int most_matrices) {
    const int layers = shape_.num_layers, threads = d_.pool_->threads();
    stream_stride_ = padded_row(shape_.hidden_size);
    query_stride_ = attended_stride_ = padded_row(shape_.attended());
    kv_stride_ = padded_row(shape_.kv_width());
    together_ = rows_ > kRowsAlone && threads > 1;
    d_.remembered_.reserve(size_t(layers) * rows_ * kv_stride_ * 4);
    for (Memory& scratch : d_.scratch_)
        scratch.reserve(std::max(product_scratch(level_, rows_), padded_row(most_inputs) * 4));
    for (int t = 0; t < (together_ ? 1 : threads); ++t)
        for (int m = 0; m < most_matrices; ++m)
            d_.prepared_[t][m].reserve(rows_, m == 0 ? most_inputs : shape_.hidden_size);
    d_.phases_.begin(kPhasesOfLayer * layers + kPhasesBeside);
    row_bounds_ = d_.phases_.evenly(rows_);
    piece_bounds_ = d_.phases_.evenly(rows_ * shape_.num_kv_heads);
    plane_bounds_ = d_.phases_.evenly(layers * shape_.num_kv_heads);
    for (int m = 0; m <= most_matrices; ++m) prepare_bounds_.push_back(d_.phases_.evenly(rows_ * m));
}

void SpireStep::run(int thread) {
    embed(thread);
    for (int i = 0; i < shape_.num_layers; ++i) layer(thread, i);
    finish(thread);
    store(thread);
}

void SpireStep::embed(int thread) {
    d_.phases_.run(thread, row_bounds_, [&](int row) {
        d_.embedding_->read_row(batch_->tokens[row], d_.stream_.as<float>() + row * stream_stride_);
    });
}

void SpireStep::layer(int thread, int index) {
    const SpireLayer& layer = d_.layers_[index];
    const Products& next = index + 1 < shape_.num_layers ? d_.q_[index + 1] : d_.last_;
    const Sink queries{d_.queries_.as<char>(), query_stride_ * 4, InputKind::f32, false};
    const Sink attended{d_.attended_.as<char>(), attended_stride_ * 4, InputKind::f32, false};
    const Sink inner{d_.inner_.as<char>(), inner_stride_ * 4, InputKind::f32, false};
    multiply_normed(thread, d_.q_[index], d_.out_[index], layer.input_norm.data(), {queries, keys_values(index)});
    d_.phases_.run(thread, piece_bounds_,
                   [&](int i) { attend(thread, index, i / shape_.num_kv_heads, i % shape_.num_kv_heads); });
    multiply_written(thread, d_.out_[index], d_.gate_up_[index], attended, residual());
    multiply_normed(thread, d_.gate_up_[index], d_.down_[index], layer.mlp_norm.data(), {inner});
    multiply_written(thread, d_.down_[index], next, inner, residual());
}

const float* SpireStep::depth(int depth, int row) const {
    if (depth == shape_.num_layers) return d_.stream_.as<float>() + row * stream_stride_;
    return d_.depths_.as<float>() + (size_t(depth) * rows_ + row) * stream_stride_;
}

void SpireStep::attend(int thread, int layer, int row, int kv) {
    const int dim = shape_.head_dim, half = dim / 2, group = shape_.group();
    if (kv == 0) {
        // Nobody writes to the stream in this phase: what memories are mixed from is put aside.
        std::memcpy(d_.depths_.as<float>() + (size_t(layer) * rows_ + row) * stream_stride_,
                    d_.stream_.as<float>() + row * stream_stride_, stream_stride_ * sizeof(float));
    }
    // Until the end of the step its place holds what this layer makes of it; nobody else looks there.
    if (shape_.sees_itself) store_row(layer, row, kv);
    float* out = d_.attended_.as<float>() + row * attended_stride_ + kv * group * dim;
    const int count = seen_bounds_[row + 1] - seen_bounds_[row];
    if (count == 0) {
        std::memset(out, 0, group * dim * sizeof(float));
        return;
    }
    const size_t stride = d_.ring_.stride(), turn = size_t(positions_[row]) * half;
    const float* projected = d_.queries_.as<float>() + row * query_stride_ + kv * group * dim;
    float* queries = d_.scratch_[thread].as<float>();
    for (int g = 0; g < group; ++g) {
        float* query = queries + g * stride;
        std::memcpy(query, projected + g * dim, dim * sizeof(float));
        std::memset(query + dim, 0, (stride - dim) * sizeof(float));
        level_.rotate(query, &d_.turns_.cosines[turn], &d_.turns_.sines[turn], half, 1.0f / std::sqrt(float(dim)));
    }
    const int slot = slots_[row];
    level_.attend_listed({d_.ring_.keys(layer, slot, kv), d_.ring_.values(layer, slot, kv), stride, dim,
                          &seen_[seen_bounds_[row]], count, queries, group,
                          reinterpret_cast<float*>(d_.scratch_[thread].as<char>() + query_bytes_), out});
}

void SpireStep::finish(int thread) {
    const int layers = shape_.num_layers;
    const Sink logits{reinterpret_cast<char*>(batch_->logits), shape_.draft_vocab_size * sizeof(float), InputKind::f32,
                      false};
    // Memories of all layers and logits wait for nothing but the last layer.
    multiply(
        thread, d_.last_, d_.q_[0],
        [&](int matrix, int row, float* own) {
            if (matrix < layers) mix(matrix, row, own);
            else level_.norm(own, depth(layers, row), d_.norm_.data(), shape_.hidden_size, shape_.norm_eps);
        },
        [&](int matrix) { return matrix < layers ? keys_values(matrix) : logits; });
}

void SpireStep::mix(int layer, int row, float* own) const {
    const int layers = shape_.num_layers, width = int(stream_stride_);
    const float* shares = &d_.mix_[size_t(layer) * (layers + 1)];
    std::memset(own, 0, width * sizeof(float));
    for (int s = 0; s <= layers; ++s) {
        const float* x = depth(s, row);
        for (int i = 0; i < width; ++i) own[i] += shares[s] * x[i];
    }
    level_.norm(own, own, d_.layers_[layer].input_norm.data(), shape_.hidden_size, shape_.norm_eps);
}

void SpireStep::remember(int thread) {
    const int width = shape_.hidden_size;
    multiply(
        thread, d_.memories_, d_.q_[0],
        [&](int layer, int row, float* own) {
            copy_padded(own, states_->states + (size_t(layer) * rows_ + row) * width, width);
            level_.norm(own, own, d_.layers_[layer].input_norm.data(), width, shape_.norm_eps);
        },
        [&](int layer) { return keys_values(layer); });
    store(thread);
}

Sink SpireStep::keys_values(int layer) const {
    return {reinterpret_cast<char*>(d_.remembered_.as<float>() + size_t(layer) * rows_ * kv_stride_), kv_stride_ * 4,
            InputKind::f32, false};
}

// Keys, turned, and values go to their entries. One thread stores all rows of a layer's head: of two that fall on the
// same entry the later stays.
void SpireStep::store(int thread) {
    const int heads = shape_.num_kv_heads;
    d_.phases_.run(thread, plane_bounds_, [&](int plane) {
        for (int row = 0; row < rows_; ++row) store_row(plane / heads, row, plane % heads);
    });
}

void SpireStep::store_row(int layer, int row, int head) const {
    const int dim = shape_.head_dim, half = dim / 2;
    const Sink made = keys_values(layer);
    const float* from = reinterpret_cast<const float*>(made.out + row * made.stride) + head * dim;
    const size_t at = d_.ring_.entry(positions_[row]) * d_.ring_.stride(), turn = size_t(positions_[row]) * half;
    float* key = d_.ring_.keys(layer, slots_[row], head) + at;
    std::memcpy(key, from, dim * sizeof(float));
    level_.rotate(key, &d_.turns_.cosines[turn], &d_.turns_.sines[turn], half, 1.0f);
    std::memcpy(d_.ring_.values(layer, slots_[row], head) + at, from + shape_.num_kv_heads * dim, dim * sizeof(float));
}

template <class Fill, class Goal>
void SpireStep::multiply(int thread, const Products& products, const Products& next, Fill&& fill, Goal&& sink) {
    const int count = int(products.matrices.size());
    std::vector<Prepared>& prepared = d_.prepared_[together_ ? 0 : thread];
    const auto prepare = [&](int matrix, int row) {
        float* own = d_.scratch_[thread].as<float>();
        fill(matrix, row, own);
        prepared[matrix].prepare(level_, products.matrices[matrix]->packed(), row, own);
    };
    if (together_) d_.phases_.run(thread, prepare_bounds_[count], [&](int i) { prepare(i / rows_, i % rows_); });
    int ready = -1;  // the matrix whose inputs are prepared
    d_.phases_.run(thread, products.bounds, [&](int i) {
        const auto [m, block] = products.units[i];
        const Packed& packed = products.matrices[m]->packed();
        // Units of a matrix follow each other, and come once more with the next owner's.
        for (int row = 0; row < rows_ && ready != m && !together_; ++row) prepare(m, row);
        ready = m;
        const char* then = next.begin(thread);
        if (i != products.bounds[thread + 1] - 1 && i + 1 < int(products.units.size())) {
            const Products::Unit& after = products.units[i + 1];
            const Packed& other = products.matrices[after.matrix]->packed();
            then = other.data + other.blocks[after.block].offset;
        }
        level_.multiply(packed, prepared[m].view(packed), rows_, block, then, sink(m), d_.scratch_[thread].as<float>());
    });
}

void SpireStep::multiply_normed(int thread, const Products& products, const Products& next, const float* norm,
                                std::array<Sink, 2> sinks) {
    multiply(
        thread, products, next,
        [&](int, int row, float* own) {
            level_.norm(own, d_.stream_.as<float>() + row * stream_stride_, norm, shape_.hidden_size, shape_.norm_eps);
        },
        [&](int matrix) { return sinks[matrix]; });
}

void SpireStep::multiply_written(int thread, const Products& products, const Products& next, const Sink& from,
                                 const Sink& sink) {
    // Behind the inputs of this matrix there may be those of another layer's.
    multiply(
        thread, products, next,
        [&](int matrix, int row, float* own) {
            copy_padded(own, reinterpret_cast<const float*>(from.out + row * from.stride),
                        products.matrices[matrix]->inputs());
        },
        [&](int) { return sink; });
}

}  // namespace outrider
