// What a table with storage costs beside the same table in memory, and beside RocksDB as the store
// of the same rows, without TensorFlow. Needs librocksdb-dev.
//
//   bazel run -c opt //benchmarks:tiers_benchmark -- WHAT ROWS FOLDER [MEMORY] [ROUNDS] [WHO]
//   [HITS]
//
// WHAT is one of
//   curve   lookups and steps against the share of keys that need nothing from disk
//   zipf    the same of the distinct ids of Zipf(1.05)
//   cold    a curve for which the page cache is emptied before each call; root alone can do it
// MEMORY is the share of the rows that fits into memory (0.5). Rows are of dim 16, float32, with
// Adam's slots: 200 bytes. A call has 16,384 keys; a step is a lookup of them and one Apply. At a
// hit rate of 95 %, so many keys are of a tenth of the rows, drawn at random, which stay in memory,
// the others of the rest in turn, most of which are on disk by then. All three take turns; medians
// of ROUNDS (20) calls. WHO is any of "mtr": the table in memory, with tiers, and RocksDB. HITS is
// one hit rate in percent, in place of all.
//
// RocksDB has the same bytes of memory, a quarter of them as write buffers and the rest as its
// block cache; no log of writes, universal compaction, Bloom filters, direct reads and writes, and
// reads with MultiGet by 16 threads.
#include <rocksdb/cache.h>
#include <rocksdb/db.h>
#include <rocksdb/filter_policy.h>
#include <rocksdb/table.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "benchmarks/threads_executor.h"
#include "cc/core/base/file_system.h"
#include "cc/core/base/hash.h"
#include "cc/core/optimizer/rule.h"
#include "cc/core/storage/tiered_table.h"
#include "cc/core/table/host_table.h"

