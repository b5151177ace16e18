// Kernels that carry whole rows out of tables and back: export and import.
#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cc/core/lookup/widen.h"
#include "cc/core/snapshot/manifest.h"
#include "cc/core/table/row_adapter.h"
#include "cc/kernels/catching_kernel.h"
#include "cc/kernels/table_resource.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"

namespace dynemb {
namespace {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::core::RefCountPtr;

class ExportOp : public CatchingKernel {
 public:
  explicit ExportOp(OpKernelConstruction* context) : CatchingKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("dtype", &dtype_));
    OP_REQUIRES_OK(context, context->GetAttr("whole_rows", &whole_rows_));
  }

  void TryCompute(OpKernelContext* context) override {
    TableInput table;
    int64_t limit;
    const Tensor* cursor;
    OP_REQUIRES_OK(context, GetTableToRead(context, dtype_, false, &table, CallLength::kLong));
    OP_REQUIRES_OK(context, GetScalar(context, "limit", &limit));
    OP_REQUIRES_OK(context, context->input("cursor", &cursor));
    OP_REQUIRES(context, cursor->dims() == 1 && cursor->NumElements() == 3,
                ToTensorFlow(InvalidArgument("cursor: got shape ", cursor->shape().DebugString(),
                                             ", want (3,)")));
    int64_t shard = cursor->vec<int64_t>()(0);
    OP_REQUIRES(context, shard >= 0 && shard <= table.shard_count(),
                ToTensorFlow(InvalidArgument("cursor: got shard ", shard, ", want 0 to ",
                                             table.shard_count())));
    Cursor place;
    for (int i = 0; i < 2; ++i) {
      place.position[i] = static_cast<uint64_t>(cursor->vec<int64_t>()(1 + i));
    }

    // Room for the rows that there are, and some more for those that arrive meanwhile; if that is
    // not enough it grows.
    int64_t capacity = 1024;
    for (const auto& held : table.shards) capacity += held->size();
    if (limit >= 0) capacity = std::min(capacity, limit);
    RowLayout layout(table.schema);
    if (!whole_rows_) layout.dim = layout.value_bytes = layout.slots_bytes = 0;
    Buffers buffers;
    OP_REQUIRES_OK(context, buffers.Grow(context, dtype_, layout, capacity));
    KeyStrings::PinGuard no_sweep;  // no row that is exported loses its string
    OP_REQUIRES_OK(context,
                   ToTensorFlow(KeyStrings::PinGuard::Begin(table.strings.get(), {}, &no_sweep)));
    const PoolContext core(context);
    int64_t rows = 0;
    while (shard < table.shard_count()) {
      if (rows == capacity) {
        if (limit >= 0) break;
        capacity += capacity / 4;
        OP_REQUIRES_OK(context, buffers.Grow(context, dtype_, layout, capacity));
      }
      int64_t exported = 0;
      OP_REQUIRES_OK(
          context,
          ToTensorFlow(table.shards[shard]->Export(
              core, &place, buffers.From(rows, table.schema.value_dtype, layout), &exported)));
      rows += exported;
      if (place.done) {
        ++shard;
        place = Cursor();
      }
    }
    const DType held = table.schema.value_dtype, wanted = ToCore(dtype_);
    const int64_t dim = table.schema.dim;
    if (whole_rows_) {
      const Rows values = MutableRowsOf(&buffers.part[1], rows, dim * SizeOf(wanted));
      OP_REQUIRES_OK(context, ToTensorFlow(Widen(core, values, held, wanted, dim)));
    }
    for (int part = 0; part < 4; ++part)
      context->set_output(part, buffers.part[part].Slice(0, rows));
    Tensor *schema, *next;
    OP_REQUIRES_OK(context, context->allocate_output(4, TensorShape({}), &schema));
    OP_REQUIRES_OK(context, context->allocate_output(5, TensorShape({3}), &next));
    schema->scalar<tensorflow::tstring>()() = table.schema.ToText();
    next->vec<int64_t>()(0) = shard;
    for (int i = 0; i < 2; ++i) {
      next->vec<int64_t>()(1 + i) = static_cast<int64_t>(place.position[i]);
    }
    Tensor* strings;
    const int64_t kept = table.strings == nullptr ? 0 : rows;
    OP_REQUIRES_OK(context, context->allocate_output(6, TensorShape({kept}), &strings));
    if (table.strings == nullptr) return;
    auto out = strings->vec<tensorflow::tstring>();
    const Span<const Key> keys(buffers.part[0].flat<int64_t>().data(), rows);
    OP_REQUIRES_OK(context,
                   ToTensorFlow(table.strings->Get(keys, [&](int64_t i, std::string_view s) {
                     out(i).assign(s.data(), s.size());
                   })));
  }

