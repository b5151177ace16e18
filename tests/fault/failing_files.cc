// A library for LD_PRELOAD by which operations on the files of a folder fail, whoever makes them in the
// process: Python, TensorFlow or the engine. It takes the place of functions of the C library.
//
// Operations are counted: what opens, reads, writes, syncs, makes, renames or removes a file or a folder,
// or lists or looks for one. A write that fails has written the first half.
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <string>

namespace {

enum Kind { kOnce = 0, kOnceAfterItsEffect = 1, kFromThereOn = 2 };

std::string folder;  // with a slash; set while nothing is counted
std::atomic<bool> counts{false};
std::atomic<int64_t> operations{0};
int64_t failing = 0;
int kind = kOnce;
int error_number = EIO;
thread_local bool exempt = false;

enum Outcome { kWorks, kFails, kFailsAfterItsEffect, kHasNoEffect };

Outcome Failed(Outcome outcome) {
  errno = error_number;
  return outcome;
}

// What an operation on a path comes to.
Outcome Count(const std::string& path) {
  if (!counts || exempt || path.compare(0, folder.size(), folder) != 0) return kWorks;
  const int64_t number = ++operations;
  if (number == failing) return Failed(kind == kOnceAfterItsEffect ? kFailsAfterItsEffect : kFails);
  return number > failing && kind == kFromThereOn ? Failed(kHasNoEffect) : kWorks;
}

std::string PathOf(int descriptor) {
  char path[PATH_MAX];
  const std::string link = "/proc/self/fd/" + std::to_string(descriptor);
  const ssize_t size = readlink(link.c_str(), path, sizeof path);
  return size < 0 ? std::string() : std::string(path, static_cast<size_t>(size));
}

Outcome Count(int descriptor) { return counts ? Count(PathOf(descriptor)) : kWorks; }
Outcome Count(FILE* file) { return counts ? Count(fileno(file)) : kWorks; }

Outcome CountAt(int place, const char* path) {
  if (!counts || path == nullptr) return kWorks;
  if (path[0] == '/' || place == AT_FDCWD) return Count(std::string(path));
  return Count(PathOf(place) + "/" + path);
}

template <typename Function>
Function* Next(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

// Makes the call unless it fails; `failed` is what a failed one returns.
template <typename Call, typename Result>
Result Do(Outcome outcome, Call call, Result failed) {
  if (outcome == kFails || outcome == kHasNoEffect) return failed;
  const Result result = call();
  if (outcome == kWorks) return result;
  errno = error_number;
  return failed;
}

// Of a write that fails the first half is made.
template <typename Call>
ssize_t Write(int descriptor, size_t size, Call call) {
  const Outcome outcome = Count(descriptor);
  if (outcome == kWorks) return call(size);
  if (outcome != kHasNoEffect) call(outcome == kFails ? size / 2 : size);
  errno = error_number;
  return -1;
}

}  // namespace

#define NEXT(name) static auto* const next = Next<decltype(name)>(#name)

extern "C" {

// From now on the `number`-th operation on what is in the folder fails with an error of errno.h; with
// kFromThereOn all after it, too. `others`: not what the calling thread does.
void fail_operation(const char* of_folder, int64_t number, int how, int with_error, int others) {
  counts = false;
  folder = std::string(of_folder) + "/";
  operations = 0;
  failing = number;
  kind = how;
  error_number = with_error;
  exempt = others != 0;
  counts = true;
}

// No operation fails any more; returns how many there were.
int64_t stop_failing() {
  counts = false;
  exempt = false;
  return operations;
}

int64_t operations_so_far() { return operations; }

#define OPEN(name)                                                                          \
  int name(const char* path, int flags, ...) {                                              \
    NEXT(name);                                                                             \
    va_list arguments;                                                                      \
    va_start(arguments, flags);                                                             \
    const mode_t mode = va_arg(arguments, mode_t);                                          \
    va_end(arguments);                                                                      \
    return Do(CountAt(AT_FDCWD, path), [&] { return next(path, flags, mode); }, -1);        \
  }
OPEN(open)
OPEN(open64)

#define OPEN_AT(name)                                                                       \
  int name(int place, const char* path, int flags, ...) {                                   \
    NEXT(name);                                                                             \
    va_list arguments;                                                                      \
    va_start(arguments, flags);                                                             \
    const mode_t mode = va_arg(arguments, mode_t);                                          \
    va_end(arguments);                                                                      \
    return Do(CountAt(place, path), [&] { return next(place, path, flags, mode); }, -1);    \
  }
OPEN_AT(openat)
OPEN_AT(openat64)

#define OPEN_FILE(name)                                                                     \
  FILE* name(const char* path, const char* mode) {                                          \
    NEXT(name);                                                                             \
    return Do(CountAt(AT_FDCWD, path), [&] { return next(path, mode); }, (FILE*)nullptr);   \
  }
OPEN_FILE(fopen)
OPEN_FILE(fopen64)

ssize_t write(int file, const void* data, size_t size) {
  NEXT(write);
  return Write(file, size, [&](size_t part) { return next(file, data, part); });
}

#define WRITE_AT(name, offset_type)                                                         \
  ssize_t name(int file, const void* data, size_t size, offset_type offset) {               \
    NEXT(name);                                                                             \
    return Write(file, size, [&](size_t part) { return next(file, data, part, offset); });  \
  }
WRITE_AT(pwrite, off_t)
WRITE_AT(pwrite64, off64_t)

size_t fwrite(const void* data, size_t each, size_t count, FILE* file) {
  NEXT(fwrite);
  const ssize_t written = Write(fileno(file), each * count, [&](size_t part) {
    return static_cast<ssize_t>(next(data, 1, part, file));
  });
  return written < 0 || each == 0 ? 0 : static_cast<size_t>(written) / each;
}

// Where all fails, a buffer is lost, as that of a process that was killed.
int fclose(FILE* file) {
  NEXT(fclose);
  const Outcome outcome = Count(file);
  if (outcome == kWorks) return next(file);
  if (kind == kFromThereOn) {
    NEXT(open);
    const int nowhere = next("/dev/null", O_RDWR);
    dup2(nowhere, fileno(file));
    close(nowhere);
  }
  next(file);
  errno = error_number;
  return EOF;
}

ssize_t copy_file_range(int from, off64_t* from_offset, int to, off64_t* to_offset, size_t size,
                        unsigned flags) {
  NEXT(copy_file_range);
  return Write(to, size, [&](size_t part) {
    return next(from, from_offset, to, to_offset, part, flags);
  });
}

#define SEND(name, offset_type)                                                             \
  ssize_t name(int to, int from, offset_type* offset, size_t size) {                        \
    NEXT(name);                                                                             \
    return Write(to, size, [&](size_t part) { return next(to, from, offset, part); });      \
  }
SEND(sendfile, off_t)
SEND(sendfile64, off64_t)

ssize_t read(int file, void* data, size_t size) {
  NEXT(read);
  return Do(Count(file), [&] { return next(file, data, size); }, ssize_t{-1});
}

#define READ_AT(name, offset_type)                                                          \
  ssize_t name(int file, void* data, size_t size, offset_type offset) {                     \
    NEXT(name);                                                                             \
    return Do(Count(file), [&] { return next(file, data, size, offset); }, ssize_t{-1});    \
  }
READ_AT(pread, off_t)
READ_AT(pread64, off64_t)

#define OF_DESCRIPTOR(name)                                                                 \
  int name(int file) {                                                                      \
    NEXT(name);                                                                             \
    return Do(Count(file), [&] { return next(file); }, -1);                                 \
  }
OF_DESCRIPTOR(fsync)
OF_DESCRIPTOR(fdatasync)

#define OF_SIZE(name, size_type)                                                            \
  int name(int file, size_type size) noexcept {                                             \
    NEXT(name);                                                                             \
    return Do(Count(file), [&] { return next(file, size); }, -1);                           \
  }
OF_SIZE(ftruncate, off_t)
OF_SIZE(ftruncate64, off64_t)

#define OF_PATH(name)                                                                       \
  int name(const char* path) noexcept {                                                     \
    NEXT(name);                                                                             \
    return Do(CountAt(AT_FDCWD, path), [&] { return next(path); }, -1);                     \
  }
OF_PATH(unlink)
OF_PATH(rmdir)

int unlinkat(int place, const char* path, int flags) noexcept {
  NEXT(unlinkat);
  return Do(CountAt(place, path), [&] { return next(place, path, flags); }, -1);
}

int mkdir(const char* path, mode_t mode) noexcept {
  NEXT(mkdir);
  return Do(CountAt(AT_FDCWD, path), [&] { return next(path, mode); }, -1);
}

int rename(const char* from, const char* to) noexcept {
  NEXT(rename);
  return Do(CountAt(AT_FDCWD, to), [&] { return next(from, to); }, -1);
}

int access(const char* path, int mode) noexcept {
  NEXT(access);
  return Do(CountAt(AT_FDCWD, path), [&] { return next(path, mode); }, -1);
}

#define STAT(name, stat_type)                                                               \
  int name(const char* path, stat_type* found) noexcept {                                   \
    NEXT(name);                                                                             \
    return Do(CountAt(AT_FDCWD, path), [&] { return next(path, found); }, -1);              \
  }
STAT(stat, struct stat)
STAT(stat64, struct stat64)
STAT(lstat, struct stat)
STAT(lstat64, struct stat64)

// By which programs built beside a C library before 2.33 call stat.
int __xstat(int version, const char* path, struct stat* found) noexcept {
  static auto* const next = Next<int(int, const char*, struct stat*)>("__xstat");
  return Do(CountAt(AT_FDCWD, path), [&] { return next(version, path, found); }, -1);
}
int __xstat64(int version, const char* path, struct stat64* found) noexcept {
  static auto* const next = Next<int(int, const char*, struct stat64*)>("__xstat64");
  return Do(CountAt(AT_FDCWD, path), [&] { return next(version, path, found); }, -1);
}

DIR* opendir(const char* path) {
  NEXT(opendir);
  return Do(CountAt(AT_FDCWD, path), [&] { return next(path); }, (DIR*)nullptr);
}

}  // extern "C"
