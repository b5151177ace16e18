// SnapshotWriter: writes rows that come from anywhere to files of a snapshot; WriteTables: those of
// tables.
#ifndef TF_DYNEMB_CC_CORE_SNAPSHOT_WRITER_H_
#define TF_DYNEMB_CC_CORE_SNAPSHOT_WRITER_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cc/core/base/context.h"
#include "cc/core/base/file_system.h"
#include "cc/core/base/span.h"
#include "cc/core/base/status.h"
#include "cc/core/snapshot/block.h"
#include "cc/core/snapshot/manifest.h"
#include "cc/core/snapshot/save.h"
#include "cc/core/table/key_strings.h"
#include "cc/core/table/table.h"

namespace dynemb {

class SnapshotWriter;

// One file of rows of one table, written as a stream of blocks by one thread. Holds one block in
// memory: about 1 MiB, or one row where that is larger. After an error it can only be given up.
class RowsFile {
 public:
  ~RowsFile();
  RowsFile(const RowsFile&) = delete;
  RowsFile& operator=(const RowsFile&) = delete;

  // An empty block to fill: its keys, values, slots and meta. Then Write the first `rows` of it.
  // For tables that keep no strings.
  const RowParts& room() const { return room_; }
  Status Write(int64_t rows);
  // Copies rows into blocks and writes them. `strings`: of the keys, if the table keeps them.
  // kInvalidArgument: not one per key, or one whose fingerprint is not the key; a key that the
  // schema's key dtype does not have. Of a table that is quantized also: a value beyond float32.
  Status Add(const ConstRowParts& rows, Span<const std::string_view> strings = {});
  // Keys that a delta erases. kInvalidArgument: as of Add.
  Status AddErased(Span<const Key> keys);
  // Ends the file, syncs it and gives it to the snapshot, which it is no part of before.
  Status Finish();

 private:
  friend class SnapshotWriter;
  RowsFile(SnapshotWriter* snapshot, int64_t at, SnapshotFile entry, const SnapshotTable& table);
  Status WriteBlock(BlockKind kind, int64_t records, char* block, int64_t payload_bytes);
  Status WriteRows(int64_t rows);
  Status WriteQuantized(int64_t rows);

  SnapshotWriter* const snapshot_;
  const int64_t at_;  // which of the writer's files
  const RowLayout layout_;
  const TableSchema schema_;
  SnapshotFile entry_;
  std::unique_ptr<WritableFile> file_;
  Status status_;                // the first error, which all later calls return as well
  std::vector<char> block_;      // header and payload
  std::vector<char> quantized_;  // likewise, of a table whose rows are quantized
  RowParts room_;
  uint32_t sequence_ = 0;
};

class SnapshotWriter {
 public:
  // The only writer of a snapshot, which it begins, as SnapshotSave::Begin, and commits.
  static Status Open(FileSystem* files, const std::string& folder,
                     std::unique_ptr<SnapshotWriter>* writer);
  // One of several writers of a snapshot that has begun in the folder. Whoever began it removes
  // what is written if it comes to nothing.
  SnapshotWriter(FileSystem* files, std::string folder, const WriterPlace& place);
  SnapshotWriter(const SnapshotWriter&) = delete;
  SnapshotWriter& operator=(const SnapshotWriter&) = delete;

  // Adds a table and returns its number. `quantized`: of floating values alone, to be written as
  // 8-bit numbers with a scale. Errors: a name that does not fit or is there already.
  Status AddTable(const std::string& name, const TableSchema& schema, int64_t* number,
                  bool quantized = false);
  // Begins a file of rows of a table, which has been added. Safe from any number of threads. The
  // writer must outlive it.
  Status NewFile(int64_t table, std::unique_ptr<RowsFile>* file);
  // What has been written, for SnapshotSave::Commit: all files must have finished. `base`: the
  // snapshot that this is a delta of, or 0.
  Status Finish(uint64_t base, Manifest* part);
  // Of the only writer: finishes and commits, as SnapshotSave::Commit.
  Status Commit(uint64_t base);

  const Manifest& manifest() const { return manifest_; }

 private:
  friend class RowsFile;

  FileSystem* const files_;
  const std::string folder_;
  const WriterPlace place_;
  std::unique_ptr<SnapshotSave> save_;  // of the only writer
  std::mutex mutex_;
  Manifest manifest_;  // its files under the mutex
  int64_t begun_ = 0;
};

// Begins a new epoch in all shards of a table, which track changes from then on, and returns the
// one that it ended: what is written after the call is of a later one, and so may be what was
// written while others called it.
Status BeginEpoch(const Context& context, const std::vector<Table*>& shards, int64_t* ended);

// The schema of rows of a table that are saved as `values_as`.
TableSchema ValuesAlone(const TableSchema& schema, DType values_as);

struct TableToSave {
  std::string name;
  std::vector<Table*> shards;
  // Of a delta: save what has changed since this epoch; -1: all rows.
  int64_t since_epoch = -1;
  // Of a table that keeps them.
  KeyStrings* strings = nullptr;
  // Of a table without shards here, whose rows other writers have.
  const TableSchema* remote_schema = nullptr;
  // Save values alone, without slots and meta: what a server needs. As numbers of this dtype where
  // those of the table are wider floats; kInt8: floats as 8-bit numbers with a scale for each row.
  std::optional<DType> values_as = std::nullopt;
};

// Writes the rows of tables, as one writer of a snapshot that has begun, while others may write to
// the tables: of each row, its value, slots and meta of one moment between the call's beginning and
// its end; a row that is there throughout appears exactly once. All threads write, each a shard or
// a part of a large one, to a file of its own. A delta costs what has changed, not what there is.
// `base`: the snapshot that this is a delta of, or 0.
// kInvalidArgument: a value that `values_as` cannot hold. kInternal: a row of a table that keeps
// strings has none, which cannot be.
Status WriteTables(const Context& context, FileSystem* files, const std::string& folder,
                   const WriterPlace& place, const std::vector<TableToSave>& tables, uint64_t base,
                   Manifest* part);

// Begins a snapshot, writes all of it and commits it.
Status SaveTables(const Context& context, FileSystem* files, const std::string& folder,
                  const std::vector<TableToSave>& tables, uint64_t base, Manifest* manifest);

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_SNAPSHOT_WRITER_H_
