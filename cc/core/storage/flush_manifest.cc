#include "cc/core/storage/flush_manifest.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "cc/core/base/line_text.h"

namespace dynemb {
namespace {

constexpr int64_t kMostFolders = 1 << 16;

constexpr std::string_view kFirstWord = "dynemb-tier";
constexpr int kFormat = 1;
constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
constexpr int64_t kMostRows = int64_t{1} << 48;

Status Damaged(std::string_view line, const char* want) {
  return Status(Code::kDataLoss, StrCat("got line '", Printable(line), "', want ", want));
}

Status ParseFormat(std::string_view line) {
  std::string_view number = line;
  int64_t format;
  if (Take(&number, ' ') != kFirstWord || !ParseWhole(number, kMax, &format)) {
    return Damaged(line, "dynemb-tier <version>");
  }
  if (format == kFormat) return Status();
  return Status(Code::kUnimplemented,
                StrCat("got format version ", format, ", this reader knows ", kFormat,
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

std::set<uint64_t> FlushManifest::files() const {
  std::set<uint64_t> numbers;
  for (const FlushedShard& shard : shards) {
    numbers.insert(shard.index);
    for (const auto& [slot, file] : shard.files) numbers.insert(file.number);
  }
  return numbers;
}

std::string FlushManifest::ToText() const {
  std::string text =
      StrCat(kFirstWord, " ", kFormat, "\nid ", id, "\nstep ", step, "\nfolders ", folders, "\n");
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
  DYNEMB_RETURN_IF_ERROR(ParseFormat(Take(&rest, '\n')));
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
  for (const FlushedShard& shard : manifest->shards) {
    if (shard.schemas.empty() || shard.schemas.back().ToText() != manifest->schema().ToText() ||
        !std::all_of(shard.schemas.begin(), shard.schemas.end(), [&](const TableSchema& schema) {
          return HaveSameValues(schema, manifest->schema());
        })) {
      return Status(Code::kDataLoss, "its schemas are not those of one table");
    }
  }
  return Status();
}

}  // namespace dynemb
