#include <thrust/iterator/counting_iterator.h>

#include <cub/device/device_select.cuh>
#include <utility>
#include <vector>

#include "cc/core/table/call_checks.h"
#include "cc/gpu/for_each.cu.h"
#include "cc/gpu/table/admit_rows.h"
#include "cc/gpu/table/group_batch.h"

namespace dynemb {
namespace {

struct HasOutcome {
  const Outcome* outcomes;
  Outcome outcome;
  DYNEMB_HOST_DEVICE bool operator()(int64_t position) const {
    return outcomes[position] == outcome;
  }
};

// Positions below n of which `is` says so, in their order, and how many. Without `temp` it asks for
// the size of that.
Status SelectPositions(const Context& context, int64_t n, const HasOutcome& is, int64_t* at,
                       int64_t* count, void* temp, int64_t* temp_bytes) {
  if (RunsOnHost(context.space)) {
    if (temp == nullptr) {
      *temp_bytes = 0;
      return {};
    }
    *count = 0;
    for (int64_t i = 0; i < n; ++i) {
      if (is(i)) at[(*count)++] = i;
    }
    return {};
  }
  auto bytes = static_cast<size_t>(*temp_bytes);
  const thrust::counting_iterator<int64_t> all(0);
  DYNEMB_RETURN_IF_ERROR(FromCuda(
      cub::DeviceSelect::If(temp, bytes, all, at, count, n, is, StreamOf(context)), "selecting"));
  *temp_bytes = static_cast<int64_t>(bytes);
  return {};
}

// The places of the heads of a batch in order, by group.
struct NoteHeads {
  GroupedBatch batch;
  DYNEMB_HOST_DEVICE void operator()(int64_t place) const {
    if (batch.IsHead(place)) batch.head[batch.GroupOf(place)] = static_cast<uint32_t>(place);
  }
};

struct AdmitByCount {
  GroupedBatch batch;
  const float* counts;  // how often the keys had occurred before, by position
  float min_count;
  Outcome* outcomes;

  DYNEMB_HOST_DEVICE void operator()(int64_t place) const {
    if (!batch.IsEntry(place)) return;
    const int64_t head = batch.HeadOf(place), position = batch.position(place);
    const auto here = static_cast<float>(batch.LastOf(head) - head + 1);
    if (counts[position] + here >= min_count) outcomes[position] = Outcome::kInserted;
  }
};

struct AdmitDrawn {
  Entries entries;
  double probability;
  int64_t seed, step;
  Outcome* outcomes;

  DYNEMB_HOST_DEVICE void operator()(int64_t entry) const {
    const int64_t position = entries.position(entry);
    if (IsDrawn(probability, seed, entries.keys[position], step)) {
      outcomes[position] = Outcome::kInserted;
    }
  }
};

struct AdmitGiven {
  Entries entries;
  const bool* given;
  Outcome* outcomes;

