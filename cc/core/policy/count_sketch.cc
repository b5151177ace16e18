#include "cc/core/policy/count_sketch.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "cc/core/base/hash.h"
#include "cc/core/table/distinct_keys.h"

namespace dynemb {
namespace {

constexpr int64_t kLayout = 1;  // to be raised when the counters of a key are others
constexpr int64_t kKeysAtOnce = 4096, kRowsAtOnce = 4096;
constexpr double kE = 2.718281828459045;

__extension__ typedef unsigned __int128 Wide;

int64_t CountOf(float count) {
  const float most = static_cast<float>(CountSketch::kMostCount);
  return count >= 1 ? static_cast<int64_t>(std::min(count, most)) : 1;  // also of a NaN
}

}  // namespace

Status CountSketch::Check(const TableSchema& schema) {
  if (schema.value_dtype == DType::kInt8 && schema.dim >= static_cast<int64_t>(sizeof(Head))) {
    return Status();
  }
  return InvalidArgument("candidates: got a sketch of ", Name(schema.value_dtype), ", dim ",
                         schema.dim, ", want int8, dim ", sizeof(Head), " or more");
}

CountSketch::CountSketch(Table* table, const SketchShape& shape)
    : table_(table),
      shape_(shape),
      dim_(table->schema().dim),
      most_(static_cast<int64_t>(static_cast<double>(shape.blocks * dim_) / kE)) {}

CountSketch::Counter CountSketch::CounterOf(Key key, int hash) const {
  const uint64_t mixed = Mix64(Mix64(static_cast<uint64_t>(key)) + static_cast<uint64_t>(hash));
  const auto width = static_cast<uint64_t>(shape_.blocks * dim_);
  const auto at = static_cast<int64_t>(static_cast<Wide>(mixed) * width >> 64);
  const int64_t block = hash * shape_.blocks + at / dim_;
  return {block * shape_.processes + shape_.process, at % dim_};
}

Status CountSketch::Read(const Context& context, const std::vector<Key>& rows,
                         std::vector<int8_t>* counters, Outcome* outcomes) const {
  const auto n = static_cast<int64_t>(rows.size());
  counters->assign(static_cast<size_t>(n * dim_), 0);
  RowParts parts;
  parts.values = Rows{reinterpret_cast<char*>(counters->data()), n, dim_};
  Report report;
  if (outcomes != nullptr) report.outcomes = {outcomes, n};
  return table_->ReadRows(context, {rows}, parts, report);
}

Status CountSketch::Write(const Context& context, const std::vector<Key>& rows,
                          const std::vector<int8_t>& counters) {
  const auto n = static_cast<int64_t>(rows.size());
  return table_->Upsert(context, {rows},
                        ConstRows{reinterpret_cast<const char*>(counters.data()), n, dim_}, Stamp(),
                        Report());
}

Status CountSketch::ReadHead(const Context& context, Head* head, bool* known) const {
  std::vector<int8_t> bytes;
  Outcome outcome;
  DYNEMB_RETURN_IF_ERROR(Read(context, {head_key()}, &bytes, &outcome));
  std::memcpy(head, bytes.data(), sizeof(*head));
  *known = outcome == Outcome::kFound && head->layout == kLayout && head->blocks == shape_.blocks &&
           head->processes == shape_.processes && head->noted >= 0 && head->noted <= most_;
  return Status();
}

Status CountSketch::WriteHead(const Context& context, const Head& head) {
  std::vector<int8_t> bytes(static_cast<size_t>(dim_));
  std::memcpy(bytes.data(), &head, sizeof(head));
  return Write(context, {head_key()}, bytes);
}

Status CountSketch::Estimate(const Context& context, Span<const Key> keys, float* estimates) const {
  std::fill_n(estimates, keys.size, 0.0f);
  Head head;
  bool known;
  DYNEMB_RETURN_IF_ERROR(ReadHead(context, &head, &known));
  if (!known) return Status();
  std::vector<Key> rows;
  std::vector<int64_t> places;
  std::vector<int8_t> counters;
  for (int64_t begin = 0; begin < keys.size; begin += kKeysAtOnce) {
    const int64_t end = std::min(keys.size, begin + kKeysAtOnce);
    rows.clear();
    places.clear();
    for (int64_t i = begin; i < end; ++i) {
      for (int hash = 0; hash < kHashes; ++hash) {
        const Counter counter = CounterOf(keys[i], hash);
        places.push_back(static_cast<int64_t>(rows.size()) * dim_ + counter.place);
        rows.push_back(counter.row);
      }
    }
    DYNEMB_RETURN_IF_ERROR(Read(context, rows, &counters));
    for (int64_t i = begin; i < end; ++i) {
      const int64_t* const of_key = &places[static_cast<size_t>((i - begin) * kHashes)];
      int8_t least = kMostCount;
      for (int hash = 0; hash < kHashes; ++hash) {
        least = std::min(least, counters[static_cast<size_t>(of_key[hash])]);
      }
      estimates[i] = std::max<int8_t>(least, 0);  // those of a file may be anything
    }
  }
  return Status();
}

Status CountSketch::Note(const Context& context, Span<const Key> keys, Span<const float> counts) {
  if (keys.empty()) return Status();
  Head head;
  bool known;
  DYNEMB_RETURN_IF_ERROR(ReadHead(context, &head, &known));
  if (!known) {
    if (table_->size() > 0) DYNEMB_RETURN_IF_ERROR(DivideAll(context, 0));
    head = {kLayout, shape_.blocks, shape_.processes, 0};
  }
  for (int64_t begin = 0; begin < keys.size;) {
    // No more than there is room for once all counters have been halved.
    int64_t end = begin, sum = 0;
    while (end < keys.size && end - begin < kKeysAtOnce) {
      sum += CountOf(counts[end]);
      if (end > begin && sum > most_ / 2) break;
      ++end;
    }
    const Span<const Key> some = {&keys[begin], end - begin};
    const Span<const float> of_some = {&counts[begin], end - begin};
    std::vector<Key> rows;
    std::vector<int8_t> counters;
    int64_t raised;
    DYNEMB_RETURN_IF_ERROR(Raise(context, some, of_some, &rows, &counters, &raised));
    if (head.noted + raised > most_) {
      DYNEMB_RETURN_IF_ERROR(DivideAll(context, 2));
      head.noted -= head.noted / 2;
      DYNEMB_RETURN_IF_ERROR(Raise(context, some, of_some, &rows, &counters, &raised));
    }
    head.noted = std::min(head.noted + raised, most_);
    DYNEMB_RETURN_IF_ERROR(WriteHead(context, head));
    DYNEMB_RETURN_IF_ERROR(Write(context, rows, counters));
    begin = end;
  }
  return Status();
}

Status CountSketch::Raise(const Context& context, Span<const Key> keys, Span<const float> counts,
                          std::vector<Key>* rows, std::vector<int8_t>* counters,
                          int64_t* raised) const {
  std::vector<Key> row_of;
  std::vector<int64_t> places;
  for (const Key key : keys) {
    for (int hash = 0; hash < kHashes; ++hash) {
      const Counter counter = CounterOf(key, hash);
      row_of.push_back(counter.row);
      places.push_back(counter.place);
    }
  }
  const DistinctKeys distinct(row_of);
  *rows = distinct.keys();
  DYNEMB_RETURN_IF_ERROR(Read(context, *rows, counters));
  *raised = 0;
  for (int64_t i = 0; i < keys.size; ++i) {
    const int64_t count = CountOf(counts[i]);
    int64_t estimate = kMostCount;
    for (int64_t at = i * kHashes; at < (i + 1) * kHashes; ++at) {
      const auto of_key = static_cast<size_t>(at);
      int8_t& counter =
          (*counters)[static_cast<size_t>(distinct.numbers()[of_key] * dim_ + places[of_key])];
      estimate = std::clamp<int64_t>(counter, 0, estimate);
      counter = std::max(counter, static_cast<int8_t>(count));
    }
    *raised += std::max<int64_t>(count - estimate, 0);
  }
  return Status();
}

Status CountSketch::DivideAll(const Context& context, int divisor) {
  std::vector<Key> keys(static_cast<size_t>(kRowsAtOnce));
  std::vector<int8_t> counters(static_cast<size_t>(kRowsAtOnce * dim_));
  RowParts out;
  out.keys = keys;
  out.values = Rows{reinterpret_cast<char*>(counters.data()), kRowsAtOnce, dim_};
  for (Cursor cursor; !cursor.done;) {
    int64_t count;
    DYNEMB_RETURN_IF_ERROR(table_->Export(context, &cursor, out, &count));
    std::vector<Key> staying, leaving;
    std::vector<int8_t> divided;
    for (int64_t r = 0; r < count; ++r) {
      const auto row = counters.begin() + r * dim_;
      const bool is_head = divisor > 0 && keys[static_cast<size_t>(r)] == head_key();
      if (is_head) continue;
      bool any = false;
      for (auto counter = row; counter != row + dim_; ++counter) {
        *counter = divisor == 0 ? 0 : static_cast<int8_t>(std::max<int8_t>(*counter, 0) / divisor);
        any |= *counter != 0;
      }
      (any ? staying : leaving).push_back(keys[static_cast<size_t>(r)]);
      if (any) divided.insert(divided.end(), row, row + dim_);
    }
    DYNEMB_RETURN_IF_ERROR(Write(context, staying, divided));
    DYNEMB_RETURN_IF_ERROR(table_->Erase(context, {leaving}, Report()));
  }
  return Status();
}

}  // namespace dynemb
