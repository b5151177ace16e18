// SnapshotReader: opens a snapshot and reads its blocks, checking everything. Whatever the files
// hold, damaged or made up, the answer is their rows or an error.
#ifndef TF_DYNEMB_CC_CORE_SNAPSHOT_READER_H_
#define TF_DYNEMB_CC_CORE_SNAPSHOT_READER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cc/core/base/context.h"
#include "cc/core/base/file_system.h"
#include "cc/core/base/status.h"
#include "cc/core/snapshot/block.h"
#include "cc/core/snapshot/manifest.h"

namespace dynemb {

// A place between two blocks of a snapshot; the default is the beginning. Only places that Next has
// left behind are good.
struct SnapshotPlace {
  int64_t file = 0;
  int64_t offset = 0;
  int64_t sequence = 0;
};

// What a block's header says of it.
struct BlockEntry {
  SnapshotPlace place;
  BlockKind kind = BlockKind::kEnd;
  int64_t records = 0;
};

// One block of a snapshot; its spans point into the payloads.
struct SnapshotBlock {
  int64_t table = 0;
  ConstRowParts rows;                     // of a rows block
  std::vector<std::string_view> strings;  // of its keys, if the table keeps them
  Span<const Key> erased;                 // of an erased block
  std::vector<char> payload, strings_payload;
  std::vector<char> values;  // of quantized rows
};

class SnapshotReader {
 public:
  // Reads the manifest. kNotFound: there is no snapshot in the folder; kDataLoss: it is damaged.
  static Status Open(FileSystem* files, const std::string& folder,
                     std::unique_ptr<SnapshotReader>* reader);

  const Manifest& manifest() const { return manifest_; }
  // The number of the table of that name; kNotFound naming those that there are.
  Status FindTable(const std::string& name, int64_t* table) const;

  // Makes ready to read a table's rows into one of schema `to`: of quantized rows, values are read
  // as its floats. Before anything of the table is read. kFailedPrecondition: they do not fit.
  Status FitTo(const TableSchema& to, int64_t table);

  // Reads the block at `place`, of rows with the strings that belong to them, and moves behind it;
  // skips blocks that hold neither rows nor erased keys. `table`: blocks of this table only; -1: of
  // all. `done`: there was no more block. Memory: one block. Errors, which leave `place` as it was:
  // kDataLoss for what is damaged, with file and byte. Safe from any number of threads.
  Status Next(int64_t table, SnapshotPlace* place, SnapshotBlock* block, bool* done) const;

  // For reading a table out of order: the blocks from `place` on, ends left out, until they have
  // `rows` rows or there are no more, and moves `place` behind them. Reads and checks headers only.
  Status List(int64_t table, int64_t rows, SnapshotPlace* place,
              std::vector<BlockEntry>* blocks) const;

  // Reads blocks that List gave, on all threads of the context: each thread reads consecutive ones,
  // and holds one block, which `visit` may move away. Calls visit(number, block), number being that
  // of the block in `blocks`, from several threads. Goes on until an error, its own or of `visit`.
  Status ForEachBlock(
      const Context& context, Span<const BlockEntry> blocks,
      const std::function<Status(int64_t number, SnapshotBlock& block)>& visit) const;

  // The keys of a rows block that List gave, unchecked. `keys` has room for them.
  Status ReadKeys(const BlockEntry& block, Key* keys) const;

  // Reads everything once, in parallel.
  Status Verify(const Context& context) const;
  // Those of one table.
  Status VerifyTable(const Context& context, int64_t table) const;

 private:
  SnapshotReader(FileSystem* files, std::string folder)
      : files_(files), folder_(std::move(folder)) {}
  Status OpenFile(int64_t number, std::unique_ptr<ReadableFile>* file) const;
  // The headers at one place: of a block, and of the strings that belong to it.
  struct Headers {
    BlockHeader block, strings;
    SnapshotPlace strings_place, behind;
  };
  // Reads a header and checks it against everything around it.
  Status ReadHeader(const ReadableFile& file, const SnapshotPlace& place,
                    BlockHeader* header) const;
  Status ReadHeaders(const ReadableFile& file, const SnapshotPlace& place, Headers* headers) const;
  // Reads a payload, or if `keep` is false all of its pieces one after the other, and checks it.
  Status ReadPayload(const ReadableFile& file, const SnapshotPlace& place,
                     const BlockHeader& header, bool keep, std::vector<char>* payload) const;
  // Reads whatever block is at `place`.
  Status ReadBlock(const ReadableFile& file, const SnapshotPlace& place, Headers* headers,
                   SnapshotBlock* block) const;
  // The parts of a block of rows, given its payload.
  Status PartsOf(const BlockHeader& header, SnapshotBlock* block) const;
  // Next within one file; `end`: there was no more.
  Status NextInFile(const ReadableFile& file, SnapshotPlace* place, SnapshotBlock* block,
                    bool* end) const;
  // An error with file and byte.
  Status At(const SnapshotPlace& place, const Status& status) const;
  bool KeepsStrings(const SnapshotPlace& place) const;

  FileSystem* const files_;
  const std::string folder_;
  Manifest manifest_;
  std::vector<RowLayout> layouts_;  // of the tables
};

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_SNAPSHOT_READER_H_
