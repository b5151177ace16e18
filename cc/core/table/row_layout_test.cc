// Schemas as text, what is refused, and where the parts of a row lie.
#include "cc/core/table/row_layout.h"

#include <clocale>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <vector>

#include "cc/core/optimizer/rule.h"
#include "gtest/gtest.h"

namespace dynemb {
namespace {

using Kind = Distribution::Kind;

OptimizerSpec Rule(const std::string& name, double slot_initial = 0.1) {
  OptimizerSpec spec;
  EXPECT_TRUE(MakeOptimizerSpec(name, slot_initial, &spec).ok());
  return spec;
}

constexpr char kExample[] =
    "dynemb-table 1\n"
    "value float32 8\n"
    "initializer uniform -0.05 0.05\n"
    "seed 42\n"
    "meta used\n"
    "rule adagrad\n"
    "slot accumulator column 0.1\n";

TableSchema Example() {
  TableSchema schema;
  schema.dim = 8;
  schema.initializer.distribution = {Kind::kUniform, -0.05f, 0.05f};
  schema.initializer.seed = 42;
  schema.meta.add(MetaField::kLastWriteTime);
  schema.rule = Rule("adagrad");
  return schema;
}

void ExpectEqual(const TableSchema& a, const TableSchema& b) {
  EXPECT_EQ(a.value_dtype, b.value_dtype);
  EXPECT_EQ(a.dim, b.dim);
  EXPECT_EQ(a.initializer.distribution.kind, b.initializer.distribution.kind);
  if (a.initializer.distribution.kind == Kind::kConstant) {
    EXPECT_EQ(a.initializer.constant, b.initializer.constant);
  } else {
    EXPECT_EQ(a.initializer.distribution.a, b.initializer.distribution.a);
    EXPECT_EQ(a.initializer.distribution.b, b.initializer.distribution.b);
  }
  EXPECT_EQ(a.initializer.seed, b.initializer.seed);
  EXPECT_EQ(a.key, b.key);
  EXPECT_EQ(a.strings, b.strings);
  EXPECT_EQ(a.meta, b.meta);
  EXPECT_EQ(a.rule, b.rule);
}

// The text is in every checkpoint: what the header shows must stay readable and be what is written.
TEST(TableSchema, TextIsAsDocumented) {
  EXPECT_EQ(Example().ToText(), kExample);
  TableSchema parsed;
  const Status status = TableSchema::Parse(kExample, &parsed);
  ASSERT_TRUE(status.ok()) << status.message();
  ExpectEqual(parsed, Example());

  TableSchema other;
  other.value_dtype = DType::kInt64;
  other.dim = 2;
  other.initializer.constant = {-3, 4};
  other.initializer.seed = ~uint64_t{0};
  for (int field = 0; field < kMetaFields; ++field) other.meta.add(static_cast<MetaField>(field));
  EXPECT_EQ(other.ToText(),
            "dynemb-table 1\n"
            "value int64 2\n"
            "initializer constant -3 4\n"
            "seed 18446744073709551615\n"
            "meta used count score\n");
}

// A program may set a locale whose decimal point is a comma, if the machine has one.
TEST(TableSchema, TextIsTheSameInAllLocales) {
  const std::string before = std::setlocale(LC_NUMERIC, nullptr);
  for (const char* name : {"de_DE.UTF-8", "fr_FR.UTF-8", "C.UTF-8", "C"}) {
    if (std::setlocale(LC_NUMERIC, name) == nullptr) continue;
    EXPECT_EQ(Example().ToText(), kExample) << name;
    TableSchema parsed;
    EXPECT_TRUE(TableSchema::Parse(kExample, &parsed).ok()) << name;
    ExpectEqual(parsed, Example());
  }
  std::setlocale(LC_NUMERIC, before.c_str());
}

TEST(TableSchema, TextReadsBackToTheSameSchema) {
  std::mt19937_64 random(1);
  const auto any_float = [&] {
    float f;
    do {
      const uint32_t bits = static_cast<uint32_t>(random());
      std::memcpy(&f, &bits, sizeof(f));
    } while (!std::isfinite(f));
    return f;
  };
  for (int i = 0; i < 3000; ++i) {
    TableSchema schema;
    schema.value_dtype = static_cast<DType>(random() % 7);
    schema.dim = 1 + static_cast<int64_t>(random() % (i % 10 == 0 ? kMaxDim : 6));
    schema.initializer.seed = random() >> random() % 64;
    schema.meta.bits = static_cast<uint8_t>(random() % (1 << kMetaFields));
    schema.key = i % 3 == 0 ? "string" : i % 3 == 1 ? "int32" : "int64";
    schema.strings = i % 6 == 0;
    schema.initializer.constant.clear();
    const size_t constants = random() % 2 == 0 || schema.dim > 6 ? 1 : schema.dim;
    for (size_t c = 0; c < constants; ++c) {
      schema.initializer.constant.push_back(
          IsFloating(schema.value_dtype) ? any_float() / 3.0 : static_cast<int8_t>(random()));
    }
    if (IsFloating(schema.value_dtype)) {
      Distribution& d = schema.initializer.distribution;
      d = {static_cast<Kind>(random() % 4), any_float(), any_float()};
      if (d.kind == Kind::kUniform && d.a > d.b) std::swap(d.a, d.b);
      if (d.kind != Kind::kUniform) d.b = std::fabs(d.b);
      const char* names[] = {"sgd", "adam", "rmsprop_centered_momentum", "rowwise_adagrad", "ftrl"};
      if (random() % 4 != 0) schema.rule = Rule(names[random() % 5], std::fabs(any_float()));
    }
    ASSERT_TRUE(schema.Validate().ok()) << schema.Validate().message() << "\n" << schema.ToText();
    TableSchema parsed;
    const Status status = TableSchema::Parse(schema.ToText(), &parsed);
    ASSERT_TRUE(status.ok()) << status.message() << "\n" << schema.ToText();
    ExpectEqual(parsed, schema);
    ASSERT_EQ(parsed.ToText(), schema.ToText());
  }
}

TEST(TableSchema, RefusesTextThatItDoesNotUnderstand) {
  const auto refused = [](Code code, const std::string& text, const std::string& says) {
    TableSchema schema;
    schema.dim = 77;
    const Status status = TableSchema::Parse(text, &schema);
    EXPECT_EQ(status.code(), code) << text;
    EXPECT_NE(status.message().find(says), std::string::npos) << status.message();
    EXPECT_EQ(schema.dim, 77) << "a refused text has changed the schema";
  };
  const auto bad = [&](const std::string& text, const std::string& says) {
    refused(Code::kInvalidArgument, text, says);
  };
  bad("", "dynemb-table 1");
  bad("value float32 8\n", "dynemb-table 1");
  bad(std::string(100'000, 'x'), "dynemb-table 1");
  refused(Code::kUnimplemented, "dynemb-table 2\nvalue float32 8\n", "upgrade");
  refused(Code::kUnimplemented, "dynemb-table 10\n", "upgrade");
  const std::string head = "dynemb-table 1\nvalue float32 8\n";
  bad("dynemb-table 1\n", "value");
  bad(head + "value float32 9\n", "once");
  bad(head + "seed 1\nseed 2\n", "once");
  bad(head + "color blue\n", "color blue");
  bad(head + "seed -1\n", "seed -1");
  bad(head + "seed one\n", "seed one");
  bad(head + "seed\n", "seed");
  bad(head + "meta used age\n", "age");
  bad(head + "initializer gauss 0 1\n", "gauss");
  bad(head + "initializer uniform 0\n", "two numbers");
  bad(head + "initializer uniform 0 1 2\n", "two numbers");
  bad(head + "initializer uniform 0 x\n", "finite numbers");
  bad(head + "initializer constant\n", "at least one number");
  bad(head + "initializer constant nan\n", "finite numbers");
  bad(head + "initializer constant 1 2 3\n", "want 1 or dim = 8");
  bad(head + "slot accumulator column 0.1\n", "without a rule");
  bad(head + "rule adagrad\n", "accumulator");
  bad(head + "rule adagrad\nslot accumulator row 0.1\n", "adagrad");
  bad(head + "rule adagrad\nslot accumulator diagonal 0.1\n", "slot accumulator");
  bad(head + "rule adagrad\nslot accumulator column 1e999\n", "finite");
  bad(head + "rule luck\n", "'luck'");
  for (const char* dim : {"0", "-1", "1.5", "1048577", "1e30", "x", "8 8"}) {
    bad("dynemb-table 1\nvalue float32 " + std::string(dim) + "\n", "");
  }
  bad("dynemb-table 1\nvalue float31 8\n", "dtype");
  // What is not text is not in the message, which must be.
  bad(head + "color \xff\x01\n", "color ??");
  bad(std::string("\0\xff", 2), "got '?");
}

TEST(TableSchema, ValidatesItsParts) {
  const auto expect = [](bool valid, const std::function<void(TableSchema*)>& change) {
    TableSchema schema = Example();
    change(&schema);
    EXPECT_EQ(schema.Validate().code(), valid ? Code::kOk : Code::kInvalidArgument)
        << schema.ToText();
  };
  const float nan = std::nanf(""), infinity = std::numeric_limits<float>::infinity();
  expect(true, [](TableSchema*) {});
  expect(true, [](TableSchema* s) { s->dim = kMaxDim; });
  expect(false, [](TableSchema* s) { s->dim = kMaxDim + 1; });
  expect(false, [](TableSchema* s) { s->dim = 0; });
  expect(false, [](TableSchema* s) { s->dim = INT64_MIN; });
  expect(true, [](TableSchema* s) { s->initializer.distribution = {Kind::kUniform, 1, 1}; });
  expect(false, [](TableSchema* s) { s->initializer.distribution = {Kind::kUniform, 1, 0}; });
  expect(true, [](TableSchema* s) { s->initializer.distribution = {Kind::kNormal, 1, 0}; });
  expect(false, [](TableSchema* s) { s->initializer.distribution = {Kind::kNormal, 1, -1}; });
  for (const float bad : {nan, infinity, -infinity}) {
    for (const Kind kind : {Kind::kUniform, Kind::kNormal, Kind::kTruncatedNormal}) {
      expect(false, [&](TableSchema* s) { s->initializer.distribution = {kind, bad, 1}; });
      expect(false, [&](TableSchema* s) { s->initializer.distribution = {kind, 0, bad}; });
    }
    expect(false, [&](TableSchema* s) {
      s->initializer.distribution = Distribution();
      s->initializer.constant = {bad};
    });
  }
  const auto integers = [](DType dtype, const std::vector<double>& constant) {
    return [=](TableSchema* s) {
      s->value_dtype = dtype;
      s->rule = OptimizerSpec();
      s->dim = 2;
      s->initializer.distribution = Distribution();
      s->initializer.constant = constant;
    };
  };
  expect(true, integers(DType::kInt8, {-128, 127}));
  expect(false, integers(DType::kInt8, {0, 128}));
  expect(false, integers(DType::kInt8, {-129}));
  expect(false, integers(DType::kInt32, {0.5}));
  expect(true, integers(DType::kInt32, {2147483647}));
  expect(false, integers(DType::kInt32, {2147483648}));
  expect(true, integers(DType::kInt64, {-9223372036854775808.0}));
  expect(false, integers(DType::kInt64, {9223372036854775808.0}));
  expect(false, integers(DType::kInt64, {1, 2, 3}));
  expect(false, integers(DType::kInt64, {}));
  expect(false, [](TableSchema* s) {
    s->value_dtype = DType::kInt32;
    s->rule = OptimizerSpec();
  });  // a random start
  expect(false, [&](TableSchema* s) {
    integers(DType::kInt32, {0})(s);
    s->rule = Rule("sgd");
  });
  expect(false, [](TableSchema* s) { s->rule.slots[0].initial = -1; });
  expect(false, [](TableSchema* s) { s->rule.slots[0].name = "sum"; });
  expect(false, [](TableSchema* s) { s->rule.slots.push_back(s->rule.slots[0]); });
  expect(false, [](TableSchema* s) { s->rule.name = ""; });
  expect(true, [](TableSchema* s) { s->rule = OptimizerSpec(); });
}

TEST(CheckCompatible, NamesTheFirstDifference) {
  const auto expect = [](const std::string& says, const std::function<void(TableSchema*)>& change) {
    TableSchema from = Example();
    change(&from);
    const Status status = CheckCompatible(from, Example());
    EXPECT_EQ(status.code(), says.empty() ? Code::kOk : Code::kFailedPrecondition);
    EXPECT_NE(status.message().find(says), std::string::npos) << status.message();
  };
  expect("", [](TableSchema*) {});
  expect("", [](TableSchema* s) { s->initializer.seed = 7; });
  expect("", [](TableSchema* s) { s->rule = OptimizerSpec(); });
  expect("float64", [](TableSchema* s) { s->value_dtype = DType::kFloat64; });
  expect("dim is 9, the table's is 8", [](TableSchema* s) { s->dim = 9; });
  expect("", [](TableSchema* s) { s->meta.add(MetaField::kScore); });
  expect("", [](TableSchema* s) { s->meta = MetaFields(); });
  expect("adam(", [](TableSchema* s) { s->rule = Rule("adam"); });
  expect("accumulator=0.5", [](TableSchema* s) { s->rule = Rule("adagrad", 0.5); });
  TableSchema untrained = Example();
  untrained.rule = OptimizerSpec();
  EXPECT_TRUE(CheckCompatible(Example(), untrained).ok()) << "a table without a rule takes any";
}

TEST(MetaFields, AreASet) {
  MetaFields meta;
  EXPECT_FALSE(meta.has(MetaField::kCount));
  meta.add(MetaField::kCount);
  meta.add(MetaField::kCount);
  EXPECT_TRUE(meta.has(MetaField::kCount));
  EXPECT_FALSE(meta.has(MetaField::kLastWriteTime));
  EXPECT_EQ(meta.bits, 2);
  EXPECT_STREQ(Name(MetaField::kLastWriteTime), "used");
  EXPECT_STREQ(Name(MetaField::kCount), "count");
  EXPECT_STREQ(Name(MetaField::kScore), "score");
}

TEST(RowLayout, PartsFollowEachOtherAligned) {
  std::mt19937_64 random(2);
  for (int i = 0; i < 2000; ++i) {
    TableSchema schema;
    schema.value_dtype = static_cast<DType>(random() % 7);
    schema.dim = 1 + static_cast<int64_t>(random() % 300);
    schema.meta.bits = static_cast<uint8_t>(random() % (1 << kMetaFields));
    int64_t slot_numbers = 0;
    if (IsFloating(schema.value_dtype)) {
      const std::pair<const char*, int64_t> rules[] = {{"sgd", 0},
                                                       {"adagrad", schema.dim},
                                                       {"rowwise_adagrad", 1},
                                                       {"adam_amsgrad", 3 * schema.dim}};
      const auto& [name, numbers] = rules[random() % 4];
      schema.rule = Rule(name);
      slot_numbers = numbers;
    }
    const int64_t slot_size = schema.value_dtype == DType::kFloat64 ? 8 : 4;
    const RowLayout layout(schema);
    EXPECT_EQ(layout.dim, schema.dim);
    EXPECT_EQ(layout.value_bytes, schema.dim * SizeOf(schema.value_dtype));
    EXPECT_EQ(layout.slots_bytes, slot_numbers * slot_size);
    // Each part begins at the next multiple of 8 after the one before.
    EXPECT_GE(layout.slots_offset, layout.value_bytes);
    EXPECT_LT(layout.slots_offset, layout.value_bytes + 8);
    EXPECT_GE(layout.meta_offset, layout.slots_offset + layout.slots_bytes);
    EXPECT_LT(layout.meta_offset, layout.slots_offset + layout.slots_bytes + 8);
    EXPECT_EQ(layout.slots_offset % 8, 0);
    EXPECT_EQ(layout.meta_offset % 8, 0);
    EXPECT_EQ(layout.row_bytes, layout.meta_offset + layout.meta_bytes);
    int64_t next = 0;
    for (int field = 0; field < kMetaFields; ++field) {
      const bool present = schema.meta.has(static_cast<MetaField>(field));
      EXPECT_EQ(layout.meta_field[field], present ? next : -1);
      next += present ? 8 : 0;
    }
    EXPECT_EQ(layout.meta_bytes, next);
  }
}

template <typename T>
void TestInitialSlots(DType dtype) {
  TableSchema schema;
  schema.value_dtype = dtype;
  schema.dim = 3;
  schema.rule = Rule("ftrl", 0.1);
  std::vector<T> slots(7, T{-9});
  FillInitialSlots(schema, reinterpret_cast<char*>(slots.data()));
  const T start = static_cast<T>(0.1f);
  EXPECT_EQ(slots, (std::vector<T>{start, start, start, 0, 0, 0, -9}));
  schema.rule = Rule("rowwise_adagrad", 0.25);
  slots.assign(2, T{-9});
  FillInitialSlots(schema, reinterpret_cast<char*>(slots.data()));
  EXPECT_EQ(slots, (std::vector<T>{0.25, -9}));
}

TEST(RowLayout, InitialSlots) {
  TestInitialSlots<float>(DType::kFloat32);
  TestInitialSlots<float>(DType::kFloat16);
  TestInitialSlots<float>(DType::kBFloat16);
  TestInitialSlots<double>(DType::kFloat64);
}

TEST(TableSchema, KeepsWhatKeysAreMadeOf) {
  TableSchema strings, integers, parsed;
  strings.key = "string";
  ASSERT_TRUE(TableSchema::Parse(strings.ToText(), &parsed).ok());
  EXPECT_EQ(parsed.key, "string");
  ASSERT_TRUE(TableSchema::Parse(integers.ToText(), &parsed).ok());
  EXPECT_EQ(parsed.key, "int64");
  EXPECT_EQ(CheckCompatible(strings, integers).code(), Code::kFailedPrecondition);
  EXPECT_TRUE(CheckCompatible(strings, strings).ok());
  EXPECT_FALSE(TableSchema::Parse("dynemb-table 1\nkey float32\n", &parsed).ok());
}

TEST(TableSchema, KeepsWhetherStringsAreKept) {
  TableSchema kept, dropped, parsed;
  kept.key = dropped.key = "string";
  kept.strings = true;
  ASSERT_TRUE(TableSchema::Parse(kept.ToText(), &parsed).ok());
  EXPECT_TRUE(parsed.strings);
  EXPECT_TRUE(CheckCompatible(kept, kept).ok());
  EXPECT_TRUE(CheckCompatible(kept, dropped).ok());
  EXPECT_EQ(CheckCompatible(dropped, kept).code(), Code::kFailedPrecondition);
  const std::string head = "dynemb-table 1\nvalue float32 8\n";
  EXPECT_TRUE(TableSchema::Parse(head + "strings\nkey string\n", &parsed).ok());
  EXPECT_FALSE(TableSchema::Parse(head + "strings\nkey int32\n", &parsed).ok());
  EXPECT_FALSE(TableSchema::Parse(head + "strings\n", &parsed).ok());
  EXPECT_FALSE(TableSchema::Parse(head + "key string\nstrings yes\n", &parsed).ok());
}

}  // namespace
}  // namespace dynemb
