// One forward, run by the threads of a pool together, phase by phase: the same lines on each.
#pragma once
#include <atomic>
#include <vector>

#include "decoder.hpp"

namespace outrider {

class Step {
public:
    // Takes all memory that the step needs, so that running it cannot fail.
    Step(Decoder& decoder, const Batch& batch);
    void run(int thread);

private:
    // Where a packed row stands: its feed, index in the feed, and position; a tree's rows list their ancestors.
    struct Row {
        int feed, index, position;
        std::vector<int> path;  // cache positions of the rows it follows, itself last; only in trees
    };
    // Rows of one feed that attend together.
    struct RowTile {
        int feed, first, count;
    };
    // One piece of attention: a tile's rows, one key/value head, and all blocks of keys or one.
    struct Piece {
        int tile, head, first_block, last_block, tile_blocks;
    };

    struct Span {
        int low, high;
    };

    void place_rows();
    void plan_attention();
    void take_memory();

    void embed(int thread);
    void layer(int thread, int index);
    void finish(int thread);
    void keep_states(int thread, int layers_done);

    // Inputs normed and prepared from the stream, or as they were written for this matrix, times a matrix; `next` is
    // the matrix that is read after it.
    void normed_product(int thread, const Matrix& matrix, const Matrix& next, const float* norm, const Sink& sink);
    void product(int thread, const Matrix& matrix, const Matrix& next, const Sink& written, const Sink& sink);
    void prepared_product(int thread, const Matrix& matrix, const Matrix& next, const Sink& from, const float* norm,
                          const Sink& sink);
    template <class Ready>
    void multiply(int thread, const Matrix& matrix, const Matrix& next, const Inputs& inputs, int rows,
                  const Sink& sink, Ready&& ready);
    // Where the inputs of a matrix are written by what comes before it: already rounded for it, where that can be done.
    Sink written_for(const Matrix& matrix, const Memory& memory) const;
    void add_normed(int thread, const float* norm);

    void rotate_and_append(int thread, const Layer& layer, int index, int row, int kv);
    void attend_piece(int thread, const Piece& piece, const Layer& layer, int index);
    void join_piece(int thread, const Piece& piece, const Layer& layer);
    template <class State>
    void finish_rows(const Piece& piece, const Layer& layer, State&& state);
    void expect_rows(int thread, int index);
    void attend_rows(int thread, int first, int count, const Piece& piece, int index, int block);
    Cache gather_tree(int thread, const Row& row, const Cache& cache, int start, int block, Span keys) const;
    Span seen(int row, int block, const Layer& layer) const;
    void join(float* state, const float* newest) const;
    bool sees(int row, int block, const Layer& layer) const;

    float* part(int row, int head_of_all, int block) const;
    float* joined(int thread, int query) const;
    float* fresh(int thread, int query) const;
    char* query(int head, int row) const;

    Decoder& d_;
    const Batch& batch_;
    const DecoderShape& shape_;
    const Level& level_;
    Pool& pool_;
    std::vector<Row> rows_;
    std::vector<RowTile> tiles_;
    std::vector<Piece> pieces_;
    bool split_ = false;     // pieces are single blocks, joined afterwards
    bool together_ = false;  // inputs are prepared by all threads for all, rather than by each for itself
    std::vector<int> row_bounds_, head_bounds_, piece_bounds_, wanted_bounds_;
    int blocks_ = 0;  // most blocks of keys of a feed
    int tile_rows_ = 0;
    std::atomic<int>* joined_count_ = nullptr;                              // pieces done, by layer, tile and head
    size_t stream_stride_, projected_stride_, query_bytes_, state_floats_;  // strides in floats
    size_t tile_states_, tile_scratch_, tree_scratch_, span_scratch_;       // bytes of a thread's scratch
};

}  // namespace outrider
