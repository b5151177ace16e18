// EvictionPolicy: which rows leave a table that is full, and when a row expires.
//
// Every policy is an order of the rows by one number, the score: the rows with the lowest scores
// leave first, and of equal ones which is decided by the hash of the key. All scores but the norm
// lie in the row's meta and are written by the pass that writes the row.
#ifndef TF_DYNEMB_CC_CORE_POLICY_EVICTION_H_
#define TF_DYNEMB_CC_CORE_POLICY_EVICTION_H_

#include <cstdint>
#include <string_view>

#include "cc/core/base/status.h"
#include "cc/core/policy/meta_field.h"

namespace dynemb {

struct EvictionPolicy {
  enum class Order : uint8_t {
    kNone,           // no row leaves
    kLastWriteTime,  // least recently written first (LRU)
    kCount,          // least often written first (LFU)
    kDecayedCount,   // the same, where a write counts half after each half-life
    kNorm,           // smallest L2 norm of the value first
  };

  Order order = Order::kNone;
  int64_t half_life = 0;  // of kDecayedCount, in units of `now`; 1 or more
  // A row that was not written for longer than this, in units of `now`, counts as missing. 0: rows
  // do not expire.
  int64_t ttl = 0;

  bool evicts() const { return order != Order::kNone; }
  bool expires() const { return ttl > 0; }
  // Whether it depends on `now`, which must then never fall.
  bool uses_time() const {
    return expires() || order == Order::kLastWriteTime || order == Order::kDecayedCount;
  }
  // The meta fields that the rows must have.
  MetaFields meta() const;

  // The text form: "", "lru", "lfu", "lfu half_life 1000" or "norm"; after it may come " ttl 500".
  static Status Parse(std::string_view text, EvictionPolicy* policy);
};

// What a write `now` adds to the score of kDecayedCount, in the form that AddWrite takes.
int64_t DecayedWrite(int64_t now, int64_t half_life);
// The score of a row that has this score, or kNeverWritten, after such a write. It is
//
//   2^24 log2(sum over the writes, at times t, of 2^(t / half_life)),
//
// which orders rows as their decayed counts do at any later moment, without changing while time
// passes (forward decay: Cormode, Shkapenyuk, Srivastava, Xu, "Forward Decay: A Practical Time
// Decay Model for Streaming Systems", 2009). The same to the bit on every machine.
int64_t AddWrite(int64_t score, int64_t write);
inline constexpr int64_t kNeverWritten = INT64_MIN;

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_POLICY_EVICTION_H_
