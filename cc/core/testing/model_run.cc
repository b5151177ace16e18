#include "cc/core/testing/model_run.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <unordered_set>
#include <utility>

#include "cc/core/base/hash.h"
#include "cc/core/testing/reference_table.h"
#include "gtest/gtest.h"

namespace dynemb {
namespace {

constexpr MetaField kFields[kMetaFields] = {MetaField::kLastWriteTime, MetaField::kCount,
                                            MetaField::kScore};

using Random = std::mt19937_64;

class ModelRun {
 public:
  ModelRun(const TableHarness& harness, const ModelCase& model_case, uint64_t seed)
      : harness_(harness),
        memory_(harness.memory),
        case_(model_case),
        random_(seed),
        usual_batch_(model_case.schema.dim < 200    ? 24
                     : model_case.schema.dim < 1000 ? 16
                                                    : 6),
        pool_(DifficultKeys(usual_batch_ == 24 ? 3000 : 20 * usual_batch_, seed)),
        max_batch_(usual_batch_ == 24 ? 1000 : 10 * usual_batch_),
        keys_(memory_, max_batch_),
        select_(memory_, max_batch_ + kSpare),
        select_count_(memory_, 1),
        outcomes_(memory_, max_batch_ + kSpare),
        misses_(memory_, max_batch_ + kSpare),
        misses_count_(memory_, 1),
        exists_(memory_, max_batch_),
        offsets_(memory_, max_batch_),
        scales_(memory_, max_batch_),
        values_(memory_, max_batch_ * (model_case.schema.dim + kSpare) * kWidest + kSpare * 8) {
    table_ = harness.Make(model_case.schema);
    const Status made = MakeReferenceTable(model_case.schema, &reference_);
    EXPECT_TRUE(made.ok()) << made.message();
    host_.executor = &executor_;
    cursor_.done = true;
  }

  void Run(int64_t operations) {
    const int64_t optimizer_at = operations / 5 + Below(operations / 5);
    const int64_t meta_at = operations / 5 + Below(operations / 2);
    for (int64_t i = 0; i < operations && !::testing::Test::HasFailure(); ++i) {
      SCOPED_TRACE(StrCat("operation ", i));
      if (i == optimizer_at) SetOptimizer();
      if (i == meta_at) AddMeta();
      Operation();
      EXPECT_EQ(table_->size(), static_cast<int64_t>(present_.size()));
      if (i % 250 == 249 || i == operations - 1) CompareAll();
    }
  }

 private:
  static constexpr int64_t kSpare = 16;
  static constexpr int64_t kWidest = 8;  // bytes of a number

  uint64_t Below(uint64_t n) { return n == 0 ? 0 : random_() % n; }
  bool Chance(int percent) { return static_cast<int>(Below(100)) < percent; }

  void Operation() {
    const uint64_t dice = Below(1000);
    if (dice < 150) {
      Find();
    } else if (dice < 220) {
      ReadRows();
    } else if (dice < 420) {
      Schema().rule.name.empty() ? Upsert() : Apply();
    } else if (dice < 520) {
      Upsert();
    } else if (dice < 640) {
      Accumulate();
    } else if (dice < 740) {
      Erase();
    } else if (dice < 820) {
      InsertRows();
    } else if (dice < 940) {
      Export();
    } else if (dice < 960) {
      Histogram();
    } else if (dice < 964) {
      Restrict();
    } else if (dice < 968) {
      EraseBelow();
    } else if (dice < 973) {
      Reserve();
    } else if (dice < 974) {
      Clear();
    } else if (dice < 982) {
      BeginEpoch();
    } else if (dice < 994) {
      ChangedKeys();
    } else if (dice < 996) {
      TrimChanges();
    } else if (dice < 997) {
      Move(Schema());
    } else if (dice < 998) {
      GiveUpMove();
    } else {
      RefusedMove();
    }
  }

  // A call's arguments, on one of the two sides.
  struct Side {
    Table* table;
    Context context;
    Batch batch;
    Report report;
    Positions select;
    Positions misses;
    Rows values;
  };

