// InitialRows: what new rows hold, in the table's memory.
#ifndef TF_DYNEMB_CC_GPU_TABLE_INITIAL_ROWS_H_
#define TF_DYNEMB_CC_GPU_TABLE_INITIAL_ROWS_H_

#include <algorithm>
#include <vector>

#include "cc/core/base/context.h"
#include "cc/core/base/status.h"
#include "cc/core/table/row_layout.h"
#include "cc/gpu/table/device_buffer.h"
#include "cc/gpu/table/rows.cu.h"

namespace dynemb {

class InitialRows {
 public:
  explicit InitialRows(DeviceMemory* memory) : memory_(memory) {}

  // Waits for the stream.
  Status SetSchema(const Context& context, const TableSchema& schema) {
    const Initializer& initializer = schema.initializer;
    std::vector<InitialPart> parts;
    for (const InitialColumns& columns : initializer.columns) {
      const int64_t end = (parts.empty() ? 0 : parts.back().end) + columns.width;
      parts.push_back({end, columns.distribution, columns.constant});
    }
    const double constant = initializer.constant.empty() ? 0 : initializer.constant[0];
    const bool per_column = parts.empty() && initializer.constant.size() > 1 &&
                            initializer.distribution.kind == Distribution::Kind::kConstant;
    std::vector<char> slots(static_cast<size_t>(RowLayout(schema).slots_bytes));
    FillInitialSlots(schema, slots.data());
    const auto put_all = [&]() -> Status {
      DYNEMB_RETURN_IF_ERROR(Put(context, parts, &parts_));
      if (per_column) DYNEMB_RETURN_IF_ERROR(Put(context, initializer.constant, &constants_));
      return Put(context, slots, &slots_);
    };
    const Status put = put_all();
    DYNEMB_RETURN_IF_ERROR(Wait(context));  // what is copied ends here, also after an error
    DYNEMB_RETURN_IF_ERROR(put);
    values_ = {{schema.dim, initializer.distribution, constant},
               parts.empty() ? nullptr : parts_.as<InitialPart>(),
               per_column ? constants_.as<double>() : nullptr,
               initializer.seed,
               schema.dim,
               schema.value_dtype};
    return {};
  }

  const InitialValues& values() const { return values_; }
  const char* slots() const { return slots_.as<char>(); }

 private:
  template <typename T>
  Status Put(const Context& context, const std::vector<T>& numbers, DeviceBuffer* buffer) {
    const auto bytes = static_cast<int64_t>(numbers.size() * sizeof(T));
    if (!buffer->Allocate(memory_, std::max<int64_t>(bytes, 1))) {
      return ResourceExhausted("no GPU memory for what new rows hold");
    }
    return CopyAny(context, buffer->as<char>(), numbers.data(), bytes);
  }

  DeviceMemory* memory_;
  InitialValues values_;
  DeviceBuffer parts_, constants_, slots_;
};

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_GPU_TABLE_INITIAL_ROWS_H_
