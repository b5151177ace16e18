#include "cc/core/snapshot/block.h"

#include <cstring>

#include "cc/core/base/crc32c.h"

namespace dynemb {
namespace {

constexpr char kMagic[4] = {'D', 'Y', 'B', '1'};
constexpr uint16_t kRequired = 1;
constexpr size_t kChecked = BlockHeader::kBytes - sizeof(uint32_t);

int64_t AlignUp8(int64_t bytes) { return (bytes + 7) / 8 * 8; }

template <typename T>
void Put(T number, char* to) {
  std::memcpy(to, &number, sizeof(number));
}
template <typename T>
T Get(const char* from) {
  T number;
  std::memcpy(&number, from, sizeof(number));
  return number;
}

}  // namespace

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
              "numbers are copied as they lie in memory");

void BlockHeader::Write(char* to) const {
  std::memcpy(to, kMagic, sizeof(kMagic));
  Put(static_cast<uint16_t>(kind), to + 4);
  Put(required ? kRequired : uint16_t{0}, to + 6);
  Put(snapshot, to + 8);
  Put(file, to + 16);
  Put(sequence, to + 20);
  Put(records, to + 24);
  Put(payload_bytes, to + 32);
  Put(payload_crc, to + 40);
  Put(Crc32c({to, kChecked}), to + kChecked);
}

Status BlockHeader::Read(const char* from, BlockHeader* header) {
  if (std::memcmp(from, kMagic, sizeof(kMagic)) != 0) {
    return Status(Code::kDataLoss, "there is no block of a snapshot here");
  }
  if (Get<uint32_t>(from + kChecked) != Crc32c({from, kChecked})) {
    return Status(Code::kDataLoss, "the block's header is damaged: its checksum differs");
  }
  header->kind = static_cast<BlockKind>(Get<uint16_t>(from + 4));
  header->required = (Get<uint16_t>(from + 6) & kRequired) != 0;
  header->snapshot = Get<uint64_t>(from + 8);
  header->file = Get<uint32_t>(from + 16);
  header->sequence = Get<uint32_t>(from + 20);
  header->records = Get<int64_t>(from + 24);
  header->payload_bytes = Get<int64_t>(from + 32);
  header->payload_crc = Get<uint32_t>(from + 40);
  return Status();
}

RowsPayload::RowsPayload(const RowLayout& layout, int64_t rows)
    : values(rows * static_cast<int64_t>(sizeof(Key))),
      slots(values + AlignUp8(rows * layout.value_bytes)),
      meta(slots + AlignUp8(rows * layout.slots_bytes)),
      bytes(meta + AlignUp8(rows * layout.meta_bytes)) {}

}  // namespace dynemb
