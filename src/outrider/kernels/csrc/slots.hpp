// Keys and values by layer, slot and head, and how far each slot was written.
#pragma once
#include <vector>

#include "level.hpp"
#include "memory.hpp"

namespace outrider {

// A slot is a row of blocks of positions, a block the keys and values of all layers and heads: memory is taken as a
// sequence grows, and in few large pages.
class Slots {
public:
    Slots(const Level& level, int layers, int slots, int heads, int head_dim, int positions, bool bf16);

    // These throw std::invalid_argument for a slot that does not exist or is in the other state.
    void open(int slot);
    void close(int slot);
    int written(int slot) const;
    // Positions `sources`, ascending and none below its target, become target, target + 1, ...
    void move(int slot, const int* sources, int count, int target);

    void set_written(int slot, int length);
    int count() const { return int(written_.size()); }
    int positions() const { return positions_; }
    Cache cache(int layer, int slot, int head) const;

private:
    static constexpr int kClosed = -1;

    const Level& level_;
    int layers_, heads_, head_dim_, positions_;
    bool bf16_;
    size_t key_bytes_, value_bytes_, block_bytes_, slot_bytes_;
    Memory memory_;
    std::vector<int> written_, highest_;
};

}  // namespace outrider
