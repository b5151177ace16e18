// FlushManifest: which rows a folder has when it is opened again, and its text form. FORMAT.md has
// every field.
#ifndef TF_DYNEMB_CC_CORE_STORAGE_FLUSH_MANIFEST_H_
#define TF_DYNEMB_CC_CORE_STORAGE_FLUSH_MANIFEST_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "cc/core/base/status.h"
#include "cc/core/table/row_layout.h"

namespace dynemb {

// Rows of one layout have one number, in the order in which the layouts came.
using SchemaNumber = uint32_t;

// A file of rows, as far as a flush has it.
struct FlushedFile {
  uint64_t number = 0;
  SchemaNumber schema_number = 0;
  int64_t bytes = 0;
};

struct FlushedShard {
  uint64_t index = 0;                    // the number of the file that says where its rows are
  int64_t rows = 0;                      // of that file
  std::vector<TableSchema> schemas;      // by schema_number; the last one is the table's
  std::map<int64_t, FlushedFile> files;  // by slot
};

struct FlushManifest {
  int64_t id = 0;       // of the folders that belong together
  int64_t step = 0;     // what the flush was called with
  int64_t folders = 1;  // over which the files are spread
  std::string name;     // of the table; "": not known
  std::vector<FlushedShard> shards;

  const TableSchema& schema() const { return shards[0].schemas.back(); }
  // A name of a table as one line.
  static std::string OneLine(std::string_view name);
  // The numbers of all files, of which several shards may have the same.
  std::set<uint64_t> files() const;

  std::string ToText() const;
  // Errors: kDataLoss for what is damaged, or no rows of one table; kUnimplemented for a later
  // version.
  static Status Parse(std::string_view text, FlushManifest* manifest);
};

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_STORAGE_FLUSH_MANIFEST_H_
