#include "cc/core/testing/reference_table.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "cc/core/base/hash.h"
#include "cc/core/optimizer/rule.h"

namespace dynemb {
namespace {

__extension__ typedef unsigned __int128 Order128;

Order128 AsNumber(const RowOrder& order) {
  const uint64_t high = static_cast<uint64_t>(order.score) ^ (uint64_t{1} << 63);
  return Order128{high} << 64 | order.hash;
}

Status CheckSpan(const char* what, const void* data, int64_t size, MemorySpace space) {
  if (size < 0) return InvalidArgument(what, ": got size ", size, ", want 0 or more");
  if (size == 0) return Status();
  if (data == nullptr) return InvalidArgument(what, ": got a null pointer");
  if (space != MemorySpace::kHost) return InvalidArgument(what, ": want host memory");
  return Status();
}

template <typename Byte>
Status CheckRows(const char* what, const BasicRows<Byte>& rows, int64_t count, int64_t bytes) {
  DYNEMB_RETURN_IF_ERROR(CheckSpan(what, rows.data, rows.count, rows.space));
  if (rows.count != count) return InvalidArgument(what, ": got ", rows.count, ", want ", count);
  if (count > 0 && rows.offsets == nullptr && rows.stride_bytes < bytes) {
    return InvalidArgument(what, ": got a stride of ", rows.stride_bytes, ", want ", bytes);
  }
  return Status();
}

Status CheckContext(const Context& context) {
  if (context.space != MemorySpace::kHost || context.executor == nullptr) {
    return InvalidArgument("context: want host memory and an executor");
  }
  return Status();
}

class ReferenceTable final : public Table {
 public:
  explicit ReferenceTable(const TableSchema& schema)
      : schema_(schema), value_bytes_(schema.dim * SizeOf(schema.value_dtype)) {}

  MemorySpace space() const override { return MemorySpace::kHost; }
  const TableSchema& schema() const override { return schema_; }

  Status Find(const Context& context, const Batch& batch, Rows values,
              const Report& report) const override {
    std::lock_guard<std::mutex> lock(mutex_);
    std::vector<int64_t> positions;
    DYNEMB_RETURN_IF_ERROR(CheckCall(context, batch, report, &positions));
    DYNEMB_RETURN_IF_ERROR(CheckRows("values", values, batch.keys.size, value_bytes_));
    Reporter out(report);
    for (const int64_t i : positions) {
      const auto row = rows_.find(batch.keys[i]);
      const std::vector<char> value =
          row != rows_.end() ? row->second.value : InitialValue(batch.keys[i]);
      std::memcpy(values[i], value.data(), value_bytes_);
      out.Set(i, row != rows_.end() ? Outcome::kFound : Outcome::kMissing);
    }
    return Status();
  }

  Status ReadRows(const Context& context, const Batch& batch, const RowParts& rows,
                  const Report& report) const override {
    std::lock_guard<std::mutex> lock(mutex_);
    std::vector<int64_t> positions;
    DYNEMB_RETURN_IF_ERROR(CheckCall(context, batch, report, &positions));
    DYNEMB_RETURN_IF_ERROR(CheckParts(rows, batch.keys.size));
    Reporter out(report);
    for (const int64_t i : positions) {
      const auto row = rows_.find(batch.keys[i]);
      if (row != rows_.end()) CopyRow(row->second, rows, i);
      out.Set(i, row != rows_.end() ? Outcome::kFound : Outcome::kMissing);
    }
    return Status();
  }

