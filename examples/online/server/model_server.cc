// A model server in one small program: loads the op library and a SavedModel, and answers over HTTP
// in the form of TensorFlow Serving's REST API, so that TensorFlow Serving's clients work with it.
//
//   model_server --ops=_tf_dynemb_ops.so --model=recommender=PATH [--port=8501] [--host=127.0.0.1]
//
// PATH is a SavedModel, or a folder of versions, of which the newest is served as soon as it is
// there.
//
//   POST /v1/models/recommender:predict     {"instances": [...]} or {"inputs": {...}}
//   GET  /v1/models/recommender             version and state; what is served of the feed
//   GET  /v1/models/recommender/metadata    signatures
//   GET  /metrics                           TensorFlow's monitoring registry, for Prometheus
//
// A path may name the version, /v1/models/recommender/versions/1. Errors are {"error": "..."} with
// an HTTP status. When it serves it prints a line with its address; SIGINT and SIGTERM end it.
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

// As Debian and Ubuntu build the library, whose classes these change. HTTPS is not used.
#define CPPHTTPLIB_OPENSSL_SUPPORT
#define CPPHTTPLIB_ZLIB_SUPPORT
#define CPPHTTPLIB_BROTLI_SUPPORT
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "examples/online/server/json_tensors.h"
#include "examples/online/server/metrics.h"
#include "examples/online/server/newest_model.h"
#include "examples/online/server/served_model.h"
#include "httplib.h"
#include "tensorflow/core/platform/env.h"
#include "tensorflow/core/util/command_line_flags.h"

