// The fingerprint of a string key: FarmHash's Fingerprint64, which never changes and is also what
// TensorFlow's tf.fingerprint gives, so that the engine can tell whether a string belongs to a key.
#ifndef TF_DYNEMB_CC_CORE_BASE_FINGERPRINT_H_
#define TF_DYNEMB_CC_CORE_BASE_FINGERPRINT_H_

#include <cstdint>
#include <string_view>

namespace dynemb {

uint64_t Fingerprint(std::string_view string);

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_BASE_FINGERPRINT_H_