  Status Apply(const Context& context, const Batch& batch, ConstRows gradients,
               const Update& update, const Stamp& stamp, const Report& report) override {
    std::lock_guard<std::mutex> lock(mutex_);
    std::vector<int64_t> positions;
    DYNEMB_RETURN_IF_ERROR(CheckCall(context, batch, report, &positions));
    const DType gradient_dtype = GradientDType(schema_.value_dtype);
    DYNEMB_RETURN_IF_ERROR(
        CheckRows("gradients", gradients, batch.keys.size, schema_.dim * SizeOf(gradient_dtype)));
    DYNEMB_RETURN_IF_ERROR(
        CheckSpan("scales", update.scales.data, update.scales.size, update.scales.space));
    if (!update.scales.empty() && update.scales.size != batch.keys.size) {
      return InvalidArgument("scales: got ", update.scales.size, ", want ", batch.keys.size);
    }
    if (update.rule == nullptr) return InvalidArgument("rule: got null");
    std::unique_ptr<RowUpdater> updater;
    DYNEMB_RETURN_IF_ERROR(
        MakeRowUpdater(update.rule->name, schema_.value_dtype, update.hyper, &updater));
    if (!(*update.rule == schema_.rule)) {
      return FailedPrecondition("rule: got ", update.rule->DebugString(), ", the table has ",
                                schema_.rule.DebugString());
    }
    Reporter out(report);
    for (const auto& [key, at] : ByKey(batch, positions)) {
      if (update.if_missing == IfMissing::kReport && rows_.count(key) == 0) {
        for (const int64_t i : at) out.Set(i, Outcome::kMissing);
        continue;
      }
      bool inserted;
      Row& row = FindOrInsert(key, &inserted);
      const std::vector<char> gradient =
          Sum(gradients, at, gradient_dtype, update.scales.data_or_null());
      updater->Update(schema_.dim, {row.value.data(), row.slots.data(), gradient.data()});
      Touch(stamp, key, &row);
      for (const int64_t i : at) out.Set(i, inserted ? Outcome::kInserted : Outcome::kFound);
    }
    return Status();
  }

  Status Upsert(const Context& context, const Batch& batch, ConstRows values, const Stamp& stamp,
                const Report& report) override {
    std::lock_guard<std::mutex> lock(mutex_);
    std::vector<int64_t> positions;
    DYNEMB_RETURN_IF_ERROR(CheckCall(context, batch, report, &positions));
    DYNEMB_RETURN_IF_ERROR(CheckRows("values", values, batch.keys.size, value_bytes_));
    Reporter out(report);
    for (const auto& [key, at] : ByKey(batch, positions)) {
      bool inserted;
      Row& row = FindOrInsert(key, &inserted);
      row.value.assign(values[at.back()], values[at.back()] + value_bytes_);
      Touch(stamp, key, &row);
      for (const int64_t i : at) out.Set(i, inserted ? Outcome::kInserted : Outcome::kFound);
    }
    return Status();
  }

  Status Accumulate(const Context& context, const Batch& batch, ConstRows values_or_deltas,
                    Span<const bool> exists, const Stamp& stamp, const Report& report) override {
    std::lock_guard<std::mutex> lock(mutex_);
    std::vector<int64_t> positions;
    DYNEMB_RETURN_IF_ERROR(CheckCall(context, batch, report, &positions));
    DYNEMB_RETURN_IF_ERROR(
        CheckRows("values_or_deltas", values_or_deltas, batch.keys.size, value_bytes_));
    DYNEMB_RETURN_IF_ERROR(CheckSpan("exists", exists.data, exists.size, exists.space));
    if (exists.size != batch.keys.size) return InvalidArgument("exists: got size ", exists.size);
    Reporter out(report);
    for (const int64_t i : positions) {
      const auto found = rows_.find(batch.keys[i]);
      const char* given = values_or_deltas[i];
      if (found != rows_.end()) {
        if (exists[i]) {
          Add(given, &found->second.value);
          Touch(stamp, found->first, &found->second);
        }
        out.Set(i, Outcome::kFound);
      } else if (exists[i]) {
        out.Set(i, Outcome::kMissing);
      } else {
        bool inserted;
        Row& row = FindOrInsert(batch.keys[i], &inserted);
        row.value.assign(given, given + value_bytes_);
        Touch(stamp, batch.keys[i], &row);
        out.Set(i, Outcome::kInserted);
      }
    }
    return Status();
  }

  Status Erase(const Context& context, const Batch& batch, const Report& report) override {
    std::lock_guard<std::mutex> lock(mutex_);
    std::vector<int64_t> positions;
    DYNEMB_RETURN_IF_ERROR(CheckCall(context, batch, report, &positions));
    Reporter out(report);
    for (const auto& [key, at] : ByKey(batch, positions)) {
      const auto row = rows_.find(key);
      for (const int64_t i : at) {
        out.Set(i, row != rows_.end() ? Outcome::kFound : Outcome::kMissing);
      }
      if (row != rows_.end()) EraseRow(row);
    }
    return Status();
  }

