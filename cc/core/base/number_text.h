// Numbers as text that reads back to the same number, whatever the locale.
#ifndef TF_DYNEMB_CC_CORE_BASE_NUMBER_TEXT_H_
#define TF_DYNEMB_CC_CORE_BASE_NUMBER_TEXT_H_

#include <charconv>
#include <cmath>
#include <string>
#include <system_error>

namespace dynemb {

// The shortest text that reads back to the same float or double.
template <typename T>
std::string NumberText(T number) {
  char text[40];
  for (int digits = 6;; ++digits) {
    const char* const end = std::to_chars(text, text + sizeof(text), static_cast<double>(number),
                                          std::chars_format::general, digits)
                                .ptr;
    double read = 0;
    std::from_chars(text, end, read);
    if (static_cast<T>(read) == number || digits == 17)
      return std::string(text, static_cast<size_t>(end - text));
  }
}

// False for what is no finite number.
inline bool ParseNumber(const std::string& text, double* number) {
  const char* const end = text.data() + text.size();
  const auto read = std::from_chars(text.data(), end, *number);
  return read.ec == std::errc() && read.ptr == end && std::isfinite(*number);
}

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_BASE_NUMBER_TEXT_H_
