#include "cc/core/initializer/initializer_text.h"

#include <cmath>

#include "cc/core/base/number_text.h"

namespace dynemb {
namespace {

using Kind = Distribution::Kind;
constexpr const char* kNames[] = {"constant", "uniform", "normal", "truncated_normal",
                                  "bounded_normal"};

const char* Name(Kind kind) { return kNames[static_cast<int>(kind)]; }

std::string DistributionText(const Distribution& d) {
  std::string text = StrCat(Name(d.kind), " ", NumberText(d.a), " ", NumberText(d.b));
  if (d.kind == Kind::kBoundedNormal) {
    text += " " + NumberText(d.bounds.low) + " " + NumberText(d.bounds.high);
  }
  return text;
}

std::string ConstantText(const std::vector<double>& constant) {
  std::string text = Name(Kind::kConstant);
  for (const double number : constant) text += " " + NumberText(number);
  return text;
}

Status BadWords(const std::vector<std::string>& words, const char* want) {
  std::string line = "initializer";
  for (const std::string& word : words) line += " " + word;
  return InvalidArgument("table schema: got line '", line, "', want ", want);
}

// One distribution, of words[begin, end): its name and numbers. `line`: all words, for messages.
Status ParseDistribution(const std::vector<std::string>& line, size_t begin, size_t end,
                         Distribution* distribution, std::vector<double>* constant) {
  int kind = 0;
  while (kind < 5 && (begin == end || line[begin] != kNames[kind])) ++kind;
  if (kind == 5) {
    return BadWords(
        line, "initializer constant, uniform, normal, truncated_normal, bounded_normal or columns");
  }
  std::vector<double> numbers;
  for (size_t i = begin + 1; i < end; ++i) {
    double number;
    if (!ParseNumber(line[i], &number)) return BadWords(line, "finite numbers");
    numbers.push_back(number);
  }
  *distribution = Distribution();
  if (static_cast<Kind>(kind) == Kind::kConstant) {
    *constant = numbers;
    return numbers.empty() ? BadWords(line, "at least one number") : Status();
  }
  std::vector<float> f(numbers.begin(), numbers.end());
  if (static_cast<Kind>(kind) == Kind::kBoundedNormal) {
    if (f.size() != 4) return BadWords(line, "four numbers");
    *distribution = BoundedNormal(f[0], f[1], f[2], f[3]);
  } else {
    if (f.size() != 2) return BadWords(line, "two numbers");
    *distribution = {static_cast<Kind>(kind), f[0], f[1]};
  }
  return Status();
}

// Is it one of the dtype's numbers, or for floating dtypes one that can be rounded to them?
bool Fits(double number, DType dtype) {
  if (IsFloating(dtype)) return std::isfinite(number);
  const double bound = std::ldexp(1.0, static_cast<int>(SizeOf(dtype)) * 8 - 1);
  return number == std::floor(number) && number >= -bound && number < bound;
}

Status ValidateConstant(double constant, DType dtype) {
  if (Fits(constant, dtype)) return Status();
  return InvalidArgument("constant initializer: got ", constant, ", want a number of ",
                         dynemb::Name(dtype));
}

Status ValidateDistribution(const Distribution& d, DType dtype) {
  if (!IsFloating(dtype)) {
    return InvalidArgument("initializer: a table of ", dynemb::Name(dtype),
                           " can start at a constant only, got ", Name(d.kind));
  }
  if (!std::isfinite(d.a) || !std::isfinite(d.b) ||
      (d.kind == Kind::kUniform ? d.a > d.b : d.b < 0)) {
    return InvalidArgument("initializer: got ", Name(d.kind), " ", d.a, " ", d.b,
                           ", want finite numbers, low <= high or a standard deviation >= 0");
  }
  if (d.kind == Kind::kBoundedNormal &&
      !(std::isfinite(d.bounds.low) && std::isfinite(d.bounds.high) &&
        d.bounds.low < d.bounds.high && d.b > 0 &&
        d.bounds.left.mass + d.bounds.right.mass >= kLeastMass)) {
    return InvalidArgument("initializer: got ", DistributionText(d),
                           ", want a standard deviation > 0 and bounds between which a share of at "
                           "least ",
                           kLeastMass, " of the normal distribution lies");
  }
  return Status();
}

}  // namespace

std::string InitializerText(const Initializer& initializer) {
  const Distribution& distribution = initializer.distribution;
  if (initializer.columns.empty()) {
    return distribution.kind == Kind::kConstant ? ConstantText(initializer.constant)
                                                : DistributionText(distribution);
  }
  std::string text = "columns";
  for (const InitialColumns& part : initializer.columns) {
    text += StrCat(&part == &initializer.columns[0] ? " " : " | ", part.width, " ",
                   part.distribution.kind == Kind::kConstant ? ConstantText({part.constant})
                                                             : DistributionText(part.distribution));
  }
  return text;
}

Status ParseInitializer(const std::vector<std::string>& words, Initializer* initializer) {
  initializer->columns.clear();
  if (words.empty() || words[0] != "columns") {
    return ParseDistribution(words, 0, words.size(), &initializer->distribution,
                             &initializer->constant);
  }
  for (size_t begin = 1; begin <= words.size();) {
    size_t end = begin;
    while (end < words.size() && words[end] != "|") ++end;
    double width = 0;
    if (begin == end || !ParseNumber(words[begin], &width) || width != std::floor(width) ||
        width < 1 || width > 1e9) {
      return BadWords(words, "a number of columns before each initializer");
    }
    InitialColumns part;
    part.width = static_cast<int64_t>(width);
    std::vector<double> constant = {0.0};
    DYNEMB_RETURN_IF_ERROR(ParseDistribution(words, begin + 1, end, &part.distribution, &constant));
    if (constant.size() != 1) return BadWords(words, "one number for the columns of a part");
    part.constant = constant[0];
    initializer->columns.push_back(part);
    begin = end + 1;
  }
  initializer->distribution = Distribution();
  initializer->constant = {0.0};
  return Status();
}

Status ValidateInitializer(const Initializer& initializer, DType dtype, int64_t dim) {
  if (initializer.columns.empty() && initializer.distribution.kind != Kind::kConstant) {
    return ValidateDistribution(initializer.distribution, dtype);
  }
  if (initializer.columns.empty()) {
    const int64_t n = static_cast<int64_t>(initializer.constant.size());
    if (n != 1 && n != dim) {
      return InvalidArgument("constant initializer: got ", n, " numbers, want 1 or dim = ", dim);
    }
    for (const double constant : initializer.constant) {
      DYNEMB_RETURN_IF_ERROR(ValidateConstant(constant, dtype));
    }
    return Status();
  }
  int64_t sum = 0;
  for (const InitialColumns& part : initializer.columns) {
    if (part.width < 1 || part.width > dim - sum) {
      return InvalidArgument("initializer of columns: got parts of more than dim = ", dim,
                             " columns, or of less than one");
    }
    sum += part.width;
    DYNEMB_RETURN_IF_ERROR(part.distribution.kind == Kind::kConstant
                               ? ValidateConstant(part.constant, dtype)
                               : ValidateDistribution(part.distribution, dtype));
  }
  if (sum != dim) {
    return InvalidArgument("initializer of columns: got parts of ", sum,
                           " columns together, want dim = ", dim);
  }
  return Status();
}

}  // namespace dynemb
