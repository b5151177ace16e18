#include "cc/core/snapshot/reader.h"

#include <algorithm>
#include <utility>

#include "cc/core/base/crc32c.h"

namespace dynemb {
namespace {

constexpr int64_t kHeader = BlockHeader::kBytes;
constexpr int64_t kPieceBytes = int64_t{1} << 20;

Status Damaged(const std::string& what) { return Status(Code::kDataLoss, what); }

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

Status SnapshotReader::ReadBlock(const ReadableFile& file, const SnapshotPlace& place,
                                 BlockHeader* header, SnapshotBlock* block) const {
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
  bool fits = true;
  if (header->kind == BlockKind::kRows || header->kind == BlockKind::kErased) {
    // n is at most size / 8 before it is multiplied.
    fits = n <= size / int64_t{sizeof(Key)} &&
           size == (header->kind == BlockKind::kRows ? RowsPayload(layout, n).bytes
                                                     : n * int64_t{sizeof(Key)});
  } else if (header->kind == BlockKind::kEnd) {
    fits = n == place.sequence && size == 0 && rest == 0;
  } else if (header->required) {
    return Status(Code::kUnimplemented,
                  StrCat("got a block of kind ", static_cast<int>(header->kind),
                         ", which this reader does not know and must not skip"));
  }
  if (!fits) {
    return Damaged(StrCat("got ", size, " bytes for ", n, " records of kind ",
                          static_cast<int>(header->kind), ", ", rest, " bytes before the end"));
  }
  // What is skipped may be of any size, and is read in pieces.
  const bool kept = header->kind == BlockKind::kRows || header->kind == BlockKind::kErased;
  const int64_t piece = kept ? size : std::min(size, kPieceBytes);
  block->payload.resize(static_cast<size_t>(piece));
  uint32_t crc = 0;
  for (int64_t done = 0, count; done < size; done += count) {
    count = std::min(piece, size - done);
    DYNEMB_RETURN_IF_ERROR(file.Read(place.offset + kHeader + done, count, block->payload.data()));
    crc = Crc32c({block->payload.data(), static_cast<size_t>(count)}, crc);
  }
  if (header->payload_crc != crc) return Damaged("the block is damaged: its checksum differs");
  block->table = entry.table;
  block->rows = ConstRowParts();
  block->erased = Span<const Key>();
  if (header->kind == BlockKind::kRows) {
    block->rows = ConstParts(layout, n, block->payload.data());
  } else if (header->kind == BlockKind::kErased) {
    block->erased = {reinterpret_cast<const Key*>(block->payload.data()), n};
  }
  return Status();
}

Status SnapshotReader::NextInFile(const ReadableFile& file, SnapshotPlace* place,
                                  SnapshotBlock* block, bool* end) const {
  SnapshotPlace at = *place;
  BlockHeader header;
  do {
    if (Status read = ReadBlock(file, at, &header, block); !read.ok()) {
      return Status(read.code(), StrCat("snapshot ", folder_, ", ",
                                        manifest_.files[static_cast<size_t>(at.file)].name,
                                        ", byte ", at.offset, ": ", read.message()));
    }
    at.offset += kHeader + header.payload_bytes;
    ++at.sequence;
    *end = header.kind == BlockKind::kEnd;
  } while (!*end && header.kind != BlockKind::kRows && header.kind != BlockKind::kErased);
  *place = at;
  return Status();
}

Status SnapshotReader::Next(int64_t table, SnapshotPlace* place, SnapshotBlock* block,
                            bool* done) const {
  const int64_t files = static_cast<int64_t>(manifest_.files.size());
  SnapshotPlace at = *place;
  if (at.file < 0 || at.offset < 0 || at.sequence < 0) {
    return InvalidArgument("place: got (", at.file, ", ", at.offset, ", ", at.sequence,
                           "), want what an earlier read gave");
  }
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

Status SnapshotReader::VerifyFile(int64_t number) const {
  const SnapshotFile& entry = manifest_.files[static_cast<size_t>(number)];
  std::unique_ptr<ReadableFile> file;
  SnapshotPlace place{number, 0, 0};
  SnapshotBlock block;
  int64_t rows = 0, erased = 0;
  DYNEMB_RETURN_IF_ERROR(OpenFile(number, &file));
  for (bool end = false; !end;) {
    DYNEMB_RETURN_IF_ERROR(NextInFile(*file, &place, &block, &end));
    rows += block.rows.keys.size;
    erased += block.erased.size;
  }
  if (rows == entry.rows && erased == entry.erased) return Status();
  return Damaged(StrCat("snapshot ", folder_, ", ", entry.name, ": got ", rows, " rows and ",
                        erased, " erased keys, want ", entry.rows, " and ", entry.erased));
}

Status SnapshotReader::Verify(const Context& context) const {
  std::vector<Status> statuses(manifest_.files.size());
  context.executor->Run(static_cast<int64_t>(statuses.size()), 1'000'000'000, [&](int64_t file) {
    statuses[static_cast<size_t>(file)] = VerifyFile(file);
  });
  for (const Status& status : statuses) DYNEMB_RETURN_IF_ERROR(status);
  return Status();
}

}  // namespace dynemb