  template <typename T>
  Span<T> View(const Mirror<T>& mirror, int64_t n, bool tested) const {
    return tested ? mirror.span(n) : Span<T>(mirror.host(), n);
  }

  // Does `call` on both sides. The reference works on the mirrors' host copies.
  template <typename F>
  void OnBoth(const F& call) {
    Status status[2];
    for (const bool tested : {false, true}) {
      Side side;
      side.table = tested ? table_.get() : reference_.get();
      side.context = tested ? memory_->context() : host_;
      side.batch.keys = View(keys_, n_, tested);
      side.select = {View(select_, select_size_, tested),
                     tested ? select_count_.there() : select_count_.host()};
      if (selected_) side.batch.select = &side.select;
      side.misses = {View(misses_, misses_size_, tested),
                     tested ? misses_count_.there() : misses_count_.host()};
      if (want_misses_) side.report.misses = &side.misses;
      side.report.outcomes = View(outcomes_, want_outcomes_ ? n_ : 0, tested);
      side.values = Rows((tested ? values_.there() : values_.host()) + offset_ * element_, n_,
                         stride_ * element_, tested ? memory_->space() : MemorySpace::kHost);
      status[tested] = call(side);
    }
    ASSERT_EQ(status[0].code(), status[1].code())
        << "want: " << status[0].message() << "\ngot: " << status[1].message();
    CompareOutputs();
  }

  // Chooses the keys, the selection, the layout and the reports of the next call, whose rows are
  // numbers of the values' dtype.
  void NewBatch(bool changes) { NewBatch(changes, case_.schema.value_dtype); }
  void NewBatch(bool changes, DType numbers) {
    numbers_ = numbers;
    element_ = SizeOf(numbers);
    const uint64_t dice = Below(100);
    n_ = dice < 3 ? 0 : dice < 15 ? 1 : 1 + Below(usual_batch_ * (dice < 75 ? 1 : 4));
    if (dice >= 98) n_ = 1 + Below(max_batch_);
    for (int64_t i = 0; i < n_; ++i) keys_[i] = pool_[Below(pool_.size())];
    participants_.clear();
    selected_ = Chance(40);
    for (int64_t i = 0; i < n_; ++i) {
      if (!selected_ || Chance(60)) participants_.push_back(i);
    }
    if (selected_) std::shuffle(participants_.begin(), participants_.end(), random_);
    if (changes && Chance(50)) {
      // Distinct keys for those that take part; the others keep what they have.
      for (size_t j = 0; j < participants_.size(); ++j) {
        std::swap(pool_[j], pool_[j + Below(pool_.size() - j)]);
        keys_[participants_[j]] = pool_[j];
      }
    }
    const int64_t taking_part = static_cast<int64_t>(participants_.size());
    select_size_ = selected_ ? taking_part + Below(kSpare) : 0;
    for (int64_t j = 0; j < select_size_; ++j) {
      // What lies after the count is not to be looked at.
      select_[j] = j < taking_part ? participants_[j] : static_cast<int64_t>(random_());
    }
    select_count_[0] = taking_part;
    want_outcomes_ = Chance(75);
    want_misses_ = Chance(50);
    misses_size_ = want_misses_ ? (selected_ ? select_size_ : n_) + Below(kSpare) : 0;
    misses_count_[0] = -7;
    for (int64_t i = 0; i < n_ + kSpare; ++i) outcomes_[i] = static_cast<Outcome>(0xee);
    for (int64_t i = 0; i < n_; ++i) exists_[i] = Chance(50);
    offset_ = Chance(50) ? Below(kSpare) : 0;
    stride_ = case_.schema.dim + (Chance(50) ? Below(kSpare) : 0);
    values_used_ = ((n_ == 0 ? 0 : (n_ - 1) * stride_ + case_.schema.dim) + offset_) * element_;
    values_used_ = std::min(values_used_ + kSpare * 8, values_.size());
    keys_.Push(n_);
    select_.Push(select_size_);
    select_count_.Push();
    misses_count_.Push();
    outcomes_.Push(n_ + kSpare);
    exists_.Push(n_);
  }

