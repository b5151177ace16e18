// The engine's own threads for what callers wait for.
//
// A call of a tiered table holds the table's lock while its tasks run, and a follower keeps
// requests waiting while it puts rows in place. Threads of somebody else might all wait for that
// lock, in calls of their own, and would never come to these tasks. So they run here, and the
// caller works on them too. No task may take such a lock.
#ifndef TF_DYNEMB_CC_CORE_BASE_WORKER_THREADS_H_
#define TF_DYNEMB_CC_CORE_BASE_WORKER_THREADS_H_

#include "cc/core/base/context.h"

namespace dynemb {

// As many as processors, with the caller. Lives for ever.
Executor* ComputeThreads();
// More than processors, to have several reads of a disk under way. Lives for ever.
Executor* ReadThreads();

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_BASE_WORKER_THREADS_H_
