// WorkerThreads: the storage tiers' own threads.
//
// A call of a tiered table holds the table's lock while its tasks run. Threads of somebody else
// might all wait for that lock, in calls of their own, and would never come to these tasks. So they
// run here, and the caller works on them too. No task may take a lock of a tiered table.
#ifndef TF_DYNEMB_CC_CORE_STORAGE_WORKER_THREADS_H_
#define TF_DYNEMB_CC_CORE_STORAGE_WORKER_THREADS_H_

#include "cc/core/base/context.h"

namespace dynemb {

// As many as processors, with the caller. Lives for ever.
Executor* ComputeThreads();
// More than processors, to have several reads of a disk under way. Lives for ever.
Executor* ReadThreads();

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_STORAGE_WORKER_THREADS_H_
