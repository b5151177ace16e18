// Bags: how the ids of a batch become one vector per example and feature, for many features of many
// tables in one call; and what the gradient of those vectors is to each id.
//
// Nothing here is as large as (ids, dim): rows are read a few thousand at a time and pooled while
// they are in the cache, and a gradient is never copied to the ids of its bag: a table is told, for
// each of its keys, where the gradient is and what to multiply it by (see table.h, Apply).
#ifndef TF_DYNEMB_CC_CORE_LOOKUP_BAGS_H_
#define TF_DYNEMB_CC_CORE_LOOKUP_BAGS_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "cc/core/base/context.h"
#include "cc/core/base/dtype.h"
#include "cc/core/base/hash.h"
#include "cc/core/base/span.h"
#include "cc/core/base/status.h"
#include "cc/core/table/table.h"

namespace dynemb {

// How the rows v of a bag, with weights w (1 if there are none), become one vector:
//
//   kSum   sum(w v)
//   kMean  sum(w v) / sum(w), zeros where sum(w) is 0
//   kNone  there are no bags: each id gives a vector
enum class Pooling : uint8_t { kSum, kMean, kNone };

// A feature of the output: which feature of the input, in which table.
struct BagFeature {
  int64_t input = 0;
  int64_t table = 0;
  Pooling pooling = Pooling::kSum;
};

// A table as lookups of bags see it. Key k is in shard k mod shards, rounded down.
struct BagTable {
  std::vector<const RowReader*> shards;
  DType value_dtype = DType::kFloat32;
  int64_t dim = 0;
  // If not 0, ids share so many rows: the key of an id is its hash mod hash_size.
  int64_t hash_size = 0;

  Key key_of(Key id) const {
    return hash_size == 0 ? id : static_cast<Key>(Mix64(static_cast<uint64_t>(id)) % hash_size);
  }
};

// The ids of a batch, those of each input feature together, and in it those of each bag. Views of
// the caller's memory.
struct BagInput {
  int64_t features = 0;
  Span<const Key> ids;
  // One per id, or none; numbers of the output's dtype.
  const char* weights = nullptr;
  // For each output feature in turn, the table of each of its ids, in place of the feature's and
  // with rows like its; or empty.
  Span<const int32_t> table_ids;
  // How many bags each input feature has; empty if all have as many, one for each example.
  Span<const int64_t> strides;
  // (features, examples): which of the feature's bags an example has; or empty.
  Span<const int64_t> inverse;
};

class Bags {
 public:
  // `lengths`: how many ids each bag has, int32 or int64. `dtype`: of the output, float32 or
  // float64, as wide as the tables' values at least. Errors: lengths that are negative or do not
  // add up to the ids; numbers of features, tables, bags or examples that do not exist; with
  // pooling, features with different numbers of rows; without, dims that differ, or weights.
  template <typename Length>
  static Status Make(const BagInput& input, Span<const Length> lengths,
                     std::vector<BagFeature> features, std::vector<BagTable> tables, DType dtype,
                     Bags* bags);

  int64_t feature_count() const { return static_cast<int64_t>(features_.size()); }
  int64_t table_count() const { return static_cast<int64_t>(tables_.size()); }
  const BagFeature& feature(int64_t f) const { return features_[f]; }
  const BagTable& table(int64_t t) const { return tables_[t]; }
  const BagInput& input() const { return input_; }
  DType dtype() const { return dtype_; }

  // The output: (rows(), columns()) numbers of dtype(). With pooling there is a row for each
  // example and the columns are those of the features, side by side; without, a row for each id.
  int64_t rows() const { return rows_; }
  int64_t columns() const { return columns_; }
  // How many rows of a feature there are, and where they are, from the begin of the output.
  int64_t rows(int64_t f) const;
  int64_t offset(int64_t f, int64_t row) const {
    return starts_[f] + row * columns_ * SizeOf(dtype_);
  }

