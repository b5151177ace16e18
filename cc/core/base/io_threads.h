// The engine's own threads for reading and writing files, so that a save or a restore does not take
// those on which a program computes.
#ifndef TF_DYNEMB_CC_CORE_BASE_IO_THREADS_H_
#define TF_DYNEMB_CC_CORE_BASE_IO_THREADS_H_

#include "cc/core/base/context.h"

namespace dynemb {

// One pool for the process: as many threads as processors, 2 at least and 16 at most, which are
// started with the first call and give way to other threads (Linux: nice 10). The caller of Run
// waits; a Run within a task runs on the task's thread. Lives for ever.
Executor* IoThreads();

struct IoContext : Context {
  IoContext() { executor = IoThreads(); }
};

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_BASE_IO_THREADS_H_
