#include "cc/core/snapshot/writer.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <random>
#include <utility>

#include "cc/core/base/crc32c.h"
#include "cc/core/base/hash.h"

namespace dynemb {
namespace {

constexpr int64_t kBlockBytes = int64_t{1} << 20;
constexpr int64_t kPartRows = 1 << 16;  // of a shard at least, to have a file of their own
constexpr int64_t kHeader = BlockHeader::kBytes;
constexpr std::string_view kRowsPrefix = "rows-";
constexpr std::string_view kRowsSuffix = ".dynemb";

uint64_t NewId() {
  // The clock as well, for a random device that repeats itself after a start.
  std::random_device random;
  const uint64_t clock =
      static_cast<uint64_t>(std::chrono::system_clock::now().time_since_epoch().count());
  const uint64_t id = (static_cast<uint64_t>(random()) << 32 | random()) ^ Mix64(clock);
  return id != 0 ? id : 1;
}

int64_t RowsOfABlock(const RowLayout& layout) {
  const int64_t row_bytes = RowsPayload(layout, 1).bytes;
  return std::max<int64_t>(1, kBlockBytes / row_bytes);
}

bool IsRowsFile(std::string_view name) {
  return name.size() > kRowsPrefix.size() + kRowsSuffix.size() &&
         name.substr(0, kRowsPrefix.size()) == kRowsPrefix &&
         name.substr(name.size() - kRowsSuffix.size()) == kRowsSuffix;
}

// Moves the first `rows` rows of a part of a block to where a block of so many has them.
void Compact(const Rows& from, const Rows& to) {
  if (to.count > 0 && to.stride_bytes > 0) {
    std::memmove(to.data, from.data, static_cast<size_t>(to.count * to.stride_bytes));
  }
  // The filling up to 8 bytes.
  const int64_t end = to.count * to.stride_bytes;
  std::memset(to.data + end, 0, static_cast<size_t>((8 - end % 8) % 8));
}

}  // namespace

RowsFile::RowsFile(SnapshotWriter* snapshot, uint32_t number, SnapshotFile entry,
                   const TableSchema& schema)
    : snapshot_(snapshot),
      number_(number),
      layout_(schema),
      schema_(schema),
      entry_(std::move(entry)) {
  const int64_t rows = RowsOfABlock(layout_);
  block_.resize(static_cast<size_t>(kHeader + RowsPayload(layout_, rows).bytes));
  room_ = MutableParts(layout_, rows, block_.data() + kHeader);
}

RowsFile::~RowsFile() = default;

Status RowsFile::WriteBlock(BlockKind kind, int64_t records, char* block, int64_t payload_bytes) {
  DYNEMB_RETURN_IF_ERROR(status_);
  BlockHeader header;
  header.kind = kind;
  header.snapshot = snapshot_->manifest_.id;
  header.file = number_;
  header.sequence = sequence_++;
  header.records = records;
  header.payload_bytes = payload_bytes;
  header.payload_crc = Crc32c({block + kHeader, static_cast<size_t>(payload_bytes)});
  header.Write(block);
  entry_.bytes += kHeader + payload_bytes;
  return status_ = file_->Append({block, static_cast<size_t>(kHeader + payload_bytes)});
}

Status RowsFile::WriteRows(int64_t rows) {
  if (rows == 0) return Status();
  const RowParts block = MutableParts(layout_, rows, block_.data() + kHeader);
  Compact(room_.values, block.values);
  Compact(room_.slots, block.slots);
  Compact(room_.meta, block.meta);
  entry_.rows += rows;
  return WriteBlock(BlockKind::kRows, rows, block_.data(), RowsPayload(layout_, rows).bytes);
}

Status RowsFile::Write(int64_t rows) {
  if (schema_.strings) return InvalidArgument("strings: got none, want one per key");
  return WriteRows(rows);
}

Status RowsFile::Add(const ConstRowParts& rows, Span<const std::string_view> strings) {
  DYNEMB_RETURN_IF_ERROR(CheckKeys(schema_, rows.keys));
  if (schema_.strings) DYNEMB_RETURN_IF_ERROR(CheckFingerprints(rows.keys, strings));
  for (int64_t first = 0, count; first < rows.keys.size; first += count) {
    count = std::min(room_.keys.size, rows.keys.size - first);
    // No more than a block of strings has room for as well, but at least one.
    int64_t strings_bytes = 0;
    for (int64_t i = 0; schema_.strings && i < count; ++i) {
      strings_bytes += int64_t{sizeof(int64_t)} + static_cast<int64_t>(strings[first + i].size());
      if (strings_bytes > kBlockBytes) count = std::max<int64_t>(1, i);
    }
    std::copy_n(rows.keys.data + first, count, room_.keys.data);
    const std::pair<const ConstRows*, const Rows*> parts[] = {
        {&rows.values, &room_.values}, {&rows.slots, &room_.slots}, {&rows.meta, &room_.meta}};
    for (const auto& [from, to] : parts) {
      if (to->stride_bytes == 0) continue;
      for (int64_t i = 0; i < count; ++i) {
        std::memcpy((*to)[i], (*from)[first + i], static_cast<size_t>(to->stride_bytes));
      }
    }
    DYNEMB_RETURN_IF_ERROR(WriteRows(count));
    if (!schema_.strings) continue;
    std::vector<char> block = StringsPayload({strings.data + first, count}, kHeader);
    DYNEMB_RETURN_IF_ERROR(WriteBlock(BlockKind::kStrings, count, block.data(),
                                      static_cast<int64_t>(block.size()) - kHeader));
  }
  return Status();
}

Status RowsFile::AddErased(Span<const Key> keys) {
  DYNEMB_RETURN_IF_ERROR(CheckKeys(schema_, keys));
  const int64_t room = (static_cast<int64_t>(block_.size()) - kHeader) / int64_t{sizeof(Key)};
  for (int64_t first = 0; first < keys.size; first += room) {
    const int64_t count = std::min(room, keys.size - first);
    std::copy_n(keys.data + first, count, room_.keys.data);
    entry_.erased += count;
    DYNEMB_RETURN_IF_ERROR(
        WriteBlock(BlockKind::kErased, count, block_.data(), count * int64_t{sizeof(Key)}));
  }
  return Status();
}

Status RowsFile::Finish() {
  DYNEMB_RETURN_IF_ERROR(WriteBlock(BlockKind::kEnd, sequence_, block_.data(), 0));
  if (status_ = file_->Sync(); status_.ok()) status_ = file_->Close();
  DYNEMB_RETURN_IF_ERROR(status_);
  status_ = FailedPrecondition(entry_.name, ": it is finished");
  std::lock_guard<std::mutex> lock(snapshot_->mutex_);
  auto& files = snapshot_->manifest_.files;
  if (files.size() <= number_) files.resize(number_ + 1);
  files[number_] = entry_;
  return Status();
}

SnapshotWriter::SnapshotWriter(FileSystem* files, std::string folder,
                               std::unique_ptr<FileLock> lock)
    : files_(files), folder_(std::move(folder)), lock_(std::move(lock)) {
  manifest_.id = NewId();
  manifest_.created_seconds = std::chrono::duration_cast<std::chrono::seconds>(
                                  std::chrono::system_clock::now().time_since_epoch())
                                  .count();
}

Status SnapshotWriter::Open(FileSystem* files, const std::string& folder,
                            std::unique_ptr<SnapshotWriter>* writer) {
  DYNEMB_RETURN_IF_ERROR(files->CreateFolder(folder));
  std::unique_ptr<FileLock> lock;
  if (Status locked = files->Lock(JoinPath(folder, "LOCK"), &lock); !locked.ok()) {
    return Status(locked.code(),
                  StrCat(locked.message(), "; is another snapshot being saved into ", folder, "?"));
  }
  writer->reset(new SnapshotWriter(files, folder, std::move(lock)));
  return Status();
}

SnapshotWriter::~SnapshotWriter() {
  if (committed_) return;
  // What it wrote and could not make a snapshot of; best effort, for a later save removes it too.
  for (int64_t number = 0; number < begun_; ++number) {
    (void)files_->Remove(Path(RowsName(number)));
  }
}

std::string SnapshotWriter::RowsName(int64_t number) const {
  return StrCat(kRowsPrefix, IdText(manifest_.id), "-", number, kRowsSuffix);
}

Status SnapshotWriter::AddTable(const std::string& name, const TableSchema& schema,
                                int64_t* number) {
  DYNEMB_RETURN_IF_ERROR(CheckTableName(name));
  DYNEMB_RETURN_IF_ERROR(schema.Validate());
  for (const SnapshotTable& table : manifest_.tables) {
    if (table.name == name) {
      return InvalidArgument("table name: got '", name, "' twice; give each table its own");
    }
  }
  *number = static_cast<int64_t>(manifest_.tables.size());
  manifest_.tables.push_back({name, schema});
  return Status();
}

Status SnapshotWriter::NewFile(int64_t table, std::unique_ptr<RowsFile>* file) {
  const int64_t tables = static_cast<int64_t>(manifest_.tables.size());
  if (table < 0 || table >= tables) {
    return InvalidArgument("table: got number ", table, ", the snapshot has ", tables);
  }
  std::unique_lock<std::mutex> lock(mutex_);
  const int64_t number = begun_++;
  lock.unlock();
  SnapshotFile entry;
  entry.name = RowsName(number);
  entry.table = table;
  const std::string path = Path(entry.name);
  std::unique_ptr<RowsFile> made(new RowsFile(this, static_cast<uint32_t>(number), std::move(entry),
                                              manifest_.tables[static_cast<size_t>(table)].schema));
  DYNEMB_RETURN_IF_ERROR(files_->NewWritableFile(path, &made->file_));
  *file = std::move(made);
  return Status();
}

Status SnapshotWriter::PutInPlace(const std::string& draft, const std::string& text) {
  const Status renamed = files_->Rename(draft, Path(kManifestName));
  if (renamed.ok()) return renamed;
  // A file system over a network may have done it all the same. What counts is what is there.
  std::string there;
  const Status read = ReadFile(files_, Path(kManifestName), kMaxManifestBytes, &there);
  if (read.ok() && there == text) return Status();
  if (read.ok() || read.code() == Code::kNotFound) return renamed;
  committed_ = true;  // perhaps, so that no file of it may be removed
  return Status(renamed.code(),
                StrCat(renamed.message(), "; the snapshot in ", folder_,
                       " may be in place or not, for it cannot be read: ", read.message()));
}

Status SnapshotWriter::Commit(uint64_t base) {
  int64_t finished = 0;
  for (const SnapshotFile& file : manifest_.files) finished += !file.name.empty();
  if (finished != begun_) {
    return FailedPrecondition("snapshot: ", begun_ - finished, " of its ", begun_,
                              " files are not finished");
  }
  manifest_.base = base;
  DYNEMB_RETURN_IF_ERROR(files_->SyncFolder(folder_));
  const std::string draft = Path(StrCat(kManifestName, "-", IdText(manifest_.id)));
  const std::string text = manifest_.ToText();
  const auto write = [&] {
    std::unique_ptr<WritableFile> file;
    DYNEMB_RETURN_IF_ERROR(files_->NewWritableFile(draft, &file));
    DYNEMB_RETURN_IF_ERROR(file->Append(text));
    DYNEMB_RETURN_IF_ERROR(file->Sync());
    DYNEMB_RETURN_IF_ERROR(file->Close());
    return PutInPlace(draft, text);
  };
  if (Status written = write(); !written.ok()) {
    (void)files_->Remove(draft);
    return written;
  }
  committed_ = true;
  if (Status synced = files_->SyncFolder(folder_); !synced.ok()) {
    return Status(synced.code(), StrCat(synced.message(), "; the snapshot in ", folder_,
                                        " is in place but may not survive a crash of the machine"));
  }
  RemoveLeftovers();
  return Status();
}

void SnapshotWriter::RemoveLeftovers() {
  std::vector<std::string> names;
  if (!files_->List(folder_, &names).ok()) return;
  for (const std::string& name : names) {
    const bool draft = name.rfind(StrCat(kManifestName, "-"), 0) == 0;
    const bool ours = std::any_of(manifest_.files.begin(), manifest_.files.end(),
                                  [&](const SnapshotFile& file) { return file.name == name; });
    if (draft || (IsRowsFile(name) && !ours)) (void)files_->Remove(Path(name));
  }
}

Status BeginVersion(const Context& context, const std::vector<Table*>& shards, int64_t* ended) {
  *ended = 0;
  for (const Table* shard : shards) *ended = std::max(*ended, shard->version());
  for (Table* shard : shards) {
    const Status begun = shard->BeginVersion(context, *ended + 1);
    // Another save may have begun that version, or a later one, since it was asked for.
    if (!begun.ok() && shard->version() <= *ended) return begun;
  }
  return Status();
}

Status SaveTables(const Context& context, FileSystem* files, const std::string& folder,
                  const std::vector<TableToSave>& tables, uint64_t base, Manifest* manifest) {
  std::unique_ptr<SnapshotWriter> writer;
  DYNEMB_RETURN_IF_ERROR(SnapshotWriter::Open(files, folder, &writer));
  struct Job {
    int64_t table;
    const Table* shard;
    int64_t part, parts;  // of the shard
    int64_t since_version;
    KeyStrings* strings;
    Status status;
  };
  std::vector<Job> jobs;
  int64_t shards = 0;
  for (const TableToSave& table : tables) shards += static_cast<int64_t>(table.shards.size());
  std::vector<KeyStrings::Birth> no_sweep(tables.size());  // no row that is saved loses its string
  for (const TableToSave& table : tables) {
    int64_t number;
    if (table.shards.empty()) return InvalidArgument("table ", table.name, ": got no shards");
    DYNEMB_RETURN_IF_ERROR(writer->AddTable(table.name, table.shards[0]->schema(), &number));
    DYNEMB_RETURN_IF_ERROR(
        KeyStrings::Birth::Begin(table.strings, {}, &no_sweep[static_cast<size_t>(number)]));
    for (const Table* shard : table.shards) {
      // As many files as keep all threads busy, none for a few rows.
      const int64_t wanted = (context.executor->concurrency() + shards - 1) / shards;
      const int64_t parts = std::clamp<int64_t>(shard->size() / kPartRows, 1, wanted);
      for (int64_t part = 0; part < parts; ++part) {
        jobs.push_back({number, shard, part, parts, table.since_version, table.strings, Status()});
      }
    }
  }
  // An optimizer that is attached meanwhile would make rows of two kinds.
  const auto check_schema = [&](const Job& job) {
    const SnapshotTable& table = writer->manifest().tables[static_cast<size_t>(job.table)];
    if (job.shard->schema().ToText() == table.schema.ToText()) return Status();
    return FailedPrecondition("table ", table.name,
                              ": an optimizer was attached to it while it was being saved; save "
                              "it again");
  };
  // The first rows of `room` with their strings.
  const auto add = [&](const Job& job, const RowParts& room, int64_t rows, RowsFile* file) {
    ConstRowParts parts;
    parts.keys = {room.keys.data, rows};
    parts.values = {room.values.data, rows, room.values.stride_bytes};
    parts.slots = {room.slots.data, rows, room.slots.stride_bytes};
    parts.meta = {room.meta.data, rows, room.meta.stride_bytes};
    std::vector<std::string_view> strings;
    DYNEMB_RETURN_IF_ERROR(job.strings->Get(
        parts.keys, [&](int64_t, const std::string& string) { strings.emplace_back(string); }));
    return file->Add(parts, strings);
  };
  const auto save = [&](const Job& job) {
    std::unique_ptr<RowsFile> file;
    DYNEMB_RETURN_IF_ERROR(check_schema(job));
    DYNEMB_RETURN_IF_ERROR(writer->NewFile(job.table, &file));
    // Rows go into the file's own block, those with strings into one beside it.
    const RowLayout layout(job.shard->schema());
    std::vector<char> beside;
    RowParts room = file->room();
    if (job.strings != nullptr) {
      beside.resize(static_cast<size_t>(RowsPayload(layout, room.keys.size).bytes));
      room = MutableParts(layout, room.keys.size, beside.data());
    }
    Cursor cursor;
    cursor.since_version = job.since_version;
    cursor.part = job.part;
    cursor.parts = job.parts;
    while (!cursor.done) {
      int64_t rows = 0;
      const Status exported = job.shard->Export(context, &cursor, room, &rows);
      DYNEMB_RETURN_IF_ERROR(check_schema(job));
      DYNEMB_RETURN_IF_ERROR(exported);
      DYNEMB_RETURN_IF_ERROR(job.strings == nullptr ? file->Write(rows)
                                                    : add(job, room, rows, file.get()));
    }
    return file->Finish();
  };
  const auto save_erased = [&](const Job& job) {
    std::unique_ptr<RowsFile> file;
    std::vector<Key> erased;
    if (job.since_version < 0 || job.part > 0) return Status();
    DYNEMB_RETURN_IF_ERROR(job.shard->Erased(context, job.since_version, &erased));
    if (erased.empty()) return Status();
    DYNEMB_RETURN_IF_ERROR(writer->NewFile(job.table, &file));
    DYNEMB_RETURN_IF_ERROR(file->AddErased(erased));
    return file->Finish();
  };
  const auto for_all_jobs = [&](const std::function<Status(const Job&)>& work) {
    context.executor->Run(static_cast<int64_t>(jobs.size()), 1'000'000'000, [&](int64_t j) {
      Job& job = jobs[static_cast<size_t>(j)];
      job.status = work(job);
    });
    for (const Job& job : jobs) DYNEMB_RETURN_IF_ERROR(job.status);
    return Status();
  };
  // What was erased is asked for when all rows have been read. A key that is erased meanwhile is in
  // one of both, or in both: then its row counts, as of the moment before.
  DYNEMB_RETURN_IF_ERROR(for_all_jobs(save));
  DYNEMB_RETURN_IF_ERROR(for_all_jobs(save_erased));
  DYNEMB_RETURN_IF_ERROR(writer->Commit(base));
  *manifest = writer->manifest();
  return Status();
}

}  // namespace dynemb
