// What the suites that test every Table have in common: where a table's batches lie (TestMemory),
// how one is made (TableHarness), buffers that exist on the host and there (Mirror), and
// whole-table exports.
//
// The suites touch a tested table's memory through TestMemory alone, so that the same tests run on
// host memory, on the simulated device and on a real one.
#ifndef TF_DYNEMB_CC_CORE_TESTING_HARNESS_H_
#define TF_DYNEMB_CC_CORE_TESTING_HARNESS_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "cc/core/base/context.h"
#include "cc/core/base/span.h"
#include "cc/core/base/status.h"
#include "cc/core/table/table.h"
#include "cc/core/testing/simulated_device.h"

#if defined(__SANITIZE_THREAD__)
#define DYNEMB_TSAN 1
#elif defined(__SANITIZE_ADDRESS__)
#define DYNEMB_ASAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define DYNEMB_TSAN 1
#elif __has_feature(address_sanitizer)
#define DYNEMB_ASAN 1
#endif
#endif

// Ends a test that gets an error here. For files that include gtest.
#define ASSERT_OK(expression)                                         \
  do {                                                                \
    const Status assert_ok_status = (expression);                     \
    ASSERT_TRUE(assert_ok_status.ok()) << assert_ok_status.message(); \
  } while (false)

// Fails a test that gets an error here, and goes on.
#define EXPECT_OK(expression)                       \
  do {                                              \
    const Status status_ = (expression);            \
    EXPECT_TRUE(status_.ok()) << status_.message(); \
  } while (false)

namespace dynemb {

// What the program was built with.
#if defined(DYNEMB_TSAN)
inline constexpr bool kUnderThreadSanitizer = true;
#else
inline constexpr bool kUnderThreadSanitizer = false;
#endif
#if defined(DYNEMB_ASAN)
inline constexpr bool kUnderAddressSanitizer = true;
#else
inline constexpr bool kUnderAddressSanitizer = false;
#endif

// The memory that a tested table works on. Thread-safe.
class TestMemory {
 public:
  virtual ~TestMemory() = default;
  virtual MemorySpace space() const = 0;
  // For calls of any thread.
  virtual Context context() = 0;
  virtual char* Allocate(int64_t bytes) = 0;
  virtual void Free(char* data) = 0;
  // Both wait for what the context was given before, and have copied on return.
  virtual void CopyIn(char* to, const char* from_host, int64_t bytes) = 0;
  virtual void CopyOut(char* to_host, const char* from, int64_t bytes) = 0;
};

// The host's memory. Every other call is given threads to share its work with. Lives for ever.
TestMemory* HostTestMemory();
// The simulated device's. Lives for ever.
TestMemory* SimulatedDeviceTestMemory();

using MakeTable = std::function<Status(const TableSchema&, std::unique_ptr<Table>*)>;

// A row as its packed bytes; `value` and the others as in RowParts.
struct RowBytes {
  std::string value;
  std::string slots;
  std::string meta;
  bool operator==(const RowBytes& o) const {
    return value == o.value && slots == o.slots && meta == o.meta;
  }
  bool operator!=(const RowBytes& o) const { return !(*this == o); }
};
using TableContent = std::map<Key, RowBytes>;

// A kind of table, to be tested.
struct TableHarness {
  std::string name;
  MakeTable make;
  TestMemory* memory = nullptr;
  // Whether its NaNs have the bits of the reference's: processors and GPUs make different ones.
  bool same_nans = true;
  // Whether all of its rows are in what memory_bytes counts.
  bool rows_in_memory = true;
  // What it may take ahead of need, where it does not know how many rows there are.
  int64_t bytes_ahead = 0;
  // Batches of 30,000 rows that it is filled with; fewer for one that moves each row by itself.
  int64_t batches_of_many_rows = 8;

  // Makes a table or stops the test.
  std::unique_ptr<Table> Make(const TableSchema& schema) const;
  // Numbers of a dtype, and a table's content, as they are to be compared: unless same_nans holds,
  // with the same bits for every NaN.
  std::string Comparable(DType dtype, std::string numbers) const;
  TableContent Comparable(const TableSchema& schema, TableContent content) const;
};

TableHarness HostHarness(const std::string& name, MakeTable make);
// The same table behind the simulated device.
TableHarness SimulatedDeviceHarness(const std::string& name, MakeTable make);

// The host table, and behind the simulated device.
TableHarness HostTableHarness();
TableHarness HostTableOnSimulatedDeviceHarness();

inline void PrintTo(const TableHarness& harness, std::ostream* out) { *out << harness.name; }

// `size` objects of T in a TestMemory, `there`, with a copy on the host, `host`.
template <typename T>
class Mirror {
 public:
  Mirror(TestMemory* memory, int64_t size)
      : memory_(memory),
        size_(size),
        host_(new T[size]()),
        there_(reinterpret_cast<T*>(memory->Allocate(size * sizeof(T)))) {
    Push();
  }
  Mirror(TestMemory* memory, const std::vector<T>& content)
      : Mirror(memory, static_cast<int64_t>(content.size())) {
    for (int64_t i = 0; i < size_; ++i) host_[i] = content[i];
    Push();
  }
  ~Mirror() { memory_->Free(reinterpret_cast<char*>(there_)); }
  Mirror(const Mirror&) = delete;
  Mirror& operator=(const Mirror&) = delete;

