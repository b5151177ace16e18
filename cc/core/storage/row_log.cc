#include "cc/core/storage/row_log.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "cc/core/base/bytes.h"
#include "cc/core/base/crc32c.h"
#include "cc/core/base/no_memory.h"
#include "cc/core/storage/read_many.h"

namespace dynemb {
namespace {

constexpr char kMagic[8] = {'d', 'y', 'n', 'e', 'm', 'b', 't', '1'};
constexpr int64_t kFixedHeaderBytes = 40;
constexpr int64_t kMostSlots = int64_t{1} << 18;
constexpr int64_t kMostFileBytes = int64_t{256} << 20;
constexpr int64_t kGapBytes = 4096;  // that are read to save a call of the system

}  // namespace

RowLog::RowLog(std::shared_ptr<DiskFolder> folder, int64_t least_file_bytes)
    : folder_(std::move(folder)), least_file_bytes_(least_file_bytes) {}

RowLog::~RowLog() { Clear(); }

void RowLog::SetLayout(SchemaNumber schema_number, int64_t row_bytes, std::string schema) {
  schema_number_ = schema_number;
  row_bytes_ = row_bytes;
  schema_ = std::move(schema);
  EndFile(true);
}

void RowLog::EndFile(bool remove_dead) {
  if (current_ < 0) return;
  files_[current_]->writer.reset();
  const int64_t ended = std::exchange(current_, -1);
  if (remove_dead && files_[ended]->live == 0) Remove(ended);
}

uint32_t RowLog::Checksum(uint64_t number, std::string_view record) {
  char bytes[8];
  Store(number, bytes);
  return Crc32c(record.substr(4), Crc32c({bytes, 8}));
}

void RowLog::Seal(const File& file, Key key, char* record) {
  Store(uint32_t{0}, record + 4);
  Store(key, record + 8);
  Store(Checksum(file.number, {record, static_cast<size_t>(file.record_bytes)}), record);
}

bool RowLog::IsWhole(uint64_t number, std::string_view record) {
  return Load<uint32_t>(record.data()) == Checksum(number, record);
}

std::string RowLog::Header(const File& file, int64_t row_bytes, const std::string& schema) {
  std::string header(
      static_cast<size_t>(AlignUp8(kFixedHeaderBytes + static_cast<int64_t>(schema.size()))), '\0');
  std::memcpy(&header[0], kMagic, sizeof(kMagic));
  Store(file.number, &header[8]);
  Store(file.schema_number, &header[16]);
  Store(static_cast<uint32_t>(schema.size()), &header[20]);
  Store(row_bytes, &header[24]);
  std::copy(schema.begin(), schema.end(), header.begin() + kFixedHeaderBytes);
  Store(Crc32c(header), &header[32]);
  return header;
}

Status RowLog::FreeSlot(int64_t* slot) const {
  int64_t& at = *slot = slots_held_ ? slots() : 0;
  while (at < slots() && files_[at] != nullptr) ++at;
  if (at == kMostSlots) return ResourceExhausted(folder_->path(), ": too many files");
  return Status();
}

Status RowLog::NewFile(int64_t* slot) {
  int64_t at;
  DYNEMB_RETURN_IF_ERROR(FreeSlot(&at));
  auto file = std::make_shared<File>();
  file->number = folder_->NewFile();
  file->path = folder_->PathOf(file->number, DiskFolder::Kind::kRows);
  file->schema_number = schema_number_;
  file->record_bytes = kRecordHeaderBytes + row_bytes_;
  const std::string header = Header(*file, row_bytes_, schema_);
  file->header_bytes = static_cast<int64_t>(header.size());
  FileSystem* const files = folder_->files();
  std::unique_ptr<ReadableFile> reader;
  DYNEMB_RETURN_IF_ERROR(folder_->TakeSpace(file->header_bytes));
  std::unique_ptr<WritableFile> writer;
  Status made = files->NewWritableFile(file->path, &writer);
  file->writer = std::move(writer);
  if (made.ok()) made = file->writer->Append(header);
  if (made.ok()) made = files->NewReadableFile(file->path, &reader);
  if (!made.ok()) {
    static_cast<void>(files->Remove(file->path));
    folder_->GiveSpace(file->header_bytes);
    return made;
  }
  file->reader = std::move(reader);
  file->bytes = file->header_bytes;
  Add(at, std::move(file));
  *slot = at;
  return Status();
}

void RowLog::Add(int64_t slot, std::shared_ptr<File> file) {
  if (slot >= slots()) files_.resize(static_cast<size_t>(slot) + 1);
  file_bytes_ += file->disk_bytes();
  files_[slot] = std::move(file);
}

Status RowLog::OpenFile(DiskFolder* folder, const FlushedFile& of_flush, const TableSchema& schema,
                        std::shared_ptr<const File>* opened) {
  auto file = std::make_shared<File>();
  file->number = of_flush.number;
  file->path = folder->PathOf(file->number, DiskFolder::Kind::kRows);
  file->schema_number = of_flush.schema_number;
  file->bytes = of_flush.bytes;
  const std::string header = Header(*file, RowLayout(schema).row_bytes, schema.ToText());
  file->record_bytes = kRecordHeaderBytes + RowLayout(schema).row_bytes;
  file->header_bytes = static_cast<int64_t>(header.size());
  int64_t size;
  std::unique_ptr<ReadableFile> reader;
  DYNEMB_RETURN_IF_ERROR(folder->files()->NewReadableFile(file->path, &reader));
  file->reader = std::move(reader);
  DYNEMB_RETURN_IF_ERROR(file->reader->Size(&size));
  if (file->bytes < file->header_bytes || size < file->bytes) {
    return Status(Code::kDataLoss, StrCat(file->path, ": got ", size, " bytes, want ", file->bytes,
                                          "; the file is cut off"));
  }
  file->behind = size - file->bytes;
  std::string read(header.size(), '\0');
  DYNEMB_RETURN_IF_ERROR(file->reader->Read(0, file->header_bytes, &read[0]));
  if (read != header) {
    return Status(Code::kDataLoss,
                  StrCat(file->path, ": its header is not that of the file of the last flush"));
  }
  *opened = std::move(file);
  return Status();
}

void RowLog::AddFile(int64_t slot, const File& file) {
  auto shared = std::make_shared<File>(file);
  folder_->Share(file.number, file.disk_bytes());
  Add(slot, std::move(shared));
}

Status RowLog::ShareFile(const File& file, int64_t* slot) {
  DYNEMB_RETURN_IF_ERROR(FreeSlot(slot));
  AddFile(*slot, file);
  return Status();
}

bool RowLog::HasRecordAt(Location location) const {
  const int64_t slot = SlotOf(location);
  return slot < slots() && files_[slot] != nullptr &&
         HasRecordAt(*files_[slot], OffsetOf(location));
}

bool RowLog::HasRecordAt(const File& file, int64_t offset) {
  return offset >= file.header_bytes && offset + file.record_bytes <= file.bytes &&
         (offset - file.header_bytes) % file.record_bytes == 0;
}

FlushedFile RowLog::FileAt(int64_t slot) const {
  const File& file = *files_[slot];
  return {file.number, file.schema_number, file.bytes};
}

void RowLog::SetUnsynced(uint64_t number) {
  for (int64_t slot = 0; slot < slots(); ++slot) {
    File* const file = files_[slot].get();
    if (file == nullptr || file->number != number) continue;
    file->unsynced = true;
    if (slot == current_) EndFile(true);
    return;
  }
}

void RowLog::Remove(int64_t slot) {
  File* const file = files_[slot].get();
  file_bytes_ -= file->disk_bytes();
  live_bytes_ -= file->live * file->record_bytes;
  file->writer.reset();
  folder_->Remove(file->number, DiskFolder::Kind::kRows, file->disk_bytes());
  files_[slot].reset();
}

void RowLog::Clear() {
  for (int64_t slot = 0; slot < slots(); ++slot) {
    if (files_[slot] != nullptr) Remove(slot);
  }
  if (!slots_held_) files_.clear();
  current_ = -1;
}

Status RowLog::Append(Span<const Key> keys, const char* rows, Location* locations) {
  const int64_t record_bytes = kRecordHeaderBytes + row_bytes_;
  const int64_t file_limit =
      std::max(least_file_bytes_, std::min(kMostFileBytes, live_bytes_ / 16));
  const int64_t at_once = std::max<int64_t>(1, kBlockBytes / record_bytes);
  std::vector<char> block(static_cast<size_t>(std::min(at_once, keys.size) * record_bytes));
  for (int64_t done = 0; done < keys.size;) {
    // Of a file that this call has begun nothing is live yet.
    if (current_ >= 0 && files_[current_]->bytes >= file_limit) EndFile(done == 0);
    if (current_ < 0) DYNEMB_RETURN_IF_ERROR(NewFile(&current_));
    File* const file = files_[current_].get();
    const int64_t n = std::min(at_once, keys.size - done);
    for (int64_t i = 0; i < n; ++i) {
      char* const record = &block[static_cast<size_t>(i * record_bytes)];
      std::memcpy(record + kRecordHeaderBytes, rows + (done + i) * row_bytes_,
                  static_cast<size_t>(row_bytes_));
      Seal(*file, keys[done + i], record);
      locations[done + i] = LocationOf(current_, file->bytes + i * record_bytes);
    }
    DYNEMB_RETURN_IF_ERROR(folder_->TakeSpace(n * record_bytes));
    const Status written =
        file->writer->Append({block.data(), static_cast<size_t>(n * record_bytes)});
    if (!written.ok()) {
      // The end of the file is unknown now: no more is appended. The rows before it can be read.
      file->behind = n * record_bytes;
      file_bytes_ += file->behind;
      EndFile(true);
      return written;
    }
    file->bytes += n * record_bytes;
    file_bytes_ += n * record_bytes;
    done += n;
  }
  return Status();
}

void RowLog::Live(Location location) {
  File* const file = files_[SlotOf(location)].get();
  ++file->live;
  live_bytes_ += file->record_bytes;
}

void RowLog::Dead(Location location) {
  const int64_t slot = SlotOf(location);
  File* const file = files_[slot].get();
  --file->live;
  live_bytes_ -= file->record_bytes;
  if (file->live == 0 && slot != current_) Remove(slot);
}

RowLog::Reads RowLog::PrepareReads(Span<const Location> locations) const {
  Reads reads;
  reads.offsets_.reserve(static_cast<size_t>(locations.size));
  int64_t slot = -1;
  for (int64_t i = 0; i < locations.size; ++i) {
    const int64_t offset = OffsetOf(locations[i]);
    reads.offsets_.push_back(offset);
    if (SlotOf(locations[i]) == slot) {
      Reads::Part& last = reads.parts_.back();
      const int64_t record_bytes = last.file->record_bytes;
      if (offset - OffsetOf(locations[i - 1]) <= record_bytes + kGapBytes &&
          offset + record_bytes - reads.offsets_[last.begin] <= kBlockBytes) {
        last.end = i + 1;
        continue;
      }
    }
    slot = SlotOf(locations[i]);
    reads.parts_.push_back({files_[slot], i, i + 1});
  }
  return reads;
}

Status RowLog::Reads::Run(const RowFunction& row) const {
  std::vector<FileRead> reads;
  reads.reserve(parts_.size());
  for (const Part& part : parts_) {
    const int64_t begin = offsets_[part.begin];
    reads.push_back(
        {part.file->reader.get(), begin, offsets_[part.end - 1] + part.file->record_bytes - begin});
  }
  return ReadMany(reads, [&](int64_t p, const char* bytes) {
    const File& file = *parts_[p].file;
    for (int64_t i = parts_[p].begin; i < parts_[p].end; ++i) {
      const char* const record = bytes + offsets_[i] - reads[p].offset;
      if (!IsWhole(file.number, {record, static_cast<size_t>(file.record_bytes)})) {
        return Status(Code::kDataLoss,
                      StrCat(file.path, ": the row at byte ", offsets_[i],
                             " is damaged: its checksum is not that of its bytes"));
      }
      row(i, file.schema_number, record + kRecordHeaderBytes);
    }
    return Status();
  });
}

bool RowLog::BlockAt(int64_t slot, int64_t begin, Block* block) const {
  const File& file = *files_[slot];
  block->slot_ = slot;
  block->number_ = file.number;
  block->schema_number_ = file.schema_number;
  block->record_bytes_ = file.record_bytes;
  block->begin_ = std::max(begin, file.header_bytes);
  const int64_t at_once = std::max<int64_t>(1, kBlockBytes / file.record_bytes);
  block->end_ = std::min(block->begin_ + at_once * file.record_bytes, file.bytes);
  block->reader_ = file.reader;
  return block->begin_ < block->end_;
}

Status RowLog::Block::Read() {
  return OrNoMemory([&] {
    bytes_.resize(static_cast<size_t>(end_ - begin_));
    return reader_->Read(begin_, end_ - begin_, bytes_.data());
  });
}

Status RowLog::Block::ForEachRecord(const RecordFunction& record,
                                    const DamagedFunction& damaged) const {
  for (int64_t at = begin_; at < end_; at += record_bytes_) {
    const char* const bytes = &bytes_[static_cast<size_t>(at - begin_)];
    const Location location = LocationOf(slot_, at);
    if (IsWhole(number_, {bytes, static_cast<size_t>(record_bytes_)})) {
      DYNEMB_RETURN_IF_ERROR(
          record(Load<Key>(bytes + 8), location, schema_number_, bytes + kRecordHeaderBytes));
    } else if (damaged) {
      damaged(location);
    }
  }
  return Status();
}

Status RowLog::ScanFile(int64_t slot, const RecordFunction& record,
                        const DamagedFunction& damaged) const {
  Block block;
  for (int64_t at = 0; BlockAt(slot, at, &block); at = block.end()) {
    DYNEMB_RETURN_IF_ERROR(block.Read());
    DYNEMB_RETURN_IF_ERROR(block.ForEachRecord(record, damaged));
  }
  return Status();
}

Status RowLog::Scan(const RecordFunction& record) const {
  for (int64_t slot = 0; slot < slots(); ++slot) {
    if (files_[slot] != nullptr && files_[slot]->live > 0) {
      DYNEMB_RETURN_IF_ERROR(ScanFile(slot, record));
    }
  }
  return Status();
}

int64_t RowLog::WorstFile() const {
  // Others are not worth it. Where files have too many bytes there are worse ones, but for those
  // that are damaged.
  constexpr double kMostLive = 0.9;
  int64_t worst = -1;
  double least = kMostLive;
  for (int64_t slot = 0; slot < slots(); ++slot) {
    const File* const file = files_[slot].get();
    if (file == nullptr || slot == current_ || file->damaged) continue;
    const double share =
        static_cast<double>(file->live * file->record_bytes) / static_cast<double>(file->bytes);
    if (share >= least) continue;
    least = share;
    worst = slot;
  }
  return worst;
}

Status RowLog::CheckLive(int64_t slot, int64_t records) const {
  const File& file = *files_[slot];
  if (records == file.live) return Status();
  return Status(Code::kDataLoss, StrCat(file.path, ": ", file.live - records, " of ", file.live,
                                        " rows are damaged: their checksums are not those of "
                                        "their bytes"));
}

int64_t RowLog::records(int64_t slot) const {
  const File& file = *files_[slot];
  return (file.bytes - file.header_bytes) / file.record_bytes;
}

bool RowLog::HasDead(int64_t slot) const {
  return slot != current_ && files_[slot]->live < records(slot);
}

void RowLog::RemoveIfDead(int64_t slot) {
  if (files_[slot] != nullptr && slot != current_ && files_[slot]->live == 0) Remove(slot);
}

int64_t RowLog::files() const {
  return std::count_if(files_.begin(), files_.end(),
                       [](const auto& file) { return file != nullptr; });
}

}  // namespace dynemb