  Status InsertRows(const Context& context, const Batch& batch, const ConstRowParts& rows,
                    const RowParts& displaced, const Report& report) override {
    std::lock_guard<std::mutex> lock(mutex_);
    std::vector<int64_t> positions;
    DYNEMB_RETURN_IF_ERROR(CheckCall(context, batch, report, &positions));
    const int64_t n = batch.keys.size;
    DYNEMB_RETURN_IF_ERROR(CheckRows("values", rows.values, n, value_bytes_));
    if (SlotsBytes() > 0) DYNEMB_RETURN_IF_ERROR(CheckRows("slots", rows.slots, n, SlotsBytes()));
    if (MetaBytes() > 0) DYNEMB_RETURN_IF_ERROR(CheckRows("meta", rows.meta, n, MetaBytes()));
    DYNEMB_RETURN_IF_ERROR(CheckParts(displaced, n));
    if (displaced.keys.data != nullptr) {
      const auto& keys = displaced.keys;
      DYNEMB_RETURN_IF_ERROR(CheckSpan("displaced.keys", keys.data, keys.size, keys.space));
      if (keys.size != n) return InvalidArgument("displaced.keys: got ", keys.size, ", want ", n);
    }
    Reporter out(report);
    for (const auto& [key, at] : ByKey(batch, positions)) {
      const auto found = rows_.find(key);
      for (const int64_t i : at) {
        out.Set(i, found != rows_.end() ? Outcome::kFound : Outcome::kInserted);
        if (found == rows_.end()) continue;
        if (displaced.keys.data != nullptr) displaced.keys[i] = key;
        CopyRow(found->second, displaced, i);
      }
      const int64_t last = at.back();
      Row row;
      row.value.assign(rows.values[last], rows.values[last] + value_bytes_);
      if (SlotsBytes() > 0) row.slots.assign(rows.slots[last], rows.slots[last] + SlotsBytes());
      int64_t offset = 0;
      for (int field = 0; field < kMetaFields; ++field) {
        if (!schema_.meta.has(static_cast<MetaField>(field))) continue;
        std::memcpy(&row.meta[field], rows.meta[last] + offset, sizeof(int64_t));
        offset += sizeof(int64_t);
      }
      rows_[key] = row;
      Changed(key);
    }
    return Status();
  }

  Status Clear(const Context& context) override {
    std::lock_guard<std::mutex> lock(mutex_);
    DYNEMB_RETURN_IF_ERROR(CheckContext(context));
    rows_.clear();
    changed_in_.clear();
    known_since_ = epoch_;
    return Status();
  }

  Status Reserve(const Context& context, int64_t rows) override {
    DYNEMB_RETURN_IF_ERROR(CheckContext(context));
    return rows < 0 ? InvalidArgument("rows: got ", rows) : Status();
  }

  Status PrepareMove(const Context& context, const TableSchema& schema,
                     std::unique_ptr<RowMove>* move) override {
    DYNEMB_RETURN_IF_ERROR(CheckContext(context));
    DYNEMB_RETURN_IF_ERROR(schema.Validate());
    TableSchema same = schema;  // but for what a move may change
    same.rule = schema_.rule;
    same.meta = schema_.meta;
    if (same.ToText() != schema_.ToText()) {
      return InvalidArgument("schema: got ", schema.ToText(), ", the table has ", schema_.ToText());
    }
    *move = std::make_unique<Move>(this, schema);
    return Status();
  }