  // Fills the rows, and what lies between them, with numbers.
  void FillValues() {
    for (int64_t at = 0; at + element_ <= values_used_; at += element_) {
      RandomNumber(numbers_, &random_, values_.host() + at);
    }
    if (n_ > 0 && Chance(30)) {  // a gradient of nothing
      const int64_t row = Below(n_) * stride_ + offset_;
      std::memset(values_.host() + row * element_, 0, case_.schema.dim * element_);
    }
    values_.Push(values_used_);
  }
  void FillSentinel() {
    std::memset(values_.host(), 0x5a, values_used_);
    values_.Push(values_used_);
  }

  void CompareOutputs() {
    const std::vector<char> values = values_.Fetch(values_used_);
    EXPECT_EQ(harness_.Comparable(numbers_, {values.data(), values.size()}),
              harness_.Comparable(numbers_, {values_.host(), values.size()}))
        << "values";
    EXPECT_TRUE(outcomes_.SameBits(n_ + kSpare)) << "outcomes";
    EXPECT_TRUE(keys_.SameBits(n_)) << "keys";
    EXPECT_TRUE(misses_count_.SameBits(1)) << "number of misses";
    if (want_misses_ && !::testing::Test::HasFailure()) {
      const int64_t count = misses_count_[0];
      const std::vector<char> bytes = misses_.Fetch(count);
      std::vector<int64_t> got(count);
      if (count > 0) std::memcpy(got.data(), bytes.data(), bytes.size());
      std::vector<int64_t> want(misses_.host(), misses_.host() + count);
      std::sort(got.begin(), got.end());
      std::sort(want.begin(), want.end());
      EXPECT_EQ(want, got) << "misses";
    }
  }

  Stamp NewStamp() { return {static_cast<int64_t>(Below(100))}; }

  void Inserted(Key key) { present_.insert(key); }
  void Removed(Key key) {
    present_.erase(key);
    owed_.erase(key);
  }

  void Find() {
    SCOPED_TRACE("Find");
    NewBatch(false);
    FillSentinel();
    OnBoth([&](const Side& side) {
      return side.table->Find(side.context, side.batch, side.values, side.report);
    });
  }

  // Buffers for the other parts of the rows of a batch, with gaps.
  class OtherParts {
   public:
    OtherParts(TestMemory* memory, const RowLayout& layout, int64_t rows, int64_t slots_gap,
               int64_t meta_gap)
        : rows_(rows),
          slots_stride_(layout.slots_bytes + slots_gap),
          meta_stride_(layout.meta_bytes + meta_gap),
          keys_(memory, rows),
          slots_(memory, rows * slots_stride_),
          meta_(memory, rows * meta_stride_) {
      std::fill(keys_.host(), keys_.host() + keys_.size(), -77);
      std::memset(slots_.host(), 0x5a, static_cast<size_t>(slots_.size()));
      std::memset(meta_.host(), 0x5a, static_cast<size_t>(meta_.size()));
      Push();
    }
    void Push() { keys_.Push(), slots_.Push(), meta_.Push(); }
    const Mirror<Key>& keys() const { return keys_; }
    const Mirror<char>& slots() const { return slots_; }
    const Mirror<char>& meta() const { return meta_; }
    Rows SlotsOn(bool tested) const { return On(tested, slots_, slots_stride_); }
    Rows MetaOn(bool tested) const { return On(tested, meta_, meta_stride_); }

    void Compare(const TableHarness& harness, DType slot_dtype) const {
      const std::vector<char> slots = slots_.Fetch(slots_.size());
      EXPECT_TRUE(keys_.SameBits(keys_.size())) << "keys of rows";
      EXPECT_EQ(harness.Comparable(slot_dtype, {slots.data(), slots.size()}),
                harness.Comparable(slot_dtype, {slots_.host(), slots.size()}))
          << "slots";
      EXPECT_TRUE(meta_.SameBits(meta_.size())) << "meta";
    }

