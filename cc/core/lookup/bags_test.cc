// Bags against loops over plain maps: what is pooled, what the gradient is to keys and to weights,
// and what is refused.
#include "cc/core/lookup/bags.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "cc/core/shard/routing.h"
#include "cc/core/table/host_table.h"
#include "cc/core/testing/executors.h"

namespace dynemb {
namespace {

using Random = std::mt19937_64;

// Whole numbers and quarters: sums of them are exact, in any order.
double Number(Random* random) { return static_cast<double>((*random)() % 17) / 4 - 2; }

// A table and what it holds.
class Tables {
 public:
  Tables(const std::vector<int64_t>& dims, int64_t shards, DType dtype, Random* random) {
    for (const int64_t dim : dims) {
      TableSchema schema;
      schema.dim = dim;
      schema.value_dtype = dtype;
      BagTable table = {{}, dtype, dim};
      for (int64_t s = 0; s < shards; ++s) {
        held_.emplace_back();
        EXPECT_TRUE(MakeHostTable(schema, &held_.back()).ok());
        table.shards.push_back(held_.back().get());
      }
      std::map<Key, std::vector<double>> rows;
      for (Key key = -20; key < 20; ++key) {
        if (key % 5 == 0) continue;  // these have no row: they read zeros
        for (int64_t c = 0; c < dim; ++c) rows[key].push_back(Number(random));
        Store(table, key, rows[key]);
      }
      tables_.push_back(table);
      rows_.push_back(rows);
    }
  }

  std::vector<double> Row(int64_t t, Key key) const {
    const auto found = rows_[t].find(key);
    return found != rows_[t].end() ? found->second : std::vector<double>(tables_[t].dim);
  }
  std::vector<BagTable>& get() { return tables_; }

 private:
  void Store(const BagTable& table, Key key, const std::vector<double>& row) {
    VisitDType(table.value_dtype, [&](auto tag) {
      using V = typename decltype(tag)::type;
      std::vector<V> values;
      for (const double number : row) values.push_back(static_cast<V>(static_cast<float>(number)));
      const ConstRows rows(reinterpret_cast<const char*>(values.data()), 1, table.dim * sizeof(V));
      const OneThread context;
      const RowReader* const shard =
          table.shards[KeyMod(key, static_cast<int64_t>(table.shards.size()))];
      const auto held = std::find_if(held_.begin(), held_.end(),
                                     [=](const auto& one) { return one.get() == shard; });
      EXPECT_TRUE((*held)->Upsert(context, {{&key, 1}}, rows, {}, {}).ok());
    });
  }

