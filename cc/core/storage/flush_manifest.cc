#include "cc/core/storage/flush_manifest.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "cc/core/base/line_text.h"

namespace dynemb {
namespace {

constexpr int64_t kMostFolders = 1 << 16;

constexpr std::string_view kFirstWord = "dynemb-tier";
constexpr int kFormat = 2;  // 1 has no name
constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
constexpr int64_t kMostRows = int64_t{1} << 48;

Status Damaged(std::string_view line, const char* want) {
  return Status(Code::kDataLoss, StrCat("got line '", Printable(line), "', want ", want));
}

Status ParseFormat(std::string_view line, int64_t* format) {
  std::string_view number = line;
  if (Take(&number, ' ') != kFirstWord || !ParseWhole(number, kMax, format)) {
    return Damaged(line, "dynemb-tier <version>");
  }
  if (*format >= 1 && *format <= kFormat) return Status();
  return Status(Code::kUnimplemented,
                StrCat("got format version ", *format, ", this reader knows up to ", kFormat,
                       "; open it with the version of tf_dynemb that wrote it or a later one"));
}

// A line of a shard. Takes the lines of a schema from `text`.
Status ParseShardLine(std::string_view line, std::string_view* text, FlushedShard* shard) {
  std::string_view rest = line;
  const std::string_view word = Take(&rest, ' ');
  int64_t number, schema_number;
  if (word == "index") {
    if (!ParseWhole(Take(&rest, ' '), kMax, &number) ||
        !ParseWhole(rest, kMostRows, &shard->rows)) {
      return Damaged(line, "index <number> <rows>");
    }
    shard->index = static_cast<uint64_t>(number);
    return Status();
  }
  if (word == "schema") {
    if (!ParseWhole(rest, 1 << 20, &number)) return Damaged(line, "schema <number of lines>");
    shard->schemas.emplace_back();
    const Status parsed = TableSchema::Parse(TakeLines(text, number), &shard->schemas.back());
    return parsed.code() == Code::kInvalidArgument
               ? Status(Code::kDataLoss, std::string(parsed.message()))
               : parsed;
  }
  FlushedFile file;
  int64_t slot;
  if (word != "file" || !ParseWhole(Take(&rest, ' '), (1 << 18) - 1, &slot) ||
      !ParseWhole(Take(&rest, ' '), kMax, &number) ||
      !ParseWhole(Take(&rest, ' '), static_cast<int64_t>(shard->schemas.size()) - 1,
                  &schema_number) ||
      !ParseWhole(rest, kMax, &file.bytes)) {
    return Damaged(line, "index, schema, or file <slot> <number> <schema_number> <bytes>");
  }
  file.number = static_cast<uint64_t>(number);
  file.schema_number = static_cast<SchemaNumber>(schema_number);
  shard->files[slot] = file;
  return Status();
}

bool HaveSameValues(const TableSchema& a, const TableSchema& b) {
  return a.key == b.key && a.strings == b.strings && a.value_dtype == b.value_dtype &&
         a.dim == b.dim;
}

}  // namespace

std::string FlushManifest::OneLine(std::string_view name) {
  std::string line(name);
  for (char& c : line) {
    if (static_cast<unsigned char>(c) < ' ') c = '?';
  }
  return line;
}

std::set<uint64_t> FlushManifest::files() const {
  std::set<uint64_t> numbers;
  for (const FlushedShard& shard : shards) {
    numbers.insert(shard.index);
    for (const auto& [slot, file] : shard.files) numbers.insert(file.number);
  }
  return numbers;
}

std::string FlushManifest::ToText() const {
  std::string text = StrCat(kFirstWord, " ", kFormat, "\nid ", id, "\nstep ", step, "\nfolders ",
                            folders, "\nname ", OneLine(name), "\n");
  for (const FlushedShard& shard : shards) {
    text += StrCat("shard\nindex ", shard.index, " ", shard.rows, "\n");
    for (const TableSchema& schema : shard.schemas) {
      const std::string lines = schema.ToText();
      text += StrCat("schema ", std::count(lines.begin(), lines.end(), '\n'), "\n", lines);
    }
    for (const auto& [slot, file] : shard.files) {
      text +=
          StrCat("file ", slot, " ", file.number, " ", file.schema_number, " ", file.bytes, "\n");
    }
  }
  return text + ChecksumLine(text);
}

Status FlushManifest::Parse(std::string_view text, FlushManifest* manifest) {
  *manifest = FlushManifest();
  std::string_view rest = text;
  int64_t format;
  DYNEMB_RETURN_IF_ERROR(ParseFormat(Take(&rest, '\n'), &format));
  rest = text;
  if (!TakeChecksumLine(&rest)) {
    return Status(Code::kDataLoss,
                  "its last line is not the checksum of those before it; the file is damaged or "
                  "cut off");
  }
  Take(&rest, '\n');
  for (const auto& [word, number] : {std::pair("id", &manifest->id),
                                     {"step", &manifest->step},
                                     {"folders", &manifest->folders}}) {
    const std::string_view line = Take(&rest, '\n');
    std::string_view value = line;
    if (Take(&value, ' ') != word || !ParseWhole(value, kMax, number)) return Damaged(line, word);
  }
  if (format >= 2) {
    const std::string_view line = Take(&rest, '\n');
    std::string_view value = line;
    if (Take(&value, ' ') != "name") return Damaged(line, "name");
    manifest->name = value;
  }
  while (!rest.empty()) {
    const std::string_view line = Take(&rest, '\n');
    if (line == "shard") {
      manifest->shards.emplace_back();
    } else if (manifest->shards.empty()) {
      return Damaged(line, "shard");
    } else {
      DYNEMB_RETURN_IF_ERROR(ParseShardLine(line, &rest, &manifest->shards.back()));
    }
  }
  if (manifest->folders == 0 || manifest->folders > kMostFolders || manifest->shards.empty()) {
    return Status(Code::kDataLoss, "it has no folder, too many of them, or no shard");
  }
  // All shards have had them one after the other.
  const std::vector<TableSchema>& schemas = manifest->shards[0].schemas;
  const auto is_alike = [](const TableSchema& a, const TableSchema& b) {
    return a.ToText() == b.ToText() && HaveSameValues(a, b);
  };
  for (const FlushedShard& shard : manifest->shards) {
    if (shard.schemas.empty() || !std::equal(shard.schemas.begin(), shard.schemas.end(),
                                             schemas.begin(), schemas.end(), is_alike)) {
      return Status(Code::kDataLoss, "its schemas are not those of one table");
    }
  }
  for (size_t i = 1; i < schemas.size(); ++i) {
    if (!HaveSameValues(schemas[i], schemas[0]) || is_alike(schemas[i], schemas[i - 1])) {
      return Status(Code::kDataLoss, "its schemas are not those of one table, one after the other");
    }
  }
  return Status();
}

}  // namespace dynemb
