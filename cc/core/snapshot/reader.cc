#include "cc/core/snapshot/reader.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <utility>

#include "cc/core/base/crc32c.h"
#include "cc/core/snapshot/quantize.h"

namespace dynemb {
namespace {

constexpr int64_t kHeader = BlockHeader::kBytes;
constexpr int64_t kPieceBytes = int64_t{1} << 20;

Status Damaged(const std::string& what) { return Status(Code::kDataLoss, what); }

Status CheckPlace(const SnapshotPlace& place) {
  if (place.file >= 0 && place.offset >= 0 && place.sequence >= 0) return Status();
  return InvalidArgument("place: got (", place.file, ", ", place.offset, ", ", place.sequence,
                         "), want what an earlier read gave");
}

// The place behind a block.
SnapshotPlace Behind(const SnapshotPlace& place, const BlockHeader& header) {
  return {place.file, place.offset + kHeader + header.payload_bytes, place.sequence + 1};
}

}  // namespace

Status SnapshotReader::Open(FileSystem* files, const std::string& folder,
                            std::unique_ptr<SnapshotReader>* reader) {
  std::unique_ptr<SnapshotReader> made(new SnapshotReader(files, folder));
  std::string text;
  Status read = ReadFile(files, JoinPath(folder, kManifestName), kMaxManifestBytes, &text);
  if (read.code() == Code::kNotFound) {
    return Status(Code::kNotFound,
                  StrCat("there is no snapshot in ", folder, ": ", read.message()));
  }
  if (read.ok()) read = Manifest::Parse(text, &made->manifest_);
  if (!read.ok()) return Status(read.code(), StrCat("snapshot ", folder, ": ", read.message()));
  for (const SnapshotTable& table : made->manifest_.tables) {
    made->layouts_.emplace_back(table.schema);
  }
  *reader = std::move(made);
  return Status();
}

Status SnapshotReader::FindTable(const std::string& name, int64_t* table) const {
  std::string there;
  for (size_t t = 0; t < manifest_.tables.size(); ++t) {
    if (manifest_.tables[t].name == name) {
      *table = static_cast<int64_t>(t);
      return Status();
    }
    there += StrCat(there.empty() ? "" : ", ", "'", manifest_.tables[t].name, "'");
  }
  return Status(Code::kNotFound, StrCat("snapshot ", folder_, ": got table '", name, "', it has ",
                                        there.empty() ? "none" : there));
}

Status SnapshotReader::FitTo(const TableSchema& to, int64_t table) {
  SnapshotTable& mine = manifest_.tables[static_cast<size_t>(table)];
  if (mine.quantized && IsFloating(to.value_dtype)) {
    mine.schema.value_dtype = to.value_dtype;
    layouts_[static_cast<size_t>(table)] = RowLayout(mine.schema);
  }
  return CheckCompatible(mine.schema, to);
}

Status SnapshotReader::OpenFile(int64_t number, std::unique_ptr<ReadableFile>* file) const {
  const SnapshotFile& entry = manifest_.files[static_cast<size_t>(number)];
  int64_t bytes = 0;
  Status opened = files_->NewReadableFile(JoinPath(folder_, entry.name), file);
  if (opened.ok()) opened = (*file)->Size(&bytes);
  if (opened.ok() && bytes != entry.bytes) {
    opened = Damaged(StrCat("got ", bytes, " bytes, want ", entry.bytes));
  }
  if (opened.ok()) return Status();
  // A file that the manifest names and that is not there is damage, not absence.
  return Status(opened.code() == Code::kNotFound ? Code::kDataLoss : opened.code(),
                StrCat("snapshot ", folder_, ", ", entry.name, ": ", opened.message()));
}

Status SnapshotReader::At(const SnapshotPlace& place, const Status& status) const {
  if (status.ok()) return status;
  return Status(status.code(), StrCat("snapshot ", folder_, ", ",
                                      manifest_.files[static_cast<size_t>(place.file)].name,
                                      ", byte ", place.offset, ": ", status.message()));
}

bool SnapshotReader::KeepsStrings(const SnapshotPlace& place) const {
  const SnapshotFile& entry = manifest_.files[static_cast<size_t>(place.file)];
  return manifest_.tables[static_cast<size_t>(entry.table)].schema.strings;
}

Status SnapshotReader::ReadHeader(const ReadableFile& file, const SnapshotPlace& place,
                                  BlockHeader* header) const {
  const SnapshotFile& entry = manifest_.files[static_cast<size_t>(place.file)];
  char bytes[kHeader];
  if (place.offset > entry.bytes - kHeader) {
    return Damaged("the file ends without a block of kind end");
  }
  const int64_t rest = entry.bytes - place.offset - kHeader;
  DYNEMB_RETURN_IF_ERROR(file.Read(place.offset, kHeader, bytes));
  DYNEMB_RETURN_IF_ERROR(BlockHeader::Read(bytes, header));
  if (header->snapshot != manifest_.id || header->file != place.file ||
      header->sequence != place.sequence) {
    return Damaged(StrCat("got block ", header->sequence, " of file ", header->file,
                          " of snapshot ", IdText(header->snapshot), ", want block ",
                          place.sequence, " of file ", place.file, " of ", IdText(manifest_.id)));
  }
  const int64_t size = header->payload_bytes;
  const int64_t n = header->records;
  if (size < 0 || size > rest || n < 0 || (size > kMaxBlockBytes && n != 1)) {
    return Damaged(StrCat("got a block of ", n, " records and ", size, " bytes, ", rest,
                          " bytes before the end"));
  }
  const RowLayout& layout = layouts_[static_cast<size_t>(entry.table)];
  const bool quantized = manifest_.tables[static_cast<size_t>(entry.table)].quantized;
  // n is at most size / 8 before it is multiplied.
  const bool has_keys = n <= size / int64_t{sizeof(Key)};
  bool fits = true;
  if (header->kind == BlockKind::kRows && !quantized) {
    fits = has_keys && size == RowsPayload(layout, n).bytes;
  } else if (header->kind == BlockKind::kQuantizedRows && quantized) {
    fits = has_keys && size == QuantizedRowsPayload(layout.dim, n).bytes;
  } else if (header->kind == BlockKind::kErased) {
    fits = has_keys && size == n * int64_t{sizeof(Key)};
  } else if (HasRows(header->kind)) {
    return Damaged(StrCat("got a block of kind ", static_cast<int>(header->kind), " of a table ",
                          quantized ? "that is quantized" : "that is not quantized"));
  } else if (header->kind == BlockKind::kStrings && KeepsStrings(place)) {
    fits = n <= size / int64_t{sizeof(int64_t)};
  } else if (header->kind == BlockKind::kEnd) {
    fits = n == place.sequence && size == 0 && rest == 0;
  } else if (header->required) {
    return Status(Code::kUnimplemented,
                  StrCat("got a block of kind ", static_cast<int>(header->kind),
                         ", which this reader does not know and must not skip"));
  }
  if (fits) return Status();
  return Damaged(StrCat("got ", size, " bytes for ", n, " records of kind ",
                        static_cast<int>(header->kind), ", ", rest, " bytes before the end"));
}

Status SnapshotReader::ReadHeaders(const ReadableFile& file, const SnapshotPlace& place,
                                   Headers* headers) const {
  BlockHeader& block = headers->block;
  BlockHeader& strings = headers->strings;
  strings = BlockHeader();
  DYNEMB_RETURN_IF_ERROR(At(place, ReadHeader(file, place, &block)));
  const SnapshotPlace next = headers->behind = headers->strings_place = Behind(place, block);
  if (!KeepsStrings(place)) return Status();
  if (block.kind == BlockKind::kStrings) return At(place, Damaged("got strings without rows"));
  if (!HasRows(block.kind)) return Status();
  DYNEMB_RETURN_IF_ERROR(At(next, ReadHeader(file, next, &strings)));
  if (strings.kind != BlockKind::kStrings || strings.records != block.records) {
    return At(next, Damaged(StrCat("got a block of kind ", static_cast<int>(strings.kind), " of ",
                                   strings.records, " records, want the strings of ", block.records,
                                   " rows")));
  }
  headers->behind = Behind(next, strings);
  return Status();
}

Status SnapshotReader::ReadPayload(const ReadableFile& file, const SnapshotPlace& place,
                                   const BlockHeader& header, bool keep,
                                   std::vector<char>* payload) const {
  const int64_t size = header.payload_bytes;
  const int64_t piece = keep ? size : std::min(size, kPieceBytes);
  payload->resize(static_cast<size_t>(piece));
  uint32_t crc = 0;
  for (int64_t done = 0, count; done < size; done += count) {
    count = std::min(piece, size - done);
    DYNEMB_RETURN_IF_ERROR(
        At(place, file.Read(place.offset + kHeader + done, count, payload->data())));
    crc = Crc32c({payload->data(), static_cast<size_t>(count)}, crc);
  }
  if (header.payload_crc == crc) return Status();
  return At(place, Damaged("the block is damaged: its checksum differs"));
}

Status SnapshotReader::PartsOf(const BlockHeader& header, SnapshotBlock* block) const {
  const char* const payload = block->payload.data();
  const RowLayout& layout = layouts_[static_cast<size_t>(block->table)];
  const int64_t n = header.records;
  if (header.kind == BlockKind::kRows) {
    block->rows = ConstParts(layout, n, payload);
    return Status();
  }
  const QuantizedRowsPayload at(layout.dim, n);
  const TableSchema& schema = manifest_.tables[static_cast<size_t>(block->table)].schema;
  block->values.resize(static_cast<size_t>(n * layout.value_bytes));
  block->rows.keys = {reinterpret_cast<const Key*>(payload), n};
  block->rows.values = ConstRows(block->values.data(), n, layout.value_bytes);
  return Dequantize(reinterpret_cast<const float*>(payload + at.scales),
                    reinterpret_cast<const int8_t*>(payload + at.numbers), n, layout.dim,
                    schema.value_dtype, block->values.data());
}

Status SnapshotReader::ReadBlock(const ReadableFile& file, const SnapshotPlace& place,
                                 Headers* headers, SnapshotBlock* block) const {
  DYNEMB_RETURN_IF_ERROR(ReadHeaders(file, place, headers));
  const BlockHeader& header = headers->block;
  const bool rows = HasRows(header.kind), erased = header.kind == BlockKind::kErased;
  // What is skipped may be of any size.
  DYNEMB_RETURN_IF_ERROR(ReadPayload(file, place, header, rows || erased, &block->payload));
  block->table = manifest_.files[static_cast<size_t>(place.file)].table;
  block->rows = ConstRowParts();
  block->erased = Span<const Key>();
  block->strings.clear();
  const TableSchema& schema = manifest_.tables[static_cast<size_t>(block->table)].schema;
  if (erased) block->erased = {reinterpret_cast<const Key*>(block->payload.data()), header.records};
  if (!rows) return At(place, CheckKeys(schema, block->erased, Code::kDataLoss));
  DYNEMB_RETURN_IF_ERROR(At(place, PartsOf(header, block)));
  DYNEMB_RETURN_IF_ERROR(At(place, CheckKeys(schema, block->rows.keys, Code::kDataLoss)));
  if (!KeepsStrings(place)) return Status();
  const SnapshotPlace& strings = headers->strings_place;
  DYNEMB_RETURN_IF_ERROR(
      ReadPayload(file, strings, headers->strings, true, &block->strings_payload));
  return At(strings, ParseStrings(block->rows.keys, block->strings_payload, &block->strings));
}

Status SnapshotReader::NextInFile(const ReadableFile& file, SnapshotPlace* place,
                                  SnapshotBlock* block, bool* end) const {
  SnapshotPlace at = *place;
  Headers headers;
  do {
    DYNEMB_RETURN_IF_ERROR(ReadBlock(file, at, &headers, block));
    at = headers.behind;
    *end = headers.block.kind == BlockKind::kEnd;
  } while (!*end && block->rows.keys.data == nullptr && block->erased.data == nullptr);
  *place = at;
  return Status();
}

Status SnapshotReader::Next(int64_t table, SnapshotPlace* place, SnapshotBlock* block,
                            bool* done) const {
  const int64_t files = static_cast<int64_t>(manifest_.files.size());
  SnapshotPlace at = *place;
  DYNEMB_RETURN_IF_ERROR(CheckPlace(at));
  for (; at.file < files; at = {at.file + 1, 0, 0}) {
    if (table >= 0 && manifest_.files[static_cast<size_t>(at.file)].table != table) continue;
    std::unique_ptr<ReadableFile> file;
    bool end = false;
    DYNEMB_RETURN_IF_ERROR(OpenFile(at.file, &file));
    DYNEMB_RETURN_IF_ERROR(NextInFile(*file, &at, block, &end));
    if (end) continue;
    *place = at;
    *done = false;
    return Status();
  }
  *place = at;
  *done = true;
  return Status();
}

Status SnapshotReader::List(int64_t table, int64_t rows, SnapshotPlace* place,
                            std::vector<BlockEntry>* blocks) const {
  DYNEMB_RETURN_IF_ERROR(CheckPlace(*place));
  blocks->clear();
  int64_t listed = 0;
  const int64_t files = static_cast<int64_t>(manifest_.files.size());
  for (; place->file < files && listed < rows; *place = {place->file + 1, 0, 0}) {
    const SnapshotFile& entry = manifest_.files[static_cast<size_t>(place->file)];
    if (entry.table != table) continue;
    const bool whole = place->sequence == 0;
    int64_t held[2] = {0, 0};  // rows and erased keys of the file
    std::unique_ptr<ReadableFile> file;
    DYNEMB_RETURN_IF_ERROR(OpenFile(place->file, &file));
    for (;;) {
      Headers headers;
      DYNEMB_RETURN_IF_ERROR(ReadHeaders(*file, *place, &headers));
      const BlockHeader& header = headers.block;
      if (header.kind == BlockKind::kEnd) break;
      if (listed >= rows) return Status();
      blocks->push_back({*place, header.kind, header.records});
      *place = headers.behind;
      if (header.kind == BlockKind::kErased) held[1] += header.records;
      if (!HasRows(header.kind)) continue;
      held[0] += header.records;
      listed += header.records;
    }
    if (whole && (held[0] != entry.rows || held[1] != entry.erased)) {
      return Damaged(StrCat("snapshot ", folder_, ", ", entry.name, ": got ", held[0], " rows and ",
                            held[1], " erased keys, want ", entry.rows, " and ", entry.erased));
    }
  }
  return Status();
}

Status SnapshotReader::ForEachBlock(
    const Context& context, Span<const BlockEntry> blocks,
    const std::function<Status(int64_t number, SnapshotBlock& block)>& visit) const {
  std::atomic<bool> failed{false};
  const auto read = [&](int64_t begin, int64_t end) {
    std::unique_ptr<ReadableFile> file;
    int64_t open = -1;
    SnapshotBlock block;
    Headers headers;
    for (int64_t b = begin; b < end && !failed; ++b) {
      const SnapshotPlace& place = blocks[b].place;
      if (place.file != open) DYNEMB_RETURN_IF_ERROR(OpenFile(place.file, &file));
      open = place.file;
      DYNEMB_RETURN_IF_ERROR(ReadBlock(*file, place, &headers, &block));
      DYNEMB_RETURN_IF_ERROR(visit(b, block));
    }
    return Status();
  };
  const int64_t shares = std::min<int64_t>(context.executor->concurrency(), blocks.size);
  std::vector<Status> statuses(static_cast<size_t>(shares));
  const Status ran = context.executor->Run(shares, 1'000'000'000, [&](int64_t share) {
    Status& status = statuses[static_cast<size_t>(share)];
    status = OrNoMemory(
        [&] { return read(blocks.size * share / shares, blocks.size * (share + 1) / shares); });
    if (!status.ok()) failed = true;
  });
  for (const Status& status : statuses) DYNEMB_RETURN_IF_ERROR(status);
  return ran;
}

Status SnapshotReader::ReadKeys(const BlockEntry& block, Key* keys) const {
  std::unique_ptr<ReadableFile> file;
  DYNEMB_RETURN_IF_ERROR(OpenFile(block.place.file, &file));
  return At(block.place,
            file->Read(block.place.offset + kHeader, block.records * int64_t{sizeof(Key)},
                       reinterpret_cast<char*>(keys)));
}

Status SnapshotReader::Verify(const Context& context) const {
  for (size_t table = 0; table < manifest_.tables.size(); ++table) {
    DYNEMB_RETURN_IF_ERROR(VerifyTable(context, static_cast<int64_t>(table)));
  }
  return Status();
}

Status SnapshotReader::VerifyTable(const Context& context, int64_t table) const {
  SnapshotPlace place;
  std::vector<BlockEntry> blocks;
  DYNEMB_RETURN_IF_ERROR(List(table, std::numeric_limits<int64_t>::max(), &place, &blocks));
  return ForEachBlock(context, blocks, [](int64_t, SnapshotBlock&) { return Status(); });
}

}  // namespace dynemb