   private:
    Rows On(bool tested, const Mirror<char>& part, int64_t stride) const {
      const Rows there = part.rows(rows_, stride);
      return tested ? there : Rows(part.host(), rows_, stride);
    }

    const int64_t rows_, slots_stride_, meta_stride_;
    Mirror<Key> keys_;
    Mirror<char> slots_, meta_;
  };
  OtherParts NewOtherParts() {
    return OtherParts(memory_, RowLayout(Schema()), n_, 8 * Below(3), 8 * Below(3));
  }

  void ReadRows() {
    SCOPED_TRACE("ReadRows");
    NewBatch(false);
    FillSentinel();
    const OtherParts out = NewOtherParts();
    const bool values = Chance(70), slots = Chance(70), meta = Chance(70);
    OnBoth([&](const Side& side) {
      const bool tested = side.table == table_.get();
      RowParts rows;
      if (values) rows.values = side.values;
      if (slots) rows.slots = out.SlotsOn(tested);
      if (meta) rows.meta = out.MetaOn(tested);
      return side.table->ReadRows(side.context, side.batch, rows, side.report);
    });
    out.Compare(harness_, SlotDTypeOfTable());
  }

  void Apply() {
    SCOPED_TRACE("Apply");
    NewBatch(true, GradientDType(case_.schema.value_dtype));
    FillValues();
    // Sometimes rows are where offsets say, and several keys have one; sometimes they are scaled.
    const bool has_offsets = n_ > 0 && Chance(40), scaled = Chance(40);
    for (int64_t i = 0; i < n_; ++i) {
      offsets_[i] = Below(n_) * stride_ * element_;
      scales_[i] = static_cast<double>(Below(9)) / 4 - 1;
    }
    offsets_.Push(n_);
    scales_.Push(n_);
    const OptimizerSpec& rule = Schema().rule;
    const std::vector<double> hyper = UsualHyper(rule.name, static_cast<double>(++step_));
    const Stamp stamp = NewStamp();
    const IfMissing if_missing = Chance(70) ? IfMissing::kInsert : IfMissing::kReport;
    OnBoth([&](const Side& side) {
      const bool tested = side.table == table_.get();
      ConstRows gradients = side.values;
      if (has_offsets) {
        gradients = ConstRows(side.values.data, Span<const int64_t>(View(offsets_, n_, tested)));
      }
      Update update = {&rule, hyper, {}, if_missing};
      update.scales = View(scales_, scaled ? n_ : 0, tested);
      return side.table->Apply(side.context, side.batch, gradients, update, stamp, side.report);
    });
    if (if_missing == IfMissing::kReport) return;
    for (const int64_t i : participants_) Inserted(keys_[i]);
  }

  void Upsert() {
    SCOPED_TRACE("Upsert");
    NewBatch(true);
    FillValues();
    const Stamp stamp = NewStamp();
    OnBoth([&](const Side& side) {
      return side.table->Upsert(side.context, side.batch, side.values, stamp, side.report);
    });
    for (const int64_t i : participants_) Inserted(keys_[i]);
  }

  void Accumulate() {
    SCOPED_TRACE("Accumulate");
    NewBatch(true);
    FillValues();
    const Stamp stamp = NewStamp();
    OnBoth([&](const Side& side) {
      const Span<bool> exists = View(exists_, n_, side.table == table_.get());
      return side.table->Accumulate(side.context, side.batch, side.values, exists, stamp,
                                    side.report);
    });
    for (const int64_t i : participants_) {
      if (!exists_[i]) Inserted(keys_[i]);
    }
  }

  void Erase() {
    SCOPED_TRACE("Erase");
    NewBatch(true);
    OnBoth(
        [&](const Side& side) { return side.table->Erase(side.context, side.batch, side.report); });
    for (const int64_t i : participants_) Removed(keys_[i]);
  }

