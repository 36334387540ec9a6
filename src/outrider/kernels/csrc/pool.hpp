// Threads that share the units of a job. Nobody waits for a thread, only for units: a thread that the system has put
// aside delays what it holds and nothing else. Waiting is spinning, briefly, and then sleeping.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "level.hpp"

namespace outrider {

class Pool {
public:
    // The level is fixed here, since matrices are packed for it. Throws std::system_error without threads to be had.
    Pool(int threads, const Level& level);
    ~Pool();
    Pool(const Pool&) = delete;
    Pool& operator=(const Pool&) = delete;

    int threads() const { return threads_; }
    const Level& level() const { return level_; }

    // Calls body(0) here, and body(thread) on each other thread that comes before the first has returned: units must be
    // claimed, not dealt out. Returns when all who came have left. `body` must not throw. Callers take turns.
    template <class Body>
    void run(Body&& body) {
        run_job([](void* context, int thread) { (*static_cast<Body*>(context))(thread); }, &body);
    }

    // unit(i) for each i below `count`, on whatever threads are free.
    template <class Unit>
    void each(int count, Unit&& unit) {
        std::atomic<int> next{0};
        run([&](int) {
            for (int i = next.fetch_add(1); i < count; i = next.fetch_add(1)) unit(i);
        });
    }

    // Returns when done() holds; whoever makes it true calls `announce` afterwards.
    template <class Done>
    void await(Done&& done) {
        for (int i = 0; i < kSpins; ++i) {
            if (done()) return;
            pause();
        }
        std::unique_lock<std::mutex> lock(meeting_->sleep);
        meeting_->sleepers.fetch_add(1);
        meeting_->news.wait(lock, done);
        meeting_->sleepers.fetch_sub(1);
    }
    void announce();

private:
    // Some tens of microseconds: longer than threads of one step are apart, shorter than anybody would miss a core for.
    static constexpr int kSpins = 2000;
    static constexpr uint64_t kClosed = 0xffffffff;
    using Job = void (*)(void*, int);

    // All that threads meet at. A forked child makes its own and leaves its parent's alone: what parent's threads hold
    // or wait for can be neither used nor destroyed there.
    struct Meeting {
        std::vector<std::thread> workers;
        std::mutex turn, sleep;
        std::condition_variable news;
        std::atomic<int> sleepers{0};
        std::atomic<uint32_t> jobs{0};          // begun so far
        std::atomic<uint64_t> inside{kClosed};  // a job's number, and how many workers are within it, or closed
        std::atomic<bool> over{false};
        Job job = nullptr;
        void* context = nullptr;
    };

    static void pause();
    void run_job(Job job, void* context);
    void start();
    void dismiss();
    void work(int thread);
    bool enter(uint32_t job);

    const int threads_;
    const Level& level_;
    int process_ = 0;
    std::unique_ptr<Meeting> meeting_;
};

}  // namespace outrider
