// Fault injection: a library for LD_PRELOAD by which operations on the files of a folder fail, those of
// Python, of TensorFlow and of the engine. It takes the place of functions of the C library.
//
// Operations are counted: what opens, reads, copies, writes, syncs, closes, makes, renames, locks or
// removes a file or a folder, or lists or looks for one. A write that fails has written the first half,
// and so has the closing of a file with a buffer.
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
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

bool IsCounted(const std::string& path) {
  return counts && !exempt && path.compare(0, folder.size(), folder) == 0;
}

// What an operation on a path comes to.
Outcome OutcomeOf(const std::string& path) {
  if (!IsCounted(path)) return kWorks;
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

Outcome OutcomeOf(int descriptor) { return counts ? OutcomeOf(PathOf(descriptor)) : kWorks; }

// Of a copy, either end of which may lie in the folder.
Outcome OutcomeOf(int from, int to) {
  if (!counts) return kWorks;
  const std::string source = PathOf(from);
  return OutcomeOf(IsCounted(source) ? source : PathOf(to));
}

Outcome OutcomeAt(int place, const char* path) {
  if (!counts || path == nullptr) return kWorks;
  if (path[0] == '/' || place == AT_FDCWD) return OutcomeOf(std::string(path));
  return OutcomeOf(PathOf(place) + "/" + path);
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
ssize_t Write(Outcome outcome, size_t size, Call call) {
  if (outcome == kWorks) return call(size);
  if (outcome != kHasNoEffect) call(outcome == kFails ? size / 2 : size);
  errno = error_number;
  return -1;
}

}  // namespace

#define NEXT(name) static auto* const next = Next<decltype(name)>(#name)

extern "C" {

// From now on the `number`-th operation on what is in the folder fails with an error of errno.h; with
// kFromThereOn all after it, too. `other_threads`: not what the calling thread does.
void fail_operation(const char* of_folder, int64_t number, int how, int with_error,
                    int other_threads) {
  counts = false;
  folder = std::string(of_folder) + "/";
  operations = 0;
  failing = number;
  kind = how;
  error_number = with_error;
  exempt = other_threads != 0;
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
    return Do(OutcomeAt(AT_FDCWD, path), [&] { return next(path, flags, mode); }, -1);        \
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
    return Do(OutcomeAt(place, path), [&] { return next(place, path, flags, mode); }, -1);    \
  }
OPEN_AT(openat)
OPEN_AT(openat64)

#define OPEN_FILE(name)                                                                     \
  FILE* name(const char* path, const char* mode) {                                          \
    NEXT(name);                                                                             \
    return Do(OutcomeAt(AT_FDCWD, path), [&] { return next(path, mode); }, (FILE*)nullptr);   \
  }
OPEN_FILE(fopen)
OPEN_FILE(fopen64)

ssize_t write(int file, const void* data, size_t size) {
  NEXT(write);
  return Write(OutcomeOf(file), size, [&](size_t part) { return next(file, data, part); });
}

#define WRITE_AT(name, offset_type)                                                         \
  ssize_t name(int file, const void* data, size_t size, offset_type offset) {               \
    NEXT(name);                                                                             \
    return Write(OutcomeOf(file), size, [&](size_t part) { return next(file, data, part, offset); });  \
  }
WRITE_AT(pwrite, off_t)
WRITE_AT(pwrite64, off64_t)

size_t fwrite(const void* data, size_t each, size_t count, FILE* file) {
  NEXT(fwrite);
  const ssize_t written = Write(OutcomeOf(fileno(file)), each * count, [&](size_t part) {
    return static_cast<ssize_t>(next(data, 1, part, file));
  });
  return written < 0 || each == 0 ? 0 : static_cast<size_t>(written) / each;
}

// What is in a buffer is written here, by the C library itself: all of it, the first half, or as by a
// process that was killed nothing.
int fclose(FILE* file) {
  NEXT(fclose);
  const Outcome outcome = OutcomeOf(fileno(file));
  if (outcome == kWorks) return next(file);
  const int kept = dup(fileno(file));
  const off64_t before = lseek64(kept, 0, SEEK_END);
  next(file);
  const off64_t after = lseek64(kept, 0, SEEK_END);
  if (outcome != kFailsAfterItsEffect && after > before) {
    const off64_t size = kind == kFromThereOn ? before : before + (after - before) / 2;
    Next<int(int, off64_t)>("ftruncate64")(kept, size);
  }
  Next<int(int)>("close")(kept);
  errno = error_number;
  return EOF;
}

ssize_t copy_file_range(int from, off64_t* from_offset, int to, off64_t* to_offset, size_t size,
                        unsigned flags) {
  NEXT(copy_file_range);
  return Write(OutcomeOf(from, to), size, [&](size_t part) {
    return next(from, from_offset, to, to_offset, part, flags);
  });
}

#define SEND(name, offset_type)                                                             \
  ssize_t name(int to, int from, offset_type* offset, size_t size) {                        \
    NEXT(name);                                                                             \
    return Write(OutcomeOf(from, to), size, [&](size_t part) { return next(to, from, offset, part); });      \
  }
SEND(sendfile, off_t)
SEND(sendfile64, off64_t)

ssize_t read(int file, void* data, size_t size) {
  NEXT(read);
  return Do(OutcomeOf(file), [&] { return next(file, data, size); }, ssize_t{-1});
}

#define READ_AT(name, offset_type)                                                          \
  ssize_t name(int file, void* data, size_t size, offset_type offset) {                     \
    NEXT(name);                                                                             \
    return Do(OutcomeOf(file), [&] { return next(file, data, size, offset); }, ssize_t{-1});    \
  }
READ_AT(pread, off_t)
READ_AT(pread64, off64_t)

// What fails has closed the file all the same.
int close(int file) {
  NEXT(close);
  const Outcome outcome = OutcomeOf(file);
  const int result = next(file);
  if (outcome == kWorks) return result;
  errno = error_number;
  return -1;
}

#define OF_DESCRIPTOR(name)                                                                 \
  int name(int file) {                                                                      \
    NEXT(name);                                                                             \
    return Do(OutcomeOf(file), [&] { return next(file); }, -1);                                 \
  }
OF_DESCRIPTOR(fsync)
OF_DESCRIPTOR(fdatasync)

#define OF_SIZE(name, size_type)                                                            \
  int name(int file, size_type size) noexcept {                                             \
    NEXT(name);                                                                             \
    return Do(OutcomeOf(file), [&] { return next(file, size); }, -1);                           \
  }
OF_SIZE(ftruncate, off_t)
OF_SIZE(ftruncate64, off64_t)

#define OF_PATH(name)                                                                       \
  int name(const char* path) noexcept {                                                     \
    NEXT(name);                                                                             \
    return Do(OutcomeAt(AT_FDCWD, path), [&] { return next(path); }, -1);                     \
  }
OF_PATH(unlink)
OF_PATH(rmdir)

int unlinkat(int place, const char* path, int flags) noexcept {
  NEXT(unlinkat);
  return Do(OutcomeAt(place, path), [&] { return next(place, path, flags); }, -1);
}

int mkdir(const char* path, mode_t mode) noexcept {
  NEXT(mkdir);
  return Do(OutcomeAt(AT_FDCWD, path), [&] { return next(path, mode); }, -1);
}

int rename(const char* from, const char* to) noexcept {
  NEXT(rename);
  return Do(OutcomeAt(AT_FDCWD, to), [&] { return next(from, to); }, -1);
}

int access(const char* path, int mode) noexcept {
  NEXT(access);
  return Do(OutcomeAt(AT_FDCWD, path), [&] { return next(path, mode); }, -1);
}

#define STAT(name, stat_type)                                                               \
  int name(const char* path, stat_type* found) noexcept {                                   \
    NEXT(name);                                                                             \
    return Do(OutcomeAt(AT_FDCWD, path), [&] { return next(path, found); }, -1);              \
  }
STAT(stat, struct stat)
STAT(stat64, struct stat64)
STAT(lstat, struct stat)
STAT(lstat64, struct stat64)

#define STAT_OPEN(name, stat_type)                                                          \
  int name(int file, stat_type* found) noexcept {                                           \
    NEXT(name);                                                                             \
    return Do(OutcomeOf(file), [&] { return next(file, found); }, -1);                      \
  }
STAT_OPEN(fstat, struct stat)
STAT_OPEN(fstat64, struct stat64)

#define STAT_AT(name, stat_type)                                                            \
  int name(int place, const char* path, stat_type* found, int flags) noexcept {             \
    NEXT(name);                                                                             \
    return Do(OutcomeAt(place, path), [&] { return next(place, path, found, flags); }, -1); \
  }
STAT_AT(fstatat, struct stat)
STAT_AT(fstatat64, struct stat64)

// By which programs built beside a C library before 2.33 call stat.
#define OLD_STAT(name, stat_type)                                                           \
  int name(int version, const char* path, stat_type* found) noexcept {                      \
    static auto* const next = Next<int(int, const char*, stat_type*)>(#name);               \
    return Do(OutcomeAt(AT_FDCWD, path), [&] { return next(version, path, found); }, -1);   \
  }
OLD_STAT(__xstat, struct stat)
OLD_STAT(__xstat64, struct stat64)
OLD_STAT(__lxstat, struct stat)
OLD_STAT(__lxstat64, struct stat64)

#define OLD_STAT_OPEN(name, stat_type)                                                      \
  int name(int version, int file, stat_type* found) noexcept {                              \
    static auto* const next = Next<int(int, int, stat_type*)>(#name);                       \
    return Do(OutcomeOf(file), [&] { return next(version, file, found); }, -1);             \
  }
OLD_STAT_OPEN(__fxstat, struct stat)
OLD_STAT_OPEN(__fxstat64, struct stat64)

DIR* opendir(const char* path) {
  NEXT(opendir);
  return Do(OutcomeAt(AT_FDCWD, path), [&] { return next(path); }, (DIR*)nullptr);
}
DIR* fdopendir(int file) {
  NEXT(fdopendir);
  return Do(OutcomeOf(file), [&] { return next(file); }, (DIR*)nullptr);
}

#define READ_FOLDER(name, entry_type)                                                       \
  entry_type* name(DIR* listing) {                                                          \
    NEXT(name);                                                                             \
    return Do(OutcomeOf(dirfd(listing)), [&] { return next(listing); }, (entry_type*)nullptr); \
  }
READ_FOLDER(readdir, struct dirent)
READ_FOLDER(readdir64, struct dirent64)

int flock(int file, int operation) noexcept {
  NEXT(flock);
  return Do(OutcomeOf(file), [&] { return next(file, operation); }, -1);
}

}  // extern "C"