  void InsertRows() {
    SCOPED_TRACE("InsertRows");
    NewBatch(true);
    FillValues();
    OtherParts in = NewOtherParts();
    const OtherParts displaced = NewOtherParts();
    const DType slot_dtype = SlotDTypeOfTable();
    if (RowLayout(Schema()).slots_bytes > 0) {
      for (int64_t at = 0; at < in.slots().size(); at += SizeOf(slot_dtype)) {
        RandomNumber(slot_dtype, &random_, in.slots().host() + at);
      }
    }
    for (int64_t at = 0; at < in.meta().size(); at += 8) {
      // Scores with ties, negative ones and the ends of the range.
      const int64_t ends[] = {INT64_MIN, INT64_MAX, -1, 0};
      const int64_t number = Chance(20) ? ends[Below(4)] : static_cast<int64_t>(Below(40)) - 20;
      std::memcpy(in.meta().host() + at, &number, sizeof(number));
    }
    in.Push();
    const int64_t value_bytes = ValueBytes();
    Mirror<char> displaced_values(memory_, n_ * value_bytes);
    const bool keys = Chance(60), values = Chance(60), slots = Chance(60), meta = Chance(60);
    OnBoth([&](const Side& side) {
      const bool tested = side.table == table_.get();
      const ConstRowParts rows = {{}, side.values, in.SlotsOn(tested), in.MetaOn(tested)};
      RowParts out;
      if (keys) out.keys = View(displaced.keys(), n_, tested);
      if (values) {
        out.values = tested ? displaced_values.rows(n_, value_bytes)
                            : Rows(displaced_values.host(), n_, value_bytes);
      }
      if (slots) out.slots = displaced.SlotsOn(tested);
      if (meta) out.meta = displaced.MetaOn(tested);
      return side.table->InsertRows(side.context, side.batch, rows, out, side.report);
    });
    const std::vector<char> got = displaced_values.Fetch(displaced_values.size());
    const DType dtype = case_.schema.value_dtype;
    EXPECT_EQ(harness_.Comparable(dtype, {got.data(), got.size()}),
              harness_.Comparable(dtype, {displaced_values.host(), got.size()}))
        << "displaced values";
    displaced.Compare(harness_, slot_dtype);
    for (const int64_t i : participants_) Inserted(keys_[i]);
  }

  // One step of an export that goes on between the other operations.
  void Export() {
    SCOPED_TRACE("Export");
    if (cursor_.done) {
      cursor_ = Cursor();
      owed_ = present_;
      exported_.clear();
      export_parts_ = Chance(70);
    }
    const int64_t chunk = 1 + Below(Chance(20) ? 500 : 40);
    const auto rows = ExportSome(*table_, memory_, chunk, export_parts_, &cursor_);
    // The values of the reference for the same keys; they must be there.
    std::vector<Key> keys;
    for (const auto& key_and_row : rows) keys.push_back(key_and_row.first);
    const int64_t value_bytes = ValueBytes();
    const DType dtype = case_.schema.value_dtype;
    std::string values(keys.size() * value_bytes, '\0');
    std::vector<Outcome> outcomes(keys.size());
    Batch batch;
    batch.keys = keys;
    Report report;
    report.outcomes = outcomes;
    const Status found = reference_->Find(
        host_, batch, Rows(values.data(), static_cast<int64_t>(keys.size()), value_bytes), report);
    ASSERT_TRUE(found.ok()) << found.message();
    for (size_t i = 0; i < keys.size(); ++i) {
      EXPECT_EQ(outcomes[i], Outcome::kFound) << "exported key " << keys[i];
      EXPECT_EQ(harness_.Comparable(dtype, rows[i].second.value),
                harness_.Comparable(dtype, values.substr(i * value_bytes, value_bytes)));
      EXPECT_TRUE(exported_.insert(keys[i]).second) << "key " << keys[i] << " exported twice";
      owed_.erase(keys[i]);
    }
    if (cursor_.done) {
      EXPECT_TRUE(owed_.empty()) << "not exported: " << *owed_.begin();
    }
  }

