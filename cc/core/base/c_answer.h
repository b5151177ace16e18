// What functions for C return: the code of a Status, whose message stays until the next error of
// the same thread.
#ifndef TF_DYNEMB_CC_CORE_BASE_C_ANSWER_H_
#define TF_DYNEMB_CC_CORE_BASE_C_ANSWER_H_

#include <string>

#include "cc/core/base/no_memory.h"
#include "cc/core/base/status.h"

namespace dynemb {

// The message of the last error of this thread.
inline std::string& LastCError() {
  thread_local std::string message;
  return message;
}

// Runs a call for C: its status as a code, and no exception, of which memory is the only source.
template <typename F>
int AnswerC(const F& call) {
  const Status status = OrNoMemory(call);
  if (!status.ok()) LastCError() = status.message();
  return static_cast<int>(status.code());
}

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_BASE_C_ANSWER_H_
