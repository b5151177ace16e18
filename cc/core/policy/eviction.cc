#include "cc/core/policy/eviction.h"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <system_error>
#include <vector>

namespace dynemb {
namespace {

constexpr int64_t kOne = 1 << 24;  // log2 of 2, in fixed point
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

// The same in fixed point, between places that are computed once: it is above the function, by less
// than 2e-5 of its value.
class Logs {
 public:
  static constexpr int64_t kRange = 25;  // beyond it is less than 1 in fixed point

  Logs() {
    for (int64_t i = 0; i <= kRange * kPlaces; ++i) {
      at_[i] = LogOfOnePlusPowerOfTwo(static_cast<double>(i) / kPlaces) * kOne;
    }
  }
  int64_t At(int64_t x) const {
    constexpr int64_t kStep = kOne / kPlaces;
    const int64_t i = x / kStep;
    const double part = static_cast<double>(x % kStep) / kStep;
    return static_cast<int64_t>(at_[i] + part * (at_[i + 1] - at_[i]));
  }

 private:
  static constexpr int64_t kPlaces = 64;  // from one whole number to the next
  double at_[kRange * kPlaces + 1];
};

}  // namespace

MetaFields EvictionPolicy::meta() const {
  MetaFields fields;
  if (order == Order::kLastWriteTime || expires()) fields.add(MetaField::kLastWriteTime);
  if (order == Order::kCount) fields.add(MetaField::kCount);
  if (order == Order::kDecayedCount) fields.add(MetaField::kScore);
  return fields;
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
  if (at < words.size() && words[at] != "ttl") {
    const std::string_view name = words[at++];
    if (name == "lru") {
      parsed.order = Order::kLastWriteTime;
    } else if (name == "lfu") {
      parsed.order = Order::kCount;
      good = number("half_life", &parsed.half_life);
      if (parsed.half_life > 0) parsed.order = Order::kDecayedCount;
    } else if (name == "norm") {
      parsed.order = Order::kNorm;
    } else {
      good = false;
    }
  }
  good = good && number("ttl", &parsed.ttl) && at == words.size();
  if (!good) {
    return InvalidArgument("eviction: got '", text,
                           "', want '', lru, lfu, lfu half_life N or norm, and after it ttl N, ",
                           "where N is 1 or more");
  }
  *policy = parsed;
  return Status();
}

int64_t DecayedWrite(int64_t now, int64_t half_life) {
  constexpr int64_t kMost = int64_t{1} << 38;  // half-lives; so that no sum overflows
  now = std::max<int64_t>(now, 0);
  const int64_t whole = std::min(now / half_life, kMost);
  // In double: a half-life times kOne need not be an int64. Exact enough, and the same everywhere.
  const double rest = static_cast<double>(now % half_life) / static_cast<double>(half_life);
  return whole * kOne + static_cast<int64_t>(rest * kOne);
}

int64_t AddWrite(int64_t score, int64_t write) {
  static const Logs logs;
  if (score == kNeverWritten) return write;
  const int64_t high = std::max(score, write);
  // The scores of a file may be anything.
  const uint64_t apart =
      static_cast<uint64_t>(high) - static_cast<uint64_t>(std::min(score, write));
  if (apart >= static_cast<uint64_t>(Logs::kRange * kOne) || high > INT64_MAX - kOne) return high;
  return high + logs.At(static_cast<int64_t>(apart));
}

}  // namespace dynemb
