#include "cc/kernels/stream_file_system.h"

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
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
constexpr char kSecret[] = "TF_DYNEMB_FEED_SECRET";
constexpr int64_t kFetchedAhead = int64_t{4} << 20;
constexpr int64_t kFetchedAtOnce = int64_t{64} << 20;
// Who reads so much of the beginning of a file reads on, and not who looks at a header.
constexpr int64_t kReadsOn = int64_t{64} << 10;

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
  const char* const secret = std::getenv(kSecret);
  const char* const ca_file = std::getenv("TF_DYNEMB_FEED_CA");
  if (secret != nullptr) {
    request->bearer_token = secret;
    const bool can_be_sent = std::all_of(request->bearer_token.begin(), request->bearer_token.end(),
                                         [](unsigned char c) { return c > ' ' && c < 127; });
    if (request->bearer_token.empty() || !can_be_sent) {
      return absl::InvalidArgumentError(absl::StrCat(
          kSecret,
          ": want letters, digits and signs of ASCII, without spaces or line ends, or unset "
          "it; got ",
          request->bearer_token.size(), " characters"));
    }
  }
  if (ca_file != nullptr) request->ca_file = ca_file;
  request->method = method;
  request->url = absl::StrCat(is_tls ? "https://" : "http://", place);
  return absl::OkStatus();
}

absl::Status Send(const HttpRequest& request, absl::string_view path, HttpResponse* response) {
  const absl::Status status = SendHttp(request, response);
  if (!absl::IsUnavailable(status)) return status;
  const bool is_tls = absl::StartsWith(path, kTls);
  return absl::UnavailableError(absl::StrCat(
      status.message(), is_tls ? "; TF_DYNEMB_FEED_CA names a file of certificates to trust"
                               : "; want a server without TLS, or feeds:// for one with it"));
}

absl::Status Ask(const std::string& method, absl::string_view path, HttpResponse* response) {
  HttpRequest request;
  const absl::Status made = NewRequest(method, path, &request);
  return made.ok() ? Send(request, path, response) : made;
}

// A part of a file, of at most so many bytes. kOutOfRange: there is nothing from there on.
absl::Status FetchPart(const std::string& path, int64_t first_byte, int64_t bytes,
                       HttpResponse* part) {
  HttpRequest request;
  const absl::Status made = NewRequest("GET", path, &request);
  if (!made.ok()) return made;
  request.first_byte = first_byte;
  request.bytes = bytes;
  const absl::Status status = Send(request, path, part);
  if (!status.ok() || !part->is_folder) return status;
  return absl::FailedPreconditionError(absl::StrCat(path, ": it is a folder"));
}

// Reads that follow each other get their bytes from what one request has fetched ahead. A file that
// is shorter than that is one request.
class StreamedFile : public tensorflow::RandomAccessFile {
 public:
  explicit StreamedFile(std::string path) : path_(std::move(path)) {}

  absl::Status Name(absl::string_view* name) const override {
    *name = path_;
    return absl::OkStatus();
  }
  absl::Status Read(uint64_t offset, size_t bytes, absl::string_view* result,
                    char* scratch) const override {
    std::lock_guard<std::mutex> lock(mutex_);
    size_t got = 0;
    absl::Status status;
    while (got < bytes && status.ok()) {
      const int64_t at = static_cast<int64_t>(offset + got);
      const int64_t ahead = first_ + static_cast<int64_t>(fetched_.size()) - at;
      if (at < first_ || ahead <= 0) {
        status = Fetch(at, static_cast<int64_t>(bytes - got));
        continue;
      }
      const size_t count = std::min(bytes - got, static_cast<size_t>(ahead));
      std::memcpy(scratch + got, fetched_.data() + (at - first_), count);
      got += count;
    }
    *result = absl::string_view(scratch, got);
    return status;
  }

 private:
  // kOutOfRange: there is nothing from there on.
  absl::Status Fetch(int64_t at, int64_t bytes) const {
    const bool reads_on =
        at > 0 ? at == first_ + static_cast<int64_t>(fetched_.size()) : bytes >= kReadsOn;
    if (at >= file_bytes_) return AtEnd();
    HttpResponse part;
    const absl::Status status =
        FetchPart(path_, at, reads_on ? std::max(bytes, kFetchedAhead) : bytes, &part);
    if (!status.ok()) return status;
    first_ = at;
    fetched_ = std::move(part.body);
    file_bytes_ = part.file_bytes;
    return fetched_.empty() ? AtEnd() : absl::OkStatus();
  }
  absl::Status AtEnd() const {
    return absl::OutOfRangeError(absl::StrCat(path_, ": it ends after ", file_bytes_, " bytes"));
  }

  const std::string path_;
  mutable std::mutex mutex_;   // of what follows
  mutable int64_t first_ = 0;  // where in the file `fetched_` begins
  mutable std::string fetched_;
  mutable int64_t file_bytes_ = INT64_MAX;  // until one knows
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
    if (is_sent_) return absl::OkStatus();
    HttpRequest request;
    HttpResponse response;
    absl::Status status = NewRequest("PUT", path_, &request);
    request.body = content_;
    if (status.ok()) status = Send(request, path_, &response);
    is_sent_ = status.ok();
    return status;
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
  bool is_sent_ = false;
};