  std::vector<std::unique_ptr<Table>> held_;
  std::vector<BagTable> tables_;
  std::vector<std::map<Key, std::vector<double>>> rows_;
};

struct Case {
  Pooling pooling;
  bool weighted, varying, has_table_ids, hashed;
  int64_t single;  // so many input features have one id in each bag
  int64_t shards;
  DType dtype;
  DType out;
};

template <typename O>
void RunCase(const Case& c, uint64_t seed) {
  Random random(seed);
  const std::vector<int64_t> dims = c.pooling == Pooling::kNone || c.has_table_ids
                                        ? std::vector<int64_t>{3, 3, 3}
                                        : std::vector<int64_t>{3, 70, 1};
  Tables tables(dims, c.shards, c.dtype, &random);
  if (c.hashed) tables.get()[1].hash_size = 7;
  const int64_t examples = 1 + random() % 9, inputs = 3;

  std::vector<int64_t> strides, inverse, lengths;
  std::vector<int64_t> first_bag = {0};
  for (int64_t f = 0; f < inputs; ++f) {
    const int64_t bags = c.varying ? 1 + random() % 4 : examples;
    if (c.varying) strides.push_back(bags);
    for (int64_t e = 0; c.varying && e < examples; ++e) inverse.push_back(random() % bags);
    for (int64_t b = 0; b < bags; ++b) {
      // 5000 are more than a task reads at once.
      lengths.push_back(f < c.single ? 1 : random() % 10 == 0 ? 5000 : random() % 4);
    }
    first_bag.push_back(first_bag.back() + bags);
  }
  std::vector<int64_t> begins = {0};
  for (const int64_t length : lengths) begins.push_back(begins.back() + length);
  std::vector<Key> ids;
  std::vector<O> weights;
  for (int64_t i = 0; i < begins.back(); ++i) {
    ids.push_back(static_cast<Key>(random() % 44) - 22);
    weights.push_back(static_cast<O>(Number(&random)));
  }
  const std::vector<BagFeature> features = {
      {2, 0, c.pooling}, {0, 1, c.pooling}, {2, 1, c.pooling}, {1, 2, c.pooling}};
  std::vector<int32_t> table_ids;
  for (const BagFeature& feature : features) {
    for (int64_t i = begins[first_bag[feature.input]]; i < begins[first_bag[feature.input + 1]];
         ++i) {
      if (c.has_table_ids) table_ids.push_back(random() % 3);
    }
  }
  BagInput input;
  input.features = inputs;
  input.ids = ids;
  if (c.weighted) input.weights = reinterpret_cast<const char*>(weights.data());
  input.table_ids = table_ids;
  input.strides = strides;
  input.inverse = inverse;

  Bags bags;
  const Status made =
      Bags::Make(input, Span<const int64_t>(lengths), features, tables.get(), c.out, &bags);
  ASSERT_TRUE(made.ok()) << made.message();
  ASSERT_EQ(bags.columns(), c.pooling == Pooling::kNone || c.has_table_ids
                                ? (c.pooling == Pooling::kNone ? 3 : 12)
                                : 3 + 70 + 70 + 1);

  // The loops.
  std::vector<double> want(bags.rows() * bags.columns()), gradient(want.size());
  std::vector<double> want_weights(ids.size());
  std::vector<std::map<Key, std::vector<double>>> want_sums(3);
  for (double& g : gradient) g = Number(&random);
  int64_t first_table_id = 0, start = 0;
  for (const BagFeature& feature : features) {
    const int64_t begin = begins[first_bag[feature.input]];
    const int64_t end = begins[first_bag[feature.input + 1]];
    const bool none = c.pooling == Pooling::kNone;
    const int64_t dim = dims[feature.table];
    for (int64_t row = 0; row < (none ? end - begin : examples); ++row) {
      const int64_t bag =
          first_bag[feature.input] + (c.varying ? inverse[feature.input * examples + row] : row);
      const int64_t from = none ? begin + row : begins[bag];
      const int64_t to = none ? from + 1 : begins[bag + 1];
      double divisor = 0;
      for (int64_t i = from; i < to; ++i) divisor += c.weighted ? double{weights[i]} : 1;
      const double share = c.pooling != Pooling::kMean ? 1 : divisor == 0 ? 0 : 1 / divisor;
      const int64_t at = none ? (start + row) * 3 : row * bags.columns() + start;
      std::vector<double> pooled(dim);
      const auto row_of = [&](int64_t i, int64_t* table_id, Key* key) {
        *table_id = c.has_table_ids ? table_ids[first_table_id + i - begin] : feature.table;
        *key = tables.get()[*table_id].key_of(ids[i]);
        return tables.Row(*table_id, *key);
      };
      int64_t table_id;
      Key key;
      for (int64_t i = from; i < to; ++i) {
        const std::vector<double> values = row_of(i, &table_id, &key);
        const double weight = c.weighted ? double{weights[i]} : 1;
        std::vector<double>& sum = want_sums[table_id][key];
        sum.resize(dim);
        for (int64_t k = 0; k < dim; ++k) {
          pooled[k] += share * weight * values[k];
          sum[k] += share * weight * gradient[at + k];
        }
      }
      for (int64_t k = 0; k < dim; ++k) want[at + k] = pooled[k];
      for (int64_t i = from; i < to; ++i) {
        const std::vector<double> values = row_of(i, &table_id, &key);
        for (int64_t k = 0; k < dim; ++k) {
          const double v = c.pooling == Pooling::kMean ? values[k] - pooled[k] : values[k];
          want_weights[i] += share * gradient[at + k] * v;
        }
      }
    }
    first_table_id += end - begin;
    start += none ? end - begin : dim;
  }

  // A mean of thousands rounds as often in the output's dtype.
  const double tolerance = c.out == DType::kFloat64 ? 1e-9 : 2e-3;
  std::vector<O> out(want.size(), O(99)), of_weights(ids.size(), O(99));
  const std::vector<O> g(gradient.begin(), gradient.end());
  BackwardExecutor executor;
  Context context;
  context.executor = &executor;
  ASSERT_TRUE(FindBags(context, bags, reinterpret_cast<char*>(out.data())).ok());
  for (size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(out[i], want[i], tolerance) << i;

  for (int64_t t = 0; t < 3; ++t) {
    BagGradient of_table;
    ASSERT_TRUE(GradientOfTable(context, bags, t, &of_table).ok());
    const ConstRows rows = of_table.rows(reinterpret_cast<const char*>(g.data()));
    std::map<Key, std::vector<double>> sums;
    for (int64_t i = 0; i < of_table.keys().size; ++i) {
      std::vector<double>& sum = sums[of_table.keys()[i]];
      sum.resize(dims[t]);
      const double scale = of_table.scales().empty() ? 1 : of_table.scales()[i];
      for (int64_t k = 0; k < dims[t]; ++k) {
        sum[k] += scale * reinterpret_cast<const O*>(rows[i])[k];
      }
    }
    ASSERT_EQ(sums.size(), want_sums[t].size());
    for (const auto& [key, sum] : want_sums[t]) {
      for (int64_t k = 0; k < dims[t]; ++k) ASSERT_NEAR(sums.at(key)[k], sum[k], 1e-6) << key;
    }
  }
  if (!c.weighted) return;
  ASSERT_TRUE(GradientOfWeights(context, bags, reinterpret_cast<const char*>(g.data()),
                                reinterpret_cast<const char*>(out.data()),
                                reinterpret_cast<char*>(of_weights.data()))
                  .ok());
  for (size_t i = 0; i < ids.size(); ++i) {
    ASSERT_NEAR(of_weights[i], want_weights[i], tolerance * (1 + std::abs(want_weights[i]))) << i;
  }
}

TEST(Bags, AgreeWithLoopsOverMaps) {
  uint64_t seed = 0;
  for (const Pooling pooling : {Pooling::kSum, Pooling::kMean, Pooling::kNone}) {
    for (int bits = 0; bits < 96; ++bits) {
      Case c = {pooling,
                (bits & 1) != 0,
                (bits & 2) != 0,
                (bits & 4) != 0,
                (bits & 8) != 0,
                std::array{0, 2, 3}[bits / 32],
                (bits & 16) != 0 ? 3 : 1,
                DType::kFloat32,
                DType::kFloat32};
      if (pooling == Pooling::kNone && (c.weighted || c.varying)) continue;
      SCOPED_TRACE(testing::Message()
                   << "pooling " << static_cast<int>(pooling) << " bits " << bits);
      RunCase<float>(c, ++seed);
      c.dtype = bits % 2 == 0 ? DType::kFloat16 : DType::kBFloat16;
      RunCase<float>(c, ++seed);
      c.dtype = DType::kFloat64, c.out = DType::kFloat64;
      RunCase<double>(c, ++seed);
      if (HasFatalFailure()) return;
    }
  }
}

// Where a bag is one id its row is not computed with: to the bit it is what was stored.
TEST(Bags, OfOneIdAreTheRowAsItIs) {
  TableSchema schema;
  schema.dim = 2;
  std::unique_ptr<Table> table;
  ASSERT_TRUE(MakeHostTable(schema, &table).ok());
  const std::vector<Key> ids = {5, 7};
  const std::vector<float> stored = {-0.0f, 1.0f, 2.0f, -0.0f};
  const ConstRows rows(reinterpret_cast<const char*>(stored.data()), 2, 2 * sizeof(float));
  ASSERT_TRUE(table->Upsert(OneThread(), {ids}, rows, {}, {}).ok());
  const std::vector<int64_t> lengths = {1, 1}, strides = {2}, inverse = {1, 0, 1};
  for (const bool varying : {false, true}) {
    BagInput input;
    input.features = 1;
    input.ids = ids;
    if (varying) input.strides = strides, input.inverse = inverse;
    Bags bags;
    ASSERT_TRUE(Bags::Make(input, Span<const int64_t>(lengths), {{0, 0, Pooling::kSum}},
                           {{{table.get()}, DType::kFloat32, 2}}, DType::kFloat32, &bags)
                    .ok());
    std::vector<float> out(bags.rows() * 2, 9.0f);
    ASSERT_TRUE(FindBags(OneThread(), bags, reinterpret_cast<char*>(out.data())).ok());
    for (size_t i = 0; i < out.size(); ++i) {
      const int64_t row = varying ? inverse[i / 2] : static_cast<int64_t>(i / 2);
      EXPECT_EQ(out[i], stored[row * 2 + i % 2]);
      EXPECT_EQ(std::signbit(out[i]), std::signbit(stored[row * 2 + i % 2])) << varying << i;
    }
  }
}

// What is refused, each time one thing that does not fit.
TEST(Bags, RefuseWhatDoesNotFit) {
  Random random(1);
  Tables tables({2, 2, 3}, 1, DType::kFloat32, &random);
  const std::vector<Key> ids = {1, 2, 3, 4};
  const std::vector<int64_t> lengths = {1, 1, 2, 0};
  const std::vector<BagFeature> features = {{0, 0, Pooling::kSum}, {1, 1, Pooling::kSum}};
  struct Call {
    BagInput input;
    std::vector<int64_t> lengths;
    std::vector<BagFeature> features;
    DType dtype = DType::kFloat32;
  };
  std::vector<int64_t> strides, inverse;
  std::vector<int32_t> table_ids;
  const auto refused = [&](const char* what, const std::function<void(Call*)>& spoil) {
    Call call = {{}, lengths, features};
    call.input.features = 2;
    call.input.ids = ids;
    spoil(&call);
    Bags bags;
    const Status status = Bags::Make(call.input, Span<const int64_t>(call.lengths), call.features,
                                     tables.get(), call.dtype, &bags);
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << what;
    EXPECT_NE(status.message().find(what), std::string::npos) << status.message();
  };
  refused("lengths: got -1", [](Call* c) { c->lengths = {1, -1, 4, 0}; });
  refused("lengths: got 4", [](Call* c) { c->lengths = {1, 4, 1, 0}; });
  refused("lengths: got", [](Call* c) { c->lengths = {INT64_MAX, 1, 1, 1}; });
  refused("add up to 3", [](Call* c) { c->lengths = {1, 1, 1, 0}; });
  refused("got 3 for 2 features", [](Call* c) { c->lengths = {1, 1, 2}; });
  refused("features: got feature 2", [](Call* c) { c->features[0].input = 2; });
  refused("features: got feature -1", [](Call* c) { c->features[0].input = -1; });
  refused("table 3", [](Call* c) { c->features[0].table = 3; });
  refused("poolings", [](Call* c) { c->features[0].pooling = Pooling::kNone; });
  refused("one dim",
          [](Call* c) { c->features = {{0, 0, Pooling::kNone}, {1, 2, Pooling::kNone}}; });
  refused("dtype: got int32", [](Call* c) { c->dtype = DType::kInt32; });
  refused("strides: got 1", [&](Call* c) { c->input.strides = strides = {1}; });
  refused("strides: got -1", [&](Call* c) { c->input.strides = strides = {-1, 5}; });
  refused("strides: got strides", [&](Call* c) { c->input.strides = strides = {1, 2}; });
  refused("want as many of each", [&](Call* c) { c->input.strides = strides = {1, 3}; });
  refused("inverse: got 3", [&](Call* c) { c->input.inverse = inverse = {0, 1, 0}; });
  refused("inverse: got bag 2", [&](Call* c) { c->input.inverse = inverse = {0, 1, 2, 0}; });
  refused("inverse: got bag -1", [&](Call* c) { c->input.inverse = inverse = {0, 1, -1, 0}; });
  refused("table_ids: got 3", [&](Call* c) { c->input.table_ids = table_ids = {0, 0, 0}; });
  refused("table_ids: got table 3",
          [&](Call* c) { c->input.table_ids = table_ids = {0, 0, 3, 0}; });
  refused("not like", [&](Call* c) { c->input.table_ids = table_ids = {0, 0, 2, 0}; });
  refused("id_weights", [](Call* c) {
    static const float weights[4] = {1, 1, 1, 1};
    c->input.weights = reinterpret_cast<const char*>(weights);
    c->features = {{0, 0, Pooling::kNone}};
  });
}

}  // namespace
}  // namespace dynemb
