#include "cc/core/table/row_layout.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <set>
#include <sstream>
#include <vector>

#include "cc/core/base/number_text.h"
#include "cc/core/initializer/initializer_text.h"
#include "cc/core/optimizer/rule.h"

namespace dynemb {
namespace {

constexpr int kFormat = 1;
constexpr const char* kMetaNames[kMetaFields] = {"used", "count", "score"};

Status BadLine(const std::string& line, const char* want) {
  return InvalidArgument("table schema: got line '", line, "', want ", want);
}

Status ParseLine(const std::vector<std::string>& words, const std::string& line,
                 TableSchema* schema) {
  const std::string& word = words[0];
  double number;
  if (word == "value" && words.size() == 3) {
    if (!ParseDType(words[1], &schema->value_dtype)) return BadLine(line, "a value dtype");
    if (!ParseNumber(words[2], &number) || number != std::floor(number)) {
      return BadLine(line, "a dim");
    }
    schema->dim = number >= 1 && number <= kMaxDim ? static_cast<int64_t>(number) : 0;
  } else if (word == "initializer" && words.size() >= 2) {
    DYNEMB_RETURN_IF_ERROR(
        ParseInitializer({words.begin() + 1, words.end()}, &schema->initializer));
  } else if (word == "key" && words.size() == 2 &&
             (words[1] == "int64" || words[1] == "int32" || words[1] == "string")) {
    schema->key = words[1];
  } else if (word == "strings" && words.size() == 1) {
    schema->strings = true;
  } else if (word == "seed" && words.size() == 2) {
    char* end = nullptr;
    schema->initializer.seed = std::strtoull(words[1].c_str(), &end, 10);
    if (words[1][0] == '-' || end != words[1].c_str() + words[1].size()) {
      return BadLine(line, "an unsigned integer");
    }
  } else if (word == "meta") {
    for (size_t i = 1; i < words.size(); ++i) {
      int field = 0;
      while (field < kMetaFields && words[i] != kMetaNames[field]) ++field;
      if (field == kMetaFields) return BadLine(line, "used, count or score");
      schema->meta.add(static_cast<MetaField>(field));
    }
  } else if (word == "rule" && words.size() == 2) {
    schema->rule.name = words[1];
  } else if (word == "slot" && words.size() == 4 && (words[2] == "column" || words[2] == "row")) {
    if (!ParseNumber(words[3], &number)) return BadLine(line, "a finite initial value");
    schema->rule.slots.push_back({words[1],
                                  words[2] == "row" ? SlotWidth::kRow : SlotWidth::kColumn,
                                  static_cast<float>(number)});
  } else {
    return BadLine(line,
                   "value, key, strings, initializer, seed, meta, rule or slot with its arguments");
  }
  return Status();
}

Status ParseText(std::string_view text, TableSchema* schema) {
  TableSchema parsed;
  std::istringstream lines{std::string(text)};
  std::string line;
  if (!std::getline(lines, line) || line.rfind("dynemb-table ", 0) != 0) {
    return InvalidArgument("table schema: got '", std::string(text).substr(0, 60),
                           "', want a text that begins with 'dynemb-table ", kFormat, "'");
  }
  if (line != StrCat("dynemb-table ", kFormat)) {
    return Status(Code::kUnimplemented,
                  StrCat("table schema: got format '", line, "', this build reads format ", kFormat,
                         "; upgrade tf_dynemb"));
  }
  std::set<std::string> seen;
  while (std::getline(lines, line)) {
    std::istringstream stream(line);
    std::vector<std::string> words;
    for (std::string word; stream >> word;) words.push_back(word);
    if (words.empty()) continue;
    if (!seen.insert(words[0]).second && words[0] != "slot") {
      return BadLine(line, "each line but slot once");
    }
    DYNEMB_RETURN_IF_ERROR(ParseLine(words, line, &parsed));
  }
  if (seen.count("value") == 0) return InvalidArgument("table schema: got no line 'value'");
  DYNEMB_RETURN_IF_ERROR(parsed.Validate());
  *schema = std::move(parsed);
  return Status();
}

}  // namespace

const char* Name(MetaField field) { return kMetaNames[static_cast<int>(field)]; }

std::string TableSchema::ToText() const {
  std::string text = StrCat("dynemb-table ", kFormat, "\nvalue ", Name(value_dtype), " ", dim,
                            "\ninitializer ", InitializerText(initializer));
  text += StrCat("\nseed ", initializer.seed, "\n");
  if (key != "int64") text += "key " + key + "\n";
  if (strings) text += "strings\n";
  if (meta.bits != 0) {
    text += "meta";
    for (int field = 0; field < kMetaFields; ++field) {
      if (meta.has(static_cast<MetaField>(field))) text += StrCat(" ", kMetaNames[field]);
    }
    text += "\n";
  }
  if (!rule.name.empty()) text += "rule " + rule.name + "\n";
  for (const SlotSpec& slot : rule.slots) {
    text += StrCat("slot ", slot.name, slot.width == SlotWidth::kRow ? " row " : " column ",
                   NumberText(slot.initial), "\n");
  }
  return text;
}

Status TableSchema::Parse(std::string_view text, TableSchema* schema) {
  const Status status = ParseText(text, schema);
  return status.ok() ? status : Status(status.code(), Printable(status.message(), 400));
}

Status TableSchema::Validate() const {
  if (dim < 1 || dim > kMaxDim) {
    return InvalidArgument("dim: want 1 to ", kMaxDim, ", got a number outside of it");
  }
  if (strings && key != "string") {
    return InvalidArgument("table schema: strings are kept of keys of ", key, ", want string");
  }
  DYNEMB_RETURN_IF_ERROR(ValidateInitializer(initializer, value_dtype, dim));
  if (rule.name.empty()) {
    return rule.slots.empty() ? Status() : InvalidArgument("table schema: slots without a rule");
  }
  if (!IsFloating(value_dtype)) {
    return InvalidArgument("table schema: rule ", rule.name, " for a table of ", Name(value_dtype));
  }
  // The rule must be known, and its slots be the ones that this build would give it.
  double slot_initial = 0;
  for (const SlotSpec& slot : rule.slots)
    slot_initial = std::max<double>(slot_initial, slot.initial);
  OptimizerSpec known;
  DYNEMB_RETURN_IF_ERROR(MakeOptimizerSpec(rule.name, slot_initial, &known));
  if (!(known == rule)) {
    return InvalidArgument("table schema: got the slots ", rule.DebugString(), ", want ",
                           known.DebugString());
  }
  return Status();
}

Status CheckCompatible(const TableSchema& from, const TableSchema& to) {
  const auto mismatch = [](const char* what, const auto& got, const auto& want) {
    return FailedPrecondition("rows do not fit the table: their ", what, " is ", got,
                              ", the table's is ", want,
                              "; make the table as the one was that they were saved from");
  };
  if (from.key != to.key) return mismatch("key dtype", from.key, to.key);
  if (to.strings && !from.strings) {
    return FailedPrecondition(
        "rows do not fit the table: they come without the strings of their keys, which the table "
        "keeps");
  }
  if (from.value_dtype != to.value_dtype) {
    return mismatch("value dtype", Name(from.value_dtype), Name(to.value_dtype));
  }
  if (from.dim != to.dim) return mismatch("dim", from.dim, to.dim);
  if (!to.rule.name.empty() && !from.rule.name.empty() && !(from.rule == to.rule)) {
    return mismatch("optimizer rule", from.rule.DebugString(), to.rule.DebugString());
  }
  return Status();
}

RowLayout::RowLayout(const TableSchema& schema) {
  dim = schema.dim;
  value_bytes = schema.dim * SizeOf(schema.value_dtype);
  slots_offset = AlignUp8(value_bytes);
  slots_bytes = 0;
  for (const SlotSpec& slot : schema.rule.slots) {
    slots_bytes +=
        (slot.width == SlotWidth::kRow ? 1 : schema.dim) * SizeOf(SlotDType(schema.value_dtype));
  }
  meta_offset = AlignUp8(slots_offset + slots_bytes);
  meta_bytes = 0;
  for (int field = 0; field < kMetaFields; ++field) {
    const bool present = schema.meta.has(static_cast<MetaField>(field));
    meta_field[field] = present ? meta_bytes : -1;
    meta_bytes += present ? 8 : 0;
  }
  row_bytes = meta_offset + meta_bytes;
}

void FillInitialSlots(const TableSchema& schema, char* slots) {
  VisitDType(SlotDType(schema.value_dtype), [&](auto tag) {
    using T = typename decltype(tag)::type;
    T* out = reinterpret_cast<T*>(slots);
    for (const SlotSpec& slot : schema.rule.slots) {
      const int64_t width = slot.width == SlotWidth::kRow ? 1 : schema.dim;
      for (int64_t i = 0; i < width; ++i) *out++ = static_cast<T>(slot.initial);
    }
  });
}

}  // namespace dynemb
