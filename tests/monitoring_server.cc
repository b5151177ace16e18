// A server in C++: loads a SavedModel by TensorFlow's C API, runs it, and prints the metrics of
// TensorFlow's monitoring registry whose names begin with /tf_dynemb/, which a server exports.
//
//   monitoring_server OP_LIBRARY SAVED_MODEL RUNS INPUT OUTPUT ID...
//   monitoring_server OP_LIBRARY SAVED_MODEL follow INPUT OUTPUT ID...
//
// INPUT and OUTPUT are names of operations; all IDs are fed at once. A line for each number: its
// metric, kind, labels and value. With `follow` it runs once for each line `run` of its input, and
// prints the output's numbers, float, in a line `answer`; for each line `metrics` it prints those.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <string>
#include <vector>

#include "tensorflow/c/c_api.h"
#include "tensorflow/core/lib/monitoring/collected_metrics.h"
#include "tensorflow/core/lib/monitoring/collection_registry.h"

namespace monitoring = tensorflow::monitoring;

void Check(TF_Status* status) {
  if (TF_GetCode(status) == TF_OK) return;
  std::fprintf(stderr, "%s\n", TF_Message(status));
  std::exit(1);
}

void PrintMetrics(const char* when) {
  const auto metrics = monitoring::CollectionRegistry::Default()->CollectMetrics({});
  for (const auto& [name, points] : metrics->point_set_map) {
    if (name.rfind("/tf_dynemb/", 0) != 0) continue;
    const auto& about = *metrics->metric_descriptor_map.at(name);
    const bool grows = about.metric_kind == monitoring::MetricKind::kCumulative;
    for (const auto& point : points->points) {
      std::printf("%s %s %s", when, name.c_str(), grows ? "counter" : "gauge");
      for (const auto& label : point->labels) {
        std::printf(" %s=%s", label.name.c_str(), label.value.c_str());
      }
      std::printf(" %lld\n", static_cast<long long>(point->int64_value));
    }
  }
}

int main(int count, char** arguments) {
  const std::vector<std::string> given(arguments + 1, arguments + count);
  TF_Status* const status = TF_NewStatus();
  TF_LoadLibrary(given[0].c_str(), status);
  Check(status);

  TF_Graph* const graph = TF_NewGraph();
  TF_SessionOptions* const options = TF_NewSessionOptions();
  const char* const tag = "serve";
  TF_Session* const session = TF_LoadSessionFromSavedModel(options, nullptr, given[1].c_str(), &tag,
                                                           1, graph, nullptr, status);
  Check(status);

  std::vector<int64_t> ids;
  for (size_t i = 5; i < given.size(); ++i) ids.push_back(std::atoll(given[i].c_str()));
  const int64_t shape = static_cast<int64_t>(ids.size());
  const TF_Output input = {TF_GraphOperationByName(graph, given[3].c_str()), 0};
  const TF_Output output = {TF_GraphOperationByName(graph, given[4].c_str()), 0};
  const auto run = [&](bool print) {
    TF_Tensor* const fed = TF_AllocateTensor(TF_INT64, &shape, 1, ids.size() * sizeof(int64_t));
    std::memcpy(TF_TensorData(fed), ids.data(), ids.size() * sizeof(int64_t));
    TF_Tensor* fetched = nullptr;
    TF_SessionRun(session, nullptr, &input, &fed, 1, &output, &fetched, 1, nullptr, 0, nullptr,
                  status);
    Check(status);
    if (print) {
      const auto* const numbers = static_cast<const float*>(TF_TensorData(fetched));
      std::printf("answer");
      for (size_t n = 0; n < TF_TensorByteSize(fetched) / sizeof(float); ++n) {
        std::printf(" %.9g", static_cast<double>(numbers[n]));
      }
      std::printf("\n");
    }
    TF_DeleteTensor(fetched);
    TF_DeleteTensor(fed);
  };
  if (given[2] == "follow") {
    std::string line;
    while (std::getline(std::cin, line)) {
      if (line == "run") run(true);
      if (line == "metrics") PrintMetrics("following");
      std::printf("done\n");
      std::fflush(stdout);
    }
  } else {
    for (int runs = std::atoi(given[2].c_str()); runs > 0; --runs) run(false);
  }
  PrintMetrics("serving");

  TF_CloseSession(session, status);
  TF_DeleteSession(session, status);
  Check(status);
  TF_DeleteGraph(graph);
  PrintMetrics("unloaded");
  TF_DeleteSessionOptions(options);
  TF_DeleteStatus(status);
  return 0;
}
