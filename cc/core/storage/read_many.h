// ReadMany: many reads of files, several of them at a time.
//
// By io_uring (Linux 5.6), where the system has it and lets this process use it: a container often
// does not. It takes a fraction of the processor's time that as many threads take, each of which
// waits for a read of its own; those do it otherwise.
#ifndef TF_DYNEMB_CC_CORE_STORAGE_READ_MANY_H_
#define TF_DYNEMB_CC_CORE_STORAGE_READ_MANY_H_

#include <cstdint>
#include <functional>

#include "cc/core/base/file_system.h"
#include "cc/core/base/span.h"
#include "cc/core/base/status.h"

namespace dynemb {

struct FileRead {
  const ReadableFile* file;
  int64_t offset;
  int64_t bytes;
};

// Calls done(i, bytes) when reads[i] has been read, in any order and from any thread; the bytes are
// gone when it returns. The first error, of a read or of `done`, is returned, and what has not been
// begun by then is left out.
using ReadDone = std::function<Status(int64_t i, const char* bytes)>;
Status ReadMany(Span<const FileRead> reads, const ReadDone& done);

// The two ways.
Status ReadByThreads(Span<const FileRead> reads, const ReadDone& done);
// *possible: false, if the system has no io_uring for this process or a file is none of the
// system's; nothing has been done then.
Status ReadByIoUring(Span<const FileRead> reads, const ReadDone& done, bool* possible);

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_STORAGE_READ_MANY_H_
