// What the model is run on: schemas and keys.
#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <random>

#include "cc/core/testing/model_run.h"

namespace dynemb {
namespace {

MetaFields Meta(std::initializer_list<MetaField> fields) {
  MetaFields meta;
  for (const MetaField field : fields) meta.add(field);
  return meta;
}

}  // namespace

std::string ModelCase::Name() const {
  std::string name = StrCat(dynemb::Name(schema.value_dtype), "_", schema.dim);
  const std::string& rule_name = schema.rule.name.empty() ? rule.name : schema.rule.name;
  if (!rule_name.empty()) name += "_" + rule_name;
  return name;
}

std::vector<ModelCase> ModelCases() {
  using F = MetaField;
  using Kind = Distribution::Kind;
  const MetaFields none, all = Meta({F::kLastWriteTime, F::kCount, F::kScore});
  const Distribution uniform{Kind::kUniform, -0.05f, 0.05f}, normal{Kind::kNormal, 0.5f, 2.0f},
      truncated{Kind::kTruncatedNormal, 0.0f, 0.1f}, constant;
  struct Line {
    DType dtype;
    int64_t dim;
    const char* rule;
    MetaFields meta;
    Distribution distribution;
  };
  const Line lines[] = {
      {DType::kFloat32, 8, "adam", all, uniform},
      {DType::kFloat32, 1, "sgd", none, constant},
      {DType::kFloat32, 3, "adagrad", Meta({F::kLastWriteTime}), normal},
      {DType::kFloat32, 64, "rowwise_adagrad", Meta({F::kScore}), uniform},
      {DType::kFloat32, 200, "ftrl", none, truncated},
      {DType::kFloat32, 1024, "lion", Meta({F::kCount}), uniform},
      {DType::kFloat32, 3, "smart_decay_adam", none, normal},
      {DType::kFloat32, 8, "adam_catch_up", Meta({F::kLastWriteTime}), uniform},
      {DType::kFloat64, 1, "rowwise_adagrad", all, normal},
      {DType::kFloat64, 3, "sgd_momentum", Meta({F::kCount}), uniform},
      {DType::kFloat64, 64, "adam_amsgrad", none, truncated},
      {DType::kFloat64, 1024, "sgd_nesterov", Meta({F::kLastWriteTime}), constant},
      {DType::kFloat16, 1, "nadam", Meta({F::kCount, F::kScore}), uniform},
      {DType::kFloat16, 3, "rmsprop", all, normal},
      {DType::kFloat16, 200, "rmsprop_centered_momentum", Meta({F::kScore}), uniform},
      {DType::kBFloat16, 3, "adamax", none, truncated},
      {DType::kBFloat16, 3, "rmsprop_centered_momentum_catch_up", none, normal},
      {DType::kBFloat16, 8, "rmsprop_momentum", Meta({F::kLastWriteTime, F::kCount}), uniform},
      {DType::kBFloat16, 64, "adadelta", all, normal},
      {DType::kBFloat16, 1024, "rmsprop_centered", none, uniform},
      {DType::kInt8, 1, "", Meta({F::kScore}), constant},
      {DType::kInt8, 200, "", none, constant},
      {DType::kInt32, 3, "", all, constant},
      {DType::kInt64, 8, "", Meta({F::kCount}), constant},
  };
  std::vector<ModelCase> cases;
  for (const Line& line : lines) {
    ModelCase c;
    c.schema.value_dtype = line.dtype;
    c.schema.dim = line.dim;
    c.schema.meta = line.meta;
    c.schema.initializer.distribution = line.distribution;
    c.schema.initializer.seed = 0x9876543210 + cases.size();
    c.schema.initializer.constant = {3.0};
    if (line.dim == 3) c.schema.initializer.constant = {1.0, -2.0, 100.0};
    // Every third table is made with its rule; every other one gets further meta fields.
    (cases.size() % 3 == 0 ? c.schema.rule : c.rule) = UsualRule(line.rule);
    if (cases.size() % 2 == 0) c.add_meta = Meta({F::kCount, F::kScore});
    cases.push_back(c);
  }
  return cases;
}

std::vector<Key> DifficultKeys(int64_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<Key> keys = {INT64_MIN, INT64_MIN + 1, -1, 0, 1, INT64_MAX - 1, INT64_MAX};
  const uint64_t high = random(), low = random();
  for (int64_t i = 0; static_cast<int64_t>(keys.size()) < count; ++i) {
    const uint64_t u = static_cast<uint64_t>(i);
    keys.push_back(static_cast<Key>(u) + 1'000'000);
    keys.push_back(-static_cast<Key>(u) - 5000);
    keys.push_back(static_cast<Key>((u + 3) << (u % 2 == 0 ? 20 : 44)));
    if (i < 60) {
      keys.push_back(KeyOfHash((high & ~uint64_t{0xffff}) | u));  // all placed alike
      keys.push_back(KeyOfHash((low & 0xffffffffffff) | u << 48));
    }
    keys.push_back(static_cast<Key>(random()));
  }
  std::sort(keys.begin(), keys.end());
  keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
  std::shuffle(keys.begin(), keys.end(), random);
  return keys;
}

void RandomNumber(DType dtype, std::mt19937_64* random, char* at) {
  VisitDType(dtype, [&](auto tag) {
    using V = typename decltype(tag)::type;
    const uint64_t bits = (*random)();
    V number;
    if constexpr (std::is_integral_v<V>) {
      number = static_cast<V>(bits);
    } else {
      const ComputeType<V> special[] = {0, -0.0f, 1e-41f, 65504.0f, -1e30f, 1.0f / 0.0f};
      number = static_cast<V>(
          bits % 512 == 0
              ? special[bits / 512 % 6]
              : static_cast<ComputeType<V>>(static_cast<int64_t>(bits / 512 % 4001) - 2000) / 1000);
    }
    std::memcpy(at, &number, sizeof(number));
  });
}

}  // namespace dynemb
