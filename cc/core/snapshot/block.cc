#include "cc/core/snapshot/block.h"

#include <algorithm>
#include <cstring>

#include "cc/core/base/bytes.h"
#include "cc/core/base/crc32c.h"
#include "cc/core/base/fingerprint.h"

namespace dynemb {
namespace {

constexpr char kMagic[4] = {'D', 'Y', 'B', '1'};
constexpr uint16_t kRequired = 1;
constexpr size_t kChecked = BlockHeader::kBytes - sizeof(uint32_t);

}  // namespace

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
              "numbers are copied as they lie in memory");

void BlockHeader::Write(char* to) const {
  std::memcpy(to, kMagic, sizeof(kMagic));
  Store(static_cast<uint16_t>(kind), to + 4);
  Store(required ? kRequired : uint16_t{0}, to + 6);
  Store(snapshot, to + 8);
  Store(file, to + 16);
  Store(sequence, to + 20);
  Store(records, to + 24);
  Store(payload_bytes, to + 32);
  Store(payload_crc, to + 40);
  Store(Crc32c({to, kChecked}), to + kChecked);
}

Status BlockHeader::Read(const char* from, BlockHeader* header) {
  if (std::memcmp(from, kMagic, sizeof(kMagic)) != 0) {
    return Status(Code::kDataLoss, "there is no block of a snapshot here");
  }
  if (Load<uint32_t>(from + kChecked) != Crc32c({from, kChecked})) {
    return Status(Code::kDataLoss, "the block's header is damaged: its checksum differs");
  }
  header->kind = static_cast<BlockKind>(Load<uint16_t>(from + 4));
  header->required = (Load<uint16_t>(from + 6) & kRequired) != 0;
  header->snapshot = Load<uint64_t>(from + 8);
  header->file = Load<uint32_t>(from + 16);
  header->sequence = Load<uint32_t>(from + 20);
  header->records = Load<int64_t>(from + 24);
  header->payload_bytes = Load<int64_t>(from + 32);
  header->payload_crc = Load<uint32_t>(from + 40);
  return Status();
}

RowsPayload::RowsPayload(const RowLayout& layout, int64_t rows)
    : values(rows * static_cast<int64_t>(sizeof(Key))),
      slots(values + AlignUp8(rows * layout.value_bytes)),
      meta(slots + AlignUp8(rows * layout.slots_bytes)),
      bytes(meta + AlignUp8(rows * layout.meta_bytes)) {}

QuantizedRowsPayload::QuantizedRowsPayload(int64_t dim, int64_t rows)
    : scales(rows * static_cast<int64_t>(sizeof(Key))),
      numbers(scales + AlignUp8(rows * static_cast<int64_t>(sizeof(float)))),
      bytes(numbers + AlignUp8(rows * dim)) {}

std::vector<char> StringsPayload(Span<const std::string_view> strings, int64_t room) {
  int64_t size = strings.size * int64_t{sizeof(int64_t)};
  for (const std::string_view string : strings) size += static_cast<int64_t>(string.size());
  std::vector<char> bytes(static_cast<size_t>(room + AlignUp8(size)));
  char* length = bytes.data() + room;
  char* text = length + strings.size * int64_t{sizeof(int64_t)};
  for (const std::string_view string : strings) {
    Store(static_cast<int64_t>(string.size()), length);
    length += sizeof(int64_t);
    text = std::copy(string.begin(), string.end(), text);
  }
  return bytes;
}

Status ParseStrings(Span<const Key> keys, const std::vector<char>& payload,
                    std::vector<std::string_view>* strings) {
  strings->clear();
  const int64_t lengths_bytes = keys.size * int64_t{sizeof(int64_t)};
  const int64_t text_bytes = static_cast<int64_t>(payload.size()) - lengths_bytes;
  int64_t at = 0;
  for (int64_t i = 0; i < keys.size && text_bytes >= 0; ++i) {
    const int64_t length = Load<int64_t>(payload.data() + i * int64_t{sizeof(int64_t)});
    if (length < 0 || length > text_bytes - at) break;
    strings->emplace_back(payload.data() + lengths_bytes + at, static_cast<size_t>(length));
    at += length;
  }
  if (static_cast<int64_t>(strings->size()) < keys.size || AlignUp8(at) != text_bytes) {
    return Status(Code::kDataLoss,
                  StrCat("the lengths of ", keys.size, " strings are not those of a block of ",
                         payload.size(), " bytes"));
  }
  return CheckFingerprints(keys, *strings, Code::kDataLoss);
}

Status CheckFingerprints(Span<const Key> keys, Span<const std::string_view> strings, Code code) {
  if (strings.size != keys.size) {
    return Status(code, StrCat("strings: got ", strings.size, ", want one per key, ", keys.size));
  }
  for (int64_t i = 0; i < keys.size; ++i) {
    if (static_cast<Key>(Fingerprint(strings[i])) == keys[i]) continue;
    return Status(code, StrCat("key ", keys[i], ": its string is one whose fingerprint is ",
                               static_cast<Key>(Fingerprint(strings[i]))));
  }
  return Status();
}

Status CheckKeys(const TableSchema& schema, Span<const Key> keys, Code code) {
  if (schema.key != "int32") return Status();
  for (const Key key : keys) {
    if (key == static_cast<int32_t>(key)) continue;
    return Status(code, StrCat("key ", key, ": it is beyond int32, the table's key dtype"));
  }
  return Status();
}

}  // namespace dynemb
