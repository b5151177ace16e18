// Manifest: what a snapshot is, and its text form. FORMAT.md has every field.
#ifndef TF_DYNEMB_CC_CORE_SNAPSHOT_MANIFEST_H_
#define TF_DYNEMB_CC_CORE_SNAPSHOT_MANIFEST_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cc/core/base/status.h"
#include "cc/core/table/row_layout.h"

namespace dynemb {

inline constexpr char kManifestName[] = "MANIFEST";
inline constexpr int64_t kMaxManifestBytes = int64_t{256} << 20;

struct SnapshotTable {
  std::string name;
  TableSchema schema;
  bool quantized = false;  // its rows have 8-bit numbers and a scale (quantize.h)
};

struct SnapshotFile {
  std::string name;
  int64_t table = 0;  // which of the manifest's tables
  int64_t bytes = 0;
  int64_t rows = 0;
  int64_t erased = 0;
};

struct Manifest {
  uint64_t id = 0;
  uint64_t base = 0;  // of a delta: what it continues; else 0
  int64_t created_seconds = 0;
  std::vector<SnapshotTable> tables;
  std::vector<SnapshotFile> files;

  std::string ToText() const;
  // Errors: kDataLoss for what is damaged, kUnimplemented for a version or word of a later format.
  static Status Parse(std::string_view text, Manifest* manifest);
};

// 16 hex digits, and back.
std::string IdText(uint64_t id);
Status ParseId(std::string_view text, uint64_t* id);

// A table's name must fit into a line: UTF-8, not empty, no control characters.
Status CheckTableName(std::string_view name);

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_SNAPSHOT_MANIFEST_H_
