// A row of phases that the threads of a pool run together: a phase's units are claimed by whoever comes, their owner
// first, and a thread goes on when all of them are done, whoever did them.
#pragma once
#include <atomic>
#include <cassert>
#include <vector>

#include "memory.hpp"
#include "numbers.hpp"
#include "pool.hpp"

namespace outrider {

class Phases {
public:
    explicit Phases(Pool& pool) : pool_(pool) {}

    // Before a run: takes all memory that so many phases need.
    void begin(int count) {
        // Units done, and units claimed by owner.
        phase_counts_ = round_up(1 + pool_.threads(), kApart);
        count_ = count;
        const size_t size = count * phase_counts_;
        counts_.reserve(size * sizeof(std::atomic<int>));
        for (size_t i = 0; i < size; ++i) new (counts_.as<std::atomic<int>>() + i) std::atomic<int>(0);
        next_.assign(size_t(pool_.threads()) * kApart, 0);
    }

    // The next phase: unit(i) for the units of all owners, owner t having [bounds[t], bounds[t + 1]). `ready` comes
    // before a thread's first unit: what it reads stays as it is until the phase is over.
    template <class Ready, class Unit>
    void run(int thread, const std::vector<int>& bounds, Ready&& ready, Unit&& unit) {
        const int threads = pool_.threads(), total = bounds[threads];
        assert(next_[thread * kApart] < count_);
        std::atomic<int>* counts = counts_.as<std::atomic<int>>() + next_[thread * kApart]++ * phase_counts_;
        std::atomic<int>&finished = counts[0], *claimed = counts + 1;
        int done = 0;
        for (int k = 0; k < threads; ++k) {
            const int owner = (thread + k) % threads, end = bounds[owner + 1];
            for (int i = bounds[owner] + claimed[owner].fetch_add(1); i < end;
                 i = bounds[owner] + claimed[owner].fetch_add(1)) {
                if (done++ == 0) ready();
                unit(i);
            }
        }
        if (done > 0 && finished.fetch_add(done) + done == total) pool_.announce();
        pool_.await([&] { return finished.load() == total; });
    }

    template <class Unit>
    void run(int thread, const std::vector<int>& bounds, Unit&& unit) {
        run(thread, bounds, [] {}, unit);
    }

    // Equal shares of `count` units, one behind the other.
    std::vector<int> evenly(int count) const {
        std::vector<int> bounds;
        for (int64_t t = 0; t <= pool_.threads(); ++t) bounds.push_back(int(count * t / pool_.threads()));
        return bounds;
    }

private:
    // Numbers that threads write all the time lie on cache lines of their own.
    static constexpr int kApart = 16;

    Pool& pool_;
    Memory counts_;
    std::vector<int> next_;  // by thread
    int count_ = 0;
    size_t phase_counts_ = 0;
};

}  // namespace outrider