  // A bag: ids [begin, end), whose rows' sum is divided by `divisor`.
  struct Bag {
    int64_t begin, end;
    double divisor;
  };
  Bag bag(int64_t f, int64_t row) const;
  std::pair<int64_t, int64_t> ids_of_bag(int64_t f, int64_t row) const;  // [first, second)
  // All ids of a feature: [first, second).
  std::pair<int64_t, int64_t> ids(int64_t f) const {
    const int64_t input = features_[f].input;
    return {begin(first_bag_[input]), begin(first_bag_[input + 1])};
  }
  // How many ids the features of a table have.
  int64_t ids_of_table(int64_t t) const {
    int64_t count = 0;
    for (int64_t f = 0; f < feature_count(); ++f) {
      if (features_[f].table == t) count += ids(f).second - ids(f).first;
    }
    return count;
  }
  // Whether each row of a feature is that of its bag's only id, with nothing to be done to it.
  bool single(int64_t f) const {
    return features_[f].pooling == Pooling::kNone ||
           (single_[features_[f].input] && input_.weights == nullptr);
  }
  // Whether these are all of its ids, in their order.
  bool in_order(int64_t f) const { return single(f) && input_.inverse.empty(); }
  // The table of an id of a feature.
  int64_t table_id(int64_t f, int64_t id) const {
    return input_.table_ids.empty() ? features_[f].table
                                    : input_.table_ids[first_table_id_[f] + id - ids(f).first];
  }
  // The weight of an id.
  double weight(int64_t id) const;

 private:
  Status CheckInput(int64_t bags);
  template <typename Length>
  Status FindIds(Span<const Length> lengths);
  Status CheckFeatures();
  Status ComputeOutputLayout();
  // Of the ids of a bag.
  int64_t begin(int64_t bag) const { return begins_.empty() ? bag : begins_[bag]; }

  BagInput input_;
  std::vector<BagFeature> features_;
  std::vector<BagTable> tables_;
  DType dtype_ = DType::kFloat32;
  std::vector<bool> single_;             // of each input feature: whether all its bags have one id
  std::vector<int64_t> begins_;          // of the ids of each bag, and their number; or, if all are
                                         // single, empty: bag b begins at id b
  std::vector<int64_t> first_bag_;       // of each input feature; at its end, the number of bags
  std::vector<int64_t> first_table_id_;  // of each feature; at its end, the number of table_ids
  std::vector<int64_t> starts_;  // of the columns or rows of each feature in the output, in bytes
  int64_t rows_ = 0, columns_ = 0;
};

// Reads the rows of all bags and pools them to `out`. Bags without ids, and ids without a row, are
// zeros and initial values.
Status FindBags(const Context& context, const Bags& bags, char* out);

// The gradient of the output to what one table gave: for each key where its gradient is, in bytes
// from the begin of the output's gradient, and what to multiply it by (empty: nothing). Keys may
// repeat. Either it owns the keys, or it is a view of the ids of the input, which it must not
// outlive.
class BagGradient {
 public:
  BagGradient() = default;
  // Of ids of which each has its gradient after that of the one before.
  BagGradient(Span<const Key> ids, int64_t first_offset, int64_t stride)
      : keys_(ids), offset_(first_offset), stride_(stride) {}
  // Of `size` keys, to be set.
  BagGradient(int64_t size, bool scaled)
      : own_keys_(new Key[size]),
        offsets_(new int64_t[size]),
        scales_(scaled ? new double[size] : nullptr),
        keys_(own_keys_.get(), size) {}
  void Set(int64_t i, Key key, int64_t offset, double scale) {
    own_keys_[i] = key;
    offsets_[i] = offset;
    if (scales_ != nullptr) scales_[i] = scale;
  }

  Span<const Key> keys() const { return keys_; }
  ConstRows rows(const char* gradient) const {
    if (stride_ > 0) return {gradient + offset_, keys_.size, stride_};
    return {gradient, Span<const int64_t>(offsets_.get(), keys_.size)};
  }
  Span<const double> scales() const { return {scales_.get(), scales_ == nullptr ? 0 : keys_.size}; }

 private:
  std::unique_ptr<Key[]> own_keys_;
  std::unique_ptr<int64_t[]> offsets_;
  std::unique_ptr<double[]> scales_;
  Span<const Key> keys_;
  int64_t offset_ = 0, stride_ = 0;
};
Status GradientOfTable(const Context& context, const Bags& bags, int64_t table,
                       BagGradient* gradient);
constexpr int64_t kGradientNanoseconds = 5;  // about what that takes for an id, for RunCalls

// The gradient of the output to the weight of each id, to `weights`: numbers of bags.dtype().
// `gradient` and `out` are those of the output.
Status GradientOfWeights(const Context& context, const Bags& bags, const char* gradient,
                         const char* out, char* weights);

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_LOOKUP_BAGS_H_