namespace model_server {
namespace {

// As JSON a body takes some ten times as much, for each connection.
constexpr size_t kLargestBodyBytes = size_t{16} << 20;
// A client that sends more has its answer when it has sent all, so what is a little too large is
// read to its end, and forgotten.
constexpr size_t kMostReadBytes = 4 * kLargestBodyBytes;
constexpr size_t kConnections = 64;  // each has a thread; more wait
// Requests of a connection before it is closed, so that those that wait have their turn.
constexpr size_t kRequestsPerConnection = 1000;
constexpr time_t kSecondsToStop = 10;  // for requests in progress

// No pattern may have a slash before a colon: newer versions of httplib (from 0.14 on) do not take
// it for a regular expression then, but for one of their own with names, as in "/users/:id".
constexpr char kModelPath[] = R"(/v1/models/([^:/]+)(?:/versions/([0-9]+))?)";
static_assert(std::string_view(kModelPath).find("/:") == std::string_view::npos);
constexpr char kAnyPath[] = R"([\s\S]*)";

int HttpStatus(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return 200;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange:
      return 400;
    case absl::StatusCode::kNotFound:
      return 404;
    case absl::StatusCode::kUnimplemented:
      return 501;
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kFailedPrecondition:  // a feed that waits for a full copy
    case absl::StatusCode::kUnavailable:
      return 503;
    default:
      return 500;
  }
}

std::string Text(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// As TensorFlow Serving has it.
Json VersionStatus(const std::string& version, const char* state, const absl::Status& status) {
  return {{"version", version},
          {"state", state},
          {"status",
           {{"error_code", absl::StatusCodeToString(status.code())},
            {"error_message", std::string(status.message())}}}};
}

std::string ErrorText(std::string_view message) { return Text({{"error", std::string(message)}}); }

// An error after which the connection is closed: what is unread of the request would be taken for
// the next one. httplib closes it when a content provider fails, as this one does at its end.
void Refuse(int status, std::string_view message, httplib::Response* response) {
  const std::string text = ErrorText(message);
  response->status = status;
  response->set_header("Connection", "close");
  response->set_content_provider(text.size(), "application/json",
                                 [text](size_t, size_t, httplib::DataSink& sink) {
                                   sink.write(text.data(), text.size());
                                   return false;
                                 });
}

// Reads a body. httplib's own reading has no limit for one that is compressed or comes in chunks,
// and a limit of 8 KiB for a form, which curl -d and urllib say that all they send is. False if the
// request is refused.
bool ReadBody(const httplib::Request& request, const httplib::ContentReader& reader,
              std::string* body, httplib::Response* response) {
  if (request.is_multipart_form_data()) {
    Refuse(415, "want a body of JSON, not a form of several parts", response);
    return false;
  }
  size_t bytes = 0;
  const bool is_whole = reader([&](const char* data, size_t size) {
    bytes += size;
    if (bytes <= kLargestBodyBytes) body->append(data, size);
    return bytes <= kMostReadBytes;
  });
  if (bytes > kLargestBodyBytes || response->status == 413) {
    Refuse(413, absl::StrCat("want a body of at most ", kLargestBodyBytes, " bytes"), response);
    return false;
  }
  if (!is_whole) {
    Refuse(response->status < 400 ? 400 : response->status, "the body cannot be read", response);
    return false;
  }
  return true;
}

// Requests other than POST have no body here. One that says so is refused before httplib reads it,
// which would be without a limit.
httplib::Server::HandlerResponse RefuseBodies(const httplib::Request& request,
                                              httplib::Response& response) {
  const std::string length = request.get_header_value("Content-Length");
  const bool has_body =
      request.has_header("Transfer-Encoding") || (!length.empty() && length != "0");
  const bool reads = request.method == "GET" || request.method == "HEAD";
  if (request.method == "POST" || (reads && !has_body)) {
    return httplib::Server::HandlerResponse::Unhandled;
  }
  Refuse(405,
         absl::StrCat("got ", request.method, has_body ? " with a body" : "",
                      ", want GET, or POST with a body"),
         &response);
  return httplib::Server::HandlerResponse::Handled;
}

class Server {
 public:
  Server(std::string name, const NewestModel& models) : name_(std::move(name)), models_(models) {
    http_.set_payload_max_length(kLargestBodyBytes);
    http_.set_tcp_nodelay(true);
    http_.new_task_queue = [] { return new httplib::ThreadPool(kConnections); };
    http_.set_keep_alive_max_count(kRequestsPerConnection);
    // Without SO_REUSEPORT, which httplib sets if not told otherwise, and by which two servers
    // share a port: each would get some of the requests.
    http_.set_socket_options([](int socket) {
      const int yes = 1;
      setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
    });
    http_.set_pre_routing_handler(RefuseBodies);
    http_.Post(absl::StrCat(kModelPath, ":predict"), [this](const httplib::Request& request,
                                                            httplib::Response& response,
                                                            const httplib::ContentReader& reader) {
      std::string body;
      if (!ReadBody(request, reader, &body, &response)) return;
      Reply(
          request,
          [&](const ServedModel& model, Json* reply) { return model.Predict(body, reply); },
          &response);
    });
    http_.Post(kAnyPath, [](const httplib::Request& request, httplib::Response& response,
                            const httplib::ContentReader& reader) {
      std::string body;
      if (ReadBody(request, reader, &body, &response)) response.status = 404;
    });
    Get(kModelPath, [this](const ServedModel& model, Json* reply) {
      Json versions = Json::array({VersionStatus(model.version(), "AVAILABLE", absl::OkStatus())});
      std::string version;
      if (absl::Status failure = models_.failure(&version); !failure.ok()) {
        versions.push_back(VersionStatus(version, "END", failure));
      }
      *reply = {{"model_version_status", versions}, {"follower", FollowerStatus()}};
      return absl::OkStatus();
    });
    Get(absl::StrCat(kModelPath, "/metadata"), [this](const ServedModel& model, Json* reply) {
      *reply = {{"model_spec", {{"name", name_}, {"version", model.version()}}},
                {"metadata", {{"signature_def", model.Metadata()}}}};
      return absl::OkStatus();
    });
    const auto metrics = [](const httplib::Request&, httplib::Response& response) {
      response.set_content(PrometheusText(), "text/plain; version=0.0.4");
    };
    http_.Get("/metrics", metrics);
    http_.Get("/monitoring/prometheus/metrics", metrics);  // TensorFlow Serving's
    // What no handler has answered: no such path, or no HTTP.
    http_.set_error_handler([](const httplib::Request& request, httplib::Response& response) {
      if (response.has_header("Content-Type")) return;
      response.set_content(
          ErrorText(absl::StrCat(response.status, ": ", request.method, " ", request.path)),
          "application/json");
    });
  }

  // Serves until Stop. `port` 0: any that is free. False if the port cannot be had.
  bool Listen(const std::string& host, int port) {
    if (port == 0) {
      port = http_.bind_to_any_port(host);
    } else if (!http_.bind_to_port(host, port)) {
      port = -1;
    }
    if (port < 0) return false;
    std::printf("serving http://%s:%d/v1/models/%s\n", host.c_str(), port, name_.c_str());
    std::fflush(stdout);
    return http_.listen_after_bind();
  }

  // Lets Listen return after the requests in progress. False if it does not serve yet: httplib has
  // no way to stop it then.
  bool Stop() {
    if (!http_.is_running()) return false;
    http_.stop();
    return true;
  }

 private:
  using Answer = std::function<absl::Status(const ServedModel& model, Json* reply)>;

  void Get(const std::string& pattern, const Answer& answer) {
    http_.Get(pattern,
              [this, answer](const httplib::Request& request, httplib::Response& response) {
                Reply(request, answer, &response);
              });
  }

  // Answers a request whose path names this model, and its version if any.
  void Reply(const httplib::Request& request, const Answer& answer, httplib::Response* response) {
    const auto began = std::chrono::steady_clock::now();
    const std::string name = request.matches[1], version = request.matches[2];
    const std::shared_ptr<const ServedModel> model = models_.Get();
    absl::Status status;
    Json reply;
    if (name != name_ || (!version.empty() && version != model->version())) {
      status = absl::NotFoundError(
          absl::StrCat("there is no model ", name, version.empty() ? "" : " of version ", version,
                       "; want ", name_, " of version ", model->version()));
    } else {
      status = answer(*model, &reply);
    }
    response->status = HttpStatus(status);
    response->set_content(status.ok() ? Text(reply) : ErrorText(status.message()),
                          "application/json");
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - began;
    CountRequest(response->status, took.count());
  }

  const std::string name_;
  const NewestModel& models_;
  httplib::Server http_;
};

// Waits for SIGINT and SIGTERM, in a thread. The first ends the process at once as long as there is
// no server, and else stops the server; the second, or if it takes too long, ends the process too.
class SignalWaiter {
 public:
  SignalWaiter() {
    sigemptyset(&signals_);
    sigaddset(&signals_, SIGINT);
    sigaddset(&signals_, SIGTERM);
    // Threads that are started from here on leave them to this one.
    pthread_sigmask(SIG_BLOCK, &signals_, nullptr);
    thread_ = std::thread([this] { Wait(); });
  }

  ~SignalWaiter() {
    is_over_ = true;
    pthread_kill(thread_.native_handle(), SIGTERM);  // only wakes it
    thread_.join();
    pthread_sigmask(SIG_UNBLOCK, &signals_, nullptr);
  }

  // What is to be stopped from now on; null: nothing.
  void SetServer(Server* server) {
    const std::lock_guard<std::mutex> lock(mutex_);
    server_ = server;
    has_served_ = has_served_ || server != nullptr;
  }

 private:
  void Wait() {
    int signal = 0;
    sigwait(&signals_, &signal);
    if (is_over_) return;
    while (!Stop(signal)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const timespec patience = {kSecondsToStop, 0};
    sigtimedwait(&signals_, nullptr, &patience);
    if (!is_over_) End(signal);
  }

  // False if the server does not serve yet.
  bool Stop(int signal) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!has_served_) End(signal);
    return server_ == nullptr || server_->Stop();
  }

  // Without destructors: other threads run.
  [[noreturn]] static void End(int signal) { _exit(128 + signal); }

  sigset_t signals_;
  std::atomic<bool> is_over_{false};
  std::mutex mutex_;
  Server* server_ = nullptr;
  bool has_served_ = false;
  std::thread thread_;
};

absl::Status Serve(const std::string& ops, const std::string& model_flag, const std::string& host,
                   int port) {
  const size_t equals = model_flag.find('=');
  if (equals == 0 || equals == std::string::npos) {
    return absl::InvalidArgumentError("want --model=NAME=PATH; see --help");
  }
  SignalWaiter signals;  // the last to be destroyed: a signal ends what takes long before, too
  absl::Status status;
  if (!ops.empty()) {
    void* library = nullptr;
    status = tensorflow::Env::Default()->LoadDynamicLibrary(ops.c_str(), &library);
    if (!status.ok()) return status;
  }
  NewestModel models;
  if (status = models.Load(model_flag.substr(equals + 1)); !status.ok()) return status;

  Server server(model_flag.substr(0, equals), models);
  signals.SetServer(&server);
  const bool has_listened = server.Listen(host, port);
  signals.SetServer(nullptr);
  if (has_listened) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("cannot listen on ", host, ":", port,
                   "; is the port taken, or the address of another machine?"));
}

}  // namespace
}  // namespace model_server

int main(int count, char** arguments) {
  std::string ops, model, host = "127.0.0.1";
  int32_t port = 8501;
  const std::vector<tensorflow::Flag> flags = {
      {"ops", &ops, "the op library, _tf_dynemb_ops.so; none where it is linked in"},
      {"model", &model, "NAME=PATH, of a SavedModel or of a folder of versions"},
      {"host", &host, "the address to listen on"},
      {"port", &port, "the port to listen on; 0: any that is free"},
  };
  if (!tensorflow::Flags::Parse(&count, arguments, flags) || count > 1) {
    std::fprintf(stderr, "%s", tensorflow::Flags::Usage(arguments[0], flags).c_str());
    return 2;
  }
  const absl::Status status = model_server::Serve(ops, model, host, port);
  if (!status.ok()) std::fprintf(stderr, "model_server: %s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
