#include "pool.hpp"

#include <unistd.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace outrider {

void Pool::pause() {
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    asm volatile("isb");
#endif
}

// Sequentially consistent with the sleeper, who counts itself before it looks once more.
void Pool::announce() {
    if (meeting_->sleepers.load() == 0) return;
    std::lock_guard<std::mutex> lock(meeting_->sleep);
    meeting_->news.notify_all();
}

Pool::Pool(int threads, const Level& level) : threads_(threads), level_(level) { start(); }

Pool::~Pool() {
    if (process_ == getpid()) dismiss();
    else (void)meeting_.release();
}

void Pool::dismiss() {
    meeting_->over.store(true);
    meeting_->jobs.fetch_add(1);
    announce();
    for (std::thread& worker : meeting_->workers) worker.join();
    meeting_->workers.clear();
}

void Pool::start() {
    process_ = getpid();
    meeting_ = std::make_unique<Meeting>();
    try {
        for (int thread = 1; thread < threads_; ++thread)
            meeting_->workers.emplace_back([this, thread] { work(thread); });
    } catch (...) {
        dismiss();
        throw;
    }
}

void Pool::run_job(Job job, void* context) {
    if (process_ != getpid()) {
        (void)meeting_.release();
        start();
    }
    Meeting& m = *meeting_;
    std::lock_guard<std::mutex> lock(m.turn);
    m.job = job;
    m.context = context;
    const uint32_t number = m.jobs.load() + 1;
    const uint64_t nobody = uint64_t(number) << 32;
    m.inside.store(nobody);
    m.jobs.store(number);
    announce();
    job(context, 0);
    // Late comers find the job closed; those inside are waited for.
    for (uint64_t seen = nobody; !m.inside.compare_exchange_strong(seen, nobody | kClosed); seen = nobody)
        await([&] { return m.inside.load() == nobody; });
}

// A thread that was put aside before it could enter one job must not enter the next in its place, and then again as
// itself.
bool Pool::enter(uint32_t job) {
    uint64_t inside = meeting_->inside.load();
    while (inside >> 32 == job && (inside & kClosed) != kClosed) {
        if (meeting_->inside.compare_exchange_weak(inside, inside + 1)) return true;
    }
    return false;
}

void Pool::work(int thread) {
    Meeting& m = *meeting_;
    uint32_t seen = 0;
    while (true) {
        await([&] { return m.jobs.load() != seen; });
        seen = m.jobs.load();
        if (m.over.load()) return;
        if (!enter(seen)) continue;
        m.job(m.context, thread);
        if ((m.inside.fetch_sub(1) & kClosed) == 1) announce();
    }
}

}  // namespace outrider