  DYNEMB_HOST_DEVICE void operator()(int64_t entry) const {
    const int64_t position = entries.position(entry);
    if (given[position]) outcomes[position] = Outcome::kInserted;
  }
};

struct CountHeads {
  GroupedBatch batch;
  uint32_t* count;
  DYNEMB_HOST_DEVICE void operator()(int64_t place) const {
    if (batch.IsHead(place)) AtomicAdd(count, 1u);
  }
};

struct SetToOne {
  float* numbers;
  DYNEMB_HOST_DEVICE void operator()(int64_t i) const { numbers[i] = 1; }
};

}  // namespace

Status CheckAdmission(const Batch& batch, const Admission& admission, MemorySpace space) {
  if (admission.policy.kind == AdmissionPolicy::Kind::kGiven) {
    DYNEMB_RETURN_IF_ERROR(CheckSpan("admitted", admission.given, space));
    if (admission.given.size == batch.keys.size) return {};
    return InvalidArgument("admitted: got ", admission.given.size, " for ", batch.keys.size,
                           " keys, want one for each");
  }
  if (admission.policy.kind != AdmissionPolicy::Kind::kMinCount) return {};
  const bool has_sketch = admission.policy.has_sketch();
  const auto is_called_through = [](const Table* table, MemorySpace wanted) {
    return table != nullptr && table->space() == wanted;
  };
  if (!is_called_through(admission.candidates, has_sketch ? MemorySpace::kHost : space)) {
    return InvalidArgument(
        "candidates: want a table in the memory of this one; with a sketch, one "
        "that is called through the host");
  }
  if (has_sketch && !is_called_through(admission.sketch, MemorySpace::kHost)) {
    return InvalidArgument("candidates: want a sketch that is called through the host");
  }
  return {};
}

Status RowAdmitter::Apply(const Context& context, Table* table, const Batch& batch,
                          ConstRows gradients, const Update& update, const Stamp& stamp,
                          const Admission& admission, int64_t* declined) {
  const std::lock_guard<std::mutex> lock(mutex_);
  DYNEMB_RETURN_IF_ERROR(order_.Begin(context, true));
  const Status status = OrNoMemory(
      [&] { return Run(context, table, batch, gradients, update, stamp, admission, declined); });
  const Status ended = order_.End(context, true);
  return status.ok() ? ended : status;
}

Status RowAdmitter::Run(const Context& context, Table* table, const Batch& batch,
                        ConstRows gradients, const Update& update, const Stamp& stamp,
                        const Admission& admission, int64_t* declined) {
  *declined = 0;
  const int64_t n = size_ = batch.keys.size;
  const auto is_missing = HasOutcome{nullptr, Outcome::kMissing};
  temp_bytes_ = 0;
  DYNEMB_RETURN_IF_ERROR(
      SelectPositions(context, n, is_missing, nullptr, nullptr, nullptr, &temp_bytes_));
  DYNEMB_RETURN_IF_ERROR(
      scratch_.Begin(context, Scratch::Bytes<Outcome>(n) + Scratch::Bytes<float>(n) +
                                  2 * (Scratch::Bytes<int64_t>(n) + Scratch::Bytes<int64_t>(1)) +
                                  Scratch::Bytes<uint32_t>(1) + Scratch::Bytes<char>(temp_bytes_)));
  outcomes_ = scratch_.Take<Outcome>(n);
  counts_ = scratch_.Take<float>(n);
  int64_t* const at = scratch_.Take<int64_t>(n);
  int64_t* const admitted_at = scratch_.Take<int64_t>(n);
  int64_t* const count = scratch_.Take<int64_t>(1);
  int64_t* const admitted_count = scratch_.Take<int64_t>(1);
  distinct_ = scratch_.Take<uint32_t>(1);
  temp_ = scratch_.Take<char>(temp_bytes_);

  // Positions that take no part are as if they had been found.
  DYNEMB_RETURN_IF_ERROR(FillBytes(context, outcomes_, static_cast<int>(Outcome::kFound), n));
  Update of_rows = update;
  of_rows.if_missing = IfMissing::kReport;
  Report report;
  report.outcomes = {outcomes_, n, context.space};
  DYNEMB_RETURN_IF_ERROR(table->Apply(context, batch, gradients, of_rows, stamp, report));

  Positions missing = {{at, 0, context.space}, count};
  Positions admitted = {{admitted_at, 0, context.space}, admitted_count};
  DYNEMB_RETURN_IF_ERROR(Select(context, Outcome::kMissing, at, &missing));
  const int64_t all = missing.at.size;
  if (all == 0) return {};
  const auto insert = [&] {
    return table->Apply(context, {batch.keys, &admitted}, gradients, update, stamp, Report());
  };
  if (admission.policy.has_sketch()) {
    return AdmitOnHost(context, batch.keys, missing, &admitted, admission, insert, declined);
  }
  DYNEMB_RETURN_IF_ERROR(Judge(context, {batch.keys, &missing}, admission));
  DYNEMB_RETURN_IF_ERROR(Select(context, Outcome::kInserted, admitted_at, &admitted));
  if (admitted.at.size > 0) DYNEMB_RETURN_IF_ERROR(insert());
  if (admitted.at.size == all && admission.policy.kind != AdmissionPolicy::Kind::kMinCount) {
    return {};
  }
  DYNEMB_RETURN_IF_ERROR(Select(context, Outcome::kMissing, at, &missing));
  DYNEMB_RETURN_IF_ERROR(CountDistinct(context, {batch.keys, &missing}, declined));
  if (admission.policy.kind != AdmissionPolicy::Kind::kMinCount) return {};
  return UpdateCandidates(context, {batch.keys, &missing}, {batch.keys, &admitted}, admission);
}

Status RowAdmitter::Select(const Context& context, Outcome outcome, int64_t* at,
                           Positions* positions) {
  DYNEMB_RETURN_IF_ERROR(SelectPositions(context, size_, {outcomes_, outcome}, at, positions->count,
                                         temp_, &temp_bytes_));
  DYNEMB_RETURN_IF_ERROR(CopyAny(context, &positions->at.size, positions->count, sizeof(int64_t)));
  return Wait(context);
}

Status RowAdmitter::AdmitOnHost(const Context& context, Span<const Key> keys,
                                const Positions& missing, Positions* admitted,
                                const Admission& admission, const std::function<Status()>& insert,
                                int64_t* declined) {
  std::vector<Key> copied(static_cast<size_t>(keys.size));
  std::vector<int64_t> positions(static_cast<size_t>(missing.at.size));
  DYNEMB_RETURN_IF_ERROR(
      CopyAny(context, copied.data(), keys.data, keys.size * static_cast<int64_t>(sizeof(Key))));
  DYNEMB_RETURN_IF_ERROR(CopyAny(context, positions.data(), missing.at.data,
                                 missing.at.size * static_cast<int64_t>(sizeof(positions[0]))));
  DYNEMB_RETURN_IF_ERROR(Wait(context));
  const auto insert_at = [&](std::vector<int64_t> at) {
    const auto count = admitted->at.size = static_cast<int64_t>(at.size());
    DYNEMB_RETURN_IF_ERROR(CopyAny(context, admitted->at.data, at.data(),
                                   count * static_cast<int64_t>(sizeof(at[0]))));
    DYNEMB_RETURN_IF_ERROR(CopyAny(context, admitted->count, &count, sizeof(count)));
    const Status inserted = insert();
    const Status waited = Wait(context);  // until the copies have been made
    return inserted.ok() ? waited : inserted;
  };
  const std::lock_guard<std::mutex> lock(admission.calls->mutex);
  return AdmitMissing(HostContext(context), copied, std::move(positions), admission, insert_at,
                      declined);
}

Status RowAdmitter::CountDistinct(const Context& context, const Batch& batch, int64_t* count) {
  GroupedBatch grouped;
  DYNEMB_RETURN_IF_ERROR(GroupBatch(context, batch, true, 0, &group_scratch_, &grouped));
  DYNEMB_RETURN_IF_ERROR(FillBytes(context, distinct_, 0, sizeof(*distinct_)));
  DYNEMB_RETURN_IF_ERROR(ForEach(context, grouped.size, CountHeads{grouped, distinct_}));
  uint32_t distinct;
  DYNEMB_RETURN_IF_ERROR(CopyAny(context, &distinct, distinct_, sizeof(distinct)));
  DYNEMB_RETURN_IF_ERROR(Wait(context));
  *count = distinct;
  return {};
}

Status RowAdmitter::Judge(const Context& context, const Batch& missing,
                          const Admission& admission) {
  const AdmissionPolicy& policy = admission.policy;
  const Entries entries(missing);
  if (policy.kind == AdmissionPolicy::Kind::kProbability) {
    return ForEach(context, entries.most,
                   AdmitDrawn{entries, policy.probability, policy.seed, admission.step, outcomes_});
  }
  if (policy.kind == AdmissionPolicy::Kind::kGiven) {
    return ForEach(context, entries.most, AdmitGiven{entries, admission.given.data, outcomes_});
  }
  GroupedBatch grouped;
  DYNEMB_RETURN_IF_ERROR(GroupBatch(context, missing, true, 0, &group_scratch_, &grouped));
  const Rows counts = {reinterpret_cast<char*>(counts_), size_, sizeof(float), context.space};
  DYNEMB_RETURN_IF_ERROR(admission.candidates->Find(context, missing, counts, Report()));
  DYNEMB_RETURN_IF_ERROR(ForEach(context, grouped.size, NoteHeads{grouped}));
  return ForEach(context, grouped.size,
                 AdmitByCount{grouped, counts_, static_cast<float>(policy.min_count), outcomes_});
}

Status RowAdmitter::UpdateCandidates(const Context& context, const Batch& declined,
                                     const Batch& admitted, const Admission& admission) {
  const OptimizerSpec adds = CandidateOptimizer();
  const double hyper[] = {-1, 1, 0};  // learning rate, step, weight decay
  Update update;
  update.rule = &adds;
  update.hyper = {hyper, 3};
  DYNEMB_RETURN_IF_ERROR(ForEach(context, size_, SetToOne{counts_}));
  const ConstRows ones = {reinterpret_cast<const char*>(counts_), size_, sizeof(float),
                          context.space};
  DYNEMB_RETURN_IF_ERROR(admission.candidates->Apply(context, declined, ones, update,
                                                     Stamp{admission.step}, Report()));
  return admission.candidates->Erase(context, admitted, Report());
}

}  // namespace dynemb
