// EraseLog: which keys were erased from a GPU table in which epoch. Kernels append them to a list
// in the table's memory; from time to time the host takes them to its own.
#ifndef TF_DYNEMB_CC_GPU_TABLE_ERASE_LOG_H_
#define TF_DYNEMB_CC_GPU_TABLE_ERASE_LOG_H_

#include <cstdint>
#include <vector>

#include "cc/core/base/context.h"
#include "cc/core/base/macros.h"
#include "cc/core/base/status.h"
#include "cc/core/table/table.h"
#include "cc/gpu/table/atomics.cu.h"
#include "cc/gpu/table/device_buffer.h"

namespace dynemb {

struct ErasedKey {
  Key key;
  int64_t epoch;
};

// The list as kernels see it.
struct ErasedKeys {
  ErasedKey* keys = nullptr;  // null: changes are not tracked
  int64_t room = 0;
  int64_t* count = nullptr;  // of all that were to be added, maybe more than there is room for
  int64_t epoch = 0;         // the current one

  // False: there is no room.
  DYNEMB_HOST_DEVICE bool Add(Key key) const {
    if (keys == nullptr) return true;
    const int64_t at = AtomicAdd(count, int64_t{1});
    if (at < room) keys[at] = {key, epoch};
    return at < room;
  }
};

// For calls in the order of streams, one at a time.
class EraseLog {
 public:
  explicit EraseLog(DeviceMemory* memory) : memory_(memory) {}

  // From now on keys are noted. What has changed before `epoch` is not known.
  void Begin(int64_t epoch) { known_since_ = epoch - 1; }

  // Has the list room for so many more keys, whatever is in it?
  bool HasRoom(int64_t more) const { return most_there_ + more <= there(0).room; }
  // Makes room for so many more keys: to be drained before if there is none. kResourceExhausted.
  Status MakeRoom(const Context& context, int64_t more);
  ErasedKeys there(int64_t epoch) const;

  // Takes what is in the list to the host, and waits for it. *overflow: keys found no room in the
  // list; where nobody cares it may be null. May throw for want of host memory; call ForgetAll
  // then.
  Status Drain(const Context& context, bool* overflow = nullptr);
  // With more than so many keys at the host the oldest epochs are forgotten.
  void Limit(int64_t most_keys);
  // Forgets this epoch and those before it.
  void Forget(int64_t through);
  // Forgets this epoch and those before it, and what is in the list, without a look at it.
  Status ForgetAll(const Context& context, int64_t through);

  // Are all keys known that were erased in later epochs? Ask after Drain.
  bool Knows(int64_t since) const { return since >= known_since_; }
  // Those with hashes in [first, last], sorted, each once.
  std::vector<Key> Since(int64_t since, uint64_t first, uint64_t last) const;

 private:
  static constexpr int64_t kLeastRoom = 1 << 18;
  static constexpr int64_t kCountBytes = 256;  // the count, before the list

  DeviceMemory* memory_;
  DeviceBuffer there_;
  int64_t most_there_ = 0;       // keys in the list
  std::vector<ErasedKey> here_;  // epochs ascending
  int64_t known_since_ = 0;
};

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_GPU_TABLE_ERASE_LOG_H_
