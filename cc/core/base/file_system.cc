#include "cc/core/base/file_system.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <new>
#include <system_error>

namespace dynemb {
namespace {

// The status of a system call that has just failed.
Status SystemError(const char* what, const std::string& path) {
  const int error = errno;
  Code code = Code::kInternal;
  if (error == ENOENT || error == ENOTDIR) code = Code::kNotFound;
  if (error == ENOSPC || error == EDQUOT || error == EFBIG || error == ENOMEM || error == EMFILE) {
    code = Code::kResourceExhausted;
  }
  if (error == EACCES || error == EPERM || error == EROFS || error == EISDIR || error == EEXIST) {
    code = Code::kFailedPrecondition;
  }
  if (error == EIO) code = Code::kDataLoss;
  return Status(code, StrCat(what, " ", path, ": ", std::generic_category().message(error)));
}

// An open file descriptor, which it closes.
class Descriptor {
 public:
  Descriptor(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  Status Close() {
    const int fd = fd_;
    fd_ = -1;
    return ::close(fd) == 0 ? Status() : SystemError("close", path_);
  }
  int get() const { return fd_; }
  const std::string& path() const { return path_; }

 private:
  const std::string path_;
  int fd_;
};

Status Open(const std::string& path, int flags, std::unique_ptr<Descriptor>* descriptor) {
  int fd;
  do {
    fd = ::open(path.c_str(), flags | O_CLOEXEC, 0666);
  } while (fd < 0 && errno == EINTR);
  if (fd < 0) return SystemError("open", path);
  *descriptor = std::make_unique<Descriptor>(path, fd);
  return Status();
}

// Also a folder's. A signal only interrupts it.
Status SyncDescriptor(const Descriptor& file) {
  int result;
  do {
    result = ::fsync(file.get());
  } while (result != 0 && errno == EINTR);
  return result == 0 ? Status() : SystemError("sync", file.path());
}

enum class Writes {
  kDurable,
  kUnsynced,
  kSoon,  // durable, and begun before anybody syncs them
};

class PosixWritableFile final : public WritableFile {
 public:
  PosixWritableFile(std::unique_ptr<Descriptor> file, Writes writes)
      : file_(std::move(file)), writes_(writes) {}

  Status Append(std::string_view data) override {
    const int64_t bytes = static_cast<int64_t>(data.size());
    while (!data.empty()) {
      const ssize_t written = ::write(file_->get(), data.data(), data.size());
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) return SystemError("write", file_->path());
      data.remove_prefix(static_cast<size_t>(written));
    }
    // Reads past the page cache would wait for what has not been written. An error is that of a
    // sync, or of nobody.
    if (writes_ == Writes::kSoon) {
      static_cast<void>(::sync_file_range(file_->get(), bytes_, bytes, SYNC_FILE_RANGE_WRITE));
    }
    bytes_ += bytes;
    return Status();
  }
  Status Sync() override {
    return writes_ == Writes::kUnsynced ? Status() : SyncDescriptor(*file_);
  }
  Status Close() override { return file_->Close(); }

 private:
  const std::unique_ptr<Descriptor> file_;
  const Writes writes_;
  int64_t bytes_ = 0;
};

class PosixReadableFile final : public ReadableFile {
 public:
  PosixReadableFile(std::unique_ptr<Descriptor> file, int64_t alignment)
      : file_(std::move(file)), alignment_(alignment) {}

  Status Size(int64_t* bytes) const override {
    struct stat info;
    if (::fstat(file_->get(), &info) != 0) return SystemError("stat", file_->path());
    *bytes = info.st_size;
    return Status();
  }
  Status Read(int64_t offset, int64_t bytes, char* out) const override {
    if (alignment_ == 1) return ReadFrom(offset, bytes, bytes, out);
    const int64_t before = offset % alignment_;
    const int64_t most = AlignedUp(before + bytes);
    const std::unique_ptr<char[]> memory(
        new (std::nothrow) char[static_cast<size_t>(most + alignment_)]);
    if (memory == nullptr) return ResourceExhausted("read ", file_->path(), ": no memory");
    const int64_t address = static_cast<int64_t>(reinterpret_cast<uintptr_t>(memory.get()));
    char* const aligned = memory.get() + (AlignedUp(address) - address);
    DYNEMB_RETURN_IF_ERROR(ReadFrom(offset - before, before + bytes, most, aligned));
    std::memcpy(out, aligned + before, static_cast<size_t>(bytes));
    return Status();
  }
  int descriptor() const override { return file_->get(); }
  int64_t alignment() const override { return alignment_; }

