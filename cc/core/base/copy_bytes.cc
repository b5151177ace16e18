// A file of its own, so that no caller's compiler looks into it.
#include "cc/core/base/copy_bytes.h"

#include <cstring>

namespace dynemb {

void CopyBytes(char* to, const char* from, int64_t bytes) {
  std::memcpy(to, from, static_cast<size_t>(bytes));
}

}  // namespace dynemb
