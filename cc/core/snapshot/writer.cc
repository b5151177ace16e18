#include "cc/core/snapshot/writer.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "cc/core/base/crc32c.h"
#include "cc/core/lookup/widen.h"
#include "cc/core/snapshot/quantize.h"

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
                   const SnapshotTable& table)
    : snapshot_(snapshot),
      at_(at),
      layout_(table.schema),
      schema_(table.schema),
      entry_(std::move(entry)) {
  const int64_t rows = RowsOfABlock(layout_);
  block_.resize(static_cast<size_t>(kHeader + RowsPayload(layout_, rows).bytes));
  room_ = MutableParts(layout_, rows, block_.data() + kHeader);
  if (!table.quantized) return;
  quantized_.resize(static_cast<size_t>(kHeader + QuantizedRowsPayload(schema_.dim, rows).bytes));
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
  if (!quantized_.empty()) return WriteQuantized(rows);
  const RowParts block = MutableParts(layout_, rows, block_.data() + kHeader);
  Compact(room_.values, block.values);
  Compact(room_.slots, block.slots);
  Compact(room_.meta, block.meta);
  entry_.rows += rows;
  return WriteBlock(BlockKind::kRows, rows, block_.data(), RowsPayload(layout_, rows).bytes);
}

Status RowsFile::WriteQuantized(int64_t rows) {
  const QuantizedRowsPayload at(schema_.dim, rows);
  char* const payload = quantized_.data() + kHeader;
  std::memset(payload, 0, static_cast<size_t>(at.bytes));  // the filling up to 8 bytes
  std::memcpy(payload, room_.keys.data, static_cast<size_t>(rows) * sizeof(Key));
  const ConstRows values(room_.values.data, rows, room_.values.stride_bytes);
  if (!Quantize(values, schema_.value_dtype, schema_.dim,
                reinterpret_cast<float*>(payload + at.scales),
                reinterpret_cast<int8_t*>(payload + at.numbers))) {
    return status_ = InvalidArgument(
               "value_dtype: the table has values beyond 4e40, whose scale no float32 is; want a "
               "wider one than int8, or none");
  }
  entry_.rows += rows;
  return WriteBlock(BlockKind::kQuantizedRows, rows, quantized_.data(), at.bytes);
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

Status SnapshotWriter::AddTable(const std::string& name, const TableSchema& schema, int64_t* number,
                                bool quantized) {
  DYNEMB_RETURN_IF_ERROR(CheckTableName(name));
  DYNEMB_RETURN_IF_ERROR(schema.Validate());
  for (const SnapshotTable& table : manifest_.tables) {
    if (table.name == name) {
      return InvalidArgument("table name: got '", name, "' twice; give each table its own");
    }
  }
  *number = static_cast<int64_t>(manifest_.tables.size());
  manifest_.tables.push_back({name, schema, quantized});
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
  std::unique_ptr<RowsFile> made(
      new RowsFile(this, at, std::move(entry), manifest_.tables[static_cast<size_t>(table)]));
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

Status BeginEpoch(const Context& context, const std::vector<Table*>& shards, int64_t* ended) {
  *ended = 0;
  for (const Table* shard : shards) *ended = std::max(*ended, shard->epoch());
  for (Table* shard : shards) {
    const Status begun = shard->BeginEpoch(context, *ended + 1);
    // Another save may have begun that epoch, or a later one, since it was asked for.
    if (!begun.ok() && shard->epoch() <= *ended) return begun;
  }
  return Status();
}

namespace {

// What one thread writes: a shard, or a part of it, to a file.
struct Job {
  int64_t table;  // number
  const Table* shard;
  TablePart part;
  int64_t since_epoch;
  KeyStrings* strings;
  TableSchema saved;  // the schema of what is written
  Status status;
};

// Rounds numbers of `from` to the narrower `to`, both floating, to nearest. False: a finite one has
// become infinite.
bool Narrow(const ConstRows& rows, DType from, DType to, int64_t dim, char* narrow) {
  bool fits = true;
  VisitFloats(to, from, [&](auto to_tag, auto from_tag) {
    using To = typename decltype(to_tag)::type;
    using From = typename decltype(from_tag)::type;
    for (int64_t row = 0; row < rows.count; ++row) {
      for (int64_t i = 0; i < dim; ++i, narrow += sizeof(To)) {
        From number;
        std::memcpy(&number, rows[row] + i * static_cast<int64_t>(sizeof(From)), sizeof(From));
        const To rounded = static_cast<To>(static_cast<ComputeType<To>>(number));
        fits =
            fits && std::isfinite(number) == std::isfinite(static_cast<ComputeType<To>>(rounded));
        std::memcpy(narrow, &rounded, sizeof(To));
      }
    }
  });
  return fits;
}

// The first `rows` rows of `parts`.
ConstRowParts FirstRows(const RowParts& parts, int64_t rows) {
  ConstRowParts first;
  first.keys = {parts.keys.data, rows};
  first.values = {parts.values.data, rows, parts.values.stride_bytes};
  first.slots = {parts.slots.data, rows, parts.slots.stride_bytes};
  first.meta = {parts.meta.data, rows, parts.meta.stride_bytes};
  return first;
}

// Moves row `from` of the parts to place `to`, which is not behind it.
void MoveRow(const RowParts& parts, int64_t from, int64_t to) {
  if (from == to) return;
  parts.keys[to] = parts.keys[from];
  for (const Rows* part : {&parts.values, &parts.slots, &parts.meta}) {
    if (part->stride_bytes > 0) {
      std::memcpy((*part)[to], (*part)[from], static_cast<size_t>(part->stride_bytes));
    }
  }
}

// The rows of one job, on their way to its file.
class JobRows {
 public:
  JobRows(const Context& context, const Job& job, RowsFile* file)
      : context_(context),
        job_(job),
        file_(file),
        room_(file->room()),
        narrows_(job.saved.value_dtype != job.shard->schema().value_dtype) {
    // Rows go into the file's own block, those with strings or other numbers into one beside it.
    TableSchema read = job.saved;
    read.value_dtype = job.shard->schema().value_dtype;
    const RowLayout layout(read);
    if (job.strings != nullptr || narrows_) {
      beside_.resize(static_cast<size_t>(RowsPayload(layout, room_.keys.size).bytes));
      room_ = MutableParts(layout, room_.keys.size, beside_.data());
    }
    if (layout.slots_bytes == 0) room_.slots = Rows();
    if (layout.meta_bytes == 0) room_.meta = Rows();
    if (!narrows_) return;
    narrow_.resize(static_cast<size_t>(room_.keys.size * RowLayout(job.saved).value_bytes));
  }

  // All rows.
  Status WriteAll() {
    Cursor cursor;
    static_cast<TablePart&>(cursor) = job_.part;
    while (!cursor.done) {
      int64_t rows = 0;
      DYNEMB_RETURN_IF_ERROR(job_.shard->Export(context_, &cursor, room_, &rows));
      DYNEMB_RETURN_IF_ERROR(Write(rows));
    }
    return Status();
  }

  // Those that have changed. A key that has changed and has no row was erased; if that happens
  // after the epoch has ended, the next delta says so once more.
  Status WriteChanges() {
    std::vector<Key> changed, erased;
    std::vector<Outcome> outcomes;
    DYNEMB_RETURN_IF_ERROR(
        job_.shard->ChangedKeys(context_, job_.since_epoch, job_.part, &changed));
    const int64_t count = static_cast<int64_t>(changed.size());
    for (int64_t first = 0; first < count; first += room_.keys.size) {
      Batch batch;
      batch.keys = {changed.data() + first, std::min(room_.keys.size, count - first)};
      outcomes.resize(static_cast<size_t>(batch.keys.size));
      Report report;
      report.outcomes = outcomes;
      std::copy(batch.keys.begin(), batch.keys.end(), room_.keys.data);
      RowParts read = room_;
      read.keys = {};
      for (Rows* part : {&read.values, &read.slots, &read.meta}) {
        if (part->data != nullptr) part->count = batch.keys.size;
      }
      DYNEMB_RETURN_IF_ERROR(job_.shard->ReadRows(context_, batch, read, report));
      int64_t rows = 0;
      for (int64_t i = 0; i < batch.keys.size; ++i) {
        if (outcomes[static_cast<size_t>(i)] == Outcome::kFound) {
          MoveRow(room_, i, rows++);
        } else {
          erased.push_back(room_.keys[i]);
        }
      }
      DYNEMB_RETURN_IF_ERROR(Write(rows));
    }
    // If the table was cleared meanwhile, rows of the base that had not changed are missing among
    // the erased keys.
    DYNEMB_RETURN_IF_ERROR(
        job_.shard->ChangedKeys(context_, job_.since_epoch, job_.part, &changed));
    return file_->AddErased(erased);
  }

 private:
  // The first rows of room_, with their strings.
  Status Write(int64_t rows) {
    if (beside_.empty()) return file_->Write(rows);
    ConstRowParts parts = FirstRows(room_, rows);
    if (narrows_) {
      const DType from = job_.shard->schema().value_dtype, to = job_.saved.value_dtype;
      if (!Narrow(parts.values, from, to, job_.saved.dim, narrow_.data())) {
        return InvalidArgument("value_dtype: the table has values beyond those of ", Name(to),
                               "; want a wider one, bfloat16 or none");
      }
      parts.values = ConstRows(narrow_.data(), rows, RowLayout(job_.saved).value_bytes);
    }
    std::vector<std::string_view> strings;
    if (job_.strings != nullptr) {
      DYNEMB_RETURN_IF_ERROR(job_.strings->Get(
          parts.keys, [&](int64_t, std::string_view string) { strings.emplace_back(string); }));
    }
    return file_->Add(parts, strings);
  }

  const Context& context_;
  const Job& job_;
  RowsFile* const file_;
  RowParts room_;
  const bool narrows_;
  std::vector<char> beside_;
  std::vector<char> narrow_;  // values as they are written
};

// An error that one of several tables has.
Status Named(std::string_view table, const Status& error) {
  return Status(error.code(), StrCat("table '", table, "': ", error.message()));
}

}  // namespace

TableSchema ValuesAlone(const TableSchema& schema, DType values_as) {
  TableSchema alone = schema;
  alone.rule = OptimizerSpec();
  alone.meta = MetaFields();
  if (CanWiden(values_as, schema.value_dtype)) alone.value_dtype = values_as;
  return alone;
}

Status WriteTables(const Context& context, FileSystem* files, const std::string& folder,
                   const WriterPlace& place, const std::vector<TableToSave>& tables, uint64_t base,
                   Manifest* part) {
  SnapshotWriter writer(files, folder, place);
  std::vector<Job> jobs;
  int64_t shards = 0;
  for (const TableToSave& table : tables) shards += static_cast<int64_t>(table.shards.size());
  std::vector<KeyStrings::PinGuard> no_sweep(
      tables.size());  // no row that is saved loses its string
  for (const TableToSave& table : tables) {
    int64_t number;
    if (table.shards.empty() && table.remote_schema == nullptr) {
      return InvalidArgument("table ", table.name, ": got no shards");
    }
    TableSchema saved = table.shards.empty() ? *table.remote_schema : table.shards[0]->schema();
    if (table.values_as) saved = ValuesAlone(saved, *table.values_as);
    const bool quantized = table.values_as == DType::kInt8 && IsFloating(saved.value_dtype);
    DYNEMB_RETURN_IF_ERROR(writer.AddTable(table.name, saved, &number, quantized));
    DYNEMB_RETURN_IF_ERROR(
        KeyStrings::PinGuard::Begin(table.strings, {}, &no_sweep[static_cast<size_t>(number)]));
    for (const Table* shard : table.shards) {
      // As many files as keep all threads busy, none for a few rows.
      const int64_t wanted = (context.executor->concurrency() + shards - 1) / shards;
      const int64_t parts = std::clamp<int64_t>(shard->size() / kPartRows, 1, wanted);
      for (int64_t p = 0; p < parts; ++p) {
        jobs.push_back(
            {number, shard, {p, parts}, table.since_epoch, table.strings, saved, Status()});
      }
    }
  }
  const auto save = [&](const Job& job) {
    std::unique_ptr<RowsFile> file;
    OneThread here;
    DYNEMB_RETURN_IF_ERROR(writer.NewFile(job.table, &file));
    JobRows rows(here, job, file.get());
    DYNEMB_RETURN_IF_ERROR(job.since_epoch < 0 ? rows.WriteAll() : rows.WriteChanges());
    return file->Finish();
  };
  const Status ran =
      context.executor->Run(static_cast<int64_t>(jobs.size()), 1'000'000'000, [&](int64_t j) {
        Job& job = jobs[static_cast<size_t>(j)];
        job.status = save(job);
      });
  for (const Job& job : jobs) {
    if (!job.status.ok()) return Named(tables[static_cast<size_t>(job.table)].name, job.status);
  }
  DYNEMB_RETURN_IF_ERROR(ran);
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