  int64_t size() const { return size_; }
  T* host() const { return host_.get(); }
  T* there() const { return there_; }
  T& operator[](int64_t i) const { return host_[i]; }

  // Host to there, and back; of all or of the first n.
  void Push() { Push(size_); }
  void Pull() { Pull(size_); }
  void Push(int64_t n) {
    memory_->CopyIn(reinterpret_cast<char*>(there_), reinterpret_cast<char*>(host_.get()),
                    n * sizeof(T));
  }
  void Pull(int64_t n) {
    memory_->CopyOut(reinterpret_cast<char*>(host_.get()), reinterpret_cast<char*>(there_),
                     n * sizeof(T));
  }

  // The first n as they are there, leaving the host's alone.
  std::vector<char> Fetch(int64_t n) const {
    std::vector<char> bytes(n * sizeof(T));
    memory_->CopyOut(bytes.data(), reinterpret_cast<char*>(there_), n * sizeof(T));
    return bytes;
  }
  // Do the first n there have the bits that the host's have?
  bool SameBits(int64_t n) const {
    return n == 0 || std::memcmp(Fetch(n).data(), host_.get(), n * sizeof(T)) == 0;
  }

  Span<T> span() const { return span(size_); }
  Span<T> span(int64_t n) const { return Span<T>(there_, n, memory_->space()); }
  // As rows `stride` objects apart, beginning at object `first`.
  Rows rows(int64_t count, int64_t stride, int64_t first = 0) const {
    return Rows(reinterpret_cast<char*>(there_ + first), count,
                stride * static_cast<int64_t>(sizeof(T)), memory_->space());
  }

 private:
  TestMemory* const memory_;
  const int64_t size_;
  const std::unique_ptr<T[]> host_;
  T* const there_;
};

// Room for rows with all their parts, on the host and in a table's memory.
class PartBuffers {
 public:
  PartBuffers(TestMemory* memory, const TableSchema& schema, int64_t rows)
      : rows_(rows),
        layout_(schema),
        keys_(memory, rows),
        values_(memory, rows * layout_.value_bytes),
        slots_(memory, rows * layout_.slots_bytes),
        meta_(memory, rows * layout_.meta_bytes) {}

  RowParts parts() const {
    return {keys_.span(), values_.rows(rows_, layout_.value_bytes),
            slots_.rows(rows_, layout_.slots_bytes), meta_.rows(rows_, layout_.meta_bytes)};
  }
  void Set(int64_t i, Key key, const RowBytes& row) {
    keys_[i] = key;
    std::copy(row.value.begin(), row.value.end(), values_.host() + i * layout_.value_bytes);
    std::copy(row.slots.begin(), row.slots.end(), slots_.host() + i * layout_.slots_bytes);
    std::copy(row.meta.begin(), row.meta.end(), meta_.host() + i * layout_.meta_bytes);
  }
  Key key(int64_t i) const { return keys_[i]; }
  RowBytes row(int64_t i) const {
    const auto part = [i](const Mirror<char>& bytes, int64_t size) {
      return std::string(bytes.host() + i * size, static_cast<size_t>(size));
    };
    return {part(values_, layout_.value_bytes), part(slots_, layout_.slots_bytes),
            part(meta_, layout_.meta_bytes)};
  }
  void Push() { keys_.Push(), values_.Push(), slots_.Push(), meta_.Push(); }
  void Pull() { keys_.Pull(), values_.Pull(), slots_.Pull(), meta_.Pull(); }

 private:
  const int64_t rows_;
  const RowLayout layout_;
  Mirror<Key> keys_;
  Mirror<char> values_, slots_, meta_;
};

// Everything in a table, through a cursor with room for `chunk` rows. A key that appears twice, an
// error, or an export without end stops the test.
TableContent ExportAll(const Table& table, TestMemory* memory, int64_t chunk);
// One call of Export: the rows, in order. With `parts` == false only keys and values.
std::vector<std::pair<Key, RowBytes>> ExportSome(const Table& table, TestMemory* memory,
                                                 int64_t chunk, bool parts, Cursor* cursor);
// The contents' difference in words, or "".
std::string Difference(const TableContent& want, const TableContent& got);

// 1 normally; with TF_DYNEMB_SOAK=1, 20 times SOAK_SHARE (1 where it is not set), at least 1.
int64_t SoakFactor();

// The key whose Mix64 is `hash`.
Key KeyOfHash(uint64_t hash);

// Hyper-parameters of a rule with usual values; `step` is the number of the update.
std::vector<double> UsualHyper(const std::string& rule, double step);

// The rule's spec, with accumulators that start at 0.1.
OptimizerSpec UsualRule(const std::string& name);
// The names of all rules.
std::vector<std::string> AllRuleNames();

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_TESTING_HARNESS_H_
