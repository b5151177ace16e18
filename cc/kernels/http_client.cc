#include "cc/kernels/http_client.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "curl/curl.h"

namespace dynemb {
namespace {

constexpr int64_t kConnectSeconds = 5;
constexpr int64_t kSilentSeconds = 10;  // a server that sends and takes nothing for so long
constexpr size_t kIdleHandles = 16;
constexpr long kBufferBytes = 512L << 10;            // of what is received between two calls
constexpr int64_t kWholeAnswer = int64_t{64} << 20;  // the limit of one that is no part of a file
constexpr size_t kMessageBytes = 500;

thread_local const HttpInterrupt* interrupt = nullptr;

struct CloseHandle {
  void operator()(CURL* handle) const { curl_easy_cleanup(handle); }
};
using Handle = std::unique_ptr<CURL, CloseHandle>;

// libcurl's handles that no request uses; each keeps its connections.
class Handles {
 public:
  static Handles& Get() {
    static Handles* const handles = new Handles();
    return *handles;
  }
  Handle Take() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (!idle_.empty()) {
        Handle handle = std::move(idle_.back());
        idle_.pop_back();
        return handle;
      }
    }
    return Handle(curl_easy_init());
  }
  void Give(Handle handle) {
    curl_easy_reset(handle.get());  // which keeps connections
    std::lock_guard<std::mutex> lock(mutex_);
    if (idle_.size() < kIdleHandles) idle_.push_back(std::move(handle));
  }

 private:
  Handles() {
    curl_global_init(CURL_GLOBAL_ALL);
    idle_.reserve(kIdleHandles);
  }

  std::mutex mutex_;
  std::vector<Handle> idle_;
};

// What a transfer reads and writes; libcurl calls the functions below with it.
struct Transfer {
  CURL* handle = nullptr;
  const std::string* sent = nullptr;
  size_t sent_bytes = 0;
  std::string* received = nullptr;
  size_t limit = 0;
  bool too_long = false, no_memory = false;
  int64_t file_bytes = -1;  // of the file of which a part was sent, if the server says so
};

size_t Receive(char* data, size_t, size_t bytes, void* opaque) {
  auto* const transfer = static_cast<Transfer*>(opaque);
  if (bytes > transfer->limit - transfer->received->size()) {
    transfer->too_long = true;
    return 0;
  }
  try {
    if (transfer->received->empty()) {
      curl_off_t length = 0;  // -1: the server does not say
      curl_easy_getinfo(transfer->handle, CURLINFO_CONTENT_LENGTH_DOWNLOAD_T, &length);
      if (length > 0) {
        transfer->received->reserve(std::min(static_cast<size_t>(length), transfer->limit));
      }
    }
    transfer->received->append(data, bytes);
  } catch (const std::bad_alloc&) {  // libcurl is C
    transfer->no_memory = true;
    return 0;
  }
  return bytes;
}

size_t Send(char* data, size_t, size_t bytes, void* opaque) {
  auto* const transfer = static_cast<Transfer*>(opaque);
  const size_t count = std::min(bytes, transfer->sent->size() - transfer->sent_bytes);
  std::memcpy(data, transfer->sent->data() + transfer->sent_bytes, count);
  transfer->sent_bytes += count;
  return count;
}

// Of a request that libcurl sends again, since the connection that it had kept was closed.
int SendAgain(void* opaque, curl_off_t from, int) {
  auto* const transfer = static_cast<Transfer*>(opaque);
  transfer->sent_bytes = std::min(static_cast<size_t>(from), transfer->sent->size());
  return CURL_SEEKFUNC_OK;
}

// Looks for "Content-Range: bytes 0-9/1234".
size_t ReadHeader(char* data, size_t, size_t bytes, void* opaque) {
  const absl::string_view line(data, bytes);
  const size_t slash = line.rfind('/');
  int64_t file_bytes;
  if (absl::StartsWithIgnoreCase(line, "content-range:") && slash != line.npos &&
      absl::SimpleAtoi(absl::StripAsciiWhitespace(line.substr(slash + 1)), &file_bytes)) {
    static_cast<Transfer*>(opaque)->file_bytes = file_bytes;
  }
  return bytes;
}

