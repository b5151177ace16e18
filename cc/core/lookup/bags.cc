#include "cc/core/lookup/bags.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>
#include <utility>

#include "cc/core/base/run_calls.h"
#include "cc/core/base/vector_variants.h"
#include "cc/core/lookup/widen.h"
#include "cc/core/shard/routing.h"

namespace dynemb {
namespace {

constexpr int64_t kIdsPerTask = 2048;
constexpr int64_t kNanosecondsPerId = 50;

// out = the sum of n rows, each times its weight if there are weights, and divided; or, if this is
// not the first or last part of a bag, the part of it.
template <typename V, typename O>
struct PoolRows {
  struct Part {
    const char* rows;
    const O* weights;
    int64_t n;
    O divisor;
    bool first, last;
  };
  static DYNEMB_ALWAYS_INLINE void Run(int64_t dim, const Part& part, O* out) {
    ForColumnBlocks(dim, [&](int64_t begin, auto columns) DYNEMB_INLINE_LAMBDA {
      O total[kColumnsOfBlock];
      for (int64_t c = 0; c < columns; ++c) total[c] = part.first ? O(0) : out[begin + c];
      for (int64_t i = 0; i < part.n; ++i) {
        const V* row = reinterpret_cast<const V*>(part.rows) + i * dim + begin;
        const O weight = part.weights == nullptr ? O(1) : part.weights[i];
        for (int64_t c = 0; c < columns; ++c) {
          total[c] += weight * static_cast<O>(static_cast<ComputeType<V>>(row[c]));
        }
      }
      if (part.last && part.divisor != O(1)) {
        for (int64_t c = 0; c < columns; ++c) total[c] /= part.divisor;
      }
      std::memcpy(out + begin, total, columns * sizeof(O));
    });
  }
};

// Part of the rows of a feature, which a task reads.
struct Share {
  int64_t feature, begin, end;
};

void AddShares(const Bags& bags, int64_t f, std::vector<Share>* shares) {
  const int64_t rows = bags.rows(f);
  int64_t ids = rows;
  if (bags.feature(f).pooling != Pooling::kNone && rows > 0) {
    ids = std::max(rows, bags.ids_of_bag(f, rows - 1).second - bags.ids_of_bag(f, 0).first);
  }
  const int64_t step = std::max<int64_t>(1, kIdsPerTask * rows / std::max<int64_t>(1, ids));
  for (int64_t begin = 0; begin < rows; begin += step) {
    shares->push_back({f, begin, std::min(rows, begin + step)});
  }
}

std::vector<Share> SharesOf(const Bags& bags) {
  std::vector<Share> shares;
  for (int64_t f = 0; f < bags.feature_count(); ++f) AddShares(bags, f, &shares);
  return shares;
}

// Reads rows for one task, on the thread that calls it.
class Reader {
 public:
  explicit Reader(const Bags& bags) : bags_(bags) {}

