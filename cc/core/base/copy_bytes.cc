// A file of its own, so that no caller's compiler looks into it.
#include "cc/core/base/copy_bytes.h"

#include <cstring>

#include "cc/core/base/vector_variants.h"

namespace dynemb {
namespace {

// By moves of kMove bytes, of which the last may do some bytes again.
template <int64_t kMove>
DYNEMB_ALWAYS_INLINE void CopyByMoves(int64_t bytes, const RowCopy& copy) {
  int64_t at = 0;
  for (; at + kMove <= bytes; at += kMove) std::memcpy(copy.to + at, copy.from + at, kMove);
  if (at < bytes) std::memcpy(copy.to + bytes - kMove, copy.from + bytes - kMove, kMove);
}

struct CopyRows {
  static DYNEMB_ALWAYS_INLINE void Run(int64_t bytes, const RowCopy* copies, int64_t n) {
    for (int64_t i = 0; i < n; ++i) {
      if (bytes >= 64) {
        CopyByMoves<64>(bytes, copies[i]);
      } else if (bytes >= 16) {
        CopyByMoves<16>(bytes, copies[i]);
      } else {
        std::memcpy(copies[i].to, copies[i].from, static_cast<size_t>(bytes));
      }
    }
  }
};

}  // namespace

void CopyBytes(char* to, const char* from, int64_t bytes) {
  std::memcpy(to, from, static_cast<size_t>(bytes));
}

CopyRowsFunction FastestCopyRows() { return FastestVariant<CopyRows>(); }

}  // namespace dynemb