int IsInterrupted(void*, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
  return interrupt != nullptr && interrupt->ended() ? 1 : 0;
}

// Where Debian and Red Hat have the certificates that a machine trusts; libcurl as TensorFlow
// builds it knows of none.
const char* MachineCertificates() {
  for (const char* file :
       {"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt"}) {
    if (access(file, R_OK) == 0) return file;
  }
  return nullptr;
}

absl::Status StatusOf(long code, const HttpRequest& request, const std::string& body) {
  std::string message = body.substr(0, kMessageBytes);
  for (char& c : message) c = c >= ' ' && c <= '~' ? c : ' ';
  message = absl::StrCat(request.method, " ", request.url, ": HTTP status ", code, ": ", message);
  switch (code) {
    case 401:
    case 403:
      return absl::PermissionDeniedError(message);
    case 404:
      return absl::NotFoundError(message);
    case 416:
      return absl::OutOfRangeError(message);
    case 503:
      return absl::UnavailableError(message);
    default:
      return absl::UnknownError(message);
  }
}

absl::Status TransferFailed(const std::string& what, CURLcode result, const char* error,
                            const char* certificates) {
  std::string message = absl::StrCat(what, error[0] != 0 ? error : curl_easy_strerror(result));
  if (result == CURLE_PEER_FAILED_VERIFICATION || result == CURLE_SSL_CACERT_BADFILE) {
    absl::StrAppend(&message, "; the certificates that are trusted are those of ",
                    certificates == nullptr ? "no file" : certificates);
  }
  return absl::UnavailableError(message);
}

class Headers {
 public:
  ~Headers() { curl_slist_free_all(list_); }
  bool Add(const std::string& line) {
    curl_slist* const longer = curl_slist_append(list_, line.c_str());
    if (longer != nullptr) list_ = longer;
    return longer != nullptr;
  }
  curl_slist* list() const { return list_; }

 private:
  curl_slist* list_ = nullptr;
};

}  // namespace

HttpInterrupt::HttpInterrupt(std::function<bool()> ended) : ended_(std::move(ended)) {
  interrupt = this;
}

HttpInterrupt::~HttpInterrupt() { interrupt = nullptr; }

