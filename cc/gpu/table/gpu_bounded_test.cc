// Tables on a GPU with limits: cc/core/testing/bounded_suite.cc, on the GPU where there is one,
// and otherwise with the kernels on the host.
#include <memory>
#include <utility>

#include "cc/core/testing/bounded.h"
#include "cc/gpu/table/gpu_table.h"
#include "cc/gpu/table/host_access.h"
#include "cc/gpu/table/testing/gpu_harness.h"
#include "gtest/gtest.h"

namespace dynemb {

Status MakeBoundedTable(const TableSchema& schema, const TableOptions& options,
                        std::unique_ptr<Table>* table) {
  std::unique_ptr<GpuTable> made;
  DYNEMB_RETURN_IF_ERROR(MakeGpuTable(schema, options, DeviceMemoryForTests(), &made));
  *table = MakeHostAccess(std::move(made), DeviceMemoryForTests());
  return Status();
}

}  // namespace dynemb
