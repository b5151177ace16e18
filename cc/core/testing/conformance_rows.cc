// Whole rows by key: ReadRows, InsertRows with the rows that they displace, and Apply on rows that
// are there alone.
#include <algorithm>
#include <memory>

#include "cc/core/testing/caller.h"
#include "cc/core/testing/conformance_checks.h"
#include "gtest/gtest.h"

namespace dynemb {
namespace {

constexpr Outcome kMissing = Outcome::kMissing;
constexpr Outcome kFound = Outcome::kFound;
constexpr Outcome kInserted = Outcome::kInserted;
constexpr Outcome kUntouched = static_cast<Outcome>(0xee);

constexpr int kKeysPart = 1, kValuesPart = 2, kSlotsPart = 4, kMetaPart = 8, kAllParts = 16;

// Rows of float32 values and slots with gaps between them, everything -1 at first. What is set is
// what a call is expected to write, gaps and rows that it leaves alone included.
class GappedRows {
 public:
  GappedRows(TestMemory* memory, const TableSchema& schema, int64_t rows)
      : rows_(rows),
        layout_(schema),
        keys_(memory, std::vector<Key>(static_cast<size_t>(rows), -1)),
        values_(memory, Filled<float>(rows * (layout_.value_bytes / 4 + 2))),
        slots_(memory, Filled<float>(rows * (layout_.slots_bytes / 4 + 1))),
        meta_(memory, Filled<int64_t>(rows * (layout_.meta_bytes / 8 + 3))) {}

  RowParts parts(int mask) const {
    RowParts parts;
    if (mask & kKeysPart) parts.keys = keys_.span();
    if (mask & kValuesPart) parts.values = values_.rows(rows_, layout_.value_bytes / 4 + 2);
    if (mask & kSlotsPart) parts.slots = slots_.rows(rows_, layout_.slots_bytes / 4 + 1);
    if (mask & kMetaPart) parts.meta = meta_.rows(rows_, layout_.meta_bytes / 8 + 3);
    return parts;
  }

  void Set(int64_t i, Key key, const RowBytes& row, int mask) {
    if (mask & kKeysPart) keys_[i] = key;
    if (mask & kValuesPart) SetPart(row.value, i, values_);
    if (mask & kSlotsPart) SetPart(row.slots, i, slots_);
    if (mask & kMetaPart) SetPart(row.meta, i, meta_);
  }
  // To be given to a call, instead of expected of it.
  void Push() { keys_.Push(), values_.Push(), slots_.Push(), meta_.Push(); }

  void ExpectWritten() const {
    EXPECT_TRUE(keys_.SameBits(keys_.size())) << "keys";
    EXPECT_TRUE(values_.SameBits(values_.size())) << "values";
    EXPECT_TRUE(slots_.SameBits(slots_.size())) << "slots";
    EXPECT_TRUE(meta_.SameBits(meta_.size())) << "meta";
  }

 private:
  template <typename T>
  static std::vector<T> Filled(int64_t size) {
    return std::vector<T>(static_cast<size_t>(size), T(-1));
  }
  template <typename T>
  void SetPart(const std::string& bytes, int64_t i, const Mirror<T>& part) {
    std::memcpy(part.host() + i * (part.size() / rows_), bytes.data(), bytes.size());
  }

  const int64_t rows_;
  const RowLayout layout_;
  Mirror<Key> keys_;
  Mirror<float> values_, slots_;
  Mirror<int64_t> meta_;
};

// A batch with what it reports.
class ReportedBatch {
 public:
  // `selected`: the positions that take part, or none for all.
  ReportedBatch(TestMemory* memory, const Keys& keys, const std::vector<int64_t>& selected)
      : keys_(memory, keys),
        select_(memory, selected),
        select_count_(memory, std::vector<int64_t>{static_cast<int64_t>(selected.size())}),
        outcomes_(memory, Outcomes(keys.size(), kUntouched)),
        misses_(memory, static_cast<int64_t>(keys.size())),
        misses_count_(memory, std::vector<int64_t>{-7}),
        select_positions_{select_.span(), select_count_.there()},
        misses_positions_{misses_.span(), misses_count_.there()},
        batch_{keys_.span(), selected.empty() ? nullptr : &select_positions_},
        report_{outcomes_.span(), &misses_positions_} {}

