#include "cc/core/testing/reference_table.h"

#include <array>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "cc/core/base/hash.h"

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

  TableSchema schema() const override {
    std::lock_guard<std::mutex> lock(mutex_);
    return schema_;
  }

  Status Find(const Context& context, const Batch& batch, IfMissing if_missing, Rows values,
              const Report& report) const override {
    std::lock_guard<std::mutex> lock(mutex_);
    std::vector<int64_t> positions;
    DYNEMB_RETURN_IF_ERROR(CheckCall(context, batch, report, &positions));
    DYNEMB_RETURN_IF_ERROR(CheckRows("values", values, batch.keys.size, value_bytes_));
    Reporter out(report);
    for (const int64_t i : positions) {
      const auto row = rows_.find(batch.keys[i]);
      if (row != rows_.end()) {
        std::memcpy(values[i], row->second.value.data(), value_bytes_);
      } else if (if_missing == IfMissing::kInitialValue) {
        std::memcpy(values[i], InitialValue(batch.keys[i]).data(), value_bytes_);
      }
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
      bool inserted;
      Row& row = FindOrInsert(key, &inserted);
      const std::vector<char> gradient =
          Sum(gradients, at, gradient_dtype, update.scales.data_or_null());
      updater->Update(schema_.dim, {row.value.data(), row.slots.data(), gradient.data()});
      Touch(stamp, &row);
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
      Touch(stamp, &row);
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
          Touch(stamp, &found->second);
        }
        out.Set(i, Outcome::kFound);
      } else if (exists[i]) {
        out.Set(i, Outcome::kMissing);
      } else {
        bool inserted;
        Row& row = FindOrInsert(batch.keys[i], &inserted);
        row.value.assign(given, given + value_bytes_);
        Touch(stamp, &row);
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

  Status Clear(const Context& context) override {
    std::lock_guard<std::mutex> lock(mutex_);
    DYNEMB_RETURN_IF_ERROR(CheckContext(context));
    rows_.clear();
    erased_known_since_ = version_;
    return Status();
  }

  Status Attach(const Context& context, const RuleSpec& rule) override {
    std::lock_guard<std::mutex> lock(mutex_);
    DYNEMB_RETURN_IF_ERROR(CheckContext(context));
    TableSchema attached = schema_;
    attached.rule = rule;
    DYNEMB_RETURN_IF_ERROR(attached.Validate());
    if (rule == schema_.rule) return Status();
    if (!schema_.rule.name.empty()) {
      return FailedPrecondition("rule: got ", rule.DebugString(), ", the table has ",
                                schema_.rule.DebugString());
    }
    schema_ = attached;
    for (auto& key_and_row : rows_) key_and_row.second.slots = InitialSlots();
    return Status();
  }

  Status Reserve(const Context& context, int64_t rows) override {
    DYNEMB_RETURN_IF_ERROR(CheckContext(context));
    return rows < 0 ? InvalidArgument("rows: got ", rows) : Status();
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
    DYNEMB_RETURN_IF_ERROR(CheckExportRows("values", out.values, room, value_bytes_));
    DYNEMB_RETURN_IF_ERROR(CheckExportRows("slots", out.slots, room, SlotsBytes()));
    DYNEMB_RETURN_IF_ERROR(CheckExportRows("meta", out.meta, room, MetaBytes()));
    *rows = 0;
    const int64_t since = cursor->since_version;
    if (since >= 0 && version_ == 0) return FailedPrecondition("since: got version ", since);
    if (cursor->parts < 1 || cursor->part < 0 || cursor->part >= cursor->parts) {
      return InvalidArgument("cursor: got part ", cursor->part, " of ", cursor->parts);
    }
    if (cursor->done) return Status();
    auto next = cursor->position[1] == 0 ? rows_.begin()
                                         : rows_.upper_bound(static_cast<Key>(cursor->position[0]));
    for (; next != rows_.end() && *rows < room; ++next) {
      const auto& [key, row] = *next;
      cursor->position[0] = static_cast<uint64_t>(key);
      cursor->position[1] = 1;
      if (since >= 0 && row.version <= since) continue;
      if (static_cast<int64_t>(Mix64(static_cast<uint64_t>(key)) %
                               static_cast<uint64_t>(cursor->parts)) != cursor->part) {
        continue;
      }
      const std::vector<int64_t> meta = PackedMeta(row);
      if (out.keys.data != nullptr) out.keys[*rows] = key;
      CopyPart(row.value.data(), row.value.size(), out.values, *rows);
      CopyPart(row.slots.data(), row.slots.size(), out.slots, *rows);
      CopyPart(meta.data(), meta.size() * sizeof(int64_t), out.meta, *rows);
      ++*rows;
    }
    cursor->done = next == rows_.end();
    return Status();
  }

  Status Import(const Context& context, const ConstRowParts& rows) override {
    std::lock_guard<std::mutex> lock(mutex_);
    DYNEMB_RETURN_IF_ERROR(CheckContext(context));
    const int64_t n = rows.keys.size;
    DYNEMB_RETURN_IF_ERROR(CheckSpan("keys", rows.keys.data, n, rows.keys.space));
    DYNEMB_RETURN_IF_ERROR(CheckRows("values", rows.values, n, value_bytes_));
    if (SlotsBytes() > 0) DYNEMB_RETURN_IF_ERROR(CheckRows("slots", rows.slots, n, SlotsBytes()));
    if (MetaBytes() > 0) DYNEMB_RETURN_IF_ERROR(CheckRows("meta", rows.meta, n, MetaBytes()));
    for (int64_t i = 0; i < n; ++i) {
      bool inserted;
      Row& row = FindOrInsert(rows.keys[i], &inserted);
      row.value.assign(rows.values[i], rows.values[i] + value_bytes_);
      if (SlotsBytes() > 0) row.slots.assign(rows.slots[i], rows.slots[i] + SlotsBytes());
      int64_t offset = 0;
      for (int field = 0; field < kMetaFields; ++field) {
        if (!schema_.meta.has(static_cast<MetaField>(field))) continue;
        std::memcpy(&row.meta[field], rows.meta[i] + offset, sizeof(int64_t));
        offset += sizeof(int64_t);
      }
      row.version = version_;
    }
    return Status();
  }

  Status BeginVersion(const Context& context, int64_t version) override {
    std::lock_guard<std::mutex> lock(mutex_);
    DYNEMB_RETURN_IF_ERROR(CheckContext(context));
    if (version <= version_) return InvalidArgument("version: got ", version);
    if (version_ == 0) erased_known_since_ = version - 1;
    if (static_cast<int64_t>(erased_.size()) > kErasedLimit) {
      erased_.clear();
      erased_known_since_ = version - 1;
    }
    version_ = version;
    return Status();
  }

  int64_t version() const override {
    std::lock_guard<std::mutex> lock(mutex_);
    return version_;
  }

  Status Erased(const Context& context, int64_t since, std::vector<Key>* keys) const override {
    std::lock_guard<std::mutex> lock(mutex_);
    DYNEMB_RETURN_IF_ERROR(CheckContext(context));
    keys->clear();
    if (version_ == 0 || since < erased_known_since_) {
      return FailedPrecondition("since: got version ", since, ", known from ", erased_known_since_);
    }
    if (static_cast<int64_t>(erased_.size()) > kErasedLimit) {
      return FailedPrecondition("since: got version ", since, ", too much was erased");
    }
    for (const auto& [key, version] : erased_) {
      if (version > since) keys->push_back(key);
    }
    return Status();
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
    int64_t version = 0;
    std::array<int64_t, kMetaFields> meta = {};  // also of the fields that the schema lacks
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

  static Status CheckExportRows(const char* what, const Rows& rows, int64_t room, int64_t bytes) {
    return rows.data == nullptr ? Status() : CheckRows(what, rows, room, bytes);
  }

  static void CopyPart(const void* part, size_t bytes, const Rows& out, int64_t i) {
    if (out.data != nullptr && bytes > 0) std::memcpy(out[i], part, bytes);
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
    if (version_ > 0) erased_.emplace_back(row->first, version_);
    rows_.erase(row);
  }

  void Touch(const Stamp& stamp, Row* row) const {
    row->version = version_;
    row->meta[static_cast<int>(MetaField::kUsed)] = stamp.now;
    int64_t& count = row->meta[static_cast<int>(MetaField::kCount)];
    count = static_cast<int64_t>(static_cast<uint64_t>(count) + 1);  // wraps around
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
  TableSchema schema_;
  const int64_t value_bytes_;
  std::map<Key, Row> rows_;
  int64_t version_ = 0;
  std::vector<std::pair<Key, int64_t>> erased_;  // with the version
  int64_t erased_known_since_ = 0;
};

}  // namespace

Status MakeReferenceTable(const TableSchema& schema, std::unique_ptr<Table>* table) {
  DYNEMB_RETURN_IF_ERROR(schema.Validate());
  *table = std::make_unique<ReferenceTable>(schema);
  return Status();
}

}  // namespace dynemb
