// OrNoMemory: where std::bad_alloc ends.
//
// The engine throws nothing itself, but its containers throw where there is no memory for them. A
// function that is called by code without exceptions (a thread, TensorFlow, C) returns a Status
// instead.
#ifndef TF_DYNEMB_CC_CORE_BASE_NO_MEMORY_H_
#define TF_DYNEMB_CC_CORE_BASE_NO_MEMORY_H_

#include <new>
#include <stdexcept>
#include <type_traits>

#include "cc/core/base/status.h"

namespace dynemb {

// Short enough that it takes no memory itself.
inline Status NoMemory() { return Status(Code::kResourceExhausted, "out of memory"); }

// Calls f(). Returns its Status, or OK if it returns nothing; NoMemory() if it ran out of memory.
template <typename F>
Status OrNoMemory(const F& f) {
  try {
    if constexpr (std::is_void_v<decltype(f())>) {
      f();
      return Status();
    } else {
      return f();
    }
  } catch (const std::bad_alloc&) {
    return NoMemory();
  } catch (const std::length_error&) {  // more than any memory
    return NoMemory();
  }
}

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_BASE_NO_MEMORY_H_