  // Rows are exported in the order of their keys; a cursor's position is the last of them, and
  // whether there was one.
  Status Export(const Context& context, Cursor* cursor, const RowParts& out,
                int64_t* rows) const override {
    std::lock_guard<std::mutex> lock(mutex_);
    DYNEMB_RETURN_IF_ERROR(CheckContext(context));
    if (cursor == nullptr || rows == nullptr) return InvalidArgument("cursor, rows: got null");
    const int64_t room = out.keys.size;
    if (out.keys.data != nullptr) {
      DYNEMB_RETURN_IF_ERROR(CheckSpan("keys", out.keys.data, room, out.keys.space));
    }
    DYNEMB_RETURN_IF_ERROR(CheckParts(out, room));
    *rows = 0;
    DYNEMB_RETURN_IF_ERROR(CheckPart(*cursor));
    if (cursor->done) return Status();
    auto next = cursor->position[1] == 0 ? rows_.begin()
                                         : rows_.upper_bound(static_cast<Key>(cursor->position[0]));
    for (; next != rows_.end() && *rows < room; ++next) {
      const auto& [key, row] = *next;
      cursor->position[0] = static_cast<uint64_t>(key);
      cursor->position[1] = 1;
      if (!IsIn(*cursor, key)) continue;
      if (out.keys.data != nullptr) out.keys[*rows] = key;
      CopyRow(row, out, *rows);
      ++*rows;
    }
    cursor->done = next == rows_.end();
    return Status();
  }

  Status BeginEpoch(const Context& context, int64_t epoch) override {
    std::lock_guard<std::mutex> lock(mutex_);
    DYNEMB_RETURN_IF_ERROR(CheckContext(context));
    if (epoch <= epoch_) return InvalidArgument("epoch: got ", epoch, ", want more than ", epoch_);
    if (epoch_ == 0) known_since_ = epoch - 1;
    epoch_ = epoch;
    return Status();
  }

  int64_t epoch() const override {
    std::lock_guard<std::mutex> lock(mutex_);
    return epoch_;
  }

  Status ChangedKeys(const Context& context, int64_t since, const TablePart& part,
                     std::vector<Key>* keys) const override {
    std::lock_guard<std::mutex> lock(mutex_);
    DYNEMB_RETURN_IF_ERROR(CheckContext(context));
    DYNEMB_RETURN_IF_ERROR(CheckPart(part));
    if (epoch_ == 0 || since < known_since_) {
      return FailedPrecondition("since: got epoch ", since, ", known from ", known_since_);
    }
    keys->clear();
    for (const auto& [key, epoch] : changed_in_) {
      if (epoch > since && IsIn(part, key)) keys->push_back(key);
    }
    return Status();
  }

  // The current epoch, which is not over, stays.
  void TrimChanges(const std::vector<int64_t>& positions) override {
    std::lock_guard<std::mutex> lock(mutex_);
    if (positions.empty()) return;
    const int64_t through = std::min(positions.front(), epoch_ - 1);
    if (through <= known_since_) return;
    known_since_ = through;
    for (auto change = changed_in_.begin(); change != changed_in_.end();) {
      change = change->second <= through ? changed_in_.erase(change) : std::next(change);
    }
  }

  Status Histogram(const Context& context, MetaField field, const RowOrder& prefix, int prefix_bits,
                   Span<int64_t> counts) const override {
    std::lock_guard<std::mutex> lock(mutex_);
    DYNEMB_RETURN_IF_ERROR(CheckContext(context));
    DYNEMB_RETURN_IF_ERROR(CheckField(field));
    DYNEMB_RETURN_IF_ERROR(CheckSpan("counts", counts.data, counts.size, counts.space));
    int digit_bits = 0;
    while (digit_bits <= 16 && int64_t{1} << digit_bits != counts.size) ++digit_bits;
    if (digit_bits > 16) return InvalidArgument("counts: got size ", counts.size);
    if (prefix_bits < 0 || prefix_bits + digit_bits > 128 ||
        (digit_bits == 0 ? prefix_bits != 0 : prefix_bits % digit_bits != 0)) {
      return InvalidArgument("prefix_bits: got ", prefix_bits);
    }
    for (const auto& [key, row] : rows_) {
      const Order128 order = OrderOf(key, row, field);
      if (prefix_bits > 0 && (order ^ AsNumber(prefix)) >> (128 - prefix_bits) != 0) continue;
      const Order128 rest = order << prefix_bits;
      ++counts[digit_bits == 0 ? 0 : static_cast<int64_t>(rest >> (128 - digit_bits))];
    }
    return Status();
  }

