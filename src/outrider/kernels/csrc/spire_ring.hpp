// What a SPIRe draft remembers: keys and values by slot, layer and head, of the first positions (the sink) and of the
// latest ones (a ring behind it). An entry says which position it holds, so what was left there by drafts that were
// rejected is not seen until something is stored over it.
#pragma once
#include <vector>

#include "memory.hpp"

namespace outrider {

class SpireRing {
public:
    SpireRing(int layers, int slots, int heads, int head_dim, int sink, int ring);

    // These throw std::invalid_argument for a slot that does not exist or is in the other state.
    void open(int slot);
    void close(int slot);
    void need_open(int slot) const;

    int slots() const { return int(open_.size()); }
    int entry(int position) const { return position < sink_ ? position : sink_ + (position - sink_) % ring_; }
    // From now on the position's entry holds it, in all layers.
    void mark(int slot, int position) { held_[slot * size_t(sink_ + ring_) + entry(position)] = position; }
    // Appends the entries that a query at `position` sees, by their positions; `window` 0: all earlier ones.
    void list_seen(int slot, int position, int window, std::vector<int>& entries) const;

    // Rows of all entries, `stride` floats apart and padded with zeros.
    float* keys(int layer, int slot, int head) const;
    float* values(int layer, int slot, int head) const;
    size_t stride() const { return stride_; }

private:
    bool holds(int slot, int position) const {
        return held_[slot * size_t(sink_ + ring_) + entry(position)] == position;
    }

    int layers_, heads_, sink_, ring_;
    size_t stride_, plane_;
    Memory memory_;
    std::vector<int> held_;  // by slot and entry: a position, or -1
    std::vector<bool> open_;
};

}  // namespace outrider
