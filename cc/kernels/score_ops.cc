// Kernels of the ops that carry the scores of keys from lookups to the update that stamps them.
#include <algorithm>
#include <vector>

#include "cc/core/policy/given_scores.h"
#include "cc/core/table/row_layout.h"
#include "cc/kernels/catching_kernel.h"
#include "cc/kernels/table_resource.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"

namespace dynemb {
namespace {

using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

bool ScoresAddUp(const TableInput& table) {
  return table.resource->options().eviction.adds_scores();
}

// The inputs keys and scores, a score for each key.
absl::Status GetScoresOfKeys(OpKernelContext* context, Span<const Key>* keys,
                             Span<const int64_t>* scores) {
  const Tensor *of_keys, *of_scores;
  TF_RETURN_IF_ERROR(context->input("keys", &of_keys));
  TF_RETURN_IF_ERROR(context->input("scores", &of_scores));
  *keys = {of_keys->flat<int64_t>().data(), of_keys->NumElements()};
  *scores = {of_scores->flat<int64_t>().data(), of_scores->NumElements()};
  if (keys->size == scores->size) return absl::OkStatus();
  return ToTensorFlow(InvalidArgument("scores: got ", scores->size, " for ", keys->size,
                                      " keys, want one for each"));
}

class WithScoresOp : public CatchingKernel {
 public:
  using CatchingKernel::CatchingKernel;
  void TryCompute(OpKernelContext* context) override {
    Span<const Key> keys;
    Span<const int64_t> scores;
    OP_REQUIRES_OK(context, GetScoresOfKeys(context, &keys, &scores));
    context->set_output(0, context->input(0));
  }
};

class GiveScoresOp : public CatchingKernel {
 public:
  using CatchingKernel::CatchingKernel;
  void TryCompute(OpKernelContext* context) override {
    TableInput table;
    Span<const Key> keys;
    Span<const int64_t> scores;
    OP_REQUIRES_OK(context, GetTable(context, tensorflow::DT_INVALID, &table));
    OP_REQUIRES_OK(context, GetScoresOfKeys(context, &keys, &scores));
    using Several = GivenScores::Several;
    const bool add_up = ScoresAddUp(table);
    const int64_t bad = add_up ? FirstOutside(scores, INT64_MAX) : scores.size;
    OP_REQUIRES(
        context, bad == scores.size,
        ToTensorFlow(InvalidArgument("scores: got ", scores.data[bad],
                                     ", want numbers from 0 for a table that adds them up")));
    table.resource->given_scores()->Add(keys, scores, add_up ? Several::kSum : Several::kHighest);
  }
};

class TakeScoresOp : public CatchingKernel {
 public:
  using CatchingKernel::CatchingKernel;
  void TryCompute(OpKernelContext* context) override {
    TableInput table;
    KeyInputs inputs;
    OP_REQUIRES_OK(context, GetTable(context, tensorflow::DT_INVALID, &table));
    OP_REQUIRES_OK(context, GetKeys(context, table, &inputs));
    const int64_t n = inputs.keys.size;
    std::vector<int64_t> scores(static_cast<size_t>(n)), without;
    if (!table.resource->given_scores()->Take(inputs.keys, scores.data(), &without)) {
      scores.clear();  // rows keep theirs
    } else if (!without.empty() && !ScoresAddUp(table)) {
      OP_REQUIRES_OK(context, ToTensorFlow(ReadScores(PoolContext(context), table, inputs, without,
                                                      scores.data())));
    }
    Tensor* out;
    const TensorShape shape({static_cast<int64_t>(scores.size())});
    OP_REQUIRES_OK(context, context->allocate_output(0, shape, &out));
    std::copy(scores.begin(), scores.end(), out->flat<int64_t>().data());
  }