  // A row's order from the exported bytes.
  RowOrder OrderOf(MetaField field, Key key, const RowBytes& row) const {
    RowOrder order;
    const int64_t offset = RowLayout(Schema()).meta_field[static_cast<int>(field)];
    std::memcpy(&order.score, row.meta.data() + offset, sizeof(order.score));
    order.hash = Mix64(static_cast<uint64_t>(key));
    return order;
  }
  static std::pair<int64_t, uint64_t> Comparable(const RowOrder& order) {
    return {order.score, order.hash};
  }
  // All orders, sorted.
  std::vector<std::pair<int64_t, uint64_t>> Orders(MetaField field) {
    std::vector<std::pair<int64_t, uint64_t>> orders;
    for (const auto& [key, row] : ExportAll(*reference_, HostTestMemory(), 1000)) {
      orders.push_back(Comparable(OrderOf(field, key, row)));
    }
    std::sort(orders.begin(), orders.end());
    return orders;
  }
  // Takes off present_ what the reference does not have any more.
  void FindRemoved() {
    const TableContent content = ExportAll(*reference_, HostTestMemory(), 1000);
    for (const Key key : std::vector<Key>(present_.begin(), present_.end())) {
      if (content.count(key) == 0) Removed(key);
    }
  }

  void Histogram() {
    SCOPED_TRACE("Histogram");
    const MetaField field = kFields[Below(kMetaFields)];
    const int bits = 1 << Below(5);
    const int prefix_bits = static_cast<int>(Below(128 / bits)) * bits;
    RowOrder prefix{static_cast<int64_t>(Below(40)) - 20, random_()};
    if (Schema().meta.has(field) && !present_.empty() && Chance(70)) {
      const auto orders = Orders(field);
      const auto& order = orders[Below(orders.size())];
      prefix = {order.first, order.second};
    }
    Mirror<int64_t> counts(memory_, int64_t{1} << bits);
    for (int64_t b = 0; b < counts.size(); ++b) counts[b] = b % 5;
    counts.Push();
    OnBoth([&](const Side& side) {
      return side.table->Histogram(side.context, field, prefix, prefix_bits,
                                   View(counts, counts.size(), side.table == table_.get()));
    });
    EXPECT_TRUE(counts.SameBits(counts.size())) << "counts";
  }

  void EraseBelow(MetaField field, const RowOrder& bound, int64_t want_left) {
    const int64_t size = reference_->size();
    OnBoth([&](const Side& side) {
      int64_t erased = -7;
      const Status status = side.table->EraseBelow(side.context, field, bound, &erased);
      if (status.ok()) {
        EXPECT_EQ(side.table->size(), want_left);
        EXPECT_EQ(erased, size - want_left);
      }
      return status;
    });
    FindRemoved();
  }

  void EraseBelow() {
    SCOPED_TRACE("EraseBelow");
    const MetaField field = kFields[Below(kMetaFields)];
    if (!Schema().meta.has(field)) return EraseBelow(field, RowOrder(), -1);
    const auto orders = Orders(field);
    RowOrder bound;
    if (!orders.empty() && Chance(90)) {
      const auto& order = orders[Below(orders.size() / 4 + 1) % orders.size()];
      bound = {order.first, order.second + Below(2)};
    } else if (Chance(80)) {
      bound = {INT64_MIN, random_()};
    } else {
      bound = {INT64_MAX, ~uint64_t{0}};
    }
    const auto at = std::lower_bound(orders.begin(), orders.end(), Comparable(bound));
    EraseBelow(field, bound, orders.end() - at);
  }