  Status EraseBelow(const Context& context, MetaField field, const RowOrder& bound,
                    int64_t* erased) override {
    std::lock_guard<std::mutex> lock(mutex_);
    DYNEMB_RETURN_IF_ERROR(CheckContext(context));
    DYNEMB_RETURN_IF_ERROR(CheckField(field));
    if (erased == nullptr) return InvalidArgument("erased: got null");
    *erased = 0;
    for (auto row = rows_.begin(); row != rows_.end();) {
      const auto next = std::next(row);
      if (OrderOf(row->first, row->second, field) < AsNumber(bound)) {
        EraseRow(row);
        ++*erased;
      }
      row = next;
    }
    return Status();
  }

  int64_t size() const override {
    std::lock_guard<std::mutex> lock(mutex_);
    return static_cast<int64_t>(rows_.size());
  }

  int64_t memory_bytes() const override {
    std::lock_guard<std::mutex> lock(mutex_);
    constexpr int64_t kMapNode = 100;  // about what the node of the map takes
    const int64_t row_bytes = kMapNode + value_bytes_ + SlotsBytes();
    return static_cast<int64_t>(sizeof(*this)) + static_cast<int64_t>(rows_.size()) * row_bytes;
  }

 private:
  struct Row {
    std::vector<char> value;
    std::vector<char> slots;
    std::array<int64_t, kMetaFields> meta = {};  // also of the fields that the schema lacks
  };

  // The rows go along when it is run; the table to be made is there before.
  class Move : public RowMove {
   public:
    Move(ReferenceTable* from, const TableSchema& schema)
        : from_(from), to_(std::make_unique<ReferenceTable>(schema)) {}

    std::unique_ptr<Table> Run(const Context&) override {
      std::lock_guard<std::mutex> lock(from_->mutex_);
      const TableSchema &before = from_->schema_, &after = to_->schema_;
      to_->rows_ = std::move(from_->rows_);
      from_->rows_.clear();
      for (auto& [key, row] : to_->rows_) {
        if (before.rule != after.rule) row.slots = to_->InitialSlots();
        for (int field = 0; field < kMetaFields; ++field) {
          const auto meta_field = static_cast<MetaField>(field);
          if (!before.meta.has(meta_field) || !after.meta.has(meta_field)) row.meta[field] = 0;
        }
      }
      to_->epoch_ = from_->epoch_;
      to_->known_since_ = from_->known_since_;
      to_->changed_in_ = std::move(from_->changed_in_);
      return std::move(to_);
    }

   private:
    ReferenceTable* const from_;
    std::unique_ptr<ReferenceTable> to_;
  };

  // Collects what a call reports.
  class Reporter {
   public:
    explicit Reporter(const Report& report) : report_(report) {
      if (report_.misses != nullptr) *report_.misses->count = 0;
    }
    void Set(int64_t position, Outcome outcome) {
      if (!report_.outcomes.empty()) report_.outcomes[position] = outcome;
      if (outcome == Outcome::kMissing && report_.misses != nullptr) {
        report_.misses->at[(*report_.misses->count)++] = position;
      }
    }

   private:
    const Report& report_;
  };

