#include "step.hpp"

#include <algorithm>
#include <cstring>

#include "numbers.hpp"

namespace outrider {

namespace {

// Up to so many rows, each thread prepares all inputs itself: cheaper than meeting.
constexpr int kRowsAlone = 8;
constexpr int kQueriesTogether = 48;
// States of all blocks are kept until they are joined, which is for few rows only.
constexpr int kMostRowsSplit = 64;

}  // namespace

Step::Step(Decoder& decoder, const Batch& batch)
    : d_(decoder), batch_(batch), shape_(decoder.shape_), level_(decoder.pool_->level()), pool_(*decoder.pool_) {
    place_rows();
    plan_attention();
    take_memory();
    together_ = std::max(batch.rows, batch.wanted) > kRowsAlone && pool_.threads() > 1;
    row_bounds_ = d_.phases_.evenly(batch.rows);
    head_bounds_ = d_.phases_.evenly(batch.rows * shape_.num_kv_heads);
    piece_bounds_ = d_.phases_.evenly(int(pieces_.size()));
    wanted_bounds_ = d_.phases_.evenly(batch.wanted);
}

void Step::place_rows() {
    rows_.reserve(batch_.rows);
    for (int f = 0; f < batch_.feeds; ++f) {
        const int first = int(rows_.size()), start = batch_.starts[f];
        for (int i = 0; i < batch_.counts[f]; ++i) {
            Row row{f, i, start + i, {}};
            if (batch_.parents != nullptr) {
                const int parent = batch_.parents[first + i];
                if (parent >= 0) row.path = rows_[first + parent].path;
                row.path.push_back(start + i);
                row.position = start + int(row.path.size()) - 1;
            }
            rows_.push_back(std::move(row));
        }
    }
}

void Step::plan_attention() {
    tile_rows_ = std::max(1, kQueriesTogether / shape_.group());
    int first = 0;
    for (int f = 0; f < batch_.feeds; ++f) {
        const int count = batch_.counts[f];
        for (int i = 0; i < count; i += tile_rows_) tiles_.push_back({f, first + i, std::min(tile_rows_, count - i)});
        blocks_ = std::max(blocks_, (batch_.starts[f] + count + kKeyBlock - 1) / kKeyBlock);
        first += count;
    }
    // Few pieces would leave threads idle, so blocks of keys become pieces of their own.
    split_ = pool_.threads() > 1 && blocks_ > 1 && batch_.rows <= kMostRowsSplit &&
             int(tiles_.size()) * shape_.num_kv_heads < 4 * pool_.threads();
    for (int t = int(tiles_.size()) - 1; t >= 0; --t) {
        const int end = batch_.starts[tiles_[t].feed] + batch_.counts[tiles_[t].feed];
        const int blocks = (end + kKeyBlock - 1) / kKeyBlock;
        for (int head = 0; head < shape_.num_kv_heads; ++head) {
            if (!split_) pieces_.push_back({t, head, 0, blocks, blocks});
            for (int block = 0; split_ && block < blocks; ++block)
                pieces_.push_back({t, head, block, block + 1, blocks});
        }
    }
}

void Step::take_memory() {
    const int rows = batch_.rows, most = std::max(rows, batch_.wanted), threads = pool_.threads();
    const int attended = shape_.num_heads * shape_.head_dim;
    int inner = 0;
    for (const Layer& layer : d_.layers_) inner = std::max(inner, layer.down->inputs());
    stream_stride_ = padded_row(shape_.hidden_size);
    projected_stride_ = padded_row(attended + 2 * shape_.num_kv_heads * shape_.head_dim);
    query_bytes_ = padded_row(shape_.head_dim) * 4;
    state_floats_ = state_stride(level_, shape_.head_dim);
    d_.stream_.reserve(rows * stream_stride_ * 4);
    d_.side_.reserve(rows * stream_stride_ * 4);
    d_.projected_.reserve(rows * projected_stride_ * 4);
    d_.attended_.reserve(rows * padded_row(attended) * 4);
    d_.inner_.reserve(rows * padded_row(inner) * 4);
    d_.queries_.reserve(size_t(rows) * shape_.num_heads * query_bytes_);
    if (split_) d_.parts_.reserve(size_t(rows) * shape_.num_heads * blocks_ * state_floats_ * 4);

    const int queries = tile_rows_ * shape_.group();
    tile_states_ = size_t(queries) * state_floats_ * 4;
    tile_scratch_ = 2 * tile_states_ + attend_scratch(queries);
    tree_scratch_ = size_t(kKeyBlock) * (padded_dim(level_, shape_.head_dim) + shape_.head_dim) * 4;
    span_scratch_ = size_t(tile_rows_) * 2 * sizeof(int);
    const size_t row_scratch =
        std::max({stream_stride_, 2 * padded_row(shape_.head_dim), padded_row(inner), padded_row(attended)}) * 4;
    const size_t needed =
        std::max({product_scratch(level_, most), tile_scratch_ + tree_scratch_ + span_scratch_, row_scratch});
    for (Memory& scratch : d_.scratch_) scratch.reserve(needed);
    for (int t = 0; t < threads; ++t)
        d_.prepared_[t].reserve(t == 0 ? most : std::min(most, kRowsAlone),
                                std::max({shape_.hidden_size, attended, inner}));

    d_.phases_.begin(12 * shape_.num_layers + batch_.layers + 4);
    const size_t pieces = tiles_.size() * shape_.num_layers * shape_.num_kv_heads;
    d_.joined_.reserve(pieces * sizeof(std::atomic<int>));
    joined_count_ = d_.joined_.as<std::atomic<int>>();
    for (size_t i = 0; i < pieces; ++i) new (joined_count_ + i) std::atomic<int>(0);
}

Sink Step::written_for(const Matrix& matrix, const Memory& memory) const {
    const Packed& packed = matrix.packed();
    const InputKind as = read_as_written(packed) ? packed.inputs_as : InputKind::f32;
    return {memory.as<char>(), padded_row(packed.inputs) * element_bytes(as), as, false};
}

void Step::run(int thread) {
    embed(thread);
    for (int i = 0; i < shape_.num_layers; ++i) layer(thread, i);
    finish(thread);
}

void Step::embed(int thread) {
    d_.phases_.run(thread, row_bounds_, [&](int row) {
        float* out = d_.stream_.as<float>() + row * stream_stride_;
        d_.embedding_->read_row(batch_.tokens[row], out);
        for (int i = 0; i < shape_.hidden_size; ++i) out[i] *= shape_.embedding_scale;
    });
    keep_states(thread, 0);
}

void Step::layer(int thread, int index) {
    const Layer& layer = d_.layers_[index];
    const Matrix& next = index + 1 < shape_.num_layers ? *d_.layers_[index + 1].qkv : *d_.head_;
    const Sink projected{d_.projected_.as<char>(), projected_stride_ * 4, InputKind::f32, false};
    const Sink residual{d_.stream_.as<char>(), stream_stride_ * 4, InputKind::f32, true};
    const Sink side{d_.side_.as<char>(), stream_stride_ * 4, InputKind::f32, false};
    const Sink attended = written_for(*layer.out, d_.attended_), inner = written_for(*layer.down, d_.inner_);
    const float *post_attention = layer.post_attention_norm.data(), *post_mlp = layer.post_mlp_norm.data();

    expect_rows(thread, index);
    normed_product(thread, *layer.qkv, *layer.out, layer.input_norm.data(), projected);
    d_.phases_.run(thread, head_bounds_, [&](int i) {
        rotate_and_append(thread, layer, index, i / shape_.num_kv_heads, i % shape_.num_kv_heads);
    });
    d_.phases_.run(thread, piece_bounds_, [&](int i) { attend_piece(thread, pieces_[i], layer, index); });
    product(thread, *layer.out, *layer.gate_up, attended, post_attention ? side : residual);
    if (post_attention) add_normed(thread, post_attention);
    normed_product(thread, *layer.gate_up, *layer.down, layer.mlp_norm.data(), inner);
    product(thread, *layer.down, next, inner, post_mlp ? side : residual);
    if (post_mlp) add_normed(thread, post_mlp);
    keep_states(thread, index + 1);
}

void Step::finish(int thread) {
    if (batch_.wanted == 0) return;
    // Wanted rows are normed by themselves, so that a prompt's other rows cost nothing here.
    const int width = shape_.hidden_size;
    const Packed& head = d_.head_->packed();
    Prepared& prepared = d_.prepared_[0];
    d_.phases_.run(thread, wanted_bounds_, [&](int i) {
        float* normed = d_.scratch_[thread].as<float>();
        level_.norm(normed, d_.stream_.as<float>() + batch_.wanted_rows[i] * stream_stride_, d_.norm_.data(), width,
                    shape_.norm_eps);
        if (batch_.hidden != nullptr) std::memcpy(batch_.hidden + size_t(i) * width, normed, width * sizeof(float));
        prepared.prepare(level_, head, i, normed);
    });
    const Sink logits{reinterpret_cast<char*>(batch_.logits), shape_.vocab_size * sizeof(float), InputKind::f32, false};
    // The next step begins with the first layer again.
    multiply(thread, *d_.head_, *d_.layers_[0].qkv, prepared.view(head), batch_.wanted, logits, [] {});
}

void Step::keep_states(int thread, int layers_done) {
    const int width = shape_.hidden_size;
    for (int k = 0; k < batch_.layers; ++k) {
        if (batch_.layer_list[k] != layers_done) continue;
        d_.phases_.run(thread, row_bounds_, [&](int row) {
            std::memcpy(batch_.states + (size_t(k) * batch_.rows + row) * width,
                        d_.stream_.as<float>() + row * stream_stride_, width * sizeof(float));
        });
    }
}

void Step::normed_product(int thread, const Matrix& matrix, const Matrix& next, const float* norm, const Sink& sink) {
    const Sink stream{d_.stream_.as<char>(), stream_stride_ * 4, InputKind::f32, false};
    prepared_product(thread, matrix, next, stream, norm, sink);
}

void Step::product(int thread, const Matrix& matrix, const Matrix& next, const Sink& written, const Sink& sink) {
    const Packed& packed = matrix.packed();
    if (!read_as_written(packed)) return prepared_product(thread, matrix, next, written, nullptr, sink);
    multiply(thread, matrix, next, {written.out, written.stride, nullptr, nullptr, 0}, batch_.rows, sink, [] {});
}

void Step::prepared_product(int thread, const Matrix& matrix, const Matrix& next, const Sink& from, const float* norm,
                            const Sink& sink) {
    const Packed& packed = matrix.packed();
    Prepared& prepared = d_.prepared_[together_ ? 0 : thread];
    const auto prepare = [&](int row) {
        const float* values = reinterpret_cast<const float*>(from.out + row * from.stride);
        float* own = d_.scratch_[thread].as<float>();
        if (norm != nullptr) {
            level_.norm(own, values, norm, packed.inputs, shape_.norm_eps);
        } else {
            // Behind the inputs of this matrix there may be those of another layer's.
            std::memcpy(own, values, packed.inputs * sizeof(float));
            std::memset(own + packed.inputs, 0, (padded_row(packed.inputs) - packed.inputs) * sizeof(float));
        }
        prepared.prepare(level_, packed, row, own);
    };
    if (together_) d_.phases_.run(thread, row_bounds_, prepare);
    multiply(thread, matrix, next, prepared.view(packed), batch_.rows, sink, [&] {
        for (int row = 0; row < batch_.rows && !together_; ++row) prepare(row);
    });
}

template <class Ready>
void Step::multiply(int thread, const Matrix& matrix, const Matrix& next, const Inputs& inputs, int rows,
                    const Sink& sink, Ready&& ready) {
    const int last = matrix.parts()[thread + 1] - 1;
    d_.phases_.run(thread, matrix.parts(), ready, [&](int block) {
        level_.multiply(matrix.packed(), inputs, rows, block, block == last ? next.begin(thread) : matrix.after(block),
                        sink, d_.scratch_[thread].as<float>());
    });
}

void Step::add_normed(int thread, const float* norm) {
    d_.phases_.run(thread, row_bounds_, [&](int row) {
        float* normed = d_.scratch_[thread].as<float>();
        level_.norm(normed, d_.side_.as<float>() + row * stream_stride_, norm, shape_.hidden_size, shape_.norm_eps);
        level_.add(d_.stream_.as<float>() + row * stream_stride_, normed, shape_.hidden_size);
    });
}

}  // namespace outrider
