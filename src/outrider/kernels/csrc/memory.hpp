// Owned, zeroed, page-aligned memory. Pages exist once they are written, so room that is never used costs nothing; huge
// pages, for what will be written anyway, spare a stream of weights a page crossing every 64 lines.
#pragma once
#include <cstddef>
#include <new>
#include <utility>

#include <sys/mman.h>

namespace outrider {

class Memory {
public:
    static constexpr size_t kHugePage = size_t(1) << 21;

    Memory() = default;
    explicit Memory(size_t size, bool huge = false) : size_(size) {
        if (size == 0) return;
        data_ = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (data_ == MAP_FAILED) {
            data_ = nullptr;
            throw std::bad_alloc();
        }
#ifdef MADV_HUGEPAGE
        // Refusal does no harm.
        if (huge && size >= kHugePage) madvise(data_, size, MADV_HUGEPAGE);
#endif
        (void)huge;
    }
    Memory(Memory&& other) noexcept { swap(other); }
    Memory& operator=(Memory&& other) noexcept {
        swap(other);
        return *this;
    }
    ~Memory() {
        if (data_ != nullptr) munmap(data_, size_);
    }

    template <class T>
    T* as() const {
        return static_cast<T*>(data_);
    }
    size_t size() const { return size_; }

    // Room for at least `size` bytes; contents are lost when it grows.
    void reserve(size_t size) {
        if (size > size_) *this = Memory(size + size / 4);
    }

private:
    void swap(Memory& other) noexcept {
        std::swap(data_, other.data_);
        std::swap(size_, other.size_);
    }

    void* data_ = nullptr;
    size_t size_ = 0;
};

}  // namespace outrider