 private:
  // The scores that the rows of keys have, or 0, at these positions.
  static Status ReadScores(const Context& context, const TableInput& table, const KeyInputs& inputs,
                           const std::vector<int64_t>& positions, int64_t* scores) {
    const RowLayout layout(table.schema);
    const int64_t field = layout.meta_field[static_cast<int>(MetaField::kScore)];
    if (field < 0) return FailedPrecondition("table: its rows have no scores");
    std::vector<char> meta(static_cast<size_t>(inputs.keys.size * layout.meta_bytes));
    RowParts parts;
    parts.meta = Rows{meta.data(), inputs.keys.size, layout.meta_bytes};
    std::vector<bool> is_asked(static_cast<size_t>(inputs.keys.size));
    for (const int64_t i : positions) is_asked[static_cast<size_t>(i)] = true;
    for (size_t s = 0; s < table.shards.size(); ++s) {
      const Positions* const share = inputs.routing.share(static_cast<int>(s));
      std::vector<int64_t> of_shard = positions;
      if (share != nullptr) {
        of_shard.clear();
        for (int64_t i = 0; i < *share->count; ++i) {
          if (is_asked[static_cast<size_t>(share->at[i])]) of_shard.push_back(share->at[i]);
        }
      }
      auto count = static_cast<int64_t>(of_shard.size());
      const Positions asked = {of_shard, &count};
      DYNEMB_RETURN_IF_ERROR(
          table.shards[s]->ReadRows(context, {inputs.keys, &asked}, parts, Report()));
    }
    for (const int64_t i : positions) scores[i] = ReadInt64(parts.meta[i] + field);
    return Status();
  }
};

class TakeAllScoresOp : public CatchingKernel {
 public:
  using CatchingKernel::CatchingKernel;
  void TryCompute(OpKernelContext* context) override {
    TableInput table;
    std::vector<int64_t> parts[2];
    OP_REQUIRES_OK(context, GetTable(context, tensorflow::DT_INVALID, &table));
    table.resource->given_scores()->TakeAll(&parts[0], &parts[1]);
    for (int i = 0; i < 2; ++i) {
      Tensor* out;
      const TensorShape shape({static_cast<int64_t>(parts[i].size())});
      OP_REQUIRES_OK(context, context->allocate_output(i, shape, &out));
      std::copy(parts[i].begin(), parts[i].end(), out->flat<int64_t>().data());
    }
  }
};

REGISTER_KERNEL_BUILDER(Name("DynembWithScores").Device(tensorflow::DEVICE_CPU), WithScoresOp);
REGISTER_KERNEL_BUILDER(Name("DynembWithScores")
                            .Device(tensorflow::DEVICE_GPU)
                            .HostMemory("table")
                            .HostMemory("keys")
                            .HostMemory("scores"),
                        WithScoresOp);
REGISTER_KERNEL_BUILDER(Name("DynembGiveScores").Device(tensorflow::DEVICE_CPU), GiveScoresOp);
REGISTER_KERNEL_BUILDER(Name("DynembGiveScores")
                            .Device(tensorflow::DEVICE_GPU)
                            .HostMemory("table")
                            .HostMemory("keys")
                            .HostMemory("scores"),
                        GiveScoresOp);
REGISTER_KERNEL_BUILDER(Name("DynembTakeScores").Device(tensorflow::DEVICE_CPU), TakeScoresOp);
REGISTER_KERNEL_BUILDER(Name("DynembTakeScores")
                            .Device(tensorflow::DEVICE_GPU)
                            .HostMemory("table")
                            .HostMemory("keys")
                            .HostMemory("shard_ids")
                            .HostMemory("scores"),
                        TakeScoresOp);
REGISTER_KERNEL_BUILDER(Name("DynembTakeAllScores").Device(tensorflow::DEVICE_CPU),
                        TakeAllScoresOp);
REGISTER_KERNEL_BUILDER(Name("DynembTakeAllScores")
                            .Device(tensorflow::DEVICE_GPU)
                            .HostMemory("table")
                            .HostMemory("keys")
                            .HostMemory("scores"),
                        TakeAllScoresOp);

}  // namespace
}  // namespace dynemb