  // Checks what all calls with a batch have in common, and lists the positions that take part.
  static Status CheckCall(const Context& context, const Batch& batch, const Report& report,
                          std::vector<int64_t>* positions) {
    DYNEMB_RETURN_IF_ERROR(CheckContext(context));
    const int64_t n = batch.keys.size;
    DYNEMB_RETURN_IF_ERROR(CheckSpan("keys", batch.keys.data, n, batch.keys.space));
    if (const Positions* select = batch.select; select != nullptr) {
      DYNEMB_RETURN_IF_ERROR(
          CheckSpan("select", select->at.data, select->at.size, select->at.space));
      if (select->count == nullptr) return InvalidArgument("select: got no count");
      const int64_t count = *select->count;
      if (count < 0 || count > select->at.size) return InvalidArgument("select: got ", count);
      for (int64_t j = 0; j < count; ++j) {
        const int64_t i = select->at[j];
        if (i < 0 || i >= n) return InvalidArgument("select: got position ", i, " of ", n);
        positions->push_back(i);
      }
    } else {
      for (int64_t i = 0; i < n; ++i) positions->push_back(i);
    }
    if (!report.outcomes.empty()) {
      const auto& outcomes = report.outcomes;
      DYNEMB_RETURN_IF_ERROR(CheckSpan("outcomes", outcomes.data, outcomes.size, outcomes.space));
      if (outcomes.size != n) return InvalidArgument("outcomes: got size ", outcomes.size);
    }
    if (const Positions* misses = report.misses; misses != nullptr) {
      const int64_t room = misses->at.size;
      DYNEMB_RETURN_IF_ERROR(CheckSpan("misses", misses->at.data, room, misses->at.space));
      if (misses->count == nullptr) return InvalidArgument("misses: got no count");
      const int64_t most = batch.select == nullptr ? n : batch.select->at.size;
      if (room < most) {
        return InvalidArgument("misses: got room for ", room, ", want ", most);
      }
    }
    return Status();
  }

  // The positions of each key, in the order given, by the order of the keys' first.
  static std::vector<std::pair<Key, std::vector<int64_t>>> ByKey(
      const Batch& batch, const std::vector<int64_t>& positions) {
    std::vector<std::pair<Key, std::vector<int64_t>>> by_key;
    std::map<Key, size_t> place;
    for (const int64_t i : positions) {
      const auto [found, is_new] = place.emplace(batch.keys[i], by_key.size());
      if (is_new) by_key.push_back({batch.keys[i], {}});
      by_key[found->second].second.push_back(i);
    }
    return by_key;
  }

  // The sum of rows, which for one is the row. 16-bit floats are summed in float32.
  std::vector<char> Sum(const ConstRows& rows, const std::vector<int64_t>& positions, DType dtype,
                        const double* scales) const {
    std::vector<char> sum(schema_.dim * SizeOf(dtype));
    VisitDType(dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      for (int64_t c = 0; c < schema_.dim; ++c) {
        T total = T();
        for (size_t p = 0; p < positions.size(); ++p) {
          T number;
          std::memcpy(&number, rows[positions[p]] + c * sizeof(T), sizeof(T));
          if constexpr (std::is_floating_point_v<T>) {
            const bool alone = positions.size() == 1 && scales == nullptr;
            if (scales != nullptr) number *= static_cast<T>(scales[positions[p]]);
            total = alone ? number : total + number;
          }
        }
        std::memcpy(&sum[c * sizeof(T)], &total, sizeof(T));
      }
    });
    return sum;
  }

  // Buffers for rows, of which some may be left out.
  Status CheckParts(const RowParts& parts, int64_t rows) const {
    const auto check = [&](const char* what, const Rows& part, int64_t bytes) {
      return part.data == nullptr ? Status() : CheckRows(what, part, rows, bytes);
    };
    DYNEMB_RETURN_IF_ERROR(check("values", parts.values, value_bytes_));
    DYNEMB_RETURN_IF_ERROR(check("slots", parts.slots, SlotsBytes()));
    return check("meta", parts.meta, MetaBytes());
  }

  // Copies the parts that are asked for.
  void CopyRow(const Row& row, const RowParts& out, int64_t i) const {
    const auto copy = [i](const void* part, size_t bytes, const Rows& to) {
      if (to.data != nullptr && bytes > 0) std::memcpy(to[i], part, bytes);
    };
    const std::vector<int64_t> meta = PackedMeta(row);
    copy(row.value.data(), row.value.size(), out.values);
    copy(row.slots.data(), row.slots.size(), out.slots);
    copy(meta.data(), meta.size() * sizeof(int64_t), out.meta);
  }

  static Status CheckPart(const TablePart& part) {
    if (part.parts >= 1 && part.part >= 0 && part.part < part.parts) return Status();
    return InvalidArgument("part: got ", part.part, " of ", part.parts);
  }
  static bool IsIn(const TablePart& part, Key key) {
    return Mix64(static_cast<uint64_t>(key)) % static_cast<uint64_t>(part.parts) ==
           static_cast<uint64_t>(part.part);
  }

