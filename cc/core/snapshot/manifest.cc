#include "cc/core/snapshot/manifest.h"

#include <algorithm>
#include <cctype>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <limits>

#include "cc/core/base/crc32c.h"

namespace dynemb {
namespace {

constexpr std::string_view kFirstWord = "dynemb-snapshot";
constexpr int kFormat = 1;
constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

std::string ChecksumText(std::string_view data) {
  char text[16];
  std::snprintf(text, sizeof(text), "%08" PRIx32, Crc32c(data));
  return text;
}

Status Damaged(std::string_view line, const char* want) {
  return Status(Code::kDataLoss, StrCat("manifest: got line '", line, "', want ", want));
}

// Takes what comes before `separator` off the front of `text`; all of it if there is none.
std::string_view Take(std::string_view* text, char separator) {
  const size_t end = std::min(text->find(separator), text->size());
  const std::string_view taken = text->substr(0, end);
  text->remove_prefix(std::min(end + 1, text->size()));
  return taken;
}

bool ParseWhole(std::string_view text, int64_t limit, int64_t* number) {
  if (text.empty() || text.size() > 19) return false;
  uint64_t sum = 0;
  for (const char c : text) {
    if (c < '0' || c > '9') return false;
    sum = sum * 10 + static_cast<uint64_t>(c - '0');
  }
  *number = static_cast<int64_t>(sum);
  return sum <= static_cast<uint64_t>(limit);
}

// A name that stays in the snapshot's folder.
bool IsFileName(std::string_view name) {
  return !name.empty() && name[0] != '.' && std::all_of(name.begin(), name.end(), [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_' || c == '.';
  });
}

Status ParseFile(std::string_view line, std::string_view rest, Manifest* manifest) {
  SnapshotFile file;
  const int64_t tables = static_cast<int64_t>(manifest->tables.size());
  file.name = Take(&rest, ' ');
  if (!IsFileName(file.name) || !ParseWhole(Take(&rest, ' '), tables - 1, &file.table) ||
      !ParseWhole(Take(&rest, ' '), kMax, &file.bytes) ||
      !ParseWhole(Take(&rest, ' '), kMax, &file.rows) || !ParseWhole(rest, kMax, &file.erased)) {
    return Damaged(line, "file <name> <table> <bytes> <rows> <erased>");
  }
  manifest->files.push_back(std::move(file));
  return Status();
}

// The lines after "schema <n>", which it takes off the front of `text`.
Status ParseSchema(std::string_view line, std::string_view rest, std::string_view* text,
                   Manifest* manifest) {
  int64_t lines;
  if (manifest->tables.empty() || !ParseWhole(rest, 1 << 20, &lines)) {
    return Damaged(line, "a table before its schema, and a number of lines");
  }
  const std::string_view all = *text;
  for (int64_t i = 0; i < lines; ++i) Take(text, '\n');
  return TableSchema::Parse(all.substr(0, all.size() - text->size()),
                            &manifest->tables.back().schema);
}

}  // namespace

std::string IdText(uint64_t id) {
  char text[32];
  std::snprintf(text, sizeof(text), "%016" PRIx64, id);
  return text;
}

Status ParseId(std::string_view text, uint64_t* id) {
  if (text.size() == 16 && text.find_first_not_of("0123456789abcdef") == text.npos) {
    *id = std::strtoull(std::string(text).c_str(), nullptr, 16);
    if (*id != 0) return Status();
  }
  return InvalidArgument("id of a snapshot: got '", text, "', want 16 hex digits, not all 0");
}

Status CheckTableName(std::string_view name) {
  const bool fits = std::none_of(
      name.begin(), name.end(), [](char c) { return std::iscntrl(static_cast<unsigned char>(c)); });
  if (!name.empty() && fits) return Status();
  return InvalidArgument("table name: got '", name,
                         "', want at least one character and no control characters");
}

std::string Manifest::ToText() const {
  std::string text =
      StrCat(kFirstWord, " ", kFormat, "\nid ", IdText(id), "\ncreated ", created_seconds, "\n");
  if (base != 0) text += StrCat("base ", IdText(base), "\n");
  for (const SnapshotTable& table : tables) {
    const std::string schema = table.schema.ToText();
    text += StrCat("table ", table.name, "\nschema ",
                   std::count(schema.begin(), schema.end(), '\n'), "\n", schema);
  }
  for (const SnapshotFile& file : files) {
    text += StrCat("file ", file.name, " ", file.table, " ", file.bytes, " ", file.rows, " ",
                   file.erased, "\n");
  }
  return StrCat(text, "crc32c ", ChecksumText(text), "\n");
}

Status Manifest::Parse(std::string_view text, Manifest* manifest) {
  *manifest = Manifest();
  std::string_view rest = text;
  std::string_view line = Take(&rest, '\n');
  std::string_view words = line;
  int64_t format;
  if (Take(&words, ' ') != kFirstWord || !ParseWhole(words, kMax, &format)) {
    return Damaged(line.substr(0, 80), "dynemb-snapshot <version>");
  }
  if (format != kFormat) {
    return Status(Code::kUnimplemented,
                  StrCat("manifest: got format version ", format, ", this reader knows ", kFormat,
                         "; read it with the version of tf_dynemb that wrote it or a later one"));
  }
  while (!rest.empty()) {
    const size_t start = text.size() - rest.size();
    line = Take(&rest, '\n');
    words = line;
    const std::string_view word = Take(&words, ' ');
    if (word == "id") {
      if (!ParseId(words, &manifest->id).ok()) return Damaged(line, "the id of a snapshot");
    } else if (word == "created") {
      if (!ParseWhole(words, kMax, &manifest->created_seconds)) return Damaged(line, "seconds");
    } else if (word == "base") {
      if (!ParseId(words, &manifest->base).ok()) return Damaged(line, "the id of a snapshot");
    } else if (word == "table") {
      if (!CheckTableName(words).ok()) return Damaged(line, "the name of a table");
      manifest->tables.emplace_back();
      manifest->tables.back().name = words;
    } else if (word == "schema") {
      DYNEMB_RETURN_IF_ERROR(ParseSchema(line, words, &rest, manifest));
    } else if (word == "file") {
      DYNEMB_RETURN_IF_ERROR(ParseFile(line, words, manifest));
    } else if (word == "crc32c") {
      if (words != ChecksumText(text.substr(0, start)) || !rest.empty()) {
        return Damaged(line, "the checksum of all lines before, and nothing after it");
      }
      return manifest->id != 0 ? Status() : Damaged(line, "a line with an id before it");
    } else if (word.empty() || word[0] != '+') {
      return Status(Code::kUnimplemented,
                    StrCat("manifest: got line '", line, "', which this reader does not know"));
    }
  }
  return Damaged(line, "a last line crc32c; the file is cut off");
}

}  // namespace dynemb
