// PageArray: an array of numbers whose memory, if it is large, goes back to the system with it.
//
// An allocator keeps what is freed, for calls that want as much. Arrays that grow never do: those
// of an index of 100 million rows left as much free memory behind as they had.
#ifndef TF_DYNEMB_CC_CORE_STORAGE_PAGE_ARRAY_H_
#define TF_DYNEMB_CC_CORE_STORAGE_PAGE_ARRAY_H_

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <new>
#include <type_traits>
#include <utility>

namespace dynemb {

template <typename T>
class PageArray {
  static_assert(std::is_trivial<T>::value, "its numbers are neither made nor destroyed");

 public:
  PageArray() = default;
  PageArray(PageArray&& other) noexcept { *this = std::move(other); }
  PageArray& operator=(PageArray&& other) noexcept {
    std::swap(numbers_, other.numbers_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~PageArray() {
    if (bytes_ >= kPagesFrom) {
      ::munmap(numbers_, bytes_);
    } else {
      ::operator delete(numbers_);
    }
  }

  // One of so many, of any values, in place of this. False: there is no memory, and this is as it
  // was.
  bool Allocate(int64_t numbers) {
    PageArray made;
    made.bytes_ = static_cast<size_t>(numbers) * sizeof(T);
    void* at;
    if (made.bytes_ >= kPagesFrom) {
      at = ::mmap(nullptr, made.bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (at == MAP_FAILED) at = nullptr;
    } else {
      at = ::operator new(made.bytes_, std::nothrow);
    }
    if (at == nullptr) {
      made.bytes_ = 0;
      return false;
    }
    made.numbers_ = static_cast<T*>(at);
    *this = std::move(made);
    return true;
  }

  T* get() const { return numbers_; }
  T& operator[](int64_t i) const { return numbers_[i]; }

 private:
  static constexpr size_t kPagesFrom = size_t{256} << 10;

  T* numbers_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_STORAGE_PAGE_ARRAY_H_
