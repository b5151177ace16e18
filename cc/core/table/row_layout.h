// What a table's rows are made of, described by data: TableSchema; and where each part lies:
// RowLayout.
//
//   row = value | slots | meta
//
// value: `dim` numbers of the value dtype. slots: the optimizer's numbers, of the slot dtype, in
// the order of the rule. meta: 8-byte integers, only those that something uses. Every part starts
// at a multiple of 8 bytes. Export, import and checkpoints carry the three parts as separate packed
// buffers, so that padding is nobody's business but the layout's.
#ifndef TF_DYNEMB_CC_CORE_TABLE_ROW_LAYOUT_H_
#define TF_DYNEMB_CC_CORE_TABLE_ROW_LAYOUT_H_

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "cc/core/base/dtype.h"
#include "cc/core/base/macros.h"
#include "cc/core/base/status.h"
#include "cc/core/initializer/initializer.h"
#include "cc/core/optimizer/optimizer_spec.h"
#include "cc/core/policy/meta_field.h"

namespace dynemb {

const char* Name(MetaField field);

inline constexpr int64_t kMaxDim = int64_t{1} << 20;

struct TableSchema {
  // What keys are made of: int64, int32, or string (fingerprints). The engine sees 64 bits in any
  // case; rows of one kind are not restored into a table of another.
  std::string key = "int64";
  // Whether the table keeps the strings of its keys, see key_strings.h.
  bool strings = false;
  DType value_dtype = DType::kFloat32;
  int64_t dim = 1;
  Initializer initializer;
  MetaFields meta;
  OptimizerSpec rule;

  // The text form, one "word value ..." per line, first line "dynemb-table 1". It is what the
  // DynembTable op's attribute and every checkpoint hold:
  //   dynemb-table 1
  //   value float32 8
  //   key string
  //   strings
  //   initializer uniform -0.05 0.05
  //   seed 42
  //   meta used
  //   rule adagrad
  //   slot accumulator column 0.1
  // (initializer_text.h has the other initializers.) Without a key line keys are int64; without the
  // line `strings` their strings are not kept. A reader refuses a higher number in the first line
  // and words that it does not know.
  std::string ToText() const;
  static Status Parse(std::string_view text, TableSchema* schema);

  // Dim in range, constant of the right length, random initial values only for floating dtypes, ...
  Status Validate() const;
};

// Can rows of `from` be put into a table of `to` (see RowAdapter)? Keys, value dtype and dim must
// be equal; so must the rules, unless one has none; and a table that keeps strings wants rows with
// them. The error names the first difference.
Status CheckCompatible(const TableSchema& from, const TableSchema& to);

// The next multiple of 8.
constexpr int64_t AlignUp8(int64_t bytes) { return (bytes + 7) / 8 * 8; }

struct RowLayout {
  explicit RowLayout(const TableSchema& schema);

  int64_t dim;
  int64_t value_bytes;  // without padding
  int64_t slots_offset;
  int64_t slots_bytes;
  int64_t meta_offset;
  int64_t meta_bytes;
  int64_t row_bytes;  // all, a multiple of 8
  // Offset of a field inside the packed meta, or -1.
  int64_t meta_field[kMetaFields];
};

// A number of a row's meta, wherever it lies.
DYNEMB_HOST_DEVICE inline int64_t ReadInt64(const char* from) {
  int64_t number;
  std::memcpy(&number, from, sizeof(number));
  return number;
}
DYNEMB_HOST_DEVICE inline void WriteInt64(int64_t number, char* to) {
  std::memcpy(to, &number, sizeof(number));
}

// Writes the initial slots of a new row (packed, slot dtype of the schema).
void FillInitialSlots(const TableSchema& schema, char* slots);

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_TABLE_ROW_LAYOUT_H_