  const Batch& batch() const { return batch_; }
  const Report& report() const { return report_; }

  void Expect(const Outcomes& outcomes, const std::vector<int64_t>& misses) {
    outcomes_.Pull(), misses_.Pull(), misses_count_.Pull();
    EXPECT_EQ(Outcomes(outcomes_.host(), outcomes_.host() + outcomes_.size()), outcomes);
    ASSERT_EQ(misses_count_[0], static_cast<int64_t>(misses.size()));
    std::vector<int64_t> got(misses_.host(), misses_.host() + misses_count_[0]);
    std::sort(got.begin(), got.end());
    EXPECT_EQ(got, misses);
  }

 private:
  const Mirror<Key> keys_;
  const Mirror<int64_t> select_, select_count_;
  Mirror<Outcome> outcomes_;
  Mirror<int64_t> misses_, misses_count_;
  const Positions select_positions_;
  Positions misses_positions_;
  const Batch batch_;
  const Report report_;
};

// A row all of whose numbers tell `number`.
RowBytes RowOf(const RowLayout& layout, int64_t number) {
  const auto floats = [&](int64_t bytes, float offset) {
    return Bytes(Floats(static_cast<size_t>(bytes / 4), static_cast<float>(number) + offset));
  };
  return {floats(layout.value_bytes, 0.5f), floats(layout.slots_bytes, 0.25f),
          Bytes(std::vector<int64_t>(static_cast<size_t>(layout.meta_bytes / 8), number))};
}

TableSchema Schema() {
  return FloatSchema(3, "adagrad", {MetaField::kLastWriteTime, MetaField::kCount});
}

TableContent RowsOf(const RowLayout& layout, const Keys& keys) {
  TableContent rows;
  for (const Key key : keys) rows[key] = RowOf(layout, key);
  return rows;
}

}  // namespace

void CheckReadRows(const TableHarness& harness) {
  const RowLayout layout((Schema()));
  Tested t(harness, Schema());
  const TableContent rows = RowsOf(layout, {INT64_MIN, 1, 2, 3});
  ASSERT_OK(t.call.InsertRows(rows));
  const Keys keys = {1, 9, 2, 1, INT64_MIN, 8, 9};
  for (const bool selected : {false, true}) {
    for (int mask = 0; mask < kAllParts; ++mask) {
      SCOPED_TRACE(StrCat("parts ", mask, selected ? ", selected" : ""));
      const std::vector<int64_t> select =
          selected ? std::vector<int64_t>{6, 3, 2} : std::vector<int64_t>();
      GappedRows out(harness.memory, Schema(), 7);
      ReportedBatch call(harness.memory, keys, select);
      ASSERT_OK(t.table->ReadRows(harness.memory->context(), call.batch(), out.parts(mask),
                                  call.report()));
      for (const int64_t i : selected ? select : std::vector<int64_t>{0, 1, 2, 3, 4, 5, 6}) {
        const auto row = rows.find(keys[i]);
        // The keys are the caller's own.
        if (row != rows.end()) out.Set(i, keys[i], row->second, mask & ~kKeysPart);
      }
      out.ExpectWritten();
      constexpr Outcome k = kUntouched;
      if (selected) {
        call.Expect({k, k, kFound, kFound, k, k, kMissing}, {6});
      } else {
        call.Expect({kFound, kMissing, kFound, kFound, kFound, kMissing, kMissing}, {1, 5, 6});
      }
    }
  }
  EXPECT_EQ(Difference(rows, t.call.Export()), "") << "reading has written";
  // No keys, and a report that nobody wants.
  ASSERT_OK(t.table->ReadRows(harness.memory->context(), {}, {}, {}));
}

void CheckInsertRows(const TableHarness& harness) {
  const RowLayout layout((Schema()));
  const TableContent before = RowsOf(layout, {1, 2, 3});
  const Keys keys = {2, 7, 2, 3, 7, 1, 8};
  const std::vector<int64_t> select = {6, 0, 1, 2, 4, 5};  // all but one
  GappedRows given(harness.memory, Schema(), 7);
  for (int64_t i = 0; i < 7; ++i) given.Set(i, -1, RowOf(layout, 100 + i), kAllParts - 1);
  given.Push();
  const RowParts rows = given.parts(kAllParts - 1 - kKeysPart);
  for (int mask = 0; mask < kAllParts; ++mask) {
    SCOPED_TRACE(StrCat("displaced parts ", mask));
    Tested t(harness, Schema());
    ASSERT_OK(t.call.InsertRows(before));
    GappedRows displaced(harness.memory, Schema(), 7);
    ReportedBatch call(harness.memory, keys, select);
    ASSERT_OK(t.table->InsertRows(harness.memory->context(), call.batch(),
                                  {{}, rows.values, rows.slots, rows.meta}, displaced.parts(mask),
                                  call.report()));
    // Of a repeated key each position has the row from before the call, and the last row counts.
    for (const int64_t i : {0, 2, 5}) displaced.Set(i, keys[i], before.at(keys[i]), mask);
    displaced.ExpectWritten();
    call.Expect({kFound, kInserted, kFound, kUntouched, kInserted, kFound, kInserted}, {});
    TableContent want = {{1, RowOf(layout, 105)},
                         {2, RowOf(layout, 102)},
                         {3, before.at(3)},
                         {7, RowOf(layout, 104)},
                         {8, RowOf(layout, 106)}};
    EXPECT_EQ(Difference(want, t.call.Export()), "");
    given.ExpectWritten();  // as it was given
  }

  // What was displaced, put back, displaces what displaced it.
  Tested t(harness, Schema());
  ASSERT_OK(t.call.InsertRows(before));
  TableContent other, displaced, displaced_again;
  for (const Key key : {1, 3, 4}) other[key] = RowOf(layout, key + 50);
  Outcomes outcomes;
  ASSERT_OK(t.call.InsertRows(other, &displaced, &outcomes));
  EXPECT_EQ(outcomes, (Outcomes{kFound, kFound, kInserted}));
  EXPECT_EQ(Difference({{1, before.at(1)}, {3, before.at(3)}}, displaced), "");
  ASSERT_OK(t.call.InsertRows(displaced, &displaced_again));
  EXPECT_EQ(Difference({{1, other.at(1)}, {3, other.at(3)}}, displaced_again), "");
  ASSERT_OK(t.call.Erase({4}));
  EXPECT_EQ(Difference(before, t.call.Export()), "");

  // A row that has values alone needs nothing else; and a batch may be empty.
  Tested plain(harness, FloatSchema(2, "", {}));
  ASSERT_OK(plain.call.InsertRows({{5, {Bytes<float>({1, 2}), "", ""}}}));
  ASSERT_OK(plain.call.InsertRows({{5, {Bytes<float>({3, 4}), "", ""}}}, &displaced));
  EXPECT_EQ(Numbers<float>(displaced.at(5).value), (Floats{1, 2}));
  EXPECT_EQ(Numbers<float>(plain.call.Export().at(5).value), (Floats{3, 4}));
  ASSERT_OK(t.table->InsertRows(harness.memory->context(), {}, {}, {}, {}));
  ASSERT_OK(t.call.InsertRows({}, &displaced, &outcomes));
  EXPECT_TRUE(displaced.empty());
}

// Batches large enough to be divided over threads.
void CheckManyWholeRows(const TableHarness& harness) {
  constexpr Key kKeys = 30'000;
  const RowLayout layout((Schema()));
  Tested t(harness, Schema());
  TableContent even, all;
  Keys keys;
  for (Key key = 0; key < kKeys; ++key) {
    keys.push_back(key * 7919 - 100'000);
    if (key % 2 == 0) even[keys.back()] = RowOf(layout, key);
    all[keys.back()] = RowOf(layout, key + 100'000);
  }
  ASSERT_OK(t.call.InsertRows(even));
  TableContent rows;
  Outcomes outcomes;
  ASSERT_OK(t.call.ReadRows(keys, &rows, &outcomes));
  EXPECT_EQ(Difference(even, rows), "");
  EXPECT_EQ(std::count(outcomes.begin(), outcomes.end(), kMissing), kKeys / 2);
  ASSERT_OK(t.call.InsertRows(all, &rows, &outcomes));
  EXPECT_EQ(Difference(even, rows), "");
  EXPECT_EQ(std::count(outcomes.begin(), outcomes.end(), kInserted), kKeys / 2);
  ASSERT_OK(t.call.ReadRows(keys, &rows));
  EXPECT_EQ(Difference(all, rows), "");
  EXPECT_EQ(Difference(all, t.call.Export(10'000)), "");
}

void CheckTrainsOnlyFound(const TableHarness& harness) {
  const OptimizerSpec rule = UsualRule("adagrad");
  const std::vector<double> hyper = {0.5, 1, 0, 1e-3};
  Tested t(harness, Schema()), other(harness, Schema());
  for (const Tested* table : {&t, &other}) {
    ASSERT_OK(table->call.Upsert({1, 2, 3}, Floats(9, 4.0f), {10}));
  }
  Mirror<float> gradients(harness.memory, 6 * 3);
  for (int64_t i = 0; i < 18; ++i) gradients[i] = static_cast<float>(i + 1);
  gradients.Push();
  const Keys keys = {1, 8, 2, 9, 1, 8};
  for (const bool selected : {false, true}) {
    SCOPED_TRACE(selected ? "selected" : "all");
    const std::vector<int64_t> select =
        selected ? std::vector<int64_t>{5, 2} : std::vector<int64_t>();
    ReportedBatch call(harness.memory, keys, select);
    Update update = {&rule, hyper, {}, IfMissing::kReport};
    ASSERT_OK(t.table->Apply(harness.memory->context(), call.batch(), gradients.rows(6, 3), update,
                             {20}, call.report()));
    constexpr Outcome k = kUntouched;
    if (selected) {
      call.Expect({k, k, kFound, k, k, kMissing}, {5});
      ASSERT_OK(other.call.Apply({2}, {7, 8, 9}, rule, hyper, {20}));
    } else {
      call.Expect({kFound, kMissing, kFound, kMissing, kFound, kMissing}, {1, 3, 5});
      ASSERT_OK(other.call.Apply({1, 2, 1}, {1, 2, 3, 7, 8, 9, 13, 14, 15}, rule, hyper, {20}));
    }
    EXPECT_EQ(Difference(other.call.Export(), t.call.Export()), "");
  }
  // Many keys, every third of which is there; then the misses are inserted, as a lower tier would.
  Keys many, some;
  for (Key key = 0; key < 20'000; ++key) {
    many.push_back(100 + key);
    if (key % 3 == 0) some.push_back(many.back());
  }
  Outcomes outcomes;
  ASSERT_OK(t.call.Upsert(some, Floats(some.size() * 3)));
  const Floats ones(many.size() * 3, 1.0f);
  ASSERT_OK(t.call.Apply(many, ones, rule, hyper, {}, &outcomes, IfMissing::kReport));
  for (size_t i = 0; i < many.size(); ++i) {
    ASSERT_EQ(outcomes[i], i % 3 == 0 ? kFound : kMissing) << i;
  }
  EXPECT_EQ(t.table->size(), static_cast<int64_t>(3 + some.size()));
  ASSERT_OK(t.call.Apply(many, ones, rule, hyper, {}, &outcomes));
  for (size_t i = 0; i < many.size(); ++i) {
    ASSERT_EQ(outcomes[i], i % 3 == 0 ? kFound : kInserted) << i;
  }
}

}  // namespace dynemb
