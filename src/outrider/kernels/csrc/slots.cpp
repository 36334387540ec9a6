#include "slots.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

#include "numbers.hpp"

namespace outrider {

Slots::Slots(const Level& level, int layers, int slots, int heads, int head_dim, int positions, bool bf16)
    : level_(level),
      layers_(layers),
      heads_(heads),
      head_dim_(head_dim),
      positions_(positions),
      bf16_(bf16),
      written_(slots, kClosed),
      highest_(slots, 0) {
    const size_t element = bf16 ? 2 : 4;
    key_bytes_ = kKeyBlock * head_dim * element;
    value_bytes_ = kKeyBlock * padded_dim(level, head_dim) * element;
    block_bytes_ = (key_bytes_ + value_bytes_) * heads * layers;
    slot_bytes_ = block_bytes_ * ((positions + kKeyBlock - 1) / kKeyBlock);
    memory_ = Memory(slot_bytes_ * slots, true);
}

Cache Slots::cache(int layer, int slot, int head) const {
    char* keys =
        memory_.as<char>() + slot * slot_bytes_ + (size_t(layer) * heads_ + head) * (key_bytes_ + value_bytes_);
    return {keys, keys + key_bytes_, block_bytes_, head_dim_, bf16_};
}

int Slots::written(int slot) const {
    if (slot < 0 || slot >= count())
        throw std::invalid_argument("slot " + std::to_string(slot) + " does not exist; there are " +
                                    std::to_string(count()));
    if (written_[slot] == kClosed) throw std::invalid_argument("slot " + std::to_string(slot) + " is not open");
    return written_[slot];
}

void Slots::set_written(int slot, int length) {
    written_[slot] = length;
    highest_[slot] = std::max(highest_[slot], length);
}

void Slots::open(int slot) {
    if (slot >= 0 && slot < count() && written_[slot] != kClosed)
        throw std::invalid_argument("slot " + std::to_string(slot) + " is open already");
    if (slot < 0 || slot >= count()) written(slot);
    written_[slot] = 0;
}

void Slots::close(int slot) {
    written(slot);
    const size_t blocks = (highest_[slot] + kKeyBlock - 1) / kKeyBlock;
    std::memset(memory_.as<char>() + slot * slot_bytes_, 0, blocks * block_bytes_);
    written_[slot] = kClosed;
    highest_[slot] = 0;
}

void Slots::move(int slot, const int* sources, int count, int target) {
    const int length = written(slot);
    for (int i = 0; i < count; ++i) {
        if (target < 0 || sources[i] < target + i || sources[i] >= length || (i > 0 && sources[i] <= sources[i - 1]))
            throw std::invalid_argument("sources must ascend, none below its target, within what was written");
    }
    for (int layer = 0; layer < layers_; ++layer) {
        for (int head = 0; head < heads_; ++head) {
            const Cache c = cache(layer, slot, head);
            for (int i = 0; i < count; ++i) level_.copy(c, sources[i], c, target + i);
        }
    }
}

}  // namespace outrider
