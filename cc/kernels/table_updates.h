// TableUpdates: what DynembApply and DynembApplyBags do once they know keys and gradients.
#ifndef TF_DYNEMB_CC_KERNELS_TABLE_UPDATES_H_
#define TF_DYNEMB_CC_KERNELS_TABLE_UPDATES_H_

#include <string>
#include <vector>

#include "cc/core/base/span.h"
#include "cc/core/optimizer/rule.h"
#include "cc/core/shard/routing.h"
#include "cc/core/table/key_strings.h"
#include "cc/kernels/table_resource.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"

namespace dynemb {

// The updates of one op: its inputs tables, hyper and now, its attrs dtype, rule, slot_initial
// and limits, and what the op adds for each table.
class TableUpdates {
 public:
  // One table's, in the memory of the op's device. Whoever makes it keeps what it views.
  struct Update {
    TableInput table;
    Span<const Key> keys;
    ConstRows gradients;
    Span<const double> scales;
    Span<const double> hyper;
    Routing routing;
    Stamp stamp;
  };

  // Errors: an attr that is wrong.
  absl::Status Init(tensorflow::OpKernelConstruction* context);

  // The tables, to be completed; errors: inputs that are wrong.
  absl::Status Get(tensorflow::OpKernelContext* context, std::vector<Update>* updates) const;

  // Whatever is wrong with one of them is found before any changes.
  absl::Status Run(tensorflow::OpKernelContext* context, const DeviceContext& core,
                   std::vector<Update>* updates) const;

 private:
  // Errors: keys without a row that are more than a limit leaves room for.
  static absl::Status CheckLimit(const DeviceContext& core, const Update& update, int64_t limit,
                                 const std::string& name);

  tensorflow::DataType dtype_;
  RuleSpec rule_;
  std::vector<int64_t> limits_;
  std::vector<std::string> limit_names_;
};

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_KERNELS_TABLE_UPDATES_H_