  Status CheckField(MetaField field) const {
    if (schema_.meta.has(field)) return Status();
    return FailedPrecondition("the table has no meta field ", Name(field));
  }

  int64_t SlotsBytes() const { return static_cast<int64_t>(InitialSlots().size()); }

  int64_t MetaBytes() const { return static_cast<int64_t>(PackedMeta(Row()).size()) * 8; }

  std::vector<int64_t> PackedMeta(const Row& row) const {
    std::vector<int64_t> packed;
    for (int field = 0; field < kMetaFields; ++field) {
      if (schema_.meta.has(static_cast<MetaField>(field))) packed.push_back(row.meta[field]);
    }
    return packed;
  }

  std::vector<char> InitialValue(Key key) const {
    std::vector<char> value(value_bytes_);
    VisitDType(schema_.value_dtype, [&](auto tag) {
      using V = typename decltype(tag)::type;
      FillInitialValue(schema_.initializer, key, schema_.dim, reinterpret_cast<V*>(value.data()));
    });
    return value;
  }

  std::vector<char> InitialSlots() const {
    std::vector<char> slots;
    const auto append = [&](auto number) {
      const char* bytes = reinterpret_cast<const char*>(&number);
      slots.insert(slots.end(), bytes, bytes + sizeof(number));
    };
    for (const SlotSpec& slot : schema_.rule.slots) {
      const int64_t width = slot.width == SlotWidth::kColumn ? schema_.dim : 1;
      for (int64_t i = 0; i < width; ++i) {
        if (schema_.value_dtype == DType::kFloat64) {
          append(static_cast<double>(slot.initial));
        } else {
          append(slot.initial);
        }
      }
    }
    return slots;
  }

  Row& FindOrInsert(Key key, bool* inserted) {
    const auto found = rows_.find(key);
    *inserted = found == rows_.end();
    if (!*inserted) return found->second;
    Row& row = rows_[key];
    row.value = InitialValue(key);
    row.slots = InitialSlots();
    return row;
  }

  void EraseRow(std::map<Key, Row>::iterator row) {
    Changed(row->first);
    rows_.erase(row);
  }

  void Touch(const Stamp& stamp, Key key, Row* row) {
    Changed(key);
    row->meta[static_cast<int>(MetaField::kLastWriteTime)] = stamp.now;
    int64_t& count = row->meta[static_cast<int>(MetaField::kCount)];
    count = static_cast<int64_t>(static_cast<uint64_t>(count) + 1);  // wraps around
  }

  void Changed(Key key) {
    if (epoch_ > 0) changed_in_[key] = epoch_;
  }

  void Add(const char* delta, std::vector<char>* value) const {
    VisitDType(schema_.value_dtype, [&](auto tag) {
      using V = typename decltype(tag)::type;
      for (int64_t c = 0; c < schema_.dim; ++c) {
        V a, b;
        std::memcpy(&a, value->data() + c * sizeof(V), sizeof(V));
        std::memcpy(&b, delta + c * sizeof(V), sizeof(V));
        if constexpr (std::is_integral_v<V>) {
          a = static_cast<V>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
        } else {
          a = static_cast<V>(static_cast<ComputeType<V>>(a) + static_cast<ComputeType<V>>(b));
        }
        std::memcpy(value->data() + c * sizeof(V), &a, sizeof(V));
      }
    });
  }

  Order128 OrderOf(Key key, const Row& row, MetaField field) const {
    return AsNumber({row.meta[static_cast<int>(field)], Mix64(static_cast<uint64_t>(key))});
  }

  mutable std::mutex mutex_;
  const TableSchema schema_;
  const int64_t value_bytes_;
  std::map<Key, Row> rows_;
  int64_t epoch_ = 0;
  int64_t known_since_ = 0;            // changes of later epochs are known
  std::map<Key, int64_t> changed_in_;  // the last epoch in which a key was written or erased
};

}  // namespace

Status MakeReferenceTable(const TableSchema& schema, std::unique_ptr<Table>* table) {
  DYNEMB_RETURN_IF_ERROR(schema.Validate());
  *table = std::make_unique<ReferenceTable>(schema);
  return Status();
}

}  // namespace dynemb
