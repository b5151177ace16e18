// Numbers in the bytes of files, little-endian as all machines that this is for.
#ifndef TF_DYNEMB_CC_CORE_BASE_BYTES_H_
#define TF_DYNEMB_CC_CORE_BASE_BYTES_H_

#include <cstring>

namespace dynemb {

template <typename T>
void Store(T number, char* to) {
  std::memcpy(to, &number, sizeof(number));
}

template <typename T>
T Load(const char* from) {
  T number;
  std::memcpy(&number, from, sizeof(number));
  return number;
}

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_BASE_BYTES_H_