  // Restricts the table to n rows: the bound by radix selection on the tested table, against the
  // one that sorting finds.
  void Restrict() {
    SCOPED_TRACE("Restrict");
    const MetaField field = kFields[Below(kMetaFields)];
    if (!Schema().meta.has(field) || present_.empty()) return;
    const auto orders = Orders(field);
    const int64_t erase = Below(orders.size() / (Chance(80) ? 4 : 1) + 1) % orders.size();
    const int bits = 1 << Below(5);
    Mirror<int64_t> counts(memory_, int64_t{1} << bits);
    uint64_t words[2] = {0, 0};  // the bound as a number, score's sign bit flipped
    const auto bound = [&] {
      return RowOrder{static_cast<int64_t>(words[0] ^ (uint64_t{1} << 63)), words[1]};
    };
    int64_t rank = erase;
    for (int prefix_bits = 0; prefix_bits < 128; prefix_bits += bits) {
      std::fill(counts.host(), counts.host() + counts.size(), 0);
      counts.Push();
      const Status status =
          table_->Histogram(memory_->context(), field, bound(), prefix_bits, counts.span());
      ASSERT_TRUE(status.ok()) << status.message();
      counts.Pull();
      int64_t digit = 0;
      while (digit < counts.size() && rank >= counts[digit]) rank -= counts[digit++];
      ASSERT_LT(digit, counts.size()) << "fewer rows counted than there are";
      words[prefix_bits / 64] |= static_cast<uint64_t>(digit) << (64 - prefix_bits % 64 - bits);
    }
    EXPECT_EQ(Comparable(bound()), orders[erase]);
    EraseBelow(field, bound(), static_cast<int64_t>(orders.size()) - erase);
  }

  void Reserve() {
    SCOPED_TRACE("Reserve");
    const int64_t rows = Below(Chance(10) ? 20000 : 4000);
    OnBoth([&](const Side& side) { return side.table->Reserve(side.context, rows); });
  }

  void Clear() {
    SCOPED_TRACE("Clear");
    OnBoth([&](const Side& side) { return side.table->Clear(side.context); });
    present_.clear();
    owed_.clear();
    CompareAll();
  }

  void BeginEpoch() {
    SCOPED_TRACE("BeginEpoch");
    // Mostly a later one.
    const int64_t epoch = reference_->epoch() + (Chance(90) ? 1 + Below(3) : -Below(2));
    OnBoth([&](const Side& side) { return side.table->BeginEpoch(side.context, epoch); });
    EXPECT_EQ(table_->epoch(), reference_->epoch());
    // A table may forget the changes of many epochs.
    ++epochs_;
    if (epochs_ % 8 == 0) TrimChanges();
  }

  void ChangedKeys() {
    SCOPED_TRACE("ChangedKeys");
    const int64_t since = reference_->epoch() - Below(Chance(80) ? 8 : 20);
    TablePart part;
    part.parts = Chance(70) ? 1 : 1 + Below(100);
    std::vector<Key> keys[2];
    OnBoth([&](const Side& side) -> Status {
      // Each table divides itself as it likes, and may know more of one part than of another.
      auto& all = keys[side.table == table_.get()];
      for (part.part = 0; part.part < part.parts; ++part.part) {
        std::vector<Key> some;
        const Status status = side.table->ChangedKeys(side.context, since, part, &some);
        if (!status.ok()) return all.clear(), status;
        all.insert(all.end(), some.begin(), some.end());
      }
      return Status();
    });
    for (auto& side : keys) std::sort(side.begin(), side.end());
    EXPECT_EQ(keys[0], keys[1]) << "since epoch " << since;
  }

  // Of the current epoch nothing is trimmed.
  void TrimChanges() {
    SCOPED_TRACE("TrimChanges");
    const int64_t through = reference_->epoch() - 1 - Below(5);
    table_->TrimChanges({through});
    reference_->TrimChanges({through});
  }

  void Move(TableSchema schema) {
    SCOPED_TRACE("Move");
    for (auto* table : {&reference_, &table_}) {
      const Context context = table == &table_ ? memory_->context() : host_;
      std::unique_ptr<RowMove> move;
      const Status status = (*table)->PrepareMove(context, schema, &move);
      ASSERT_TRUE(status.ok()) << status.message();
      *table = move->Run(context);
    }
    cursor_ = Cursor();  // it was of the table that is no more
    cursor_.done = true;
    CompareAll();
    EXPECT_EQ(table_->epoch(), reference_->epoch());
    ChangedKeys();
  }

  void SetOptimizer() {
    TableSchema schema = Schema();
    if (schema.rule.name.empty()) schema.rule = case_.rule;
    Move(schema);
  }

