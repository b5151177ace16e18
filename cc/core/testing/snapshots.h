// What tests of snapshots have in common: tables with made-up rows, whole snapshots as maps, and
// the bytes of blocks and manifests, put together from FORMAT.md and not by the engine's code.
#ifndef TF_DYNEMB_CC_CORE_TESTING_SNAPSHOTS_H_
#define TF_DYNEMB_CC_CORE_TESTING_SNAPSHOTS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cc/core/base/context.h"
#include "cc/core/base/file_system.h"
#include "cc/core/snapshot/manifest.h"
#include "cc/core/snapshot/writer.h"
#include "cc/core/table/table.h"
#include "cc/core/testing/harness.h"

namespace dynemb {

// The calling thread alone: operations come in the same order each time.
Context OneThread();

TableSchema MakeSchema(DType dtype, int64_t dim, const std::string& rule = "",
                       std::vector<MetaField> meta = {});
// `count` rows of random bytes; the keys are some of 0 to 2 * count and their negatives.
TableContent RandomRows(const TableSchema& schema, int64_t count, uint64_t seed);

// A table that is or was in a snapshot.
struct TestTable {
  std::string name;
  TableSchema schema;
  TableContent rows;
  int64_t shards = 1;
};
using SnapshotContent = std::map<std::string, TableContent>;
SnapshotContent ContentOf(const std::vector<TestTable>& tables);
// The first difference in words, or "".
std::string Difference(const SnapshotContent& want, const SnapshotContent& got);

// Host tables that hold the rows, key k in shard k mod shards. Stops the test on an error.
class Shards {
 public:
  explicit Shards(const std::vector<TestTable>& tables);
  const std::vector<TableToSave>& named() const { return named_; }

 private:
  std::vector<std::unique_ptr<Table>> owned_;
  std::vector<TableToSave> named_;
};

// SaveTables from such shards, on one thread.
Status Save(FileSystem* files, const std::string& folder, const Shards& shards);
// Opens, verifies and reads a snapshot. A key that comes twice is an error here.
Status Load(FileSystem* files, const std::string& folder, SnapshotContent* content,
            std::map<std::string, std::vector<Key>>* erased = nullptr);

// A block's fields as FORMAT.md has them; its checksums are made.
struct RawBlock {
  uint16_t kind = 1;
  uint16_t flags = 1;
  uint64_t snapshot = 0;
  uint32_t file = 0;
  uint32_t sequence = 0;
  int64_t records = 0;
  std::string payload;
};
std::string Encode(const RawBlock& block);
// With the line that ends a manifest.
std::string Sealed(const std::string& lines);
// The text of the checksum.
std::string ChecksumText(const std::string& data);

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_TESTING_SNAPSHOTS_H_
