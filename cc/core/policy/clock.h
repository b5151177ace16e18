// The clock of policies that go by time.
#ifndef TF_DYNEMB_CC_CORE_POLICY_CLOCK_H_
#define TF_DYNEMB_CC_CORE_POLICY_CLOCK_H_

#include <cstdint>

namespace dynemb {

// Microseconds since 1970, UTC; but always more than the call before it in this process got, also
// when two calls fall into one microsecond or the system's clock is set back. Thread-safe.
int64_t NextMicrosecond();

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_POLICY_CLOCK_H_
