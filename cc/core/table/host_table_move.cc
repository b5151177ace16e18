// How the rows of a HostTable move into one with another schema.
#include <memory>
#include <utility>

#include "cc/core/base/copy_bytes.h"
#include "cc/core/table/call_checks.h"
#include "cc/core/table/host_table_impl.h"
#include "cc/core/table/memory_bound.h"

namespace dynemb {

class HostTable::Move final : public RowMove {
 public:
  Move(HostTable* from, std::unique_ptr<HostTable> to) : from_(from), to_(std::move(to)) {}

  std::unique_ptr<Table> Run(const Context& context) override {
    const RowLayout &old_layout = from_->layout_, &new_layout = to_->layout_;
    const bool same_slots = from_->schema_.rule == to_->schema_.rule;
    const bool takes_rows = from_->size() > 0 || from_->index_arena_ == to_->index_arena_;
    bool moved[kSegments] = {};
    const auto move = [&](int64_t s) {
      moved[s] = true;
      to_->parts_[s]->changes = std::move(from_->parts_[s]->changes);
      if (!takes_rows) return;
      to_->parts_[s]->segment.TakeRows(
          &from_->parts_[s]->segment, [&](const char* old_row, char* new_row) {
            CopyBytes(new_row + new_layout.slots_offset,
                      same_slots ? old_row + old_layout.slots_offset : to_->initial_slots_.data(),
                      new_layout.slots_bytes);
            for (int field = 0; field < kMetaFields; ++field) {
              const int64_t from = old_layout.meta_field[field];
              const int64_t to = new_layout.meta_field[field];
              if (to < 0) continue;
              WriteInt64(from < 0 ? 0 : ReadInt64(old_row + old_layout.meta_offset + from),
                         new_row + new_layout.meta_offset + to);
            }
          });
    };
    if (!context.executor->Run(kSegments, kNanosecondsPerSegment, move).ok()) {
      for (int s = 0; s < kSegments; ++s) {  // a task takes no memory: it is the executor's
        if (!moved[s]) move(s);
      }
    }
    to_->epoch_ = from_->epoch();
    to_->counters_.Start(from_->counters());
    return std::move(to_);
  }

 private:
  HostTable* const from_;
  std::unique_ptr<HostTable> to_;
};

Status HostTable::PrepareMove(const Context& context, const TableSchema& schema,
                              std::unique_ptr<RowMove>* move) {
  DYNEMB_RETURN_IF_ERROR(CheckContext(context));
  DYNEMB_RETURN_IF_ERROR(CheckMove(schema_, schema));
  if (options_.max_bytes >= 0) return PrepareMoveWithin(schema, move);
  auto to = std::make_unique<HostTable>(schema, options_, index_arena_);
  to->row_arena_.Expect(row_arena_.memory_bytes() / layout_.row_bytes * to->layout_.row_bytes);
  return AllocateMove(std::move(to), move);
}

// PrepareMove of a table that is bounded by max_bytes, into one with as many bytes.
Status HostTable::PrepareMoveWithin(const TableSchema& schema, std::unique_ptr<RowMove>* move) {
  TableOptions options = options_;
  options.budget = nullptr;
  const RowLayout layout(schema);
  if (size() == 0) {  // whose index can have another size
    DYNEMB_RETURN_IF_ERROR(SetBudget(layout, 0, &options));
    auto to = std::make_unique<HostTable>(schema, options, NewIndexArena());
    DYNEMB_RETURN_IF_ERROR(to->ReserveWithin());
    *move = std::make_unique<Move>(this, std::move(to));
    return Status();
  }
  const int64_t index_bytes = index_arena_->memory_bytes();
  DYNEMB_RETURN_IF_ERROR(SetBudget(layout, index_bytes, &options));
  int64_t allocated = 0;
  for (const auto& part : parts_) allocated += part->segment.allocated_rows();
  const int64_t needed = index_bytes + allocated * layout.row_bytes;
  if (size() > options.budget->max_rows() || needed > options.max_bytes) {
    return ResourceExhausted("max_bytes: got ", options.max_bytes, ", want at least ", needed,
                             " for ", size(), " rows of ", layout.row_bytes,
                             " bytes, as an optimizer makes them; before they had ",
                             layout_.row_bytes, "; give a larger max_bytes");
  }
  auto to = std::make_unique<HostTable>(schema, options, index_arena_);
  options.budget->Take(size());
  DYNEMB_RETURN_IF_ERROR(to->LimitArenas());
  return AllocateMove(std::move(to), move);
}

// This is address space alone; memory is taken as rows are written, and given back in turn.
Status HostTable::AllocateMove(std::unique_ptr<HostTable> to, std::unique_ptr<RowMove>* move) {
  for (int s = 0; s < kSegments; ++s) {
    if (to->parts_[s]->segment.AllocateRowsOf(parts_[s]->segment)) continue;
    return ResourceExhausted("no memory for rows of ", to->layout_.row_bytes, " bytes, before ",
                             layout_.row_bytes);
  }
  *move = std::make_unique<Move>(this, std::move(to));
  return Status();
}

}  // namespace dynemb
