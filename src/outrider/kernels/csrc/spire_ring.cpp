#include "spire_ring.hpp"

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "numbers.hpp"

namespace outrider {

namespace {

// Floats that vectors of every level divide; as many fill a cache line.
constexpr int kLine = 16;

}  // namespace

SpireRing::SpireRing(int layers, int slots, int heads, int head_dim, int sink, int ring)
    : layers_(layers),
      heads_(heads),
      sink_(sink),
      ring_(ring),
      stride_(round_up(head_dim, kLine)),
      plane_((size_t(sink) + ring) * stride_),
      memory_(plane_ * 2 * heads * layers * slots * sizeof(float)),
      held_(slots * (size_t(sink) + ring), -1),
      open_(slots) {}

void SpireRing::need_open(int slot) const {
    if (slot < 0 || slot >= slots())
        throw std::invalid_argument("slot " + std::to_string(slot) + " does not exist; there are " +
                                    std::to_string(slots()));
    if (!open_[slot]) throw std::invalid_argument("slot " + std::to_string(slot) + " is not open");
}

void SpireRing::open(int slot) {
    if (slot >= 0 && slot < slots() && open_[slot])
        throw std::invalid_argument("slot " + std::to_string(slot) + " is open already");
    if (slot < 0 || slot >= slots()) need_open(slot);
    open_[slot] = true;
}

void SpireRing::close(int slot) {
    need_open(slot);
    // Keys and values stay, and nothing says that they are there.
    const auto first = held_.begin() + slot * (size_t(sink_) + ring_);
    std::fill(first, first + sink_ + ring_, -1);
    open_[slot] = false;
}

void SpireRing::list_seen(int slot, int position, int window, std::vector<int>& entries) const {
    const int sinks = std::min(position, sink_);
    for (int p = 0; p < sinks; ++p)
        if (holds(slot, p)) entries.push_back(entry(p));
    for (int p = window > 0 ? std::max(sinks, position - window) : sinks; p < position; ++p)
        if (holds(slot, p)) entries.push_back(entry(p));
}

float* SpireRing::keys(int layer, int slot, int head) const {
    return memory_.as<float>() + ((size_t(slot) * layers_ + layer) * heads_ + head) * 2 * plane_;
}

float* SpireRing::values(int layer, int slot, int head) const { return keys(layer, slot, head) + plane_; }

}  // namespace outrider