  // The rows of a share, each of which is a single id's.
  Status ReadSingle(const Share& share, const Rows& rows) {
    const BagTable& table = bags_.table(bags_.feature(share.feature).table);
    const BagInput& input = bags_.input();
    if (bags_.in_order(share.feature) && input.table_ids.empty() && table.shards.size() == 1 &&
        table.hash_size == 0) {
      const Key* const ids = input.ids.data + bags_.ids(share.feature).first;
      return Find(table.shards[0], {{ids + share.begin, share.end - share.begin}}, rows);
    }
    std::vector<int64_t> ids;
    for (int64_t row = share.begin; row < share.end; ++row) {
      ids.push_back(bags_.bag(share.feature, row).begin);
    }
    return Read(share.feature, ids, rows);
  }
  // The rows of ids, one after the other or where `rows` says.
  Status Read(int64_t f, Span<const int64_t> ids, const Rows& rows) {
    keys_.clear();
    const BagTable& table = bags_.table(bags_.feature(f).table);
    if (bags_.input().table_ids.empty() && table.shards.size() == 1) {
      for (const int64_t id : ids) keys_.push_back(table.key_of(bags_.input().ids[id]));
      return Find(table.shards[0], {keys_}, rows);
    }
    // The shards of all tables, numbered through.
    shard_ids_.clear();
    for (const int64_t id : ids) {
      const int64_t table_id = bags_.table_id(f, id);
      const BagTable& of_id = bags_.table(table_id);
      keys_.push_back(of_id.key_of(bags_.input().ids[id]));
      shard_ids_.push_back(FirstShard(table_id) +
                           KeyMod(keys_.back(), static_cast<int64_t>(of_id.shards.size())));
    }
    Routing routing;
    const int32_t shards = FirstShard(bags_.table_count());
    DYNEMB_RETURN_IF_ERROR(Routing::Make(context_, keys_, shard_ids_, shards, &routing));
    int32_t shard = 0;
    for (int64_t t = 0; t < bags_.table_count(); ++t) {
      for (const RowReader* const part : bags_.table(t).shards) {
        const Positions* share = routing.share(shard++);
        if (share == nullptr || *share->count > 0) {
          DYNEMB_RETURN_IF_ERROR(Find(part, {keys_, share}, rows));
        }
      }
    }
    return Status();
  }

 private:
  int32_t FirstShard(int64_t table) {
    if (first_shard_.empty()) {
      first_shard_.push_back(0);
      for (int64_t t = 0; t < bags_.table_count(); ++t) {
        first_shard_.push_back(first_shard_.back() +
                               static_cast<int32_t>(bags_.table(t).shards.size()));
      }
    }
    return first_shard_[table];
  }
  Status Find(const RowReader* table, const Batch& batch, const Rows& rows) {
    return table->Find(context_, batch, rows, Report());
  }