 private:
  int64_t AlignedUp(int64_t number) const {
    return (number + alignment_ - 1) / alignment_ * alignment_;
  }
  // Reads `bytes` at least, and `most` at most.
  Status ReadFrom(int64_t offset, int64_t bytes, int64_t most, char* out) const {
    for (int64_t done = 0; done < bytes;) {
      const ssize_t got =
          ::pread(file_->get(), out + done, static_cast<size_t>(most - done), offset + done);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return SystemError("read", file_->path());
      // Of an aligned read what does not end so is the end of the file.
      if (got == 0 || (got % alignment_ != 0 && done + got < bytes)) {
        return Status(Code::kDataLoss,
                      StrCat("read ", file_->path(), ": got ", offset + done + got,
                             " bytes in all, want ", offset + bytes, "; the file is cut off"));
      }
      done += got;
    }
    return Status();
  }

  const std::unique_ptr<Descriptor> file_;
  const int64_t alignment_;
};

class PosixFileLock final : public FileLock {
 public:
  explicit PosixFileLock(std::unique_ptr<Descriptor> file) : file_(std::move(file)) {}
  // Closing would leave it with the processes that were forked meanwhile and so have the file too.
  ~PosixFileLock() override { ::flock(file_->get(), LOCK_UN); }

 private:
  const std::unique_ptr<Descriptor> file_;
};

Status NoDirectReads(const std::string& path) {
  return FailedPrecondition("open ", path,
                            ": its file system has no direct reads (O_DIRECT); leave direct_io of "
                            "Disk out");
}

// Of O_DIRECT: what every disk takes that is in use.
constexpr int64_t kDirectAlignment = 4096;

class PosixFiles final : public FileSystem {
 public:
  explicit PosixFiles(Writes writes) : writes_(writes) {}

  Status NewWritableFile(const std::string& path, std::unique_ptr<WritableFile>* file) override {
    std::unique_ptr<Descriptor> descriptor;
    DYNEMB_RETURN_IF_ERROR(Open(path, O_WRONLY | O_CREAT | O_TRUNC, &descriptor));
    *file = std::make_unique<PosixWritableFile>(std::move(descriptor), writes_);
    return Status();
  }

  Status NewReadableFile(const std::string& path, std::unique_ptr<ReadableFile>* file) override {
    const bool direct = writes_ == Writes::kSoon;
    std::unique_ptr<Descriptor> descriptor;
    // Without O_NONBLOCK a pipe would wait for somebody to write to it.
    const Status opened = Open(path, O_RDONLY | O_NONBLOCK | (direct ? O_DIRECT : 0), &descriptor);
    if (direct && errno == EINVAL && !opened.ok()) return NoDirectReads(path);
    DYNEMB_RETURN_IF_ERROR(opened);
    struct stat info;
    if (::fstat(descriptor->get(), &info) != 0) return SystemError("stat", path);
    if (!S_ISREG(info.st_mode)) return FailedPrecondition("open ", path, ": it is not a file");
    *file =
        std::make_unique<PosixReadableFile>(std::move(descriptor), direct ? kDirectAlignment : 1);
    return Status();
  }

  Status CheckReads(const std::string& path) override {
    std::unique_ptr<ReadableFile> file;
    DYNEMB_RETURN_IF_ERROR(NewReadableFile(path, &file));
    char byte;
    // Some take the flag, and no read. That the file ends is none of this.
    const Status read = file->Read(0, 1, &byte);
    if (read.ok() || read.code() == Code::kDataLoss) return Status();
    return writes_ == Writes::kSoon ? NoDirectReads(path) : read;
  }

