// How the benchmark of the GPU table times: device memory, kernels, and calls in a stream beside
// their limits. For one source file.
#ifndef TF_DYNEMB_BENCHMARKS_GPU_TIMING_CU_H_
#define TF_DYNEMB_BENCHMARKS_GPU_TIMING_CU_H_

#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "cc/core/base/context.h"
#include "cc/core/base/status.h"
#include "cc/gpu/cuda_status.h"

namespace dynemb {
namespace {

constexpr int64_t kMillion = int64_t{1} << 20, kGiB = int64_t{1} << 30;
constexpr int kWarmUp = 3;     // rounds before those that count
constexpr int kThreads = 256;  // of a block
constexpr auto kDevice = MemorySpace::kDevice;

void Check(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.message().c_str());
  std::exit(1);
}
void Check(cudaError_t error, const char* what) { Check(FromCuda(error, what)); }

struct CudaFree {
  void operator()(void* block) const { Check(cudaFree(block), "cudaFree"); }
};
template <typename T>
using DeviceArray = std::unique_ptr<T[], CudaFree>;

template <typename T>
DeviceArray<T> Allocate(int64_t n) {
  void* block = nullptr;
  Check(cudaMalloc(&block, n * sizeof(T)), "cudaMalloc");
  return DeviceArray<T>(static_cast<T*>(block));
}
template <typename T>
DeviceArray<T> Upload(const std::vector<T>& from) {
  DeviceArray<T> to = Allocate<T>(from.size());
  const size_t bytes = from.size() * sizeof(T);
  Check(cudaMemcpy(to.get(), from.data(), bytes, cudaMemcpyHostToDevice), "cudaMemcpy");
  return to;
}
template <typename T>
std::vector<T> Download(const DeviceArray<T>& from, int64_t n) {
  std::vector<T> to(n);
  Check(cudaMemcpy(to.data(), from.get(), n * sizeof(T), cudaMemcpyDeviceToHost), "cudaMemcpy");
  return to;
}

template <typename... Parameters, typename... Arguments>
void Launch(void (*kernel)(Parameters...), int64_t blocks, cudaStream_t stream,
            Arguments... arguments) {
  kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(arguments...);
  Check(cudaGetLastError(), "starting a kernel");
}

// Keeps the stream busy while the host puts what is timed behind it: so the time is the device's
// alone.
__global__ void SpinKernel(long long cycles) {
  const long long begin = clock64();
  while (clock64() - begin < cycles) {
  }
}

struct Options {
  std::set<std::string> cases = {"limits", "find",   "bounded", "insert", "step",
                                 "bags",   "tables", "growth",  "cpu"};
  std::string json;
  bool quick = false;
  int rounds = 0;  // if not said, 15, and 3 for a quick run
};

struct Timed {
  std::string name;
  std::function<void(int)> run;                // puts the work of this round into the stream
  std::function<void(int)> prepare = nullptr;  // what comes before and is not timed
  double scale = 1;                            // what its time is multiplied by
};

template <typename... Arguments>
std::string Format(const char* format, Arguments... arguments) {
  char text[256];
  std::snprintf(text, sizeof(text), format, arguments...);
  return text;
}

// Numbers and texts by name, as JSON has them.
struct Json {
  template <typename N, typename = std::enable_if_t<std::is_arithmetic_v<N>>>
  Json(N number) : text(Format("%.12g", static_cast<double>(number))) {}  // NOLINT
  Json(const std::string& string) : text("\"" + string + "\"") {}         // NOLINT
  std::string text;
};
using Fields = std::vector<std::pair<std::string, Json>>;

// The least number that `share` of them do not exceed.
double Quantile(std::vector<double> numbers, double share) {
  std::sort(numbers.begin(), numbers.end());
  const auto count = static_cast<size_t>(std::ceil(share * static_cast<double>(numbers.size())));
  return numbers[std::max<size_t>(count, 1) - 1];
}
double Median(const std::vector<double>& numbers) { return Quantile(numbers, 0.5); }

// The stream and what is timed in it; there is one, which lives as long as the program.
class Bench {
 public:
  explicit Bench(const Options& options) : options(options) {
    Check(cudaStreamCreate(&stream), "cudaStreamCreate");
    Check(cudaEventCreate(&begin_), "cudaEventCreate");
    Check(cudaEventCreate(&end_), "cudaEventCreate");
    context.space = kDevice;
    context.stream = stream;
    if (options.json.empty()) return;
    json_ = std::fopen(options.json.c_str(), "a");
    if (json_ == nullptr) Check(InvalidArgument("--json: cannot write ", options.json));
  }

  // A number of rows, keys or bytes for this kind of run, a multiple of 64.
  int64_t Scaled(int64_t n) const { return options.quick ? n / 10 / 64 * 64 : n; }

