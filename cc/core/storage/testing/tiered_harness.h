// Tiered tables over files in memory, for tests.
#ifndef TF_DYNEMB_CC_CORE_STORAGE_TESTING_TIERED_HARNESS_H_
#define TF_DYNEMB_CC_CORE_STORAGE_TESTING_TIERED_HARNESS_H_

#include <cstdint>
#include <memory>
#include <string>

#include "cc/core/storage/tiered_table.h"
#include "cc/core/testing/harness.h"
#include "cc/core/testing/memory_file_system.h"

namespace dynemb {

// A table with room for so many rows above, and small files.
inline Status MakeTieredTableOn(const std::shared_ptr<MemoryFileSystem>& files,
                                const TableSchema& schema, int64_t max_rows,
                                std::unique_ptr<Table>* table,
                                const TableOptions& options = TableOptions(),
                                bool in_background = false) {
  StorageOptions storage;
  storage.max_rows = max_rows;
  storage.in_background = in_background;
  storage.least_file_bytes = 20'000;
  std::shared_ptr<DiskFolder> folder;
  DYNEMB_RETURN_IF_ERROR(DiskFolder::Open(files.get(), {{"/tiers"}}, &folder));
  // With the file system, which lives as long.
  storage.disk = std::shared_ptr<DiskFolder>(folder.get(), [files, folder](DiskFolder*) {});
  return MakeTieredTable(schema, options, storage, table);
}

inline TableHarness TieredHarness(const std::string& name, int64_t max_rows,
                                  bool in_background = false) {
  TableHarness harness =
      HostHarness(name, [=](const TableSchema& schema, std::unique_ptr<Table>* table) {
        return MakeTieredTableOn(std::make_shared<MemoryFileSystem>(), schema, max_rows, table, {},
                                 in_background);
      });
  harness.rows_in_memory = false;
  return harness;
}

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_STORAGE_TESTING_TIERED_HARNESS_H_
