// The simulated device keeps its promise: the host cannot touch its memory, its table refuses the
// host's memory, and host tables refuse its own.
#include "cc/core/testing/simulated_device.h"

#include <unistd.h>

#include <cerrno>
#include <memory>
#include <string>

#include "cc/core/testing/caller.h"
#include "cc/core/testing/harness.h"
#include "cc/core/testing/reference_table.h"
#include "gtest/gtest.h"

namespace dynemb {
namespace {

// Asks the kernel, which does not die of it.
bool HostCanRead(const char* data) {
  int ends[2];
  EXPECT_EQ(pipe(ends), 0);
  const ssize_t written = write(ends[1], data, 1);
  EXPECT_TRUE(written == 1 || errno == EFAULT);
  close(ends[0]);
  close(ends[1]);
  return written == 1;
}

TEST(SimulatedDevice, HostCannotTouchItsMemory) {
  SimulatedDevice device(1 << 20);
  char* const data = device.Allocate(4);
  device.CopyIn(data, "abc", 4);
  char text[4] = {};
  device.CopyOut(text, data, 4);
  EXPECT_EQ(std::string(text), "abc");
  EXPECT_TRUE(HostCanRead(text));
  EXPECT_FALSE(HostCanRead(data));
  device.Free(data);
}

TEST(SimulatedDevice, AllocationsDoNotOverlapAndAreUsedAgain) {
  SimulatedDevice device(4096);
  char* const a = device.Allocate(1000);
  char* const b = device.Allocate(1000);
  char* const c = device.Allocate(1000);
  ASSERT_NE(c, nullptr);
  EXPECT_GE(b - a, 1000);
  EXPECT_GE(c - b, 1000);
  EXPECT_EQ(device.Allocate(2000), nullptr);
  device.Free(b);
  EXPECT_EQ(device.Allocate(900), b);
  EXPECT_TRUE(device.Owns(a, 4096));
  EXPECT_FALSE(device.Owns(a, 4097));
  EXPECT_FALSE(device.Owns(a - 1, 1));
}

// A label is not believed: the pointers themselves must be the device's.
TEST(SimulatedDeviceTable, RefusesHostMemoryUnderAnyLabel) {
  const TableHarness harness = SimulatedDeviceHarness("", MakeReferenceTable);
  const std::unique_ptr<Table> table = harness.Make(TableSchema());
  const Context context = harness.memory->context();
  const Mirror<Key> keys(harness.memory, Keys{1});
  const Mirror<float> values(harness.memory, 1);
  const Mirror<int64_t> at(harness.memory, 1), count(harness.memory, 1);
  Positions misses = {at.span(), count.there()};
  const auto find = [&](const Batch& batch, const Rows& rows) {
    return table->Find(context, batch, rows, {{}, &misses}).code();
  };
  ASSERT_EQ(find({keys.span()}, values.rows(1, 1)), Code::kOk);
  for (const MemorySpace space : {MemorySpace::kHost, MemorySpace::kSimulatedDevice}) {
    Key key = 1;
    float value = 0;
    EXPECT_EQ(find({Span<const Key>(&key, 1, space)}, values.rows(1, 1)), Code::kInvalidArgument);
    EXPECT_EQ(find({keys.span()}, Rows(reinterpret_cast<char*>(&value), 1, 4, space)),
              Code::kInvalidArgument);
  }
  EXPECT_EQ(find({keys.span()}, values.rows(1, 1'000'000'000)), Code::kOk) << "one row: no stride";
  EXPECT_EQ(find({keys.span()}, values.rows(2, 1'000'000'000)), Code::kInvalidArgument);
  int64_t host_count = 0;
  misses.count = &host_count;
  EXPECT_EQ(find({keys.span()}, values.rows(1, 1)), Code::kInvalidArgument);
  misses.count = count.there();

  Context other_stream = context;
  other_stream.stream = &other_stream;
  EXPECT_EQ(table->Clear(other_stream).code(), Code::kInvalidArgument);
  EXPECT_EQ(table->Clear(context).code(), Code::kOk);
}

TEST(SimulatedDeviceTable, HostTablesRefuseItsMemory) {
  const TableHarness harness = HostHarness("", MakeReferenceTable);
  const std::unique_ptr<Table> table = harness.Make(TableSchema());
  const Mirror<Key> keys(SimulatedDeviceTestMemory(), Keys{1});
  const Mirror<float> values(SimulatedDeviceTestMemory(), 1);
  EXPECT_EQ(table->Find(harness.memory->context(), {keys.span()}, values.rows(1, 1), {}).code(),
            Code::kInvalidArgument);
}

}  // namespace
}  // namespace dynemb