  const Bags& bags_;
  const OneThread context_;
  std::vector<Key> keys_;
  std::vector<int32_t> shard_ids_;
  std::vector<int32_t> first_shard_;
};

// The rows of the bags of a share, read kIdsPerTask at a time. Calls
// part(row, bag, first id, number of ids, their rows), for a bag of many ids several times; for one
// without ids once.
template <typename F>
Status ReadShare(const Bags& bags, const Share& share, const F& part) {
  const BagTable& table = bags.table(bags.feature(share.feature).table);
  const int64_t row_bytes = table.dim * SizeOf(table.value_dtype);
  const std::unique_ptr<char[]> scratch(new char[kIdsPerTask * row_bytes]);
  Reader reader(bags);
  struct Piece {
    int64_t row, begin, end;
    Bags::Bag bag;
  };
  std::vector<Piece> pieces;
  std::vector<int64_t> ids;
  const auto flush = [&]() -> Status {
    DYNEMB_RETURN_IF_ERROR(reader.Read(
        share.feature, ids, Rows(scratch.get(), static_cast<int64_t>(ids.size()), row_bytes)));
    const char* rows = scratch.get();
    for (const Piece& piece : pieces) {
      part(piece.row, piece.bag, piece.begin, piece.end - piece.begin, rows);
      rows += (piece.end - piece.begin) * row_bytes;
    }
    ids.clear();
    pieces.clear();
    return Status();
  };
  for (int64_t row = share.begin; row < share.end; ++row) {
    const Bags::Bag bag = bags.bag(share.feature, row);
    int64_t begin = bag.begin;
    do {
      const int64_t room = kIdsPerTask - static_cast<int64_t>(ids.size());
      const int64_t end = std::min(bag.end, begin + room);
      for (int64_t id = begin; id < end; ++id) ids.push_back(id);
      pieces.push_back({row, begin, end, bag});
      begin = end;
      if (static_cast<int64_t>(ids.size()) == kIdsPerTask) DYNEMB_RETURN_IF_ERROR(flush());
    } while (begin < bag.end);
  }
  return flush();
}

Status FindShare(const Bags& bags, const Share& share, char* out) {
  const BagTable& table = bags.table(bags.feature(share.feature).table);
  if (bags.single(share.feature) && table.value_dtype == bags.dtype()) {
    return Reader(bags).ReadSingle(
        share, Rows(out + bags.offset(share.feature, share.begin), share.end - share.begin,
                    bags.columns() * SizeOf(bags.dtype())));
  }
  Status status;
  VisitFloats(table.value_dtype, bags.dtype(), [&](auto value_tag, auto out_tag) {
    using V = typename decltype(value_tag)::type;
    using O = typename decltype(out_tag)::type;
    const auto pool = FastestVariant<PoolRows<V, O>>();
    const O* weights = reinterpret_cast<const O*>(bags.input().weights);
    status = ReadShare(
        bags, share,
        [&](int64_t row, const Bags::Bag& bag, int64_t begin, int64_t n, const char* rows) {
          pool(table.dim,
               {rows, weights == nullptr ? nullptr : weights + begin, n,
                static_cast<O>(bag.divisor), begin == bag.begin, begin + n == bag.end},
               reinterpret_cast<O*>(out + bags.offset(share.feature, row)));
        });
  });
  return status;
}

// About how many ids a share has on average: threads are asked for by what there is to do.
int64_t IdsOfShare(int64_t ids, const std::vector<Share>& shares) {
  int64_t rows = 0;
  for (const Share& share : shares) rows += share.end - share.begin;
  return std::max(rows, ids) / std::max<int64_t>(1, shares.size());
}

// Runs the tasks, and returns the first error.
Status RunAll(const Context& context, int64_t tasks, int64_t ids_of_task,
              const std::function<Status(int64_t)>& task) {
  FirstError error;
  return error.Or(context.executor->Run(tasks, ids_of_task * kNanosecondsPerId,
                                        [&](int64_t i) { error.Add(task(i)); }));
}

}  // namespace

template <typename Length>
Status Bags::Make(const BagInput& input, Span<const Length> lengths,
                  std::vector<BagFeature> features, std::vector<BagTable> tables, DType dtype,
                  Bags* bags) {
  bags->input_ = input;
  bags->features_ = std::move(features);
  bags->tables_ = std::move(tables);
  bags->dtype_ = dtype;
  DYNEMB_RETURN_IF_ERROR(bags->CheckInput(lengths.size));
  DYNEMB_RETURN_IF_ERROR(bags->FindIds(lengths));
  DYNEMB_RETURN_IF_ERROR(bags->CheckFeatures());
  return bags->ComputeOutputLayout();
}
template Status Bags::Make(const BagInput&, Span<const int32_t>, std::vector<BagFeature>,
                           std::vector<BagTable>, DType, Bags*);
template Status Bags::Make(const BagInput&, Span<const int64_t>, std::vector<BagFeature>,
                           std::vector<BagTable>, DType, Bags*);

// Finds the ids of each bag.
template <typename Length>
Status Bags::FindIds(Span<const Length> lengths) {
  bool all_single = lengths.size == input_.ids.size;
  for (int64_t f = 0; f < input_.features; ++f) {
    const Length* const first = lengths.begin() + first_bag_[f];
    const int64_t bags = first_bag_[f + 1] - first_bag_[f];
    single_.push_back(std::count(first, first + bags, Length{1}) == bags);
    all_single = all_single && single_.back();
  }
  if (all_single) return Status();
  begins_.resize(lengths.size + 1);
  int64_t ids = 0;
  for (int64_t b = 0; b < lengths.size; ++b) {
    begins_[b] = ids;
    const int64_t length = lengths[b];
    if (length < 0 || length > input_.ids.size - ids) {
      return InvalidArgument("lengths: got ", length, " for bag ", b, " after bags of ", ids,
                             " ids, want lengths >= 0 that add up to the number of ids, ",
                             input_.ids.size);
    }
    ids += length;
  }
  begins_.back() = ids;
  if (ids == input_.ids.size) return Status();
  return InvalidArgument("lengths: got lengths that add up to ", ids, ", want the number of ids, ",
                         input_.ids.size);
}

// Checks what does not depend on where ids begin, and finds where each feature's bags do.
Status Bags::CheckInput(int64_t bags) {
  const int64_t features = input_.features;
  if (features < 1) return InvalidArgument("inputs: got ", features, " features, want 1 or more");
  if (input_.strides.empty()) {
    if (bags % features != 0) {
      return InvalidArgument("lengths: got ", bags, " for ", features,
                             " features, want as many for each");
    }
    for (int64_t f = 0; f <= features; ++f) first_bag_.push_back(bags / features * f);
    return Status();
  }
  if (input_.strides.size != features) {
    return InvalidArgument("strides: got ", input_.strides.size, ", want one per feature, ",
                           features);
  }
  first_bag_.push_back(0);
  for (const int64_t stride : input_.strides) {
    if (stride < 0 || stride > bags - first_bag_.back()) {
      return InvalidArgument("strides: got ", stride, ", want numbers >= 0 that add up to the ",
                             "number of lengths, ", bags);
    }
    first_bag_.push_back(first_bag_.back() + stride);
  }
  if (first_bag_.back() != bags) {
    return InvalidArgument("strides: got strides that add up to ", first_bag_.back(),
                           ", want the number of lengths, ", bags);
  }
  return Status();
}

Status Bags::CheckFeatures() {
  for (const BagFeature& feature : features_) {
    if (feature.input < 0 || feature.input >= input_.features || feature.table < 0 ||
        feature.table >= table_count()) {
      return InvalidArgument("features: got feature ", feature.input, " in table ", feature.table,
                             ", want 0 to ", input_.features - 1, " and 0 to ", table_count() - 1);
    }
    if (feature.pooling == Pooling::kNone && input_.weights != nullptr) {
      return InvalidArgument("id_weights: got some, want none where nothing is pooled");
    }
  }
  for (const BagTable& table : tables_) {
    if (table.dim < 1 || table.dim > kMaxDim) {
      return InvalidArgument("dims: got ", table.dim, ", want 1 to ", kMaxDim);
    }
    if (!CanWiden(table.value_dtype, dtype_)) {
      return InvalidArgument("dtype: got ", Name(dtype_), " for a table of ",
                             Name(table.value_dtype), ", want a floating dtype at least as wide");
    }
  }
  if (!input_.inverse.empty() && input_.inverse.size % input_.features != 0) {
    return InvalidArgument("inverse: got ", input_.inverse.size, " numbers for ", input_.features,
                           " features, want as many for each");
  }
  if (input_.table_ids.empty()) return Status();
  first_table_id_.push_back(0);
  for (int64_t f = 0; f < feature_count(); ++f) {
    first_table_id_.push_back(first_table_id_.back() + ids(f).second - ids(f).first);
  }
  if (input_.table_ids.size != first_table_id_.back()) {
    return InvalidArgument("table_ids: got ", input_.table_ids.size,
                           ", want one per id of each feature, ", first_table_id_.back());
  }
  for (int64_t f = 0; f < feature_count(); ++f) {
    const BagTable& like = tables_[features_[f].table];
    for (int64_t id = ids(f).first; id < ids(f).second; ++id) {
      const int64_t table_id = this->table_id(f, id);
      if (table_id < 0 || table_id >= table_count()) {
        return InvalidArgument("table_ids: got table ", table_id, " for id ", input_.ids[id],
                               ", want 0 to ", table_count() - 1);
      }
      if (tables_[table_id].dim != like.dim || tables_[table_id].value_dtype != like.value_dtype) {
        return InvalidArgument("table_ids: got table ", table_id, " for id ", input_.ids[id],
                               ", whose rows are not like those of table ", features_[f].table);
      }
    }
  }
  return Status();
}

// Where everything is in the output.
Status Bags::ComputeOutputLayout() {
  bool first = true, pooled = true;
  for (int64_t f = 0; f < feature_count(); ++f) {
    const BagFeature& feature = features_[f];
    const int64_t dim = tables_[feature.table].dim;
    const int64_t rows = this->rows(f);
    if (first) {
      first = false;
      pooled = feature.pooling != Pooling::kNone;
      if (pooled)
        rows_ = rows;
      else
        columns_ = dim;
    }
    if (pooled != (feature.pooling != Pooling::kNone)) {
      return InvalidArgument("poolings: got 'none' beside others");
    }
    if (pooled ? rows != rows_ : dim != columns_) {
      return pooled ? InvalidArgument("features: got one of ", rows, " bags and one of ", rows_,
                                      ", want as many of each, or an inverse")
                    : InvalidArgument("features: got tables of dim ", dim, " and ", columns_,
                                      ", want one dim where nothing is pooled");
    }
    starts_.push_back((pooled ? columns_ : rows_ * columns_) * SizeOf(dtype_));
    (pooled ? columns_ : rows_) += pooled ? dim : rows;
    if (!pooled || input_.inverse.empty()) continue;
    const int64_t bags = first_bag_[feature.input + 1] - first_bag_[feature.input];
    const Span<const int64_t> of_rows(input_.inverse.data + feature.input * rows, rows);
    const int64_t outside = FirstOutside(of_rows, bags);
    if (outside < rows) {
      return InvalidArgument("inverse: got bag ", of_rows[outside], " of feature ", feature.input,
                             ", want 0 to ", bags - 1);
    }
  }
  return Status();
}

int64_t Bags::rows(int64_t f) const {
  const BagFeature& feature = features_[f];
  const int64_t begin = first_bag_[feature.input], end = first_bag_[feature.input + 1];
  if (feature.pooling == Pooling::kNone) return ids(f).second - ids(f).first;
  return input_.inverse.empty() ? end - begin : input_.inverse.size / input_.features;
}

std::pair<int64_t, int64_t> Bags::ids_of_bag(int64_t f, int64_t row) const {
  const BagFeature& feature = features_[f];
  const int64_t first = first_bag_[feature.input];
  if (feature.pooling == Pooling::kNone) return {begin(first) + row, begin(first) + row + 1};
  const int64_t b =
      first + (input_.inverse.empty() ? row : input_.inverse[feature.input * rows_ + row]);
  return {begin(b), begin(b + 1)};
}

Bags::Bag Bags::bag(int64_t f, int64_t row) const {
  const auto [first, end] = ids_of_bag(f, row);
  Bag bag = {first, end, 1};
  if (features_[f].pooling == Pooling::kMean && bag.end > bag.begin) {
    bag.divisor = static_cast<double>(bag.end - bag.begin);
    if (input_.weights != nullptr) {
      bag.divisor = 0;
      for (int64_t id = bag.begin; id < bag.end; ++id) bag.divisor += weight(id);
      if (bag.divisor == 0) bag.divisor = std::numeric_limits<double>::infinity();
    }
  }
  return bag;
}

double Bags::weight(int64_t id) const {
  if (input_.weights == nullptr) return 1;
  return dtype_ == DType::kFloat64 ? reinterpret_cast<const double*>(input_.weights)[id]
                                   : reinterpret_cast<const float*>(input_.weights)[id];
}

Status FindBags(const Context& context, const Bags& bags, char* out) {
  const std::vector<Share> shares = SharesOf(bags);
  return RunAll(context, static_cast<int64_t>(shares.size()),
                IdsOfShare(bags.input().ids.size, shares),
                [&](int64_t i) { return FindShare(bags, shares[i], out); });
}

Status GradientOfTable(const Context& context, const Bags& bags, int64_t table,
                       BagGradient* gradient) {
  const bool has_table_ids = !bags.input().table_ids.empty();
  const BagTable& of = bags.table(table);
  std::vector<Share> shares;
  std::vector<int64_t> features;
  bool scaled = bags.input().weights != nullptr;
  for (int64_t f = 0; f < bags.feature_count(); ++f) {
    if (bags.feature(f).table != table && !has_table_ids) continue;
    features.push_back(f);
    AddShares(bags, f, &shares);
    scaled = scaled || (bags.feature(f).pooling == Pooling::kMean && !bags.single(f));
  }
  if (!has_table_ids && features.size() == 1 && bags.in_order(features[0]) && of.hash_size == 0 &&
      !shares.empty()) {
    const int64_t f = features[0];
    const auto [first, end] = bags.ids(f);
    *gradient = {{bags.input().ids.data + first, end - first},
                 bags.offset(f, 0),
                 bags.columns() * SizeOf(bags.dtype())};
    return Status();
  }
  std::vector<int64_t> ends(shares.size());  // of the ids of a share in the gradient
  const int64_t ids = has_table_ids ? bags.input().ids.size : bags.ids_of_table(table);
  const auto run = [&](int64_t nanoseconds_of_id, const auto& task) {
    return context.executor->Run(static_cast<int64_t>(shares.size()),
                                 IdsOfShare(ids, shares) * nanoseconds_of_id, task);
  };
  DYNEMB_RETURN_IF_ERROR(run(has_table_ids ? 1 : 0, [&](int64_t s) {
    const auto [f, begin, end] = shares[s];
    for (int64_t row = begin; row < end; ++row) {
      const auto [id, id_end] = bags.ids_of_bag(f, row);
      ends[s] += id_end - id;
      if (!has_table_ids) continue;
      for (int64_t i = id; i < id_end; ++i) ends[s] -= bags.table_id(f, i) != table;
    }
  }));
  std::partial_sum(ends.begin(), ends.end(), ends.begin());
  *gradient = BagGradient(ends.empty() ? 0 : ends.back(), scaled);
  return run(4, [&](int64_t s) {
    const auto [f, begin, end] = shares[s];
    int64_t at = s == 0 ? 0 : ends[s - 1];
    for (int64_t row = begin; row < end; ++row) {
      const Bags::Bag bag = bags.bag(f, row);
      const int64_t offset = bags.offset(f, row);
      for (int64_t id = bag.begin; id < bag.end; ++id) {
        if (has_table_ids && bags.table_id(f, id) != table) continue;
        gradient->Set(at++, of.key_of(bags.input().ids[id]), offset, bags.weight(id) / bag.divisor);
      }
    }
  });
}

Status GradientOfWeights(const Context& context, const Bags& bags, const char* gradient,
                         const char* out, char* weights) {
  std::memset(weights, 0, bags.input().ids.size * SizeOf(bags.dtype()));
  // Several rows may have to do with one id; those of an input feature are added up one after the
  // other.
  const int64_t inputs = bags.input().features;
  std::vector<std::vector<Share>> of_input(inputs);
  for (const Share& share : SharesOf(bags)) {
    of_input[bags.feature(share.feature).input].push_back(share);
  }
  return RunAll(context, inputs, bags.input().ids.size / inputs, [&](int64_t input) {
    for (const Share& share : of_input[input]) {
      const BagTable& table = bags.table(bags.feature(share.feature).table);
      Status status;
      VisitFloats(table.value_dtype, bags.dtype(), [&](auto value_tag, auto out_tag) {
        using V = typename decltype(value_tag)::type;
        using O = typename decltype(out_tag)::type;
        status = ReadShare(
            bags, share,
            [&](int64_t row, const Bags::Bag& bag, int64_t begin, int64_t n, const char* rows) {
              const int64_t offset = bags.offset(share.feature, row);
              const O* g = reinterpret_cast<const O*>(gradient + offset);
              const O* pooled = reinterpret_cast<const O*>(out + offset);
              const bool mean = bags.feature(share.feature).pooling == Pooling::kMean;
              for (int64_t i = 0; i < n; ++i) {
                const V* value = reinterpret_cast<const V*>(rows) + i * table.dim;
                double sum = 0;
                for (int64_t c = 0; c < table.dim; ++c) {
                  const double v = static_cast<double>(static_cast<ComputeType<V>>(value[c]));
                  sum += g[c] * (mean ? v - pooled[c] : v);
                }
                reinterpret_cast<O*>(weights)[begin + i] += static_cast<O>(sum / bag.divisor);
              }
            });
      });
      DYNEMB_RETURN_IF_ERROR(status);
    }
    return Status();
  });
}

}  // namespace dynemb
