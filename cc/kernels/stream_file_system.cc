// StreamFileSystem: feeds of other machines as one of TensorFlow's file systems. feed://host:port
// is the folder that `tf-dynemb feed` or Publisher(stream=...) serves there (tf_dynemb_cli/
// feed_server.py), feeds://host:port the same over TLS. So followers, in C++ and in Python, read it
// as they read any other folder.
//
// A file is read by GET and a range of bytes, a folder is listed by GET of its path with a slash
// (a name each line), a follower's heartbeat is a PUT and a DELETE. All else is kUnimplemented.
//
// TF_DYNEMB_FEED_SECRET, an environment variable, is sent with each request; TF_DYNEMB_FEED_CA is a
// file of certificates to trust instead of the machine's.
#include <algorithm>
#include <cctype>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "cc/kernels/http_client.h"
#include "tensorflow/core/platform/env.h"
#include "tensorflow/core/platform/file_system.h"

namespace dynemb {
namespace {

constexpr absl::string_view kPlain = "feed://", kTls = "feeds://";

std::string Environment(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

absl::Status ReadOnly(absl::string_view path) {
  return absl::UnimplementedError(
      absl::StrCat(path,
                   ": a feed that is served at feed:// can be read alone, and followers' "
                   "heartbeats written; publish into the folder that is served"));
}

// A request for a path of this file system.
absl::Status NewRequest(const std::string& method, absl::string_view path, HttpRequest* request) {
  const bool is_tls = absl::StartsWith(path, kTls);
  const absl::string_view place =
      path.substr(std::min(path.size(), (is_tls ? kTls : kPlain).size()));
  const bool is_plain_text = std::all_of(place.begin(), place.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || (c != 0 && std::strchr("-._:/[]", c) != nullptr);
  });
  if (place.empty() || place[0] == '/' || !is_plain_text) {
    return absl::InvalidArgumentError(absl::StrCat(
        "got '", path, "', want ", is_tls ? kTls : kPlain, "host:port and names in the feed"));
  }
  request->method = method;
  request->url = absl::StrCat(is_tls ? "https://" : "http://", place);
  request->bearer_token = Environment("TF_DYNEMB_FEED_SECRET");
  request->ca_file = Environment("TF_DYNEMB_FEED_CA");
  return absl::OkStatus();
}

absl::Status Ask(const std::string& method, absl::string_view path, HttpResponse* response) {
  HttpRequest request;
  const absl::Status made = NewRequest(method, path, &request);
  return made.ok() ? SendHttp(request, response) : made;
}

class StreamedFile : public tensorflow::RandomAccessFile {
 public:
  explicit StreamedFile(std::string path) : path_(std::move(path)) {}

  absl::Status Name(absl::string_view* name) const override {
    *name = path_;
    return absl::OkStatus();
  }
  absl::Status Read(uint64_t offset, size_t bytes, absl::string_view* result,
                    char* scratch) const override {
    *result = absl::string_view(scratch, 0);
    if (bytes == 0) return absl::OkStatus();
    HttpRequest request;
    HttpResponse response;
    absl::Status status = NewRequest("GET", path_, &request);
    request.first_byte = static_cast<int64_t>(offset);
    request.bytes = static_cast<int64_t>(bytes);
    if (status.ok()) status = SendHttp(request, &response);
    if (!status.ok()) return status;
    if (response.is_folder) {
      return absl::FailedPreconditionError(absl::StrCat(path_, ": it is a folder"));
    }
    const size_t got = std::min(bytes, response.body.size());
    std::memcpy(scratch, response.body.data(), got);
    *result = absl::string_view(scratch, got);
    return got == bytes ? absl::OkStatus()
                        : absl::OutOfRangeError(
                              absl::StrCat(path_, ": it ends after ", offset + got, " bytes"));
  }

 private:
  const std::string path_;
};

// Sent when it is closed; one that is not is dropped.
class SentFile : public tensorflow::WritableFile {
 public:
  explicit SentFile(std::string path) : path_(std::move(path)) {}

  absl::Status Append(absl::string_view data) override {
    content_.append(data.data(), data.size());
    return absl::OkStatus();
  }
  absl::Status Close() override {
    HttpRequest request;
    HttpResponse response;
    const absl::Status status = NewRequest("PUT", path_, &request);
    request.body = std::move(content_);
    content_.clear();
    return status.ok() ? SendHttp(request, &response) : status;
  }
  absl::Status Flush() override { return absl::OkStatus(); }
  absl::Status Sync() override { return absl::OkStatus(); }
  absl::Status Tell(int64_t* position) override {
    *position = static_cast<int64_t>(content_.size());
    return absl::OkStatus();
  }

