// A model server in one small program: loads the op library and a SavedModel, and answers over HTTP
// in the form of TensorFlow Serving's REST API, so that TensorFlow Serving's clients work with it.
//
//   model_server --ops=_tf_dynemb_ops.so --model=recommender=PATH [--port=8501] [--host=127.0.0.1]
//
//   POST /v1/models/recommender:predict     {"instances": [...]} or {"inputs": {...}}
//   GET  /v1/models/recommender             version and state; what of the feed is served, and its
//   age GET  /v1/models/recommender/metadata    signatures GET  /metrics TensorFlow's monitoring
//   registry, for Prometheus
//
// A path may name the version, /v1/models/recommender/versions/1. Errors are {"error": "..."} with
// an HTTP status. When it serves it prints a line with its address; SIGINT and SIGTERM end it.
#include <pthread.h>
#include <signal.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>
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
#include "examples/online/server/served_model.h"
#include "httplib.h"
#include "tensorflow/core/platform/env.h"
#include "tensorflow/core/util/command_line_flags.h"

namespace model_server {
namespace {

constexpr size_t kLargestBodyBytes = size_t{64} << 20;
constexpr size_t kConnections = 64;  // each has a thread; more wait
constexpr char kModelPath[] = R"(/v1/models/([^/:]+)(?:/versions/([0-9]+))?)";

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

void Reply(const absl::Status& status, const Json& json, httplib::Response* response) {
  const Json body = status.ok() ? json : Json{{"error", std::string(status.message())}};
  response->status = HttpStatus(status);
  response->set_content(body.dump(-1, ' ', false, Json::error_handler_t::replace),
                        "application/json");
}

class Server {
 public:
  Server(std::string name, const ServedModel& model) : name_(std::move(name)), model_(model) {
    http_.set_payload_max_length(kLargestBodyBytes);
    http_.set_tcp_nodelay(true);
    http_.new_task_queue = [] { return new httplib::ThreadPool(kConnections); };
    http_.set_keep_alive_max_count(SIZE_MAX);
    Route(&httplib::Server::Post, absl::StrCat(kModelPath, ":predict"),
          [this](const std::string& body, Json* reply) { return model_.Predict(body, reply); });
    Route(&httplib::Server::Get, kModelPath, [this](const std::string&, Json* reply) {
      *reply = {
          {"model_version_status",
           {{{"version", model_.version()},
             {"state", "AVAILABLE"},
             {"status", {{"error_code", "OK"}, {"error_message", ""}}}}}},
          {"follower", FollowerStatus()},
      };
      return absl::OkStatus();
    });
    Route(&httplib::Server::Get, absl::StrCat(kModelPath, "/metadata"),
          [this](const std::string&, Json* reply) {
            *reply = {{"model_spec", {{"name", name_}, {"version", model_.version()}}},
                      {"metadata", {{"signature_def", model_.Metadata()}}}};
            return absl::OkStatus();
          });
    const auto metrics = [](const httplib::Request&, httplib::Response& response) {
      response.set_content(PrometheusText(), "text/plain; version=0.0.4");
    };
    http_.Get("/metrics", metrics);
    http_.Get("/monitoring/prometheus/metrics", metrics);  // TensorFlow Serving's
    // What no handler has answered: no such path, a body that is too large or no HTTP.
    http_.set_error_handler([](const httplib::Request& request, httplib::Response& response) {
      if (!response.body.empty()) return;
      const std::string text =
          absl::StrCat(response.status, ": ", request.method, " ", request.path);
      response.set_content(
          Json{{"error", text}}.dump(-1, ' ', false, Json::error_handler_t::replace),
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

  void Stop() { http_.stop(); }

 private:
  using Answer = std::function<absl::Status(const std::string& body, Json* reply)>;
  using Method = httplib::Server& (httplib::Server::*)(const std::string&,
                                                       httplib::Server::Handler);

  // Answers paths that name this model, and its version if any.
  void Route(Method method, const std::string& pattern, const Answer& answer) {
    (http_.*method)(
        pattern, [this, answer](const httplib::Request& request, httplib::Response& response) {
          const auto began = std::chrono::steady_clock::now();
          const std::string name = request.matches[1], version = request.matches[2];
          absl::Status status;
          Json reply;
          if (name != name_ || (!version.empty() && version != model_.version())) {
            status = absl::NotFoundError(
                absl::StrCat("there is no model ", name, version.empty() ? "" : " of version ",
                             version, "; want ", name_, " of version ", model_.version()));
          } else {
            status = answer(request.body, &reply);
          }
          Reply(status, reply, &response);
          const std::chrono::duration<double, std::micro> took =
              std::chrono::steady_clock::now() - began;
          CountRequest(response.status, took.count());
        });
  }

  const std::string name_;
  const ServedModel& model_;
  httplib::Server http_;
};

absl::Status Serve(const std::string& ops, const std::string& model_flag, const std::string& host,
                   int port) {
  const size_t equals = model_flag.find('=');
  if (ops.empty() || equals == 0 || equals == std::string::npos) {
    return absl::InvalidArgumentError("want --ops=PATH and --model=NAME=PATH; see --help");
  }
  // Threads that are started from here on leave these to the one that waits for them below.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);

  void* library = nullptr;
  absl::Status status = tensorflow::Env::Default()->LoadDynamicLibrary(ops.c_str(), &library);
  if (!status.ok()) return status;
  ServedModel model;
  if (status = model.Load(model_flag.substr(equals + 1)); !status.ok()) return status;

  Server server(model_flag.substr(0, equals), model);
  std::thread([&server, signals] {
    int signal = 0;
    sigwait(&signals, &signal);
    server.Stop();
  }).detach();
  if (server.Listen(host, port)) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("cannot listen on ", host, ":", port));
}

}  // namespace
}  // namespace model_server

int main(int count, char** arguments) {
  std::string ops, model, host = "127.0.0.1";
  int32_t port = 8501;
  const std::vector<tensorflow::Flag> flags = {
      {"ops", &ops, "the op library, _tf_dynemb_ops.so"},
      {"model", &model, "NAME=PATH, of a SavedModel"},
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
