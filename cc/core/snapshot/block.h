// Blocks: the header of each block of a rows file, and where the parts of its payload lie.
// FORMAT.md has every field.
#ifndef TF_DYNEMB_CC_CORE_SNAPSHOT_BLOCK_H_
#define TF_DYNEMB_CC_CORE_SNAPSHOT_BLOCK_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cc/core/base/status.h"
#include "cc/core/table/row_layout.h"
#include "cc/core/table/table.h"

namespace dynemb {

enum class BlockKind : uint16_t {
  kRows = 1,
  kErased = 2,
  kStrings = 3,
  kQuantizedRows = 4,
  kEnd = 255
};

inline bool HasRows(BlockKind kind) {
  return kind == BlockKind::kRows || kind == BlockKind::kQuantizedRows;
}

struct BlockHeader {
  static constexpr int64_t kBytes = 48;

  BlockKind kind = BlockKind::kEnd;
  bool required = true;
  uint64_t snapshot = 0;
  uint32_t file = 0;
  uint32_t sequence = 0;
  int64_t records = 0;
  int64_t payload_bytes = 0;
  uint32_t payload_crc = 0;

  void Write(char* to) const;  // kBytes
  // kDataLoss if the bytes are not a header or are damaged.
  static Status Read(const char* from, BlockHeader* header);
};

// A block is at most so large, unless it has one record only.
inline constexpr int64_t kMaxBlockBytes = int64_t{64} << 20;

// Offsets of the parts in the payload of a rows block.
struct RowsPayload {
  RowsPayload(const RowLayout& layout, int64_t rows);

  int64_t values, slots, meta;  // keys are at 0
  int64_t bytes;
};

// Of a block of quantized rows.
struct QuantizedRowsPayload {
  QuantizedRowsPayload(int64_t dim, int64_t rows);

  int64_t scales, numbers;  // keys are at 0
  int64_t bytes;
};

// The parts of a rows block, given its payload. `Char` is char or const char.
template <typename Parts, typename K, typename Char>
Parts PartsOf(const RowLayout& layout, int64_t rows, Char* payload) {
  const RowsPayload at(layout, rows);
  Parts parts;
  parts.keys = {reinterpret_cast<K*>(payload), rows};
  parts.values = {payload + at.values, rows, layout.value_bytes};
  parts.slots = {payload + at.slots, rows, layout.slots_bytes};
  parts.meta = {payload + at.meta, rows, layout.meta_bytes};
  return parts;
}
inline RowParts MutableParts(const RowLayout& layout, int64_t rows, char* payload) {
  return PartsOf<RowParts, Key>(layout, rows, payload);
}
inline ConstRowParts ConstParts(const RowLayout& layout, int64_t rows, const char* payload) {
  return PartsOf<ConstRowParts, const Key>(layout, rows, payload);
}

// The payload of a strings block, behind `room` bytes for a header.
std::vector<char> StringsPayload(Span<const std::string_view> strings, int64_t room);
// And back; the strings point into the payload. kDataLoss if the lengths do not fit, or a string is
// not that of its key.
Status ParseStrings(Span<const Key> keys, const std::vector<char>& payload,
                    std::vector<std::string_view>* strings);
// kInvalidArgument, or `code`, unless each key is the fingerprint of its string.
Status CheckFingerprints(Span<const Key> keys, Span<const std::string_view> strings,
                         Code code = Code::kInvalidArgument);
// kInvalidArgument, or `code`, unless the key dtype of the schema has each of the keys.
Status CheckKeys(const TableSchema& schema, Span<const Key> keys,
                 Code code = Code::kInvalidArgument);

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_SNAPSHOT_BLOCK_H_
