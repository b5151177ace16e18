// HttpClient: requests over HTTP and HTTPS, by the libcurl that TensorFlow's framework library has
// in it for its own file systems. Connections are kept and used again. Thread-safe.
//
// What a server says in its status is an error here: 401 and 403 kPermissionDenied, 404 kNotFound,
// 416 kOutOfRange, 503 and a server that cannot be reached or says nothing kUnavailable; redirects
// kFailedPrecondition, for what a request says is for its server alone; others kUnknown. No proxy
// is asked, whatever the environment says.
#ifndef TF_DYNEMB_CC_KERNELS_HTTP_CLIENT_H_
#define TF_DYNEMB_CC_KERNELS_HTTP_CLIENT_H_

#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "absl/status/status.h"

namespace dynemb {

struct HttpRequest {
  std::string method = "GET";  // or HEAD, PUT, DELETE
  std::string url;
  std::string bearer_token;  // "": none
  std::string ca_file;       // of HTTPS: certificates to trust, PEM. "": those of the machine
  std::string body;          // of PUT
  // The bytes of the answer that are asked for, and accepted: more are an error.
  int64_t first_byte = 0;
  int64_t bytes = 0;  // 0: all
};

struct HttpResponse {
  bool is_folder = false;  // the server redirects a GET or HEAD to the path with a slash after it
  int64_t content_length = 0;
  // From first_byte on. It may be shorter than what was asked for: `file_bytes` are all there are.
  std::string body;
  int64_t file_bytes = 0;
};

absl::Status SendHttp(const HttpRequest& request, HttpResponse* response);

// While one exists, requests of this thread end with kCancelled, within about a second, once
// `ended()` is true. But for the moment in which the name of a host is looked up, which
// TensorFlow's libcurl does by the machine's resolver, as long as that takes.
class HttpInterrupt {
 public:
  explicit HttpInterrupt(std::function<bool()> ended);
  ~HttpInterrupt();
  HttpInterrupt(const HttpInterrupt&) = delete;
  HttpInterrupt& operator=(const HttpInterrupt&) = delete;
  bool ended() const { return ended_(); }

 private:
  const std::function<bool()> ended_;
};

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_KERNELS_HTTP_CLIENT_H_
