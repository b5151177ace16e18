// Followers: those of this process. They are shown in TensorFlow's monitoring registry, and end
// before what they work with is destroyed when the process exits.
#ifndef TF_DYNEMB_CC_KERNELS_FOLLOWERS_H_
#define TF_DYNEMB_CC_KERNELS_FOLLOWERS_H_

#include "cc/kernels/follower.h"

namespace dynemb {

// A follower that runs from now on.
void AddFollower(Follower* follower);
// It is about to be destroyed; its counters stay.
void RemoveFollower(Follower* follower);

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_KERNELS_FOLLOWERS_H_
