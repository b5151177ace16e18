#include "cc/core/snapshot/writer.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <utility>

#include "cc/core/base/crc32c.h"

namespace dynemb {
namespace {

constexpr int64_t kBlockBytes = int64_t{1} << 20;
constexpr int64_t kPartRows = 1 << 16;  // of a shard at least, to have a file of their own
constexpr int64_t kHeader = BlockHeader::kBytes;

int64_t RowsOfABlock(const RowLayout& layout) {
  const int64_t row_bytes = RowsPayload(layout, 1).bytes;
  return std::max<int64_t>(1, kBlockBytes / row_bytes);
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

RowsFile::RowsFile(SnapshotWriter* snapshot, int64_t at, SnapshotFile entry,
                   const TableSchema& schema)
    : snapshot_(snapshot), at_(at), layout_(schema), schema_(schema), entry_(std::move(entry)) {
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
  header.file = static_cast<uint32_t>(snapshot_->place_.number(at_));
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
  const size_t at = static_cast<size_t>(at_);
  if (files.size() <= at) files.resize(at + 1);
  files[at] = entry_;
  return Status();
}

SnapshotWriter::SnapshotWriter(FileSystem* files, std::string folder, const WriterPlace& place)
    : files_(files), folder_(std::move(folder)), place_(place) {
  manifest_.id = place.snapshot;
}

Status SnapshotWriter::Open(FileSystem* files, const std::string& folder,
                            std::unique_ptr<SnapshotWriter>* writer) {
  std::unique_ptr<SnapshotSave> save;
  DYNEMB_RETURN_IF_ERROR(SnapshotSave::Begin(files, folder, &save));
  *writer = std::make_unique<SnapshotWriter>(files, folder, WriterPlace{save->id()});
  (*writer)->save_ = std::move(save);
  return Status();
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
  const int64_t at = begun_++;
  lock.unlock();
  SnapshotFile entry;
  entry.name = RowsFileName(place_.snapshot, place_.number(at));
  entry.table = table;
  const std::string path = JoinPath(folder_, entry.name);
  std::unique_ptr<RowsFile> made(new RowsFile(this, at, std::move(entry),
                                              manifest_.tables[static_cast<size_t>(table)].schema));
  const Status begun = files_->NewWritableFile(path, &made->file_);
  if (begun.code() == Code::kNotFound) {
    return Status(begun.code(), StrCat(begun.message(),
                                       "; the snapshot was begun in this folder: do "
                                       "all writers have the same one?"));
  }
  DYNEMB_RETURN_IF_ERROR(begun);
  *file = std::move(made);
  return Status();
}

Status SnapshotWriter::Finish(uint64_t base, Manifest* part) {
  int64_t finished = 0;
  for (const SnapshotFile& file : manifest_.files) finished += !file.name.empty();
  if (finished != begun_) {
    return FailedPrecondition("snapshot: ", begun_ - finished, " of its ", begun_,
                              " files are not finished");
  }
  manifest_.base = base;
  *part = manifest_;
  return Status();
}

Status SnapshotWriter::Commit(uint64_t base) {
  Manifest part;
  if (save_ == nullptr) return FailedPrecondition("snapshot: who began it commits it");
  DYNEMB_RETURN_IF_ERROR(Finish(base, &part));
  return save_->Commit({part}, &manifest_);
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

Status WriteTables(const Context& context, FileSystem* files, const std::string& folder,
                   const WriterPlace& place, const std::vector<TableToSave>& tables, uint64_t base,
                   Manifest* part) {
  SnapshotWriter writer(files, folder, place);
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
    if (table.shards.empty() && table.elsewhere == nullptr) {
      return InvalidArgument("table ", table.name, ": got no shards");
    }
    DYNEMB_RETURN_IF_ERROR(writer.AddTable(
        table.name, table.shards.empty() ? *table.elsewhere : table.shards[0]->schema(), &number));
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
    const SnapshotTable& table = writer.manifest().tables[static_cast<size_t>(job.table)];
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
    DYNEMB_RETURN_IF_ERROR(writer.NewFile(job.table, &file));
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
    DYNEMB_RETURN_IF_ERROR(writer.NewFile(job.table, &file));
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
  return writer.Finish(base, part);
}

Status SaveTables(const Context& context, FileSystem* files, const std::string& folder,
                  const std::vector<TableToSave>& tables, uint64_t base, Manifest* manifest) {
  std::unique_ptr<SnapshotSave> save;
  Manifest part;
  DYNEMB_RETURN_IF_ERROR(SnapshotSave::Begin(files, folder, &save));
  DYNEMB_RETURN_IF_ERROR(WriteTables(context, files, folder, {save->id()}, tables, base, &part));
  return save->Commit({part}, manifest);
}

}  // namespace dynemb
