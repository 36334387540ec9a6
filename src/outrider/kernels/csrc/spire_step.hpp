// One step of a SPIRe draft, or one remembering, run by the threads of a pool together: the same lines on each.
#pragma once
#include <array>
#include <vector>

#include "spire.hpp"

namespace outrider {

class SpireStep {
public:
    // Take all memory that is needed, so that running cannot fail.
    SpireStep(SpireDraft& draft, const SpireBatch& batch);
    SpireStep(SpireDraft& draft, const SpireStates& states);
    void run(int thread);
    void remember(int thread);

private:
    void take_memory(int most_inputs, int most_matrices);
    void embed(int thread);
    void layer(int thread, int index);
    void attend(int thread, int layer, int row, int kv);
    // Stores a key, turned, and a value in a position's place, as one row of a product left them.
    void store_row(int layer, int row, int head) const;
    void finish(int thread);
    void store(int thread);

    // Every matrix times its rows: fill(matrix, row, own) writes a row of its inputs, padded, and sink(matrix) says
    // where products go. `next` is what this thread reads afterwards.
    template <class Fill, class Goal>
    void multiply(int thread, const Products& products, const Products& next, Fill&& fill, Goal&& sink);
    void multiply_normed(int thread, const Products& products, const Products& next, const float* norm,
                         std::array<Sink, 2> sinks);
    void multiply_written(int thread, const Products& products, const Products& next, const Sink& from,
                          const Sink& sink);
    // A layer's memory vector of a row, normed for its keys and values.
    void mix(int layer, int row, float* own) const;
    Sink keys_values(int layer) const;
    Sink stream() const { return {d_.stream_.as<char>(), stream_stride_ * 4, InputKind::f32, false}; }
    Sink residual() const { return {d_.stream_.as<char>(), stream_stride_ * 4, InputKind::f32, true}; }
    const float* depth(int depth, int row) const;

    SpireDraft& d_;
    const SpireShape& shape_;
    const Level& level_;
    const int rows_;
    const int *slots_, *positions_;
    const SpireBatch* batch_ = nullptr;
    const SpireStates* states_ = nullptr;
    bool together_ = false;  // inputs are prepared by all threads for all, rather than by each for itself
    std::vector<int> row_bounds_, piece_bounds_, plane_bounds_;
    std::vector<std::vector<int>> prepare_bounds_;  // by number of matrices
    std::vector<int> seen_, seen_bounds_;           // entries that rows see, one row after the other
    size_t stream_stride_, query_stride_, attended_stride_, inner_stride_ = 0, kv_stride_;  // floats
    size_t query_bytes_ = 0;  // of a thread's scratch: turned queries come before scores
};

}  // namespace outrider