  // So many rows, scaled, or a half, a quarter, ... of them if there is no memory for as many
  // beside batches and buffers.
  int64_t Fit(int64_t rows, int64_t row_bytes) const {
    size_t free = 0, total = 0;
    Check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
    const int64_t room = static_cast<int64_t>(free) / 20 * 19 - Scaled(12 * kGiB);
    const int64_t wanted = Scaled(rows);
    rows = wanted;
    while (rows / 2 >= Scaled(kMillion) && rows * row_bytes > room) rows /= 2;
    if (rows < wanted) std::printf("# memory is for %lld rows\n", static_cast<long long>(rows));
    return rows;
  }

  void Sync() const { Check(cudaStreamSynchronize(stream), "cudaStreamSynchronize"); }

  // Microseconds of the device from now on, and of a round's work alone.
  double TimeNow(const std::function<void()>& run) const {
    Check(cudaEventRecord(begin_, stream), "cudaEventRecord");
    run();
    Check(cudaEventRecord(end_, stream), "cudaEventRecord");
    Sync();
    float milliseconds = 0;
    Check(cudaEventElapsedTime(&milliseconds, begin_, end_), "cudaEventElapsedTime");
    return 1e3 * static_cast<double>(milliseconds);
  }
  double Time(const Timed& timed, int round) const {
    if (timed.prepare) timed.prepare(round);
    Launch(SpinKernel, 1, stream, 200'000LL);
    return TimeNow([&] { timed.run(round); }) * timed.scale;
  }

  Timed Fastest(const std::vector<Timed>& variants) const {
    std::vector<std::vector<double>> times(variants.size());
    for (int round = 0; round < 6; ++round) {
      for (size_t v = 0; v < variants.size(); ++v) {
        const double time = Time(variants[v], round);
        if (round > 0) times[v].push_back(time);
      }
    }
    const auto less = [](const auto& a, const auto& b) { return Median(a) < Median(b); };
    return variants[std::min_element(times.begin(), times.end(), less) - times.begin()];
  }

  // A call of `keys` keys that must move so many bytes. Limits are timed before it.
  void Measure(const std::string& name, const Fields& parameters, int64_t keys, int64_t bytes,
               const Timed& call, const std::vector<Timed>& limits) const {
    std::vector<double> times;
    std::vector<std::vector<double>> limit_times(limits.size()), ratios(limits.size());
    for (int round = 0; round < kWarmUp + options.rounds; ++round) {
      std::vector<double> now;
      for (const Timed& limit : limits) now.push_back(Time(limit, round));
      const double time = Time(call, round);
      if (round < kWarmUp) continue;
      times.push_back(time);
      for (size_t l = 0; l < limits.size(); ++l) {
        limit_times[l].push_back(now[l]);
        ratios[l].push_back(now[l] / time);
      }
    }
    const double us = Median(times), least = Quantile(times, 0), most = Quantile(times, 1);
    const double mkeys = static_cast<double>(keys) / us;
    const double gb = static_cast<double>(bytes) / us / 1e3;
    std::string text =
        Format("%9.1f us [%9.1f %9.1f] %8.1f Mkeys/s %7.1f GB/s", us, least, most, mkeys, gb);
    Fields fields = {{"us", us},       {"us_min", least},
                     {"us_max", most}, {"keys_per_s", mkeys * 1e6},
                     {"bytes", bytes}, {"gb_per_s", gb}};
    for (size_t l = 0; l < limits.size(); ++l) {
      const double limit_us = Median(limit_times[l]), ratio = Median(ratios[l]);
      text += Format("  %s %.1f us, ratio %.3f", limits[l].name.c_str(), limit_us, ratio);
      const std::string suffix = l == 0 ? "" : "_" + std::to_string(l + 1);
      fields.emplace_back("limit" + suffix, limits[l].name);
      fields.emplace_back("limit_us" + suffix, limit_us);
      fields.emplace_back("ratio" + suffix, ratio);
    }
    Emit(name, parameters, fields, text);
  }

  void Emit(const std::string& name, const Fields& parameters, const Fields& results,
            const std::string& text) const {
    std::string line = name, json = "{\"name\": \"" + name + "\"";
    for (const auto& [key, value] : parameters) line += "/" + key + ":" + value.text;
    std::printf("%-78s %s\n", line.c_str(), text.c_str());
    if (json_ == nullptr) return;
    for (const Fields* fields : {&parameters, &results}) {
      for (const auto& [key, value] : *fields) json += ", \"" + key + "\": " + value.text;
    }
    std::fprintf(json_, "%s}\n", json.c_str());
    std::fflush(json_);
  }

  const Options options;
  cudaStream_t stream = nullptr;
  Context context;

 private:
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
  std::FILE* json_ = nullptr;
};

}  // namespace
}  // namespace dynemb

#endif  // TF_DYNEMB_BENCHMARKS_GPU_TIMING_CU_H_