  void AddMeta() {
    TableSchema schema = Schema();
    for (const MetaField field : kFields) {
      if (case_.add_meta.has(field)) schema.meta.add(field);
    }
    Move(schema);
  }

  void GiveUpMove() {
    SCOPED_TRACE("GiveUpMove");
    TableSchema schema = Schema();
    if (IsFloating(schema.value_dtype)) schema.rule = UsualRule("adam");
    std::unique_ptr<RowMove> move;
    const Status status = table_->PrepareMove(memory_->context(), schema, &move);
    ASSERT_TRUE(status.ok()) << status.message();
    move.reset();
    CompareAll();
  }

  void RefusedMove() {
    SCOPED_TRACE("RefusedMove");
    TableSchema schema = Schema();
    if (Chance(50)) {
      ++schema.dim;
    } else {
      schema.key = "int32";
    }
    OnBoth([&](const Side& side) {
      std::unique_ptr<RowMove> move;
      const Status refused = side.table->PrepareMove(side.context, schema, &move);
      EXPECT_EQ(move, nullptr);
      return refused;
    });
  }

  void CompareAll() {
    EXPECT_EQ(table_->schema().ToText(), reference_->schema().ToText());
    EXPECT_EQ(reference_->size(), static_cast<int64_t>(present_.size()));
    if (harness_.rows_in_memory) {
      EXPECT_GE(table_->memory_bytes(), table_->size() * ValueBytes());
    }
    const TableContent want = ExportAll(*reference_, HostTestMemory(), 1000);
    const TableContent got = ExportAll(*table_, memory_, 1 + table_->size() / 20 + Below(700));
    EXPECT_EQ(Difference(harness_.Comparable(Schema(), want), harness_.Comparable(Schema(), got)),
              "");
  }

  const TableSchema& Schema() const { return reference_->schema(); }
  DType SlotDTypeOfTable() const {
    const DType dtype = case_.schema.value_dtype;
    return IsFloating(dtype) ? SlotDType(dtype) : dtype;
  }
  int64_t ValueBytes() const { return case_.schema.dim * SizeOf(case_.schema.value_dtype); }

  const TableHarness& harness_;
  TestMemory* const memory_;
  const ModelCase& case_;
  Random random_;
  const int64_t usual_batch_;
  std::vector<Key> pool_;
  const int64_t max_batch_;
  std::unique_ptr<Table> table_;
  std::unique_ptr<Table> reference_;
  InlineExecutor executor_;
  Context host_;

  // The next call.
  int64_t n_ = 0;
  bool selected_ = false;
  std::vector<int64_t> participants_;
  bool want_outcomes_ = false;
  bool want_misses_ = false;
  int64_t select_size_ = 0;
  int64_t misses_size_ = 0;
  DType numbers_ = DType::kFloat32;  // of the rows
  int64_t element_ = 4;              // bytes of one
  int64_t offset_ = 0;               // of the first value, in numbers
  int64_t stride_ = 0;
  int64_t values_used_ = 0;  // bytes of values_
  Mirror<Key> keys_;
  Mirror<int64_t> select_;
  Mirror<int64_t> select_count_;
  Mirror<Outcome> outcomes_;
  Mirror<int64_t> misses_;
  Mirror<int64_t> misses_count_;
  Mirror<bool> exists_;
  Mirror<int64_t> offsets_;
  Mirror<double> scales_;
  Mirror<char> values_;

  int64_t step_ = 0;
  std::unordered_set<Key> present_;  // the keys with rows, kept beside the reference

  int64_t epochs_ = 0;

  // The export under way: what it owes, and what has appeared.
  Cursor cursor_;
  bool export_parts_ = false;
  std::unordered_set<Key> owed_;
  std::unordered_set<Key> exported_;
};

}  // namespace

void RunModel(const TableHarness& harness, const ModelCase& model_case, uint64_t seed,
              int64_t operations) {
  SCOPED_TRACE(StrCat(harness.name, ", ", model_case.Name(), ", seed ", seed));
  ModelRun(harness, model_case, seed).Run(operations);
}

}  // namespace dynemb
