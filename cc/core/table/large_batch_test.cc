// Batches of more keys and bytes than 32 bits count.
#include <sys/mman.h>

#include <memory>
#include <vector>

#include "cc/core/table/host_table.h"
#include "cc/core/testing/caller.h"
#include "gtest/gtest.h"

namespace dynemb {
namespace {

// Memory that is only taken where it is touched: a batch of 2^31 keys costs a few pages.
template <typename T>
class Sparse {
 public:
  explicit Sparse(int64_t size)
      : size_(size),
        data_(mmap(nullptr, static_cast<size_t>(size) * sizeof(T), PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {}
  ~Sparse() { munmap(data_, static_cast<size_t>(size_) * sizeof(T)); }
  Sparse(const Sparse&) = delete;
  bool ok() const { return data_ != MAP_FAILED; }
  T* data() const { return static_cast<T*>(data_); }

 private:
  const int64_t size_;
  void* const data_;
};

// Element counts, and byte offsets beyond 2^32, too.
TEST(LargeBatchTest, PositionsAndOffsetsBeyondTwoToThe31) {
  constexpr int64_t kTwo31 = int64_t{1} << 31, kSize = kTwo31 + 16;
  TableSchema schema;
  schema.dim = 2;
  std::unique_ptr<Table> table;
  ASSERT_OK(MakeHostTable(schema, &table));
  const Sparse<Key> keys(kSize);
  const Sparse<float> values(2 * kSize);
  const Sparse<Outcome> outcomes(kSize);
  ASSERT_TRUE(keys.ok() && values.ok() && outcomes.ok());
  std::vector<int64_t> at = {0, kTwo31 / 2 - 1, kTwo31 / 2, kTwo31 - 1, kTwo31, kSize - 1};
  int64_t count = static_cast<int64_t>(at.size());
  const Positions select{{at.data(), count}, &count};
  const Batch batch{{keys.data(), kSize}, &select};
  const Rows rows(reinterpret_cast<char*>(values.data()), kSize, 2 * sizeof(float));
  const Report report{{outcomes.data(), kSize}, nullptr};
  const Context context = HostTestMemory()->context();
  for (size_t i = 0; i < at.size(); ++i) {
    keys.data()[at[i]] = static_cast<Key>(i) - 2;
    values.data()[2 * at[i]] = values.data()[2 * at[i] + 1] = static_cast<float>(i);
  }
  ASSERT_OK(table->Upsert(context, batch, rows, {}, report));
  for (const int64_t p : at) EXPECT_EQ(outcomes.data()[p], Outcome::kInserted) << p;
  const Caller call(table.get(), HostTestMemory());
  TableContent want;
  for (size_t i = 0; i < at.size(); ++i) {
    want[static_cast<Key>(i) - 2].value = Bytes(Floats(2, static_cast<float>(i)));
    values.data()[2 * at[i]] = -1;
  }
  EXPECT_EQ(Difference(want, call.Export()), "");
  ASSERT_OK(table->Find(context, batch, rows, report));
  for (size_t i = 0; i < at.size(); ++i) {
    EXPECT_EQ(outcomes.data()[at[i]], Outcome::kFound) << at[i];
    EXPECT_EQ(values.data()[2 * at[i]], static_cast<float>(i)) << at[i];
  }
  ASSERT_OK(table->Erase(context, batch, report));
  EXPECT_EQ(table->size(), 0);
}

}  // namespace
}  // namespace dynemb
