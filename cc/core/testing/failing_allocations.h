// A program that links failing_allocations has an operator new that fails when a test says so.
#ifndef TF_DYNEMB_CC_CORE_TESTING_FAILING_ALLOCATIONS_H_
#define TF_DYNEMB_CC_CORE_TESTING_FAILING_ALLOCATIONS_H_

#include <cstdint>

namespace dynemb {

// How many allocations of this thread succeed before all fail; -1: all succeed.
extern thread_local int64_t allocations_left;

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_TESTING_FAILING_ALLOCATIONS_H_
