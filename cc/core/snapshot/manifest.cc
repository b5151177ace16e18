#include "cc/core/snapshot/manifest.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <limits>
#include <set>

#include "cc/core/base/line_text.h"

namespace dynemb {
namespace {

constexpr std::string_view kFirstWord = "dynemb-snapshot";
constexpr std::string_view kLastWord = "crc32c";
constexpr int kFormat = 1;
constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

Status Damaged(std::string_view line, const char* want) {
  return Status(Code::kDataLoss, StrCat("manifest: got line '", Printable(line), "', want ", want));
}

// The words of lines, each with those that the line before may have.
constexpr std::string_view kWords[][2] = {{"id", "dynemb-snapshot"},
                                          {"created", "id"},
                                          {"base", "created"},
                                          {"table", "created base schema quantized"},
                                          {"schema", "table"},
                                          {"quantized", "schema"},
                                          {"file", "created base schema quantized file"},
                                          {kLastWord, "created base schema quantized file"}};

bool IsWord(std::string_view word) {
  return std::any_of(std::begin(kWords), std::end(kWords),
                     [&](const std::string_view* known) { return known[0] == word; });
}

bool MayFollow(std::string_view word, std::string_view before) {
  return std::any_of(std::begin(kWords), std::end(kWords), [&](const std::string_view* known) {
    return known[0] == word && known[1].find(before) != known[1].npos;
  });
}

// A name that stays in the snapshot's folder.
bool IsFileName(std::string_view name) {
  return !name.empty() && name[0] != '.' && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '-' ||
           c == '_' || c == '.';
  });
}

// The Unicode Standard, table 3-7 (well-formed UTF-8 byte sequences).
bool IsUtf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const auto byte = [&](size_t at) {
      return at < text.size() ? static_cast<unsigned char>(text[at]) : 0;
    };
    const int first = byte(i), second = byte(i + 1);
    const size_t size = first < 0x80 ? 1 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
    if (size > 1) {
      const int low = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
      const int high = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
      if (first < 0xc2 || first > 0xf4 || second < low || second > high) return false;
    }
    for (size_t k = 2; k < size; ++k) {
      if (byte(i + k) >> 6 != 2) return false;
    }
    i += size;
  }
  return true;
}

Status ParseFormat(std::string_view line) {
  std::string_view number = line;
  int64_t format;
  if (Take(&number, ' ') != kFirstWord || !ParseWhole(number, kMax, &format)) {
    return Damaged(line, "dynemb-snapshot <version>");
  }
  if (format == kFormat) return Status();
  return Status(Code::kUnimplemented,
                StrCat("manifest: got format version ", format, ", this reader knows ", kFormat,
                       "; read it with the version of tf_dynemb that wrote it or a later one"));
}

Status ParseTable(std::string_view line, std::string_view name, Manifest* manifest) {
  if (!CheckTableName(name).ok()) return Damaged(line, "the name of a table");
  manifest->tables.emplace_back();
  manifest->tables.back().name = name;
  return Status();
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
  if (!ParseWhole(rest, 1 << 20, &lines)) return Damaged(line, "schema <number of lines>");
  const Status parsed = TableSchema::Parse(TakeLines(text, lines), &manifest->tables.back().schema);
  if (parsed.ok()) return parsed;
  return Status(parsed.code() == Code::kInvalidArgument ? Code::kDataLoss : parsed.code(),
                StrCat("manifest: ", parsed.message()));
}

// Only values can be of 8 bits, and only those of floats.
Status ParseQuantized(std::string_view line, std::string_view rest, Manifest* manifest) {
  SnapshotTable& table = manifest->tables.back();
  const RowLayout layout(table.schema);
  const bool values_alone = layout.slots_bytes == 0 && layout.meta_bytes == 0;
  if (!rest.empty() || !values_alone || !IsFloating(table.schema.value_dtype)) {
    return Damaged(line, "it alone, of a table of floats without slots and meta");
  }
  table.quantized = true;
  return Status();
}

// A line of a known word. Takes more lines from `text` if they belong to it.
Status ParseLine(std::string_view line, std::string_view* text, Manifest* manifest) {
  std::string_view rest = line;
  const std::string_view word = Take(&rest, ' ');
  if (word == "table") return ParseTable(line, rest, manifest);
  if (word == "schema") return ParseSchema(line, rest, text, manifest);
  if (word == "quantized") return ParseQuantized(line, rest, manifest);
  if (word == "file") return ParseFile(line, rest, manifest);
  if (word == "created") {
    return ParseWhole(rest, kMax, &manifest->created_seconds) ? Status() : Damaged(line, "seconds");
  }
  if (word == "id" || word == "base") {
    uint64_t* const id = word == "id" ? &manifest->id : &manifest->base;
    return ParseId(rest, id).ok() ? Status() : Damaged(line, "16 hex digits, not all 0");
  }
  return Damaged(line, "it at the end only");
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
  return InvalidArgument("id of a snapshot: got '", text,
                         "', want 16 hex digits, not all 0, as `save` returns them");
}

Status CheckTableName(std::string_view name) {
  const bool fits = std::none_of(name.begin(), name.end(), [](char c) {
    return static_cast<unsigned char>(c) < ' ' || c == '\x7f';
  });
  if (!name.empty() && fits && IsUtf8(name)) return Status();
  return InvalidArgument("table name: got '", Printable(name),
                         "', want UTF-8, at least one character and no control characters");
}

std::string Manifest::ToText() const {
  std::string text =
      StrCat(kFirstWord, " ", kFormat, "\nid ", IdText(id), "\ncreated ", created_seconds, "\n");
  if (base != 0) text += StrCat("base ", IdText(base), "\n");
  for (const SnapshotTable& table : tables) {
    const std::string schema = table.schema.ToText();
    text +=
        StrCat("table ", table.name, "\nschema ", std::count(schema.begin(), schema.end(), '\n'),
               "\n", schema, table.quantized ? "quantized\n" : "");
  }
  for (const SnapshotFile& file : files) {
    text += StrCat("file ", file.name, " ", file.table, " ", file.bytes, " ", file.rows, " ",
                   file.erased, "\n");
  }
  return text + ChecksumLine(text);
}

Status Manifest::Parse(std::string_view text, Manifest* manifest) {
  *manifest = Manifest();
  std::string_view rest = text;
  DYNEMB_RETURN_IF_ERROR(ParseFormat(Take(&rest, '\n')));
  // Before anything else is believed.
  rest = text;
  if (!TakeChecksumLine(&rest)) {
    return Status(Code::kDataLoss,
                  "manifest: its last line is not the checksum of those before it; the file is "
                  "damaged or cut off");
  }
  Take(&rest, '\n');
  std::string_view before = kFirstWord;
  while (!rest.empty()) {
    const std::string_view line = Take(&rest, '\n');
    const std::string_view word = line.substr(0, line.find(' '));
    if (!word.empty() && word[0] == '+') continue;
    if (!IsWord(word)) {
      return Status(Code::kUnimplemented, StrCat("manifest: got line '", Printable(line),
                                                 "', which this reader does not know"));
    }
    if (!MayFollow(word, before)) return Damaged(line, "the lines in the order of the format");
    DYNEMB_RETURN_IF_ERROR(ParseLine(line, &rest, manifest));
    before = word;
  }
  std::set<std::string_view> names;
  for (const SnapshotTable& table : manifest->tables) {
    if (!names.insert(table.name).second) return Damaged(table.name, "each table once");
  }
  return MayFollow(kLastWord, before) ? Status() : Damaged(before, "more lines");
}

}  // namespace dynemb
