#include "cc/core/policy/eviction.h"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <system_error>
#include <vector>

namespace dynemb {
namespace {

constexpr int64_t kOne = DecayLogs::kOne;
constexpr double kLn2 = 0.69314718055994530942;

std::vector<std::string_view> Words(std::string_view text) {
  std::vector<std::string_view> words;
  while (!text.empty()) {
    const size_t end = std::min(text.find(' '), text.size());
    words.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return words;
}

// log2(1 + 2^-x) for x >= 0, by sums and products alone.
double LogOfOnePlusPowerOfTwo(double x) {
  const int whole = static_cast<int>(x);
  const double y = -(x - whole) * kLn2;
  double power = 1, term = 1;  // e^y, |y| < 0.7
  for (int i = 1; i <= 12; ++i) power += term = term * y / i;
  for (int i = 0; i < whole; ++i) power /= 2;
  const double z = power / (2 + power);  // log(1 + p) = 2 artanh(p / (2 + p))
  double sum = 0, odd = z;
  for (int i = 1; i <= 25; i += 2, odd *= z * z) sum += odd / i;
  return 2 * sum / kLn2;
}

}  // namespace

MetaFields EvictionPolicy::meta() const {
  MetaFields fields;
  if (expires()) fields.add(MetaField::kLastWriteTime);
  if (evicts() && order != Order::kNorm) fields.add(score_field());
  return fields;
}

MetaField EvictionPolicy::score_field() const {
  if (order == Order::kCount) return MetaField::kCount;
  return adds_writes() || takes_scores() ? MetaField::kScore : MetaField::kLastWriteTime;
}

Status EvictionPolicy::Parse(std::string_view text, EvictionPolicy* policy) {
  EvictionPolicy parsed;
  const std::vector<std::string_view> words = Words(text);
  size_t at = 0;
  const auto number = [&](std::string_view name, int64_t* to) {
    if (at + 1 >= words.size() || words[at] != name) return true;
    at += 2;
    const std::string_view word = words[at - 1];
    const auto read = std::from_chars(word.data(), word.data() + word.size(), *to);
    return read.ec == std::errc() && read.ptr == word.data() + word.size() && *to > 0;
  };
  bool good = true;
  size_t end = words.size();
  if (end > 0 && words.back() == "steps") parsed.unit = Unit::kSteps;
  if (end > 0 && words.back() == "microseconds") parsed.unit = Unit::kMicroseconds;
  end -= parsed.unit != Unit::kAny;
  if (at < end && words[at] != "ttl") {
    const std::string_view name = words[at++];
    if (name == "lru") {
      parsed.order = Order::kLastWriteTime;
    } else if (name == "lfu") {
      parsed.order = Order::kCount;
      good = number("half_life", &parsed.half_life);
      if (parsed.half_life > 0) parsed.order = Order::kDecayedCount;
      good = good && number("epoch", &parsed.epoch);
      if (parsed.epoch > 0) parsed.order = Order::kEpochCount;
      good = good && (parsed.half_life == 0 || parsed.epoch == 0);
      if (at < end && words[at] == "lru" && parsed.order == Order::kCount) {
        ++at;
        parsed.order = Order::kCountThenTime;
      }
    } else if (name == "norm") {
      parsed.order = Order::kNorm;
    } else if (name == "score") {
      const bool sum = at < words.size() && words[at] == "sum";
      at += sum;
      parsed.order = sum ? Order::kGivenSum : Order::kGiven;
    } else {
      good = false;
    }
  }
  good = good && number("ttl", &parsed.ttl) && at == end;
  if (!good) {
    return InvalidArgument(
        "eviction: got '", text,
        "', want '', lru, lfu, lfu half_life N, lfu epoch N, lfu lru, norm, "
        "score or score sum, and after it ttl N, where N is 1 or more; last steps or microseconds");
  }
  *policy = parsed;
  return Status();
}

DecayLogs::DecayLogs() {
  for (int64_t i = 0; i <= kRange * kPlaces; ++i) {
    at[i] = LogOfOnePlusPowerOfTwo(static_cast<double>(i) / kPlaces) * kOne;
  }
}

int64_t DecayedWrite(int64_t now, int64_t half_life) {
  constexpr int64_t kMost = int64_t{1} << 38;  // half-lives; so that no sum overflows
  now = std::max<int64_t>(now, 0);
  const int64_t whole = std::min(now / half_life, kMost);
  // In double: a half-life times kOne need not be an int64. Exact enough, and the same everywhere.
  const double rest = static_cast<double>(now % half_life) / static_cast<double>(half_life);
  return whole * kOne + static_cast<int64_t>(rest * kOne);
}

int64_t EpochWrite(int64_t now, int64_t epoch) {
  const int64_t number = std::max<int64_t>(now, 0) / epoch;
  return std::min<int64_t>(number, INT32_MAX) << 32;
}

int64_t CountedWrite(int64_t now) {
  if (now >= EvictionPolicy::kFirstMicrosecond) now >>= 14;
  return std::clamp<int64_t>(now, 0, (int64_t{1} << 40) - 1);
}

int64_t EvictionPolicy::WriteAt(int64_t now) const {
  if (order == Order::kCountThenTime) return CountedWrite(now);
  if (order == Order::kDecayedCount) return DecayedWrite(now, half_life);
  return order == Order::kEpochCount ? EpochWrite(now, epoch) : 0;
}

int64_t AddDecayedWrite(int64_t score, int64_t write) {
  static const DecayLogs logs;
  return logs.Add(score, write);
}

}  // namespace dynemb
