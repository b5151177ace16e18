// Loading: rows of a snapshot into the shards of a table, on all threads of the context, each of
// which holds one block in memory. The other direction of SaveTables.
#ifndef TF_DYNEMB_CC_CORE_SNAPSHOT_LOADER_H_
#define TF_DYNEMB_CC_CORE_SNAPSHOT_LOADER_H_

#include <cstdint>
#include <string_view>
#include <vector>

#include "cc/core/base/context.h"
#include "cc/core/base/span.h"
#include "cc/core/base/status.h"
#include "cc/core/shard/routing.h"
#include "cc/core/snapshot/reader.h"
#include "cc/core/table/key_strings.h"
#include "cc/core/table/table.h"

namespace dynemb {

// Rows, and keys that are erased, of a table of another or the same schema. Rows may be values
// alone: their schema has then no optimizer and no meta.
struct ChangeBlock {
  const TableSchema* schema = nullptr;
  ConstRowParts rows;
  Span<const std::string_view> strings;  // of their keys, if the table keeps them
  Span<const Key> erased;
};

// Erases the keys, in whatever shard they are, and puts the rows into the shards. What rows lack is
// as in a new row, what the shards do not have is left out. `shard_ids`: the shard of each row;
// null: key mod number of shards, rounded down. Rows whose keys are not in `part` are left out; of
// one shard `shard_ids` may say which part each is in.
// `strings`: the table's, null if it keeps none; those of the rows are recorded there. Errors: the
// schemas are not compatible, two strings of one fingerprint, no memory; keys may have been erased
// and rows put in then.
Status ApplyBlock(const Context& context, const ChangeBlock& block,
                  const Span<const int32_t>* shard_ids, const std::vector<Table*>& shards,
                  KeyStrings* strings, const KeyPart& part = KeyPart());

// Erases the keys that a table of a snapshot erases, in whatever shard they are; before its rows
// are loaded. Keys whose rows come again stay, to be overwritten, so that nobody who reads
// meanwhile misses them. Memory: 8 bytes per erased key.
Status LoadErased(const Context& context, const SnapshotReader& reader, int64_t table,
                  const std::vector<Table*>& shards);

// What a table of a snapshot erases and has, read and checked, so that to put it into the shards
// waits for no file: for those who keep others waiting meanwhile. Takes the memory of all of it.
class TableChanges {
 public:
  // The schema of the rows and the keys that LoadErased would erase.
  Status ReadErased(const Context& context, const SnapshotReader& reader, int64_t table);
  // Adds the rows of blocks, which List gave.
  Status ReadRows(const Context& context, const SnapshotReader& reader,
                  Span<const BlockEntry> blocks);
  // As LoadErased and LoadRows of all that was read.
  Status Apply(const Context& context, const std::vector<Table*>& shards,
               KeyStrings* strings) const;

 private:
  TableSchema schema_;
  std::vector<Key> erased_;
  std::vector<SnapshotBlock> blocks_;
};

// Puts the rows of blocks, which List gave, into the shards, as ApplyBlock. `shard_ids`: the shard
// of each row of all blocks, in order, or null. Errors: as ApplyBlock, and damage.
Status LoadRows(const Context& context, const SnapshotReader& reader, Span<const BlockEntry> blocks,
                const Span<const int32_t>* shard_ids, const std::vector<Table*>& shards,
                KeyStrings* strings, const KeyPart& part = KeyPart());

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_SNAPSHOT_LOADER_H_
