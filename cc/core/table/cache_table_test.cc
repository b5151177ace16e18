// CacheTable: which rows are dirty, against a map, while the table grows; and which are marked as
// used.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include "cc/core/base/hash.h"
#include "cc/core/table/host_table.h"
#include "cc/core/table/use_marks.h"
#include "cc/core/testing/harness.h"

namespace dynemb {
namespace {

class CacheTableTest : public ::testing::Test {
 protected:
  CacheTableTest() {
    schema_.dim = 1;
    EXPECT_TRUE(MakeCacheTable(schema_, TableOptions(), &table_).ok());
  }

  static Batch BatchOf(const std::vector<Key>& keys) {
    Batch batch;
    batch.keys = keys;
    return batch;
  }
  Rows RowsFor(const std::vector<Key>& keys) {
    values_.resize(keys.size());
    return Rows(reinterpret_cast<char*>(values_.data()), static_cast<int64_t>(keys.size()), 4);
  }
  // Keys of which about half have rows, some of them twice.
  std::vector<Key> AnyKeys(int64_t count) {
    std::vector<Key> keys;
    for (int64_t i = 0; i < count; ++i) {
      keys.push_back(static_cast<Key>(random_() % (2 * dirty_.size() + 64)));
    }
    return keys;
  }
  std::vector<Key> NotDirty(const std::vector<Key>& keys) {
    std::vector<Key> found;
    EXPECT_TRUE(table_->KeysNotDirty(context_, BatchOf(keys), &found).ok());
    std::sort(found.begin(), found.end());
    return found;
  }

  OneThread context_;
  TableSchema schema_;
  std::unique_ptr<CacheTable> table_;
  std::map<Key, bool> dirty_;  // of the rows that there are
  std::vector<float> values_;
  std::mt19937_64 random_{3};
};

TEST_F(CacheTableTest, KnowsWhichRowsAreDirty) {
  for (int round = 0; dirty_.size() < 60'000; ++round) {
    std::vector<Key> keys = AnyKeys(800);
    switch (random_() % 6) {
      case 0:
      case 1: {
        const Rows values = RowsFor(keys);
        ASSERT_OK(table_->InsertRows(context_, BatchOf(keys), {{}, values, {}, {}}, RowParts(),
                                     Report()));
        for (const Key key : keys) dirty_.emplace(key, false);
        break;
      }
      case 2:
        ASSERT_OK(table_->Upsert(context_, BatchOf(keys), RowsFor(keys), Stamp(), Report()));
        for (const Key key : keys) dirty_[key] = true;
        break;
      case 3: {  // adds where a row is taken to exist; the others stay as they are
        const std::unique_ptr<bool[]> exists(new bool[keys.size()]);
        for (size_t i = 0; i < keys.size(); ++i) exists[i] = true;
        ASSERT_OK(table_->Accumulate(context_, BatchOf(keys), RowsFor(keys),
                                     {exists.get(), static_cast<int64_t>(keys.size())}, Stamp(),
                                     Report()));
        for (const Key key : keys) {
          if (const auto row = dirty_.find(key); row != dirty_.end()) row->second = true;
        }
        break;
      }
      case 4:
        keys.resize(200);
        ASSERT_OK(table_->Erase(context_, BatchOf(keys), Report()));
        for (const Key key : keys) dirty_.erase(key);
        break;
      default: {
        std::vector<Key> there;
        for (const Key key : keys) {
          if (dirty_.count(key) != 0) there.push_back(key);
        }
        table_->Clean(there);
        for (const Key key : there) dirty_[key] = false;
      }
    }
    std::vector<Key> want = AnyKeys(300);
    const std::vector<Key> got = NotDirty(want);
    want.erase(std::remove_if(want.begin(), want.end(),
                              [this](Key key) {
                                const auto row = dirty_.find(key);
                                return row != dirty_.end() && row->second;
                              }),
               want.end());
    std::sort(want.begin(), want.end());
    ASSERT_EQ(got, want) << "round " << round;
  }
  ASSERT_EQ(table_->size(), static_cast<int64_t>(dirty_.size()));
}

TEST_F(CacheTableTest, NotesUseWhereTheContextSaysSo) {
  const std::vector<Key> keys = {1, 2, 3};
  UseMarks marks(1 << 20);
  const auto spared = [&](Key key) { return marks.Spare(Mix64(static_cast<uint64_t>(key))); };
  ASSERT_OK(table_->Find(context_, BatchOf(keys), RowsFor(keys), Report()));
  EXPECT_FALSE(spared(1));
  Context using_marks = context_;
  using_marks.use_marks = &marks;
  ASSERT_OK(table_->Find(using_marks, BatchOf(keys), RowsFor(keys), Report()));
  for (int lap = 0; lap < UseMarks::kSparedLaps; ++lap) EXPECT_TRUE(spared(1)) << lap;
  EXPECT_FALSE(spared(1));
  EXPECT_TRUE(spared(3));
  EXPECT_FALSE(spared(4));
  std::vector<Key> found;
  ASSERT_OK(table_->KeysNotDirty(using_marks, BatchOf({4}), &found));
  EXPECT_TRUE(spared(4));
}

}  // namespace
}  // namespace dynemb
