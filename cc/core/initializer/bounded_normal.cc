// The masses of the normal distribution between bounds, by +, -, * and / of IEEE double alone, so
// that they are the same everywhere, as initializer.h promises of what is drawn with them.
#include <algorithm>
#include <cmath>
#include <utility>

#include "cc/core/initializer/initializer.h"

namespace dynemb {
namespace {

// Beyond it NormalQuantile is not exact.
constexpr double kFarthest = 6.6;

// exp(-x) for x in [0, 25]: Taylor's series of exp(x / 64), and six squares.
double PortableExpOfMinus(double x) {
  double term = 1, sum = 1;
  for (int n = 1; n <= 16; ++n) {
    term *= x / 64 / n;
    sum += term;
  }
  for (int i = 0; i < 6; ++i) sum *= sum;
  return 1 / sum;
}

// The standard normal distribution's mass beyond z in [0, kFarthest]; to about 1e-12 of it.
// Abramowitz and Stegun, "Handbook of Mathematical Functions" (1964): 26.2.11 near 0, and 26.2.14,
// Laplace's continued fraction, far away.
double MassBeyond(double z) {
  const double density = PortableExpOfMinus(z * z / 2) * 0.3989422804014327;
  if (z < 3) {
    double term = z, sum = z;
    for (int n = 3; n < 120; n += 2) {
      term *= z * z / n;
      sum += term;
    }
    return 0.5 - density * sum;
  }
  double fraction = z;
  for (int n = 120; n > 0; --n) fraction = z + n / fraction;
  return density / fraction;
}

}  // namespace

Distribution BoundedNormal(float mean, float stddev, float low, float high) {
  Distribution made = {Distribution::Kind::kBoundedNormal, mean, stddev};
  NormalBounds& bounds = made.bounds;
  bounds.low = low;
  bounds.high = high;
  // Written so that a NaN is the farthest.
  const double first = std::max(-kFarthest, (double{low} - mean) / stddev);
  const double last = std::min(kFarthest, (double{high} - mean) / stddev);
  if (!(first < last)) return made;  // no mass
  // Each side from `outer` to `inner`, distances from the mean.
  const auto side = [](double outer, double inner) {
    const double tail = MassBeyond(outer);
    return std::pair(tail, std::max(0.0, MassBeyond(inner) - tail));
  };
  const std::pair none(0.0, 0.0);
  const auto left = first < 0 ? side(-first, std::max(0.0, -last)) : none;
  const auto right = last > 0 ? side(last, std::max(0.0, first)) : none;
  const double mass = left.second + right.second;
  if (!(mass > 0)) return made;
  constexpr double kWords = 4294967296.0;
  const double left_words = std::floor(kWords * (left.second / mass));
  const auto as_side = [](const std::pair<double, double>& tail_and_mass, double words) {
    return NormalBounds::Side{static_cast<float>(tail_and_mass.first),
                              static_cast<float>(tail_and_mass.second),
                              words > 0 ? static_cast<float>(1 / words) : 0.0f};
  };
  bounds.left_words = static_cast<uint64_t>(left_words);
  bounds.left = as_side(left, left_words);
  bounds.right = as_side(right, kWords - left_words);
  return made;
}

}  // namespace dynemb
