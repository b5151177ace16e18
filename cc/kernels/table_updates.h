// TableUpdates: what DynembApply and DynembApplyBags do once they know keys and gradients.
#ifndef TF_DYNEMB_CC_KERNELS_TABLE_UPDATES_H_
#define TF_DYNEMB_CC_KERNELS_TABLE_UPDATES_H_

#include <string>
#include <vector>

#include "cc/core/base/span.h"
#include "cc/core/optimizer/rule.h"
#include "cc/core/policy/admission.h"
#include "cc/core/shard/routing.h"
#include "cc/core/table/key_strings.h"
#include "cc/kernels/table_resource.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"

namespace dynemb {

// Errors: not a table that counts candidates, or the counters of their sketch.
absl::Status CheckCandidates(const TableInput& candidates);
absl::Status CheckSketch(const TableInput& sketch);

// The updates of one op: its inputs tables, hyper, now and candidates, its attrs dtype, rule,
// slot_initial and admission, and what the op adds for each table.
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
    TableInput candidates;  // of a table whose admission counts occurrences
    TableInput sketch;      // of the counts that leave the candidates
    Admission admission;    // but for its candidates, which are those of a shard
  };

  // Errors: an attr that is wrong.
  absl::Status Init(tensorflow::OpKernelConstruction* context);

  // The tables, to be completed; errors: inputs that are wrong. They are held until Run has ended.
  absl::Status Get(tensorflow::OpKernelContext* context, std::vector<Update>* updates) const;

  // What an op is given about admission by its caller; errors: not one for each key.
  static absl::Status SetAdmitted(const tensorflow::Tensor& admitted, Update* update);

  // Finds whatever is wrong with one of them, before any row changes, and gives the tables the
  // slots of the optimizer. kResourceExhausted: a table has no room. `pins`: to be held until Run
  // has ended.
  absl::Status Prepare(tensorflow::OpKernelContext* context, const DeviceContext& core,
                       std::vector<Update>* updates, std::vector<KeyStrings::PinGuard>* pins) const;

  // Prepares, and updates the rows.
  absl::Status Run(tensorflow::OpKernelContext* context, const DeviceContext& core,
                   std::vector<Update>* updates) const;

 private:
  // Whatever can be found wrong before anything changes. The strings of the keys are held then.
  absl::Status Check(const DeviceContext& core, const std::vector<Update>& updates,
                     std::vector<KeyStrings::PinGuard>* pins) const;
  // The tables of the op, their candidates and sketches, held together.
  absl::Status Hold(tensorflow::OpKernelContext* context, std::vector<Update>* updates) const;
  // Gives tables that have no optimizer yet this one; holds all of them anew then.
  absl::Status SetOptimizers(tensorflow::OpKernelContext* context,
                             std::vector<Update>* updates) const;
  // Whether the table has room for the rows that an update will insert.
  static absl::Status CheckRoomOf(const DeviceContext& core, const Update& update);
  // Updates tables on a GPU.
  static Status RunOnGpu(const Context& context, const OptimizerSpec& rule,
                         const std::vector<Update>& updates);
  // Updates one table.
  static Status UpdateTable(const Context& context, const OptimizerSpec& rule,
                            const Update& update);

  tensorflow::DataType dtype_;
  OptimizerSpec rule_;
  std::vector<AdmissionPolicy> admission_;
};

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_KERNELS_TABLE_UPDATES_H_
