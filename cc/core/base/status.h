// Status: how every operation of the engine reports what went wrong.
//
// Nothing that data, files or users can cause is an exception, an assert or an abort; it is a
// Status with a code and a message that says what was got, what was wanted and what to do. The
// codes are those of TensorFlow and gRPC, so that the kernels translate them one to one.
#ifndef TF_DYNEMB_CC_CORE_BASE_STATUS_H_
#define TF_DYNEMB_CC_CORE_BASE_STATUS_H_

#include <sstream>
#include <string>
#include <string_view>
#include <utility>

namespace dynemb {

enum class Code {
  kOk = 0,
  kInvalidArgument = 3,
  kDeadlineExceeded = 4,
  kNotFound = 5,
  kResourceExhausted = 8,
  kFailedPrecondition = 9,
  kOutOfRange = 11,
  kUnimplemented = 12,  // a file of a later version of its format, which only later code can read
  kInternal = 13,
  kUnavailable = 14,
  kDataLoss = 15,
};

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == Code::kOk; }
  Code code() const { return code_; }
  const std::string& message() const { return message_; }

 private:
  Code code_ = Code::kOk;
  std::string message_;
};

// Joins its arguments to one string, each as operator<< prints it.
template <typename... Args>
std::string StrCat(const Args&... args) {
  std::ostringstream out;
  (out << ... << args);
  return out.str();
}

// The beginning of what may be anything, such as words of a file, for a message.
inline std::string Printable(std::string_view text, size_t limit = 80) {
  std::string printable(text.substr(0, limit));
  for (char& c : printable) c = c >= ' ' && c <= '~' ? c : '?';
  return printable;
}

template <typename... Args>
Status InvalidArgument(const Args&... args) {
  return Status(Code::kInvalidArgument, StrCat(args...));
}
template <typename... Args>
Status FailedPrecondition(const Args&... args) {
  return Status(Code::kFailedPrecondition, StrCat(args...));
}
template <typename... Args>
Status Unavailable(const Args&... args) {
  return Status(Code::kUnavailable, StrCat(args...));
}
template <typename... Args>
Status ResourceExhausted(const Args&... args) {
  return Status(Code::kResourceExhausted, StrCat(args...));
}

#define DYNEMB_RETURN_IF_ERROR(expression)                                    \
  do {                                                                        \
    if (::dynemb::Status dynemb_status_ = (expression); !dynemb_status_.ok()) \
      return dynemb_status_;                                                  \
  } while (false)

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_BASE_STATUS_H_
