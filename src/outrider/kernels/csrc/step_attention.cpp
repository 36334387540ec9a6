// The attention of a step: which rows see which keys, and in what pieces threads share the work.
#include <algorithm>
#include <cstring>

#include "numbers.hpp"
#include "step.hpp"

namespace outrider {

namespace {

// Of a prompt's many rows only the first: the rest would push them out again.
constexpr int kRowsExpected = 64, kPiecesExpected = 8;

}  // namespace

float* Step::part(int row, int head_of_all, int block) const {
    const size_t index = (size_t(row) * shape_.num_heads + head_of_all) * blocks_ + block;
    return d_.parts_.as<float>() + index * state_floats_;
}

// A thread's states by query of a tile: what is joined so far, and the newest block's.
float* Step::joined(int thread, int query) const { return d_.scratch_[thread].as<float>() + query * state_floats_; }
float* Step::fresh(int thread, int query) const { return joined(thread, query) + tile_states_ / sizeof(float); }

// Queries of one key/value head lie row by row, so that several rows are one run.
char* Step::query(int head, int row) const {
    return d_.queries_.as<char>() + (size_t(head) * batch_.rows + row) * shape_.group() * query_bytes_;
}

// Asks for the memory that this thread's keys and values will be written to, and for what it will read first, long
// before.
void Step::expect_rows(int thread, int index) {
    const int kv_heads = shape_.num_kv_heads;
    for (int i = head_bounds_[thread]; i < std::min(head_bounds_[thread + 1], head_bounds_[thread] + kRowsExpected);
         ++i) {
        const Row& row = rows_[i / kv_heads];
        level_.expect(d_.slots_.cache(index, batch_.slots[row.feed], i % kv_heads),
                      batch_.starts[row.feed] + row.index);
    }
    for (int i = piece_bounds_[thread];
         i < std::min(piece_bounds_[thread + 1], piece_bounds_[thread] + kPiecesExpected); ++i) {
        const Piece& piece = pieces_[i];
        level_.expect_block(d_.slots_.cache(index, batch_.slots[tiles_[piece.tile].feed], piece.head),
                            piece.first_block);
    }
}

void Step::rotate_and_append(int thread, const Layer& layer, int index, int row, int kv) {
    const int dim = shape_.head_dim, half = dim / 2, group = shape_.group();
    const Rotations& turns = layer.local ? d_.local_ : d_.global_;
    const size_t turn = size_t(rows_[row].position) * half;
    const float* projected = d_.projected_.as<float>() + row * projected_stride_;
    const Cache cache = d_.slots_.cache(index, batch_.slots[rows_[row].feed], kv);
    float *head = d_.scratch_[thread].as<float>(), *value = head + padded_row(dim);
    std::memset(head, 0, 2 * padded_row(dim) * sizeof(float));
    const auto turned = [&](const float* from, const float* norm, float scale) {
        std::memcpy(head, from, dim * sizeof(float));
        if (norm != nullptr) level_.norm(head, head, norm, dim, shape_.norm_eps);
        level_.rotate(head, &turns.cosines[turn], &turns.sines[turn], half, scale);
    };
    for (int g = 0; g < group; ++g) {
        turned(projected + (kv * group + g) * dim, layer.q_norm.data(), shape_.attention_scale);
        level_.store_query(cache, head, query(kv, row) + g * query_bytes_);
    }
    turned(projected + (shape_.num_heads + kv) * dim, layer.k_norm.data(), 1.0f);
    std::memcpy(value, projected + (shape_.num_heads + shape_.num_kv_heads + kv) * dim, dim * sizeof(float));
    level_.append(cache, batch_.starts[rows_[row].feed] + rows_[row].index, head, value);
}

template <class State>
void Step::finish_rows(const Piece& piece, const Layer& layer, State&& state) {
    const RowTile& tile = tiles_[piece.tile];
    const Sink attended = written_for(*layer.out, d_.attended_);
    const int group = shape_.group(), dim = shape_.head_dim;
    for (int q = 0; q < tile.count * group; ++q) {
        char* out = attended.out + (tile.first + q / group) * attended.stride;
        level_.finish(attended.as, out + (piece.head * group + q % group) * dim * element_bytes(attended.as), state(q),
                      dim);
    }
}

void Step::attend_piece(int thread, const Piece& piece, const Layer& layer, int index) {
    const RowTile& tile = tiles_[piece.tile];
    const int end = tile.first + tile.count;
    for (int q = 0; q < tile.count * shape_.group(); ++q) joined(thread, q)[1] = 0.0f;
    for (int block = piece.first_block; block < piece.last_block; ++block) {
        const bool gathered = batch_.parents != nullptr && (block + 1) * kKeyBlock > batch_.starts[tile.feed];
        // Rows that see something of a block and follow each other attend together; in a tree, others may lie between.
        for (int first = tile.first; first < end; ++first) {
            int last = first;
            while (last < end && sees(last, block, layer) && !(gathered && last > first)) ++last;
            if (last == first) continue;
            attend_rows(thread, first, last - first, piece, index, block);
            first = last - 1;
        }
    }
    if (!split_) return finish_rows(piece, layer, [&](int q) { return joined(thread, q); });
    const int item = (index * int(tiles_.size()) + piece.tile) * shape_.num_kv_heads + piece.head;
    // Whoever does the last block of a tile joins them all.
    if (joined_count_[item].fetch_add(1) + 1 == piece.tile_blocks) join_piece(thread, piece, layer);
}

bool Step::sees(int row, int block, const Layer& layer) const {
    const Span keys = seen(row, block, layer);
    return keys.low < keys.high;
}

// Keys of a block that a row sees, from its beginning.
Step::Span Step::seen(int row, int block, const Layer& layer) const {
    const int end = rows_[row].position + 1, window = layer.local ? shape_.window : 0;
    const int begin = window > 0 ? std::max(0, end - window) : 0;
    return {std::max(begin - block * kKeyBlock, 0), std::min(end - block * kKeyBlock, kKeyBlock)};
}

void Step::attend_rows(int thread, int first, int count, const Piece& piece, int index, int block) {
    const RowTile& tile = tiles_[piece.tile];
    const Layer& layer = d_.layers_[index];
    const int group = shape_.group(), from = (first - tile.first) * group, start = batch_.starts[tile.feed];
    char* scratch = d_.scratch_[thread].as<char>();
    int *low = reinterpret_cast<int*>(scratch + tile_scratch_ + tree_scratch_), *high = low + tile_rows_;
    for (int i = 0; i < count; ++i) {
        const Span keys = seen(first + i, block, layer);
        low[i] = keys.low;
        high[i] = keys.high;
    }
    Attend a{d_.slots_.cache(index, batch_.slots[tile.feed], piece.head),
             query(piece.head, first),
             query_bytes_,
             count,
             group,
             block,
             low,
             high,
             fresh(thread, from),
             scratch + 2 * tile_states_};
    if (batch_.parents != nullptr && block * kKeyBlock + high[0] > start) {
        a.cache = gather_tree(thread, rows_[first], a.cache, start, block, {low[0], high[0]});
        a.block = 0;
    }
    level_.attend(a);
    for (int q = 0; q < count * group; ++q) {
        const float* newest = fresh(thread, from + q);
        if (split_)
            std::memcpy(part(first + q / group, piece.head * group + q % group, block), newest,
                        state_floats_ * sizeof(float));
        else join(joined(thread, from + q), newest);
    }
}

// The earlier keys' state is replaced where there is none yet: a sum of 0.
void Step::join(float* state, const float* newest) const {
    if (state[1] == 0.0f) std::memcpy(state, newest, state_floats_ * sizeof(float));
    else level_.merge(state, newest, padded_dim(level_, shape_.head_dim));
}

// A tree's keys in the order of one row's path, so that it has the bits of plain decoding.
Cache Step::gather_tree(int thread, const Row& row, const Cache& cache, int start, int block, Span keys) const {
    char* at = d_.scratch_[thread].as<char>() + tile_scratch_;
    Cache copy = cache;
    copy.block_stride = 0;
    copy.keys = at;
    copy.values = at + size_t(kKeyBlock) * shape_.head_dim * 4;
    for (int key = keys.low; key < keys.high; ++key) {
        const int position = block * kKeyBlock + key;
        level_.copy(cache, position < start ? position : row.path[position - start], copy, key);
    }
    return copy;
}

void Step::join_piece(int thread, const Piece& piece, const Layer& layer) {
    const int group = shape_.group();
    finish_rows(piece, layer, [&](int q) {
        const int row = tiles_[piece.tile].first + q / group;
        float* state = joined(thread, 0);
        state[1] = 0.0f;
        for (int block = 0; block < piece.tile_blocks; ++block)
            if (sees(row, block, layer)) join(state, part(row, piece.head * group + q % group, block));
        return state;
    });
}

}  // namespace outrider