 private:
  // Tensors for keys, values, slots and meta.
  struct Buffers {
    Tensor part[4];

    absl::Status Grow(OpKernelContext* context, tensorflow::DataType dtype, const RowLayout& layout,
                      int64_t capacity) {
      tensorflow::AllocatorAttributes in_host_memory;
      in_host_memory.set_on_host(true);
      const std::pair<tensorflow::DataType, TensorShape> want[] = {
          {tensorflow::DT_INT64, TensorShape({capacity})},
          {dtype, TensorShape({capacity, layout.dim})},
          {tensorflow::DT_UINT8, TensorShape({capacity, layout.slots_bytes})},
          {tensorflow::DT_UINT8, TensorShape({capacity, layout.meta_bytes})}};
      for (int p = 0; p < 4; ++p) {
        Tensor larger;
        TF_RETURN_IF_ERROR(
            context->allocate_temp(want[p].first, want[p].second, &larger, in_host_memory));
        if (part[p].TotalBytes() > 0) {
          std::memcpy(const_cast<char*>(larger.tensor_data().data()), part[p].tensor_data().data(),
                      part[p].TotalBytes());
        }
        part[p] = larger;
      }
      return absl::OkStatus();
    }

    // What is free from row `first` on. Values are written for Widen().
    RowParts From(int64_t first, DType held, const RowLayout& layout) {
      const int64_t room = part[0].NumElements() - first;
      const auto rows = [&](int p, int64_t bytes) {
        char* data = const_cast<char*>(part[p].tensor_data().data());
        return Rows(bytes == 0 ? nullptr : data + first * bytes, room, bytes);
      };
      RowParts out;
      out.keys = {part[0].flat<int64_t>().data() + first, room};
      const DType wanted = ToCore(part[1].dtype());
      out.values = NarrowRows(rows(1, layout.dim * SizeOf(wanted)), held, wanted, layout.dim);
      out.slots = rows(2, layout.slots_bytes);
      out.meta = rows(3, layout.meta_bytes);
      return out;
    }
  };

  tensorflow::DataType dtype_;
  bool whole_rows_;
};

