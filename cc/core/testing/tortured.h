// Tortured: the shards of one table of whole rows, to which threads do at once what can be done,
// and saves of them, for torture_suite.cc and evicting_torture_suite.cc.
#ifndef TF_DYNEMB_CC_CORE_TESTING_TORTURED_H_
#define TF_DYNEMB_CC_CORE_TESTING_TORTURED_H_

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "cc/core/snapshot/lineage.h"
#include "cc/core/snapshot/reader.h"
#include "cc/core/snapshot/writer.h"
#include "cc/core/table/table.h"
#include "cc/core/table/table_options.h"
#include "cc/core/testing/caller.h"
#include "gtest/gtest.h"

namespace dynemb {

using Random = std::mt19937_64;

constexpr size_t kShards = 3;
constexpr int kThreads = 16;
constexpr int64_t kDim = 13;  // long enough to be seen half written

constexpr int Calls(int calls) {
  return kUnderThreadSanitizer ? calls / 5 : kUnderAddressSanitizer ? calls / 2 : calls;
}

// SGD with momentum 1 and learning rate 1: after k gradients of -1 the slot is k and the value
// 1 + 2 + ... + k more than when inserted.
inline const OptimizerSpec& Momentum() {
  static const OptimizerSpec* const rule = new OptimizerSpec(UsualRule("sgd_momentum"));
  return *rule;
}

// Rows whose column c is column 0 plus c.
inline TableSchema WholeRowSchema(const MetaFields& meta) {
  TableSchema schema;
  schema.dim = kDim;
  schema.rule = Momentum();
  schema.meta = meta;
  schema.initializer.constant.clear();
  for (int64_t c = 0; c < kDim; ++c) schema.initializer.constant.push_back(static_cast<double>(c));
  return schema;
}

inline Floats RowsFrom(const std::vector<int64_t>& numbers) {
  Floats rows;
  for (const int64_t number : numbers) {
    for (int64_t c = 0; c < kDim; ++c) rows.push_back(static_cast<float>(number + c));
  }
  return rows;
}

// Fails the test if a value is a mixture.
inline void CheckValue(Key key, const float* value) {
  for (int64_t c = 0; c < kDim; ++c) {
    if (value[c] == value[0] + static_cast<float>(c)) continue;
    ADD_FAILURE() << "key " << key << ": column 0 is " << value[0] << ", column " << c << " "
                  << value[c];
    return;
  }
}

// Makes a shard of the table of the program, with its share of the limits: each program has one of
// its own, and says whether shards have_shares.
extern const bool kTorturedHaveShares;
Status MakeTorturedShard(const TableSchema& schema, const TableOptions& options,
                         std::unique_ptr<Table>* shard);

class Tortured {
 public:
  ~Tortured() { std::filesystem::remove_all(folder_); }

  void Make(const TableSchema& schema, TableOptions options) {
    shards_.clear();
    callers_.clear();
    lineage_ = Lineage();
    options.have_shares = kTorturedHaveShares;
    for (const TableOptions& of_shard : OptionsOfShards(options, kShards)) {
      std::unique_ptr<Table> table;
      ASSERT_OK(MakeTorturedShard(schema, of_shard, &table));
      shards_.push_back(std::move(table));
      callers_.emplace_back(shards_.back().get(), HostTestMemory());
    }
  }

  // Calls call(caller, keys) for each shard with its keys.
  void ForEachShard(const Keys& keys, const std::function<void(const Caller&, const Keys&)>& call) {
    Keys shares[kShards];
    for (const Key key : keys) shares[static_cast<size_t>(key) % kShards].push_back(key);
    for (size_t s = 0; s < kShards; ++s) call(callers_[s], shares[s]);
  }

  void Train(const Keys& keys, int64_t now) {
    ForEachShard(keys, [&](const Caller& caller, const Keys& share) {
      const std::vector<int64_t> scores(share.size(), now % 7);
      ASSERT_OK(caller.Apply(share, Floats(share.size() * kDim, -1.0f), Momentum(), {1, 1, 0, 1},
                             {now, scores}));
    });
  }

  std::vector<Table*> Tables() const {
    std::vector<Table*> tables;
    for (const auto& shard : shards_) tables.push_back(shard.get());
    return tables;
  }

  TableContent Export() const {
    TableContent content;
    for (const auto& shard : shards_) {
      content.merge(ExportAll(*shard, HostTestMemory(), 50));
    }
    return content;
  }

  // Saves to a folder, all or what has changed since an epoch, and puts what the files say into
  // `content`.
  void Save(const std::string& name, int64_t since_epoch, uint64_t base, uint64_t* id,
            TableContent* content) const {
    const std::string folder = JoinPath(folder_, name);
    Manifest manifest;
    ASSERT_OK(SaveTables(HostTestMemory()->context(), PosixFileSystem(), folder,
                         {{"table", Tables(), since_epoch}}, base, &manifest));
    *id = manifest.id;
    std::unique_ptr<SnapshotReader> reader;
    ASSERT_OK(SnapshotReader::Open(PosixFileSystem(), folder, &reader));
    EXPECT_EQ(reader->manifest().base, base);
    const RowLayout layout(manifest.tables[0].schema);
    SnapshotPlace place;
    TableContent rows;
    for (bool done = false;;) {
      SnapshotBlock block;
      ASSERT_OK(reader->Next(0, &place, &block, &done));
      if (done) break;
      for (int64_t i = 0; i < block.erased.size; ++i) content->erase(block.erased[i]);
      for (int64_t i = 0; i < block.rows.keys.size; ++i) {
        const auto bytes = [&](const ConstRows& part, int64_t size) {
          return std::string(part[i], static_cast<size_t>(size));
        };
        const RowBytes row{bytes(block.rows.values, layout.value_bytes),
                           bytes(block.rows.slots, layout.slots_bytes),
                           bytes(block.rows.meta, layout.meta_bytes)};
        EXPECT_TRUE(rows.emplace(block.rows.keys[i], row).second)
            << "key " << block.rows.keys[i] << " was saved twice";
      }
    }
    for (const auto& [key, row] : rows) (*content)[key] = row;
  }

  // A full snapshot and deltas of it, and what they make up.
  struct Chain {
    uint64_t id = 0;
    int64_t epoch = -1;
    TableContent content;
  };
  void Continue(const std::string& name, Chain* chain) {
    const uint64_t base = chain->id;
    std::shared_ptr<const int64_t> ended;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      int64_t epoch;
      ASSERT_OK(BeginEpoch(HostTestMemory()->context(), Tables(), &epoch));
      ended = lineage_.Hold(epoch);
    }
    Save(name, chain->epoch, base, &chain->id, &chain->content);
    chain->epoch = *ended;
    const std::lock_guard<std::mutex> lock(mutex_);
    lineage_.Tracked(chain->id, base, *ended);
    for (Table* table : Tables()) table->TrimChanges(lineage_.positions());
  }

 protected:
  std::vector<std::shared_ptr<Table>> shards_;
  std::vector<Caller> callers_;
  std::mutex mutex_;
  Lineage lineage_;  // under the mutex
  const std::string folder_ = StrCat(::testing::TempDir(), "/torture-", getpid());
};

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_TESTING_TORTURED_H_