// Until TensorFlow 2.22 each method has an argument more, which nothing uses.
#ifdef TF_USE_FILESYSTEM_METHODS_WITH_NO_TRANSACTION_SUPPORT
#define TF_DYNEMB_TOKEN , tensorflow::TransactionToken*
using PathThatMayExist = const std::string&;
#else
#define TF_DYNEMB_TOKEN
using PathThatMayExist = absl::string_view;
#endif

class StreamFileSystem : public tensorflow::FileSystem {
 public:
#ifdef TF_USE_FILESYSTEM_METHODS_WITH_NO_TRANSACTION_SUPPORT
  TF_USE_FILESYSTEM_METHODS_WITH_NO_TRANSACTION_SUPPORT;
#endif

  absl::Status NewRandomAccessFile(const std::string& path TF_DYNEMB_TOKEN,
                                   std::unique_ptr<tensorflow::RandomAccessFile>* file) override {
    *file = std::make_unique<StreamedFile>(path);
    return absl::OkStatus();
  }
  absl::Status NewWritableFile(const std::string& path TF_DYNEMB_TOKEN,
                               std::unique_ptr<tensorflow::WritableFile>* file) override {
    *file = std::make_unique<SentFile>(path);
    return absl::OkStatus();
  }
  absl::Status NewAppendableFile(const std::string& path TF_DYNEMB_TOKEN,
                                 std::unique_ptr<tensorflow::WritableFile>*) override {
    return ReadOnly(path);
  }
  absl::Status NewReadOnlyMemoryRegionFromFile(
      const std::string& path TF_DYNEMB_TOKEN,
      std::unique_ptr<tensorflow::ReadOnlyMemoryRegion>*) override {
    return ReadOnly(path);
  }
  absl::Status FileExists(PathThatMayExist path TF_DYNEMB_TOKEN) override {
    HttpResponse response;
    return Ask("HEAD", std::string(path), &response);
  }
  absl::Status GetChildren(const std::string& path TF_DYNEMB_TOKEN,
                           std::vector<std::string>* names) override {
    HttpResponse response;
    const absl::Status status =
        Ask("GET", absl::EndsWith(path, "/") ? path : absl::StrCat(path, "/"), &response);
    if (!status.ok()) return status;
    *names = absl::StrSplit(response.body, '\n', absl::SkipEmpty());
    return absl::OkStatus();
  }
  absl::Status GetMatchingPaths(const std::string& pattern TF_DYNEMB_TOKEN,
                                std::vector<std::string>*) override {
    return ReadOnly(pattern);
  }
  absl::Status Stat(const std::string& path TF_DYNEMB_TOKEN,
                    tensorflow::FileStatistics* stat) override {
    return StatOf(path, stat);
  }
  absl::Status GetFileSize(const std::string& path TF_DYNEMB_TOKEN, uint64_t* bytes) override {
    tensorflow::FileStatistics stat;
    const absl::Status status = StatOf(path, &stat);
    *bytes = static_cast<uint64_t>(stat.length);
    return status;
  }
  absl::Status DeleteFile(const std::string& path TF_DYNEMB_TOKEN) override {
    HttpResponse response;
    return Ask("DELETE", path, &response);
  }
  absl::Status RenameFile(const std::string& from, const std::string& TF_DYNEMB_TOKEN) override {
    return ReadOnly(from);
  }
  absl::Status CreateDir(const std::string& path TF_DYNEMB_TOKEN) override {
    return ReadOnly(path);
  }
  absl::Status DeleteDir(const std::string& path TF_DYNEMB_TOKEN) override {
    return ReadOnly(path);
  }

 private:
  static absl::Status StatOf(const std::string& path, tensorflow::FileStatistics* stat) {
    HttpResponse response;
    const absl::Status status = Ask("HEAD", path, &response);
    if (!status.ok()) return status;
    const size_t host = path.find("://") + 3;
    const bool is_root = path.find('/', host) == path.npos;
    *stat = tensorflow::FileStatistics(response.content_length, 0,
                                       response.is_folder || is_root || absl::EndsWith(path, "/"));
    return absl::OkStatus();
  }
};

#undef TF_DYNEMB_TOKEN

class StreamFileSystemWithTls : public StreamFileSystem {};

REGISTER_FILE_SYSTEM("feed", StreamFileSystem);
REGISTER_FILE_SYSTEM("feeds", StreamFileSystemWithTls);

}  // namespace

bool IsStream(absl::string_view path) {
  return absl::StartsWith(path, kPlain) || absl::StartsWith(path, kTls);
}

absl::Status FetchFile(const std::string& path, std::string* content) {
  content->clear();
  int64_t file_bytes = 0;
  do {
    HttpResponse part;
    const absl::Status status =
        FetchPart(path, static_cast<int64_t>(content->size()), kFetchedAtOnce, &part);
    if (absl::IsOutOfRange(status) || (status.ok() && part.body.empty())) break;
    if (!status.ok()) return status;
    file_bytes = part.file_bytes;
    if (content->empty()) {
      *content = std::move(part.body);
    } else {
      content->append(part.body);
    }
  } while (static_cast<int64_t>(content->size()) < file_bytes);
  return absl::OkStatus();
}

}  // namespace dynemb