class ImportOp : public CatchingKernel {
 public:
  explicit ImportOp(OpKernelConstruction* context) : CatchingKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("dtype", &dtype_));
    OP_REQUIRES_OK(context, context->GetAttr("replace", &replace_));
    OP_REQUIRES_OK(context, context->GetAttr("adopt_seed", &adopt_seed_));
  }

  void TryCompute(OpKernelContext* context) override {
    TableInput table;
    KeyInputs inputs;
    ConstRowParts rows;
    const Tensor *schema_text, *slots, *meta;
    std::vector<uint64_t> snapshots;
    TableSchema from;
    OP_REQUIRES_OK(context, GetTable(context, dtype_, &table, CallLength::kLong));
    OP_REQUIRES_OK(context, GetKeys(context, table, &inputs));
    OP_REQUIRES_OK(context, context->input("schema", &schema_text));
    OP_REQUIRES(
        context, schema_text->NumElements() == 1,
        ToTensorFlow(InvalidArgument("schema: got shape ", schema_text->shape().DebugString(),
                                     ", want one string")));
    OP_REQUIRES_OK(context, ToTensorFlow(TableSchema::Parse(
                                schema_text->flat<tensorflow::tstring>()(0), &from)));
    OP_REQUIRES_OK(context, ToTensorFlow(CheckCompatible(from, table.schema)));
    const RowLayout layout(from);
    OP_REQUIRES_OK(context, GetRows(context, "values", inputs, table.schema, &rows.values));
    OP_REQUIRES_OK(context, GetBytes(context, "slots", inputs, layout.slots_bytes, &slots));
    OP_REQUIRES_OK(context, GetBytes(context, "meta", inputs, layout.meta_bytes, &meta));
    rows.keys = inputs.keys;
    rows.slots = RowsOf(*slots, inputs.keys.size, layout.slots_bytes);
    rows.meta = RowsOf(*meta, inputs.keys.size, layout.meta_bytes);

    OP_REQUIRES_OK(context, GetIds(context, "snapshots", &snapshots));

    std::vector<std::string_view> strings;
    if (table.strings != nullptr) {
      OP_REQUIRES_OK(context, GetStrings(context, "strings", inputs, &strings));
    }

    const PoolContext core(context);
    // Rows come with their slots: a table that has no optimizer takes theirs.
    if (!replace_ && table.schema.rule.name.empty() && !from.rule.name.empty()) {
      const RefCountPtr<TableResource> resource = table.resource.GetNewRef();
      table = TableInput();  // a change of schema waits for all who hold the table
      OP_REQUIRES_OK(context, ToTensorFlow(resource->shards()->SetOptimizer(core, from.rule)));
      OP_REQUIRES_OK(context, GetTable(context, dtype_, &table, CallLength::kLong));
    }
    Shards targets = table.shards;
    std::shared_ptr<KeyStrings> target_strings = table.strings;
    if (replace_) {
      TableSchema schema = table.schema;
      if (schema.rule.name.empty()) schema.rule = from.rule;
      if (adopt_seed_) schema.initializer.seed = from.initializer.seed;
      OP_REQUIRES_OK(context, MakeShards(context, schema, table.resource->options(),
                                         table.resource->storage(), table.shard_count(),
                                         inputs.keys.size / table.shard_count(), &targets));
      target_strings = ContentsOf(targets).strings;
    }
    KeyStrings::PinGuard pin;
    if (target_strings != nullptr) {
      OP_REQUIRES_OK(context, ToTensorFlow(target_strings->Record(inputs.keys, strings)));
      OP_REQUIRES_OK(context, ToTensorFlow(KeyStrings::PinGuard::Begin(target_strings.get(),
                                                                       inputs.keys, &pin)));
    }
    RowAdapter adapter(from, targets[0]->schema());
    OP_REQUIRES_OK(context, ToTensorFlow(InsertRows(core, Pointers(targets), inputs.routing,
                                                    adapter.Adapt(rows))));
    if (!replace_) return;
    // Some may have left again.
    const EvictionPolicy& policy = table.resource->options().eviction;
    const bool leave = policy.evicts() || policy.expires();
    int64_t imported = 0;
    for (const auto& target : targets) {
      imported += leave ? target->counters().inserted : target->size();
    }
    OP_REQUIRES(
        context, imported == inputs.keys.size,
        ToTensorFlow(Status(Code::kDataLoss, StrCat("rows to restore: got ", inputs.keys.size,
                                                    " keys of which only ", imported,
                                                    " are distinct; the file is damaged"))));
    table.resource->Replace({std::move(targets), target_strings}, snapshots);
  }

 private:
  // Input `name`, ids of snapshots.
  static absl::Status GetIds(OpKernelContext* context, const char* name,
                             std::vector<uint64_t>* ids) {
    const Tensor* texts;
    TF_RETURN_IF_ERROR(context->input(name, &texts));
    if (texts->dims() != 1) {
      return ToTensorFlow(
          InvalidArgument(name, ": got shape ", texts->shape().DebugString(), ", want (n,)"));
    }
    for (int64_t i = 0; i < texts->NumElements(); ++i) {
      ids->emplace_back();
      TF_RETURN_IF_ERROR(ToTensorFlow(ParseId(texts->vec<tensorflow::tstring>()(i), &ids->back())));
    }
    return absl::OkStatus();
  }

  // Input `name`, which must be uint8 of shape (n, width).
  static absl::Status GetBytes(OpKernelContext* context, const char* name, const KeyInputs& inputs,
                               int64_t width, const Tensor** tensor) {
    TF_RETURN_IF_ERROR(context->input(name, tensor));
    const TensorShape want({inputs.keys.size, width});
    if ((*tensor)->shape() == want) return absl::OkStatus();
    return ToTensorFlow(InvalidArgument(name, ": got shape ", (*tensor)->shape().DebugString(),
                                        ", want ", want.DebugString(), " as the schema says"));
  }

  tensorflow::DataType dtype_;
  bool replace_;
  bool adopt_seed_;
};

REGISTER_KERNEL_BUILDER(Name("DynembExport").Device(tensorflow::DEVICE_CPU), ExportOp);
REGISTER_KERNEL_BUILDER(Name("DynembExport")
                            .Device(tensorflow::DEVICE_GPU)
                            .HostMemory("table")
                            .HostMemory("cursor")
                            .HostMemory("limit")
                            .HostMemory("keys")
                            .HostMemory("values")
                            .HostMemory("slots")
                            .HostMemory("meta")
                            .HostMemory("schema")
                            .HostMemory("next")
                            .HostMemory("strings"),
                        ExportOp);
REGISTER_KERNEL_BUILDER(Name("DynembImport").Device(tensorflow::DEVICE_CPU), ImportOp);
REGISTER_KERNEL_BUILDER(Name("DynembImport")
                            .Device(tensorflow::DEVICE_GPU)
                            .HostMemory("table")
                            .HostMemory("keys")
                            .HostMemory("shard_ids")
                            .HostMemory("values")
                            .HostMemory("slots")
                            .HostMemory("meta")
                            .HostMemory("schema")
                            .HostMemory("strings")
                            .HostMemory("snapshots"),
                        ImportOp);

}  // namespace
}  // namespace dynemb
