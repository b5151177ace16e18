// Loading: rows of a snapshot into the shards of a table, on all threads of the context, each of
// which holds one block in memory. The other direction of SaveTables.
#ifndef TF_DYNEMB_CC_CORE_SNAPSHOT_LOADER_H_
#define TF_DYNEMB_CC_CORE_SNAPSHOT_LOADER_H_

#include <cstdint>
#include <vector>

#include "cc/core/base/context.h"
#include "cc/core/base/span.h"
#include "cc/core/base/status.h"
#include "cc/core/shard/routing.h"
#include "cc/core/snapshot/reader.h"
#include "cc/core/table/key_strings.h"
#include "cc/core/table/table.h"

namespace dynemb {

// Erases the keys that a table of a snapshot erases, in whatever shard they are; before its rows
// are loaded. Keys whose rows come again stay, to be overwritten, so that nobody who reads
// meanwhile misses them. Memory: 8 bytes per erased key.
Status LoadErased(const Context& context, const SnapshotReader& reader, int64_t table,
                  const std::vector<Table*>& shards);

// Puts the rows of blocks, which List gave, into the shards. Slots that the shards do not have are
// left out, those that the rows do not have are as new. `strings`: the table's, null if it keeps
// none; those of the rows are recorded there.
//
// `owners`: the shard of each row of the blocks, in order; null: key mod number of shards, rounded
// down. Rows whose keys are not in `part` are left out. Errors: the schemas are not compatible,
// damage, two strings of one fingerprint, no memory; rows may have been put in then.
Status LoadRows(const Context& context, const SnapshotReader& reader, Span<const BlockEntry> blocks,
                const Span<const int32_t>* owners, const std::vector<Table*>& shards,
                KeyStrings* strings, const KeyPart& part = KeyPart());

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_SNAPSHOT_LOADER_H_
