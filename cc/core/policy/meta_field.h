// MetaField: the facts about a row that restrict and eviction read. They lie in the row's meta.
#ifndef TF_DYNEMB_CC_CORE_POLICY_META_FIELD_H_
#define TF_DYNEMB_CC_CORE_POLICY_META_FIELD_H_

#include <cstdint>

namespace dynemb {

// The pass that writes a row sets them.
enum class MetaField : uint8_t {
  kLastWriteTime,  // `now` of the last write, in the user's unit (steps or time)
  kCount,          // how many calls have written the row
  kScore,          // a policy's own number
};
inline constexpr int kMetaFields = 3;

// A set of meta fields; bit i stands for MetaField(i).
struct MetaFields {
  uint8_t bits = 0;
  bool has(MetaField field) const { return bits >> static_cast<int>(field) & 1; }
  void add(MetaField field) { bits = static_cast<uint8_t>(bits | 1 << static_cast<int>(field)); }
  bool operator==(const MetaFields& o) const { return bits == o.bits; }
};

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_POLICY_META_FIELD_H_
