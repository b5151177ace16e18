#include "examples/online/server/metrics.h"

#include <cctype>
#include <charconv>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "tensorflow/core/framework/summary.pb.h"
#include "tensorflow/core/lib/monitoring/collected_metrics.h"
#include "tensorflow/core/lib/monitoring/collection_registry.h"
#include "tensorflow/core/lib/monitoring/sampler.h"

namespace model_server {
namespace {

namespace monitoring = tensorflow::monitoring;

constexpr char kFollower[] = "/tf_dynemb/follower/";

auto Collect() { return monitoring::CollectionRegistry::Default()->CollectMetrics({}); }

// With as many digits as tell it from any other; absl::StrCat has six.
std::string Digits(double number) {
  char text[32];
  return {text, std::to_chars(text, text + sizeof(text), number).ptr};
}

std::string NameOf(const std::string& metric) {
  std::string name;
  for (const char c : metric) {
    name += c == '/' ? ':' : std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
  }
  return name;
}

// name{label="value",...} and a space; `more` is a label that goes last.
std::string Series(const std::string& name, const monitoring::Point& point,
                   const std::string& more = "") {
  std::string labels;
  for (const auto& [label, value] : point.labels) {
    const std::string escaped =
        absl::StrReplaceAll(value, {{"\\", "\\\\"}, {"\"", "\\\""}, {"\n", "\\n"}});
    absl::StrAppend(&labels, labels.empty() ? "" : ",", label, "=\"", escaped, "\"");
  }
  if (!more.empty()) absl::StrAppend(&labels, labels.empty() ? "" : ",", more);
  return absl::StrCat(name, labels.empty() ? "" : "{" + labels + "}", " ");
}

void AppendHistogram(const std::string& name, const monitoring::Point& point, std::string* text) {
  const auto& histogram = point.histogram_value;
  int64_t below = 0;
  for (int i = 0; i + 1 < histogram.bucket_size(); ++i) {
    below += static_cast<int64_t>(histogram.bucket(i));
    const std::string limit = absl::StrCat("le=\"", Digits(histogram.bucket_limit(i)), "\"");
    absl::StrAppend(text, Series(name + "_bucket", point, limit), below, "\n");
  }
  const auto all = static_cast<int64_t>(histogram.num());
  absl::StrAppend(text, Series(name + "_bucket", point, "le=\"+Inf\""), all, "\n");
  absl::StrAppend(text, Series(name + "_sum", point), Digits(histogram.sum()), "\n");
  absl::StrAppend(text, Series(name + "_count", point), all, "\n");
}

}  // namespace

std::string PrometheusText() {
  std::string text;
  const auto metrics = Collect();
  for (const auto& [metric, points] : metrics->point_set_map) {
    const auto& about = *metrics->metric_descriptor_map.at(metric);
    const std::string name = NameOf(metric);
    const bool is_histogram = about.value_type == monitoring::ValueType::kHistogram;
    const bool grows = about.metric_kind == monitoring::MetricKind::kCumulative;
    absl::StrAppend(&text, "# TYPE ", name,
                    is_histogram ? " histogram\n" : (grows ? " counter\n" : " gauge\n"));
    for (const auto& point : points->points) {
      switch (point->value_type) {
        case monitoring::ValueType::kInt64:
          absl::StrAppend(&text, Series(name, *point), point->int64_value, "\n");
          break;
        case monitoring::ValueType::kDouble:
          absl::StrAppend(&text, Series(name, *point), Digits(point->double_value), "\n");
          break;
        case monitoring::ValueType::kBool:
          absl::StrAppend(&text, Series(name, *point), int{point->bool_value}, "\n");
          break;
        case monitoring::ValueType::kHistogram:
          AppendHistogram(name, *point, &text);
          break;
        default:  // strings and percentiles, which Prometheus has no such number for
          break;
      }
    }
  }
  return text;
}

Json FollowerStatus() {
  Json status;
  const auto metrics = Collect();
  for (const auto& [metric, points] : metrics->point_set_map) {
    if (!absl::StartsWith(metric, kFollower)) continue;
    const std::string name = metric.substr(sizeof(kFollower) - 1);
    for (const auto& point : points->points) {
      status["feed"] = point->labels.front().value;
      if (const size_t stem = name.find("_microseconds"); stem != std::string::npos) {
        status[name.substr(0, stem) + "_seconds"] = static_cast<double>(point->int64_value) * 1e-6;
      } else if ((name == "generation" || name == "pinned") && point->int64_value < 0) {
        status[name] = nullptr;
      } else {
        status[name] = point->int64_value;
      }
    }
  }
  return status;
}

void CountRequest(int status, double microseconds) {
  static auto* const sampler = monitoring::Sampler<1>::New(
      {"/model_server/request_microseconds", "How long requests took, by HTTP status.", "status"},
      monitoring::Buckets::Exponential(10, 2, 20));  // 10 us to 5 s
  sampler->GetCell(absl::StrCat(status))->Add(microseconds);
}

}  // namespace model_server