absl::Status SendHttp(const HttpRequest& request, HttpResponse* response) {
  Handle handle = Handles::Get().Take();
  Headers headers;
  if (handle == nullptr) return absl::ResourceExhaustedError("no memory for a request over HTTP");
  CURL* const curl = handle.get();
  *response = HttpResponse();
  Transfer transfer;
  transfer.handle = curl;
  transfer.sent = &request.body;
  transfer.received = &response->body;
  // A server that knows no ranges sends all.
  transfer.limit =
      static_cast<size_t>(request.bytes > 0 ? std::max(request.bytes, kWholeAnswer) : kWholeAnswer);
  char error[CURL_ERROR_SIZE] = "";

  curl_easy_setopt(curl, CURLOPT_URL, request.url.c_str());
  curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, error);
  curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT, static_cast<long>(kConnectSeconds));
  curl_easy_setopt(curl, CURLOPT_LOW_SPEED_LIMIT, 1L);
  curl_easy_setopt(curl, CURLOPT_LOW_SPEED_TIME, static_cast<long>(kSilentSeconds));
  curl_easy_setopt(curl, CURLOPT_TCP_KEEPALIVE, 1L);
  curl_easy_setopt(curl, CURLOPT_PROXY, "");
  curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, ReadHeader);
  curl_easy_setopt(curl, CURLOPT_HEADERDATA, &transfer);
  curl_easy_setopt(curl, CURLOPT_BUFFERSIZE, kBufferBytes);
  curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, Receive);
  curl_easy_setopt(curl, CURLOPT_WRITEDATA, &transfer);
  curl_easy_setopt(curl, CURLOPT_NOPROGRESS, 0L);
  curl_easy_setopt(curl, CURLOPT_XFERINFOFUNCTION, IsInterrupted);
  const char* const certificates =
      request.ca_file.empty() ? MachineCertificates() : request.ca_file.c_str();
  if (certificates != nullptr) curl_easy_setopt(curl, CURLOPT_CAINFO, certificates);
  bool has_memory = headers.Add("Expect:");  // no round trip before a body
  if (!request.bearer_token.empty()) {
    has_memory &= headers.Add(absl::StrCat("Authorization: Bearer ", request.bearer_token));
  }
  if (!has_memory) return absl::ResourceExhaustedError("no memory for a request over HTTP");
  curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers.list());
  std::string range;
  if (request.bytes > 0) {
    range = absl::StrCat(request.first_byte, "-", request.first_byte + request.bytes - 1);
    curl_easy_setopt(curl, CURLOPT_RANGE, range.c_str());
  }
  if (request.method == "HEAD") {
    curl_easy_setopt(curl, CURLOPT_NOBODY, 1L);
  } else if (request.method == "PUT") {
    curl_easy_setopt(curl, CURLOPT_UPLOAD, 1L);
    curl_easy_setopt(curl, CURLOPT_READFUNCTION, Send);
    curl_easy_setopt(curl, CURLOPT_READDATA, &transfer);
    curl_easy_setopt(curl, CURLOPT_SEEKFUNCTION, SendAgain);
    curl_easy_setopt(curl, CURLOPT_SEEKDATA, &transfer);
    curl_easy_setopt(curl, CURLOPT_INFILESIZE_LARGE, static_cast<curl_off_t>(request.body.size()));
  } else if (request.method != "GET") {
    curl_easy_setopt(curl, CURLOPT_CUSTOMREQUEST, request.method.c_str());
  }

  const CURLcode result = curl_easy_perform(curl);
  long code = 0;
  curl_off_t length = 0;
  const char* redirected = nullptr;
  curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &code);
  curl_easy_getinfo(curl, CURLINFO_CONTENT_LENGTH_DOWNLOAD_T, &length);
  curl_easy_getinfo(curl, CURLINFO_REDIRECT_URL, &redirected);
  const std::string location = redirected == nullptr ? "" : redirected;
  if (result == CURLE_OK) Handles::Get().Give(std::move(handle));

  const std::string what = absl::StrCat(request.method, " ", request.url, ": ");
  if (transfer.no_memory) return absl::ResourceExhaustedError("no memory for an answer over HTTP");
  if (transfer.too_long) {
    return absl::FailedPreconditionError(
        absl::StrCat(what, "got an answer of more than ", transfer.limit,
                     " bytes, want a server that sends parts of files (HTTP ranges)"));
  }
  if (result == CURLE_ABORTED_BY_CALLBACK) return absl::CancelledError("the follower has ended");
  if (result != CURLE_OK) return TransferFailed(what, result, error, certificates);
  if (code >= 300 && code < 400) {
    response->is_folder = (request.method == "GET" || request.method == "HEAD") &&
                          location == absl::StrCat(request.url, "/");
    if (response->is_folder) return absl::OkStatus();
    return absl::FailedPreconditionError(absl::StrCat(what, "got HTTP status ", code, " to '",
                                                      location,
                                                      "', want the address of a feed's server"));
  }
  if (code < 200 || code > 299) return StatusOf(code, request, response->body);
  response->content_length = std::max<int64_t>(0, length);
  std::string& body = response->body;
  response->file_bytes = static_cast<int64_t>(body.size());
  if (request.bytes > 0 && code != 206) {  // all of it, not a part
    body.erase(0, std::min(body.size(), static_cast<size_t>(request.first_byte)));
  } else if (code == 206) {
    const int64_t end = request.first_byte + response->file_bytes;
    response->file_bytes = transfer.file_bytes < 0 ? end : transfer.file_bytes;
  }
  if (request.bytes > 0) body.resize(std::min(body.size(), static_cast<size_t>(request.bytes)));
  return absl::OkStatus();
}

}  // namespace dynemb