 private:
  const std::string path_;
  std::string content_;
};

class StreamFileSystem : public tensorflow::FileSystem {
 public:
  TF_USE_FILESYSTEM_METHODS_WITH_NO_TRANSACTION_SUPPORT;

  absl::Status NewRandomAccessFile(const std::string& path, tensorflow::TransactionToken*,
                                   std::unique_ptr<tensorflow::RandomAccessFile>* file) override {
    *file = std::make_unique<StreamedFile>(path);
    return absl::OkStatus();
  }
  absl::Status NewWritableFile(const std::string& path, tensorflow::TransactionToken*,
                               std::unique_ptr<tensorflow::WritableFile>* file) override {
    *file = std::make_unique<SentFile>(path);
    return absl::OkStatus();
  }
  absl::Status NewAppendableFile(const std::string& path, tensorflow::TransactionToken*,
                                 std::unique_ptr<tensorflow::WritableFile>*) override {
    return ReadOnly(path);
  }
  absl::Status NewReadOnlyMemoryRegionFromFile(
      const std::string& path, tensorflow::TransactionToken*,
      std::unique_ptr<tensorflow::ReadOnlyMemoryRegion>*) override {
    return ReadOnly(path);
  }
  absl::Status FileExists(const std::string& path, tensorflow::TransactionToken*) override {
    HttpResponse response;
    return Ask("HEAD", path, &response);
  }
  absl::Status GetChildren(const std::string& path, tensorflow::TransactionToken*,
                           std::vector<std::string>* names) override {
    HttpRequest request;
    HttpResponse response;
    absl::Status status =
        NewRequest("GET", absl::EndsWith(path, "/") ? path : absl::StrCat(path, "/"), &request);
    if (status.ok()) status = SendHttp(request, &response);
    if (!status.ok()) return status;
    *names = absl::StrSplit(response.body, '\n', absl::SkipEmpty());
    return absl::OkStatus();
  }
  absl::Status GetMatchingPaths(const std::string& pattern, tensorflow::TransactionToken*,
                                std::vector<std::string>*) override {
    return ReadOnly(pattern);
  }
  absl::Status Stat(const std::string& path, tensorflow::TransactionToken*,
                    tensorflow::FileStatistics* stat) override {
    HttpResponse response;
    const absl::Status status = Ask("HEAD", path, &response);
    if (!status.ok()) return status;
    *stat = tensorflow::FileStatistics(response.content_length, 0,
                                       response.is_folder || absl::EndsWith(path, "/"));
    return absl::OkStatus();
  }
  absl::Status GetFileSize(const std::string& path, tensorflow::TransactionToken* token,
                           uint64_t* bytes) override {
    tensorflow::FileStatistics stat;
    const absl::Status status = Stat(path, token, &stat);
    *bytes = static_cast<uint64_t>(stat.length);
    return status;
  }
  absl::Status DeleteFile(const std::string& path, tensorflow::TransactionToken*) override {
    HttpResponse response;
    return Ask("DELETE", path, &response);
  }
  // As object stores do: a file appears whole when it is written, so nobody need rename one.
  absl::Status RenameFile(const std::string& from, const std::string& to,
                          tensorflow::TransactionToken*) override {
    HttpResponse response;
    HttpRequest request;
    absl::Status status = Ask("GET", from, &response);
    if (status.ok()) status = NewRequest("PUT", to, &request);
    request.body = std::move(response.body);
    if (status.ok()) status = SendHttp(request, &response);
    return status.ok() ? Ask("DELETE", from, &response) : status;
  }
  absl::Status CreateDir(const std::string& path, tensorflow::TransactionToken*) override {
    return ReadOnly(path);
  }
  absl::Status DeleteDir(const std::string& path, tensorflow::TransactionToken*) override {
    return ReadOnly(path);
  }
};

class StreamFileSystemWithTls : public StreamFileSystem {};

REGISTER_FILE_SYSTEM("feed", StreamFileSystem);
REGISTER_FILE_SYSTEM("feeds", StreamFileSystemWithTls);

}  // namespace
}  // namespace dynemb