  Status CreateFolder(const std::string& path) override {
    for (size_t end = path.find('/', 1);; end = path.find('/', end + 1)) {
      const std::string folder = path.substr(0, end);
      const size_t last = folder.find_last_of('/');
      const std::string above = last == std::string::npos ? "."
                                : last == 0               ? "/"
                                                          : folder.substr(0, last);
      struct stat info;
      if (::mkdir(folder.c_str(), 0777) == 0) {
        DYNEMB_RETURN_IF_ERROR(SyncFolder(above));
      } else if (errno != EEXIST || ::stat(folder.c_str(), &info) != 0) {
        return SystemError("make folder", folder);
      } else if (!S_ISDIR(info.st_mode)) {
        errno = ENOTDIR;
        return SystemError("make folder", folder);
      } else {
        // Whoever made it may have been killed before the sync. Not all may be ours to sync.
        (void)SyncFolder(above);
      }
      if (end == std::string::npos) return Status();
    }
  }

  Status List(const std::string& folder, std::vector<std::string>* names) override {
    const std::unique_ptr<DIR, int (*)(DIR*)> entries(::opendir(folder.c_str()), ::closedir);
    if (entries == nullptr) return SystemError("list folder", folder);
    names->clear();
    errno = 0;
    while (const dirent* entry = ::readdir(entries.get())) {
      const std::string name = entry->d_name;
      if (name != "." && name != "..") names->push_back(name);
    }
    return errno == 0 ? Status() : SystemError("list folder", folder);
  }

  Status Remove(const std::string& path) override {
    return ::unlink(path.c_str()) == 0 ? Status() : SystemError("remove", path);
  }

  Status Rename(const std::string& from, const std::string& to) override {
    return ::rename(from.c_str(), to.c_str()) == 0 ? Status() : SystemError("rename", from);
  }

  Status SyncFolder(const std::string& folder) override {
    if (writes_ == Writes::kUnsynced) return Status();
    std::unique_ptr<Descriptor> descriptor;
    DYNEMB_RETURN_IF_ERROR(Open(folder, O_RDONLY | O_DIRECTORY, &descriptor));
    const Status synced = SyncDescriptor(*descriptor);
    // Some file systems cannot sync a folder and say EINVAL; their names need no sync.
    return !synced.ok() && errno == EINVAL ? Status() : synced;
  }

  Status SyncFile(const std::string& path) override {
    if (writes_ == Writes::kUnsynced) return Status();
    std::unique_ptr<Descriptor> descriptor;
    DYNEMB_RETURN_IF_ERROR(Open(path, O_RDONLY, &descriptor));
    return SyncDescriptor(*descriptor);
  }

  Status Lock(const std::string& path, std::unique_ptr<FileLock>* lock) override {
    std::unique_ptr<Descriptor> descriptor;
    DYNEMB_RETURN_IF_ERROR(Open(path, O_RDWR | O_CREAT, &descriptor));
    if (::flock(descriptor->get(), LOCK_EX | LOCK_NB) != 0) {
      if (errno == EWOULDBLOCK)
        return FailedPrecondition("lock ", path, ": somebody else holds it");
      return SystemError("lock", path);
    }
    *lock = std::make_unique<PosixFileLock>(std::move(descriptor));
    return Status();
  }

 private:
  const Writes writes_;
};

}  // namespace

FileSystem* PosixFileSystem() {
  // Never destroyed: threads may outlive main.
  static PosixFiles* const files = new PosixFiles(Writes::kDurable);
  return files;
}

FileSystem* UnsyncedFileSystem() {
  static PosixFiles* const files = new PosixFiles(Writes::kUnsynced);
  return files;
}

FileSystem* DirectFileSystem() {
  static PosixFiles* const files = new PosixFiles(Writes::kSoon);
  return files;
}

Status ReadFile(FileSystem* files, const std::string& path, int64_t limit_bytes,
                std::string* data) {
  std::unique_ptr<ReadableFile> file;
  int64_t bytes;
  DYNEMB_RETURN_IF_ERROR(files->NewReadableFile(path, &file));
  DYNEMB_RETURN_IF_ERROR(file->Size(&bytes));
  if (bytes > limit_bytes) {
    return Status(Code::kDataLoss,
                  StrCat(path, ": got ", bytes, " bytes, want at most ", limit_bytes));
  }
  data->resize(static_cast<size_t>(bytes));
  return file->Read(0, bytes, data->data());
}

}  // namespace dynemb
