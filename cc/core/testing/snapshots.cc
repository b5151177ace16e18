#include "cc/core/testing/snapshots.h"

#include <cstdio>
#include <cstdlib>
#include <random>
#include <utility>

#include "cc/core/base/crc32c.h"
#include "cc/core/snapshot/reader.h"
#include "cc/core/table/host_table.h"
#include "cc/core/testing/caller.h"

namespace dynemb {
namespace {

void CheckOk(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.message().c_str());
  std::abort();
}

template <typename T>
void Append(T number, std::string* bytes) {
  for (size_t i = 0; i < sizeof(T); ++i) {
    bytes->push_back(static_cast<char>(static_cast<uint64_t>(number) >> 8 * i & 0xff));
  }
}

std::string RandomBytes(int64_t size, std::mt19937_64* random) {
  std::string bytes(static_cast<size_t>(size), '\0');
  for (char& byte : bytes) byte = static_cast<char>((*random)());
  return bytes;
}

}  // namespace

Context OneThread() {
  static InlineExecutor* const executor = new InlineExecutor;
  Context context;
  context.executor = executor;
  return context;
}

TableSchema MakeSchema(DType dtype, int64_t dim, const std::string& rule,
                       std::vector<MetaField> meta) {
  TableSchema schema;
  schema.value_dtype = dtype;
  schema.dim = dim;
  schema.rule = UsualRule(rule);
  for (const MetaField field : meta) schema.meta.add(field);
  CheckOk(schema.Validate());
  return schema;
}

TableContent RandomRows(const TableSchema& schema, int64_t count, uint64_t seed) {
  const RowLayout layout(schema);
  std::mt19937_64 random(seed);
  TableContent rows;
  while (static_cast<int64_t>(rows.size()) < count) {
    const Key key = static_cast<Key>(random() % static_cast<uint64_t>(4 * count)) - 2 * count;
    rows[key] = {RandomBytes(layout.value_bytes, &random), RandomBytes(layout.slots_bytes, &random),
                 RandomBytes(layout.meta_bytes, &random)};
  }
  return rows;
}

SnapshotContent ContentOf(const std::vector<TestTable>& tables) {
  SnapshotContent content;
  for (const TestTable& table : tables) content[table.name] = table.rows;
  return content;
}

std::string Difference(const SnapshotContent& want, const SnapshotContent& got) {
  for (const auto& [name, rows] : want) {
    const auto other = got.find(name);
    if (other == got.end()) return StrCat("table ", name, " is missing");
    const std::string difference = Difference(rows, other->second);
    if (!difference.empty()) return StrCat("table ", name, ": ", difference);
  }
  for (const auto& [name, rows] : got) {
    if (want.count(name) == 0) return StrCat("table ", name, " should not be there");
  }
  return "";
}

Shards::Shards(const std::vector<TestTable>& tables) {
  for (const TestTable& table : tables) {
    named_.push_back({table.name, {}});
    std::vector<TableContent> parts(static_cast<size_t>(table.shards));
    for (const auto& [key, row] : table.rows) {
      parts[static_cast<uint64_t>(key) % static_cast<uint64_t>(table.shards)][key] = row;
    }
    for (const TableContent& part : parts) {
      std::unique_ptr<Table> shard;
      CheckOk(MakeHostTable(table.schema, &shard));
      CheckOk(Caller(shard.get(), HostTestMemory()).InsertRows(part));
      named_.back().shards.push_back(shard.get());
      owned_.push_back(std::move(shard));
    }
  }
}

Status Save(FileSystem* files, const std::string& folder, const Shards& shards) {
  Manifest manifest;
  return SaveTables(OneThread(), files, folder, shards.named(), 0, &manifest);
}

Status Load(FileSystem* files, const std::string& folder, SnapshotContent* content,
            std::map<std::string, std::vector<Key>>* erased) {
  content->clear();
  std::unique_ptr<SnapshotReader> reader;
  DYNEMB_RETURN_IF_ERROR(SnapshotReader::Open(files, folder, &reader));
  DYNEMB_RETURN_IF_ERROR(reader->Verify(OneThread()));
  std::vector<RowLayout> layouts;
  for (const SnapshotTable& table : reader->manifest().tables) {
    (*content)[table.name];
    layouts.emplace_back(table.schema);
  }
  SnapshotPlace place;
  SnapshotBlock block;
  bool done = false;
  for (;;) {
    DYNEMB_RETURN_IF_ERROR(reader->Next(-1, &place, &block, &done));
    if (done) return Status();
    const std::string& name = reader->manifest().tables[static_cast<size_t>(block.table)].name;
    const RowLayout& layout = layouts[static_cast<size_t>(block.table)];
    const auto part = [](const char* data, int64_t bytes) {
      return std::string(data, static_cast<size_t>(bytes));
    };
    for (int64_t i = 0; i < block.rows.keys.size; ++i) {
      RowBytes row = {part(block.rows.values[i], layout.value_bytes),
                      part(block.rows.slots[i], layout.slots_bytes),
                      part(block.rows.meta[i], layout.meta_bytes)};
      if (!(*content)[name].emplace(block.rows.keys[i], std::move(row)).second) {
        return Status(Code::kInternal, StrCat("key ", block.rows.keys[i], " comes twice"));
      }
    }
    if (erased == nullptr) continue;
    for (const Key key : block.erased) (*erased)[name].push_back(key);
  }
}

std::string Encode(const RawBlock& block) {
  std::string bytes = "DYB1";
  Append(block.kind, &bytes);
  Append(block.flags, &bytes);
  Append(block.snapshot, &bytes);
  Append(block.file, &bytes);
  Append(block.sequence, &bytes);
  Append(block.records, &bytes);
  Append(static_cast<int64_t>(block.payload.size()), &bytes);
  Append(Crc32c(block.payload), &bytes);
  Append(Crc32c(bytes), &bytes);
  return bytes + block.payload;
}

std::string ChecksumText(const std::string& data) {
  std::string text;
  for (int shift = 28; shift >= 0; shift -= 4) {
    text.push_back("0123456789abcdef"[Crc32c(data) >> shift & 0xf]);
  }
  return text;
}

std::string Sealed(const std::string& lines) {
  return StrCat(lines, "crc32c ", ChecksumText(lines), "\n");
}

}  // namespace dynemb
