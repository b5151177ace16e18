// Text of lines, "word value ...", whose last line is the checksum of those before it: what
// manifests are written as.
#ifndef TF_DYNEMB_CC_CORE_BASE_LINE_TEXT_H_
#define TF_DYNEMB_CC_CORE_BASE_LINE_TEXT_H_

#include <algorithm>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

#include "cc/core/base/crc32c.h"

namespace dynemb {

// Takes what comes before `separator` off the front of `text`; all of it if there is none.
inline std::string_view Take(std::string_view* text, char separator) {
  const size_t end = std::min(text->find(separator), text->size());
  const std::string_view taken = text->substr(0, end);
  text->remove_prefix(std::min(end + 1, text->size()));
  return taken;
}

// Takes so many lines, or all that there are.
inline std::string_view TakeLines(std::string_view* text, int64_t lines) {
  const std::string_view all = *text;
  for (int64_t i = 0; i < lines && !text->empty(); ++i) Take(text, '\n');
  return all.substr(0, all.size() - text->size());
}

// A number from 0 to `limit`, if there is one.
inline bool ParseWhole(std::string_view text, int64_t limit, int64_t* number) {
  if (text.empty() || text.size() > 19 || limit < 0) return false;
  uint64_t sum = 0;
  for (const char c : text) {
    if (c < '0' || c > '9') return false;
    sum = sum * 10 + static_cast<uint64_t>(c - '0');
  }
  *number = static_cast<int64_t>(sum);
  return sum <= static_cast<uint64_t>(limit);
}

// The last line, after `data`.
inline std::string ChecksumLine(std::string_view data) {
  char text[32];
  std::snprintf(text, sizeof(text), "crc32c %08" PRIx32 "\n", Crc32c(data));
  return text;
}

// Takes the last line off `text`. False: it is not the checksum of the others.
inline bool TakeChecksumLine(std::string_view* text) {
  constexpr size_t kBytes = 16;
  if (text->size() < kBytes) return false;
  const std::string_view line = text->substr(text->size() - kBytes);
  text->remove_suffix(kBytes);
  return line == ChecksumLine(*text);
}

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_BASE_LINE_TEXT_H_