namespace dynemb {
namespace {

constexpr int64_t kDim = 16, kKeys = 16384, kFill = 65536, kRowBytes = 3 * kDim * 4 + 8;

void Check(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.message().c_str());
  std::exit(1);
}
void Check(const rocksdb::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::exit(1);
}

double SecondsOf(const std::function<void()>& call) {
  const auto begin = std::chrono::steady_clock::now();
  call();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// Rows of Adam by key, kept somewhere.
class Subject {
 public:
  virtual ~Subject() = default;
  virtual void Lookup(const std::vector<Key>& keys) = 0;
  // A lookup of distinct keys and an update of their rows, which inserts those that are missing.
  virtual void Step(const std::vector<Key>& keys) = 0;
  // Rows that have been read from disk so far; as far as this is known.
  virtual int64_t rows_read() const { return 0; }
  virtual int64_t disk_bytes() const { return 0; }
};

TableSchema Schema() {
  TableSchema schema;
  schema.value_dtype = DType::kFloat32;
  schema.dim = kDim;
  schema.meta.add(MetaField::kLastWriteTime);
  Check(MakeOptimizerSpec("adam", 0, &schema.rule));
  return schema;
}

class TableRows : public Subject {
 public:
  explicit TableRows(std::unique_ptr<Table> table) : table_(std::move(table)), pool_(2) {
    context_.executor = &pool_;
    for (const std::string& name : HyperNames("adam")) {
      hyper_.push_back(name == "step" ? 1 : name == "epsilon" ? 1e-7 : 0.9);
    }
    values_.resize(kFill * kDim);
    gradients_.resize(kFill * kDim, 0.01f);
  }
  void Lookup(const std::vector<Key>& keys) override {
    Check(table_->Find(context_, BatchOf(keys), RowsOf(keys, &values_), Report()));
  }
  void Step(const std::vector<Key>& keys) override {
    Lookup(keys);
    Stamp stamp;
    stamp.now = ++steps_;
    const Update update = {&table_->schema().rule, hyper_, {}};
    Check(
        table_->Apply(context_, BatchOf(keys), RowsOf(keys, &gradients_), update, stamp, Report()));
  }
  int64_t rows_read() const override {
    const auto* tiered = dynamic_cast<const TieredTable*>(table_.get());
    return tiered == nullptr ? 0 : tiered->tier_stats().rows_read;
  }
  int64_t disk_bytes() const override {
    const auto* tiered = dynamic_cast<const TieredTable*>(table_.get());
    return tiered == nullptr ? 0 : tiered->tier_stats().bytes_below;
  }

 private:
  static Batch BatchOf(const std::vector<Key>& keys) {
    Batch batch;
    batch.keys = keys;
    return batch;
  }
  static Rows RowsOf(const std::vector<Key>& keys, std::vector<float>* rows) {
    return Rows(reinterpret_cast<char*>(rows->data()), static_cast<int64_t>(keys.size()), kDim * 4);
  }

  const std::unique_ptr<Table> table_;
  ThreadsExecutor pool_;
  Context context_;
  std::vector<double> hyper_;
  std::vector<float> values_, gradients_;
  int64_t steps_ = 0;
};

class RocksRows : public Subject {
 public:
  RocksRows(const std::string& folder, int64_t memory_bytes)
      : readers_(kReaders), rows_(kFill * kRowBytes) {
    rocksdb::Options options;
    options.create_if_missing = true;
    options.compaction_style = rocksdb::kCompactionStyleUniversal;
    options.use_direct_reads = true;
    options.use_direct_io_for_flush_and_compaction = true;
    options.max_background_jobs = 2;
    options.max_write_buffer_number = 4;
    options.write_buffer_size = std::max<size_t>(1 << 20, memory_bytes / 16);
    options.compression = rocksdb::kNoCompression;
    rocksdb::BlockBasedTableOptions table;
    table.block_cache = rocksdb::NewLRUCache(memory_bytes * 3 / 4);
    table.filter_policy.reset(rocksdb::NewBloomFilterPolicy(10));
    table.cache_index_and_filter_blocks = false;
    options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
    rocksdb::DB* db;
    Check(rocksdb::DB::Open(options, folder, &db));
    db_.reset(db);
  }
  void Lookup(const std::vector<Key>& keys) override {
    const int64_t n = static_cast<int64_t>(keys.size());
    const int64_t share = (n + kReaders - 1) / kReaders;
    readers_.RunEach(kReaders, 0, [&](int64_t reader) {
      const int64_t begin = std::min(n, reader * share), end = std::min(n, begin + share);
      const size_t count = static_cast<size_t>(end - begin);
      std::vector<rocksdb::Slice> slices;
      for (int64_t i = begin; i < end; ++i) slices.push_back(SliceOf(keys[i]));
      std::vector<rocksdb::PinnableSlice> found(count);
      std::vector<rocksdb::Status> statuses(count);
      db_->MultiGet(rocksdb::ReadOptions(), db_->DefaultColumnFamily(), count, slices.data(),
                    found.data(), statuses.data());
      for (size_t i = 0; i < count; ++i) {
        char* const row = &rows_[(begin + static_cast<int64_t>(i)) * kRowBytes];
        if (statuses[i].IsNotFound()) {
          std::memset(row, 0, kRowBytes);
          continue;
        }
        Check(statuses[i]);
        std::memcpy(row, found[i].data(), kRowBytes);
      }
    });
  }
  void Step(const std::vector<Key>& keys) override {
    Lookup(keys);
    rocksdb::WriteBatch batch;
    for (size_t i = 0; i < keys.size(); ++i) {
      char* const bytes = &rows_[i * kRowBytes];
      float* const row = reinterpret_cast<float*>(bytes);
      for (int64_t d = 0; d < kDim; ++d) {
        row[kDim + d] += 0.1f * (0.01f - row[kDim + d]);
        row[2 * kDim + d] += 0.001f * (0.0001f - row[2 * kDim + d]);
        row[d] -= 0.001f * row[kDim + d] / (std::sqrt(row[2 * kDim + d]) + 1e-7f);
      }
      batch.Put(SliceOf(keys[i]), {bytes, kRowBytes});
    }
    rocksdb::WriteOptions options;
    options.disableWAL = true;
    Check(db_->Write(options, &batch));
  }
  int64_t disk_bytes() const override {
    uint64_t bytes = 0;
    db_->GetIntProperty("rocksdb.total-sst-files-size", &bytes);
    return static_cast<int64_t>(bytes);
  }

 private:
  static constexpr int kReaders = 16;
  static rocksdb::Slice SliceOf(const Key& key) {
    return {reinterpret_cast<const char*>(&key), sizeof(key)};
  }
  ThreadsExecutor readers_;
  std::vector<char> rows_;
  std::unique_ptr<rocksdb::DB> db_;
};

class Keys {
 public:
  explicit Keys(int64_t rows) : rows_(rows), cold_(rows) {
    std::iota(cold_.begin(), cold_.end(), 0);
    std::shuffle(cold_.begin(), cold_.end(), random_);
    const auto first = cold_.end() - static_cast<std::ptrdiff_t>(rows / 10);
    hot_.assign(first, cold_.end());
    cold_.erase(first, cold_.end());
  }
  static Key Of(int64_t number) { return static_cast<Key>(Mix64(static_cast<uint64_t>(number))); }
  std::vector<Key> Range(int64_t begin, int64_t end) const {
    std::vector<Key> keys;
    for (; begin < end; ++begin) keys.push_back(Of(begin));
    return keys;
  }
  std::vector<Key> Hot() const {
    std::vector<Key> keys;
    for (const int64_t number : hot_) keys.push_back(Of(number));
    return keys;
  }
  std::vector<Key> Draw(int64_t hit_percent) {
    const int64_t hits = kKeys * hit_percent / 100;
    std::vector<Key> keys;
    for (int64_t i = 0; i < hits; ++i) {
      std::uniform_int_distribution<size_t> other(static_cast<size_t>(i), hot_.size() - 1);
      std::swap(hot_[static_cast<size_t>(i)], hot_[other(random_)]);
      keys.push_back(Of(hot_[static_cast<size_t>(i)]));
    }
    while (static_cast<int64_t>(keys.size()) < kKeys)
      keys.push_back(Of(cold_[at_++ % cold_.size()]));
    std::shuffle(keys.begin(), keys.end(), random_);
    return keys;
  }
  // The distinct ones of so many of Zipf(1.05), by the inverse of its continuous distribution.
  std::vector<Key> DrawZipf() {
    constexpr double kS = 1.05;
    std::uniform_real_distribution<double> uniform(0, 1);
    const double most = std::pow(static_cast<double>(rows_) + 1, 1 - kS);
    std::set<int64_t> numbers;
    while (static_cast<int64_t>(numbers.size()) < kKeys) {
      const double x = std::pow(1 - uniform(random_) * (1 - most), 1 / (1 - kS));
      numbers.insert(std::min(rows_ - 1, static_cast<int64_t>(x) - 1));
    }
    std::vector<Key> keys;
    for (const int64_t number : numbers) keys.push_back(Of(number));
    std::shuffle(keys.begin(), keys.end(), random_);
    return keys;
  }

 private:
  const int64_t rows_;
  std::mt19937_64 random_{1};
  std::vector<int64_t> hot_, cold_;
  size_t at_ = 0;
};

void EmptyPageCache() {
  ::sync();  // pages that are not on disk yet stay
  std::FILE* const file = std::fopen("/proc/sys/vm/drop_caches", "w");
  if (file == nullptr || std::fputs("1", file) < 0 || std::fclose(file) != 0) {
    std::fprintf(stderr, "cold: the page cache can be emptied by root alone\n");
    std::exit(1);
  }
}

using Call = void (Subject::*)(const std::vector<Key>&);

// One line: medians of calls, in turns.
void Measure(const char* what, Call call, int rounds, bool cold,
             const std::map<std::string, Subject*>& subjects,
             const std::function<std::vector<Key>()>& draw) {
  std::map<std::string, std::vector<double>> seconds;
  std::map<std::string, int64_t> read;
  for (const auto& [name, subject] : subjects) read[name] = -subject->rows_read();
  int64_t keys = 0;
  for (int round = 0; round < rounds; ++round) {
    const std::vector<Key> batch = draw();
    keys += static_cast<int64_t>(batch.size());
    for (const auto& [name, subject] : subjects) {
      if (cold) EmptyPageCache();
      seconds[name].push_back(SecondsOf([&, s = subject] { (s->*call)(batch); }));
    }
  }
  std::printf("%-16s", what);
  for (const auto& [name, subject] : subjects) {
    std::vector<double>& of = seconds[name];
    std::sort(of.begin(), of.end());
    std::printf("  %s %6.2f ms (%.2f to %.2f)", name.c_str(), 1e3 * of[of.size() / 2],
                1e3 * of[of.size() / 4], 1e3 * of[of.size() * 3 / 4]);
    read[name] += subject->rows_read();
    if (read[name] == 0) continue;
    std::printf(", %4.1f %% read, %.0f rows/s",
                100.0 * static_cast<double>(read[name]) / static_cast<double>(keys),
                static_cast<double>(read[name]) / std::accumulate(of.begin(), of.end(), 0.0));
  }
  std::printf("\n");
  std::fflush(stdout);
}

int Main(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr,
                 "tiers_benchmark curve|zipf|cold ROWS FOLDER [MEMORY] [ROUNDS] [WHO] [HITS]\n");
    return 2;
  }
  const std::string what = argv[1];
  const int64_t rows = std::atoll(argv[2]);
  const std::string folder = std::string(argv[3]) + "/tiers_benchmark";
  const double memory = argc > 4 ? std::atof(argv[4]) : 0.5;
  const int rounds = argc > 5 ? std::atoi(argv[5]) : 20;
  const std::string who = argc > 6 ? argv[6] : "mtr";
  std::vector<int64_t> hit_rates = {100, 99, 95, 90, 50, 0};
  if (argc > 7) hit_rates = {std::atoll(argv[7])};
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);

  std::map<std::string, std::unique_ptr<Subject>> made;
  const auto wants = [&](char c) { return who.find(c) != std::string::npos; };
  std::unique_ptr<Table> table;
  Check(MakeHostTable(Schema(), &table));
  if (wants('m')) made["memory"] = std::make_unique<TableRows>(std::move(table));
  const int64_t rows_in_memory = static_cast<int64_t>(memory * static_cast<double>(rows));
  if (wants('t')) {
    StorageOptions storage;
    storage.max_rows = rows_in_memory;
    storage.in_background = true;
    Check(DiskFolder::Open(PosixFileSystem(), {{folder + "/tiers"}}, &storage.disk));
    Check(MakeTieredTable(Schema(), TableOptions(), storage, &table));
    made["tiers"] = std::make_unique<TableRows>(std::move(table));
  }
  if (wants('r')) {
    made["RocksDB"] = std::make_unique<RocksRows>(folder + "/rocksdb", rows_in_memory * kRowBytes);
  }
  std::map<std::string, Subject*> subjects;
  for (const auto& [name, subject] : made) subjects[name] = subject.get();

  Keys keys(rows);
  for (const auto& [name, subject] : subjects) {
    const double seconds = SecondsOf([&, s = subject] {
      for (int64_t row = 0; row < rows; row += kFill) {
        s->Step(keys.Range(row, std::min(rows, row + kFill)));
      }
    });
    std::printf("%s: %lld rows in %.1f s\n", name.c_str(), static_cast<long long>(rows), seconds);
  }
  const std::pair<const char*, Call> calls[] = {{"lookup", &Subject::Lookup},
                                                {"step", &Subject::Step}};
  for (const auto& [name, call] : calls) {
    if (what == "zipf") {
      for (int i = 0; i < 50; ++i) {
        const std::vector<Key> batch = keys.DrawZipf();
        for (const auto& [who_is, subject] : subjects) subject->Step(batch);
      }
      Measure((std::string(name) + " zipf").c_str(), call, rounds, false, subjects,
              [&] { return keys.DrawZipf(); });
      continue;
    }
    for (const int64_t hit_percent : hit_rates) {
      for (int i = 0; i < 5; ++i) {
        const std::vector<Key> batch = keys.Draw(hit_percent), hot = keys.Hot();
        for (const auto& [who_is, subject] : subjects) {
          subject->Step(batch);
          for (size_t at = 0; at < hot.size(); at += kFill) {
            const auto first = hot.begin() + static_cast<std::ptrdiff_t>(at);
            subject->Step({first, first + static_cast<std::ptrdiff_t>(
                                              std::min<size_t>(kFill, hot.size() - at))});
          }
        }
      }
      Measure((std::string(name) + " " + std::to_string(hit_percent) + " %").c_str(), call, rounds,
              what == "cold", subjects, [&] { return keys.Draw(hit_percent); });
    }
  }
  for (const auto& [name, subject] : subjects) {
    if (subject->disk_bytes() == 0) continue;
    std::printf("%s: %.1f MB on disk\n", name.c_str(), subject->disk_bytes() / 1e6);
  }
  made.clear();
  std::filesystem::remove_all(folder);
  return 0;
}

}  // namespace
}  // namespace dynemb

int main(int argc, char** argv) { return dynemb::Main(argc, argv); }
