#include "cc/core/policy/admission.h"

#include <algorithm>
#include <cstring>
#include <sstream>
#include <string>
#include <utility>

#include "cc/core/optimizer/sgd.h"
#include "cc/core/table/distinct_keys.h"
#include "cc/core/table/evicted_rows.h"

namespace dynemb {
namespace {

// Keys of a batch that have no row.
struct Missing {
  std::vector<int64_t> positions;  // ascending
  std::vector<Key> keys;           // distinct
  std::vector<int64_t> key_at;     // of each position, its place among the keys
  std::vector<float> occurrences;  // of each key in this batch
  std::vector<float> begun;        // what it begins with as a candidate, if it is none
  std::vector<bool> admitted;      // of each key
};

ConstRows RowsOf(const std::vector<float>& numbers) {
  return {reinterpret_cast<const char*>(numbers.data()), static_cast<int64_t>(numbers.size()),
          sizeof(float)};
}

// How often the keys had occurred before; `begun`: of those that are no candidates.
Status Counts(const Context& context, const Admission& admission, const std::vector<Key>& keys,
              std::vector<float>* counts, std::vector<float>* begun) {
  counts->assign(keys.size(), 0.0f);
  const Rows rows = {reinterpret_cast<char*>(counts->data()), static_cast<int64_t>(counts->size()),
                     sizeof(float)};
  if (!admission.policy.has_sketch()) {
    return admission.candidates->Find(context, {keys}, rows, Report());
  }
  std::vector<int64_t> positions(keys.size());
  int64_t count = 0;
  Positions misses = {positions, &count};
  Report report;
  report.misses = &misses;
  DYNEMB_RETURN_IF_ERROR(admission.candidates->Find(context, {keys}, rows, report));
  positions.resize(static_cast<size_t>(count));
  std::vector<Key> missing;
  for (const int64_t position : positions) missing.push_back(keys[static_cast<size_t>(position)]);
  std::vector<float> estimates(missing.size());
  const CountSketch sketch(admission.sketch, admission.policy.sketch);
  DYNEMB_RETURN_IF_ERROR(sketch.Estimate(context, missing, estimates.data()));
  for (size_t i = 0; i < positions.size(); ++i) {
    const auto k = static_cast<size_t>(positions[i]);
    (*counts)[k] = (*begun)[k] = estimates[i];
  }
  return Status();
}

Status Judge(const Context& context, Span<const Key> keys, const Admission& admission,
             std::vector<int64_t> positions, Missing* missing) {
  std::sort(positions.begin(), positions.end());
  missing->positions = std::move(positions);
  std::vector<Key> all;
  for (const int64_t position : missing->positions) all.push_back(keys[position]);
  const DistinctKeys distinct(all);
  missing->keys = distinct.keys();
  missing->key_at = distinct.numbers();
  missing->occurrences.assign(missing->keys.size(), 0.0f);
  for (const int64_t k : missing->key_at) ++missing->occurrences[static_cast<size_t>(k)];
  missing->begun.assign(missing->keys.size(), 0.0f);
  missing->admitted.assign(missing->keys.size(), true);
  std::vector<float> before;
  const AdmissionPolicy& policy = admission.policy;
  if (policy.kind == AdmissionPolicy::Kind::kMinCount) {
    DYNEMB_RETURN_IF_ERROR(Counts(context, admission, missing->keys, &before, &missing->begun));
  }
  for (size_t i = 0; i < missing->positions.size(); ++i) {
    const size_t k = static_cast<size_t>(missing->key_at[i]);
    switch (policy.kind) {
      case AdmissionPolicy::Kind::kAll:
        break;
      case AdmissionPolicy::Kind::kMinCount:
        missing->admitted[k] =
            before[k] + missing->occurrences[k] >= static_cast<float>(policy.min_count);
        break;
      case AdmissionPolicy::Kind::kProbability:
        missing->admitted[k] =
            IsDrawn(policy.probability, policy.seed, missing->keys[k], admission.step);
        break;
      case AdmissionPolicy::Kind::kGiven:
        missing->admitted[k] = admission.given[missing->positions[i]];
        break;
    }
  }
  return Status();
}

// The keys that are admitted or not.
std::vector<Key> KeysThatAre(bool admitted, const Missing& missing) {
  std::vector<Key> keys;
  for (size_t k = 0; k < missing.keys.size(); ++k) {
    if (missing.admitted[k] == admitted) keys.push_back(missing.keys[k]);
  }
  return keys;
}

// Notes the counts in the sketch that have left the candidates, and those that never got there: of
// the keys at these positions.
Status NoteForgotten(const Context& context, const Admission& admission,
                     const std::vector<Key>& keys, const std::vector<float>& counts,
                     Span<const int64_t> positions) {
  int64_t dropped;
  EvictedRows* const evicted = admission.candidates->evicted();
  KeptRows left = evicted == nullptr ? KeptRows() : evicted->Take(&dropped);
  std::vector<float> of_left(left.keys.size());
  if (!left.keys.empty()) std::memcpy(of_left.data(), left.values.data(), left.values.size());
  for (const int64_t position : positions) {
    left.keys.push_back(keys[static_cast<size_t>(position)]);
    of_left.push_back(counts[static_cast<size_t>(position)]);
  }
  return CountSketch(admission.sketch, admission.policy.sketch).Note(context, left.keys, of_left);
}

// Those that have got rows are no candidates any more; the others have occurred.
Status UpdateCandidates(const Context& context, const Admission& admission,
                        const Missing& missing) {
  if (admission.policy.kind != AdmissionPolicy::Kind::kMinCount) return Status();
  const std::vector<Key> declined = KeysThatAre(false, missing);
  std::vector<float> counts;
  for (size_t k = 0; k < missing.keys.size(); ++k) {
    if (!missing.admitted[k]) counts.push_back(missing.begun[k] + missing.occurrences[k]);
  }
  const OptimizerSpec adds = CandidateOptimizer();
  const double hyper[] = {-1, 1, 0};  // learning rate, step, weight decay
  Update update;
  update.rule = &adds;
  update.hyper = {hyper, 3};
  std::vector<int64_t> positions(declined.size());
  int64_t count = 0;
  Positions misses = {positions, &count};
  Report report;
  if (admission.policy.has_sketch()) report.misses = &misses;
  DYNEMB_RETURN_IF_ERROR(admission.candidates->Apply(context, {declined}, RowsOf(counts), update,
                                                     Stamp{admission.step}, report));
  DYNEMB_RETURN_IF_ERROR(
      admission.candidates->Erase(context, {KeysThatAre(true, missing)}, Report()));
  if (!admission.policy.has_sketch()) return Status();
  return NoteForgotten(context, admission, declined, counts, {positions.data(), count});
}

// The positions of a batch whose keys have no row, as call(report) reports them.
template <typename Call>
Status MissesOf(const Batch& batch, const Call& call, std::vector<int64_t>* positions) {
  positions->resize(static_cast<size_t>(batch.size()));
  int64_t count = 0;
  Positions misses = {*positions, &count};
  Report report;
  report.misses = &misses;
  DYNEMB_RETURN_IF_ERROR(call(report));
  positions->resize(static_cast<size_t>(count));
  return Status();
}

Status Wrong(std::string_view text) {
  return InvalidArgument("admission: got '", std::string(text),
                         "', want '', 'min_count N', 'min_count N sketch N process N of N', ",
                         "'probability P seed N' or 'given'");
}

// What follows "min_count N sketch".
bool ParseSketch(std::istringstream* words, AdmissionPolicy* policy) {
  constexpr int64_t kMostBlocks = int64_t{1} << 32, kMostProcesses = int64_t{1} << 20;
  SketchShape& shape = policy->sketch;
  std::string process, of;
  return *words >> shape.blocks >> process >> shape.process >> of >> shape.processes &&
         process == "process" && of == "of" && shape.blocks > 0 && shape.blocks <= kMostBlocks &&
         shape.process >= 0 && shape.process < shape.processes &&
         shape.processes <= kMostProcesses && policy->min_count <= CountSketch::kMostCount + 1;
}

}  // namespace

Status AdmissionPolicy::Parse(std::string_view text, AdmissionPolicy* policy) {
  AdmissionPolicy parsed;
  std::istringstream words{std::string(text)};
  std::string kind, seed, rest;
  bool good = true;
  if (words >> kind) {
    if (kind == "min_count") {
      parsed.kind = Kind::kMinCount;
      good = words >> parsed.min_count && parsed.min_count >= 1;
      if (good && words >> rest) good = rest == "sketch" && ParseSketch(&words, &parsed);
      rest.clear();
    } else if (kind == "probability") {
      parsed.kind = Kind::kProbability;
      good = words >> parsed.probability >> seed >> parsed.seed && seed == "seed" &&
             parsed.probability >= 0 && parsed.probability <= 1;
    } else {
      parsed.kind = Kind::kGiven;
      good = kind == "given";
    }
  }
  if (!good || words >> rest) return Wrong(text);
  *policy = parsed;
  return Status();
}

OptimizerSpec CandidateOptimizer() {
  OptimizerSpec spec;
  spec.name = Sgd::kName;
  return spec;
}

Status AdmitMissing(const Context& context, Span<const Key> keys, std::vector<int64_t> missing,
                    const Admission& admission,
                    const std::function<Status(std::vector<int64_t>)>& insert, int64_t* declined) {
  *declined = 0;
  if (missing.empty()) return Status();
  Missing judged;
  DYNEMB_RETURN_IF_ERROR(Judge(context, keys, admission, std::move(missing), &judged));
  std::vector<int64_t> inserted;
  for (size_t i = 0; i < judged.positions.size(); ++i) {
    if (judged.admitted[static_cast<size_t>(judged.key_at[i])]) {
      inserted.push_back(judged.positions[i]);
    }
  }
  *declined = std::count(judged.admitted.begin(), judged.admitted.end(), false);
  if (!inserted.empty()) DYNEMB_RETURN_IF_ERROR(insert(std::move(inserted)));
  return UpdateCandidates(context, admission, judged);
}

Status ApplyAdmitted(const Context& context, Table* table, const Batch& batch, ConstRows gradients,
                     const Update& update, const Stamp& stamp, const Admission& admission,
                     int64_t* declined) {
  *declined = 0;
  return OrNoMemory([&] {
    AdmissionCalls* const calls =
        admission.policy.kind == AdmissionPolicy::Kind::kMinCount ? admission.calls : nullptr;
    const int64_t inserted_before = calls == nullptr ? 0 : calls->inserted.load();
    Update of_rows = update;
    of_rows.if_missing = IfMissing::kReport;
    const auto apply_to_rows = [&](const Batch& of, std::vector<int64_t>* missing) {
      return MissesOf(
          of,
          [&](const Report& report) {
            return table->Apply(context, of, gradients, of_rows, stamp, report);
          },
          missing);
    };
    std::vector<int64_t> missing;
    DYNEMB_RETURN_IF_ERROR(apply_to_rows(batch, &missing));
    std::unique_lock<std::mutex> lock;
    if (calls != nullptr && !missing.empty()) {
      lock = std::unique_lock<std::mutex>(calls->mutex);
      if (calls->inserted != inserted_before) {  // some of them may have got rows since
        std::vector<int64_t> were_missing = std::move(missing);
        int64_t count = static_cast<int64_t>(were_missing.size());
        const Positions select = {were_missing, &count};
        DYNEMB_RETURN_IF_ERROR(apply_to_rows({batch.keys, &select}, &missing));
      }
    }
    const auto insert = [&](std::vector<int64_t> positions) {
      int64_t count = static_cast<int64_t>(positions.size());
      const Positions select = {positions, &count};
      const Status inserted =
          table->Apply(context, {batch.keys, &select}, gradients, update, stamp, Report());
      // Afterwards: who looks for the keys before that has read the number before.
      if (calls != nullptr) ++calls->inserted;
      return inserted;
    };
    return AdmitMissing(context, batch.keys, std::move(missing), admission, insert, declined);
  });
}

Status SketchCountsThatLeft(const Context& context, const Admission& admission) {
  return OrNoMemory([&] {
    const std::lock_guard<std::mutex> lock(admission.calls->mutex);
    return NoteForgotten(context, admission, {}, {}, {});
  });
}

Status AppendAdmitted(const Context& context, const Table& table, const Batch& batch,
                      const Admission& admission, std::vector<Key>* keys) {
  return OrNoMemory([&] {
    std::vector<int64_t> positions;
    DYNEMB_RETURN_IF_ERROR(MissesOf(
        batch,
        [&](const Report& report) { return table.ReadRows(context, batch, RowParts(), report); },
        &positions));
    Missing missing;
    DYNEMB_RETURN_IF_ERROR(Judge(context, batch.keys, admission, std::move(positions), &missing));
    const std::vector<Key> admitted = KeysThatAre(true, missing);
    keys->insert(keys->end(), admitted.begin(), admitted.end());
    return Status();
  });
}

}  // namespace dynemb
