// What a follower does with a generation: reads and checks it, and puts rows and weights in place.
#include <algorithm>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cc/core/base/worker_threads.h"
#include "cc/core/initializer/initializer_text.h"
#include "cc/core/snapshot/loader.h"
#include "cc/core/snapshot/reader.h"
#include "cc/kernels/follower.h"
#include "tensorflow/core/platform/env.h"

namespace dynemb {
namespace {

using tensorflow::Tensor;

// Between two looks at whether the follower is to go on.
constexpr int64_t kRowsAtATime = int64_t{1} << 20;
// A switch that has to wait longer for requests takes place with more generations the next time.
constexpr std::chrono::milliseconds kAtOnce{100};
constexpr int kMostAtOnce = 64;

Status About(const std::string& what, const Status& status) {
  return status.ok() ? status : Status(status.code(), StrCat(what, ": ", status.message()));
}

Status CheckId(const std::string& folder, uint64_t got, uint64_t want) {
  if (got == want) return Status();
  return Status(Code::kDataLoss, StrCat(folder, ": got snapshot ", IdText(got), ", want ",
                                        IdText(want), ", as the manifest says"));
}

const Initializer& InitializerOf(const SnapshotReader& reader, int64_t table) {
  return reader.manifest().tables[static_cast<size_t>(table)].schema.initializer;
}

// The table of a snapshot that goes into `table`. kInvalidArgument: there is none, or it does not
// fit, and so will none of this feed.
Status FindTable(SnapshotReader* reader, TableResource* table, int64_t* number) {
  const auto misfit = [](const Status& status) {
    return status.ok() ? status : Status(Code::kInvalidArgument, status.message());
  };
  DYNEMB_RETURN_IF_ERROR(misfit(reader->FindTable(table->name(), number)));
  const Shards shards = table->shards()->shards();
  const TableSchema& schema = shards[0]->schema();
  const std::string about = StrCat("table '", table->name(), "'");
  DYNEMB_RETURN_IF_ERROR(About(about, misfit(reader->FitTo(schema, *number))));
  if (table->options().missing_value) return Status();  // is what ids without a row read
  const std::string got = InitializerText(InitializerOf(*reader, *number));
  const std::string want = InitializerText(schema.initializer);
  if (got == want) return Status();
  return About(
      about, InvalidArgument("got a feed whose ids without a row read by the initializer '", got,
                             "', want '", want, "', as the model has it; export the model again"));
}

// Calls load(blocks) for the blocks of some rows of a table after another, and `go_on` before each;
// an error of either ends it.
template <typename Load>
Status InParts(const SnapshotReader& reader, int64_t table, const std::function<Status()>& go_on,
               const Load& load) {
  SnapshotPlace place;
  for (;;) {
    std::vector<BlockEntry> blocks;
    DYNEMB_RETURN_IF_ERROR(go_on());
    DYNEMB_RETURN_IF_ERROR(reader.List(table, kRowsAtATime, &place, &blocks));
    if (blocks.empty()) return Status();
    DYNEMB_RETURN_IF_ERROR(load(blocks));
  }
}

}  // namespace

Status Follower::ReadWeights(const Generation& generation, Weights* weights) const {
  std::map<std::string, Tensor> named;
  DYNEMB_RETURN_IF_ERROR(feed_.ReadWeights(generation, &named));
  for (const FollowedWeight& weight : weights_) {
    const auto found = named.find(weight.name);
    tensorflow::tf_shared_lock lock(*weight.variable->mu());
    const Tensor& there = *weight.variable->tensor();
    if (found == named.end()) {
      if (!generation.tables_alone && !weight.is_optional) {
        return InvalidArgument(
            feed_.path(), ": got a feed without the dense weight '", weight.name,
            "' of the model, which would grow old; want a feed of the whole model, "
            "Publisher(model), with it among model.weights, where add_weight puts it; or "
            "of tables alone, Publisher(layer.table); or export the model again");
      }
      weights->emplace_back();
      continue;
    }
    if (found->second.dtype() != there.dtype() || found->second.shape() != there.shape()) {
      return InvalidArgument(feed_.path(), ": got ",
                             tensorflow::DataTypeString(found->second.dtype()), " ",
                             found->second.shape().DebugString(), " for the dense weight '",
                             weight.name, "', want ", tensorflow::DataTypeString(there.dtype()),
                             " ", there.shape().DebugString(), ", as the model has it");
    }
    weights->emplace_back(found->second);
  }
  return Status();
}

Status Follower::Apply(const std::vector<const Generation*>& generations) {
  Weights weights;
  std::vector<std::vector<TableChanges>> changes(generations.size());
  std::vector<const FeedPart*> parts;
  DYNEMB_RETURN_IF_ERROR(ReadWeights(*generations.back(), &weights));
  for (size_t g = 0; g < generations.size(); ++g) {
    parts.push_back(&*generations[g]->delta);
    DYNEMB_RETURN_IF_ERROR(ReadChanges(*generations[g], &changes[g]));
  }
  // Requests wait: on threads that give way to nobody.
  Context at_once;
  at_once.executor = ComputeThreads();
  return Switch(*generations.back(), parts, false, weights, [&] {
    for (size_t g = 0; g < generations.size(); ++g) {
      for (size_t t = 0; t < tables_.size(); ++t) {
        const ShardSet::Lease held = tables_[t]->shards()->Acquire();
        DYNEMB_RETURN_IF_ERROR(
            changes[g][t].Apply(at_once, Pointers(held->shards), held->strings.get()));
        tables_[t]->set_snapshot(parts[g]->snapshot);
      }
    }
    return Status();
  });
}

Status Follower::ReadChanges(const Generation& generation, std::vector<TableChanges>* changes) {
  const FileContext core;
  const auto go_on = [this] { return GoOn(); };
  const std::string folder = feed_.Folder(generation, "delta");
  std::unique_ptr<FileSystem> fetched;
  std::unique_ptr<SnapshotReader> reader;
  if (!feed_.is_local()) DYNEMB_RETURN_IF_ERROR(CopyToMemory(folder, go_on, &fetched));
  FileSystem* const files = fetched ? fetched.get() : TensorFlowFiles();
  DYNEMB_RETURN_IF_ERROR(SnapshotReader::Open(files, folder, &reader));
  DYNEMB_RETURN_IF_ERROR(CheckId(folder, reader->manifest().id, generation.delta->snapshot));
  changes->resize(tables_.size());
  for (size_t t = 0; t < tables_.size(); ++t) {
    TableChanges& of_table = (*changes)[t];
    int64_t number = 0;
    DYNEMB_RETURN_IF_ERROR(About(folder, FindTable(reader.get(), tables_[t].get(), &number)));
    DYNEMB_RETURN_IF_ERROR(of_table.ReadErased(core, *reader, number));
    DYNEMB_RETURN_IF_ERROR(InParts(*reader, number, go_on, [&](Span<const BlockEntry> blocks) {
      return of_table.ReadRows(core, *reader, blocks);
    }));
  }
  return Status();
}

Status Follower::LoadTable(const std::vector<std::unique_ptr<SnapshotReader>>& readers,
                           TableResource* table, ShardSet::Contents* contents) {
  const FileContext core;
  int64_t want = 0;
  for (size_t r = 0; r < readers.size(); ++r) {
    SnapshotReader* const reader = readers[r].get();
    int64_t number = 0;
    DYNEMB_RETURN_IF_ERROR(FindTable(reader, table, &number));
    if (r == 0) {
      for (const SnapshotFile& file : reader->manifest().files) {
        if (file.table == number) want += file.rows;
      }
      const Shards like = table->shards()->shards();
      TableSchema schema = like[0]->schema();
      schema.initializer.seed = InitializerOf(*reader, number).seed;
      const auto count = static_cast<int64_t>(like.size());
      Shards shards;
      DYNEMB_RETURN_IF_ERROR(MakeHostShards(core, schema, table->options(), table->storage(), count,
                                            want / count, &shards));
      *contents = ContentsOf(std::move(shards));
    }
    const std::vector<Table*> shards = Pointers(contents->shards);
    if (r > 0) DYNEMB_RETURN_IF_ERROR(LoadErased(core, *reader, number, shards));
    DYNEMB_RETURN_IF_ERROR(InParts(
        *reader, number, [this] { return GoOn(); },
        [&](Span<const BlockEntry> blocks) {
          return LoadRows(core, *reader, blocks, nullptr, shards, contents->strings.get());
        }));
    int64_t rows = 0;
    for (const auto& shard : contents->shards) rows += shard->size();
    if (r == 0 && rows != want) {
      return Status(Code::kDataLoss,
                    StrCat("got ", rows, " rows of table '", table->name(), "', want ", want));
    }
  }
  return Status();
}

Status Follower::GoOn() {
  if (ended()) return FailedPrecondition("the model is being unloaded");
  Beat();
  return Status();
}

Status Follower::Load(const std::vector<const Generation*>& chain) {
  const Generation& last = *chain.back();
  Weights weights;
  std::vector<std::unique_ptr<SnapshotReader>> readers(chain.size());
  std::vector<const FeedPart*> parts;
  DYNEMB_RETURN_IF_ERROR(ReadWeights(last, &weights));
  for (size_t g = 0; g < chain.size(); ++g) {
    const std::string folder = feed_.Folder(*chain[g], g == 0 ? "full" : "delta");
    parts.push_back(&*(g == 0 ? chain[g]->full : chain[g]->delta));
    DYNEMB_RETURN_IF_ERROR(SnapshotReader::Open(TensorFlowFiles(), folder, &readers[g]));
    DYNEMB_RETURN_IF_ERROR(CheckId(folder, readers[g]->manifest().id, parts[g]->snapshot));
  }
  // It may take longer than the publisher keeps generations that nobody needs.
  needs_ = chain[0]->number;
  struct Ending {
    std::optional<int64_t>* needs;
    ~Ending() { needs->reset(); }
  } const ending{&needs_};
  if (!options_.serve_while_loading) {
    // What can be loaded at no time is no reason to serve nothing.
    for (const auto& table : tables_) {
      for (const auto& reader : readers) {
        int64_t number = 0;
        DYNEMB_RETURN_IF_ERROR(
            About(feed_.Folder(last, "full"), FindTable(reader.get(), table.get(), &number)));
      }
    }
    DYNEMB_RETURN_IF_ERROR(DropRows());
  }
  // Beside the rows that are served, which serve on.
  std::vector<ShardSet::Contents> loaded(tables_.size());
  for (size_t t = 0; t < tables_.size(); ++t) {
    DYNEMB_RETURN_IF_ERROR(
        About(feed_.Folder(*chain[0], "full"), LoadTable(readers, tables_[t].get(), &loaded[t])));
  }
  return Switch(last, parts, true, weights, [&] {
    for (size_t t = 0; t < tables_.size(); ++t) {
      tables_[t]->Replace(std::move(loaded[t]), {last.state()});
    }
    return Status();
  });
}

Status Follower::WhileNoRequest(const std::function<Status()>& change) {
  struct Opening {  // however this ends
    RequestGate* gate;
    ~Opening() {
      // Not on this thread, on which a request must not run.
      gate->Open([](std::function<void()> entered) {
        tensorflow::Env::Default()->SchedClosure(std::move(entered));
      });
    }
  } opening{gate_.get()};
  const auto began = std::chrono::steady_clock::now();
  const bool closed = gate_->Close(std::chrono::duration<double>(options_.longest_wait_seconds),
                                   [this] { Beat(); });
  const bool at_once = std::chrono::steady_clock::now() - began < kAtOnce;
  at_once_ = at_once ? 1 : std::min(2 * at_once_, kMostAtOnce);
  if (!closed) {
    too_long_ = true;
    return Status(Code::kFailedPrecondition,
                  StrCat("requests took longer than ", options_.longest_wait_seconds,
                         " s; the switch to the next generation is tried again"));
  }
  {
    std::lock_guard<std::mutex> lock(mutex_);
    whole_ = false;
  }
  return change();
}

Status Follower::DropRows() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (dropped_) return Status();
  }
  return WhileNoRequest([this] {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      dropped_ = true;
    }
    for (const auto& table : tables_) {
      const Shards rows = table->shards()->shards();
      Shards none;
      DYNEMB_RETURN_IF_ERROR(MakeHostShards(FileContext(), rows[0]->schema(), table->options(),
                                            table->storage(), static_cast<int64_t>(rows.size()), 0,
                                            &none));
      table->Replace(ContentsOf(std::move(none)), {});
    }
    return Status();
  });
}

Status Follower::Switch(const Generation& generation, const std::vector<const FeedPart*>& parts,
                        bool is_full, const Weights& weights,
                        const std::function<Status()>& change) {
  return WhileNoRequest([&] {
    DYNEMB_RETURN_IF_ERROR(change());
    Assign(weights);
    NoteServed(generation, parts, is_full);
    return Status();
  });
}

void Follower::NoteServed(const Generation& generation, const std::vector<const FeedPart*>& parts,
                          bool is_full) {
  now_ = generation;
  wants_full_ = false;
  std::lock_guard<std::mutex> lock(mutex_);
  whole_ = true;
  dropped_ = false;
  status_.generation = generation.number;
  status_.created_seconds = generation.created_seconds;
  // Until NoteLag: as if the next one had come with this one.
  status_.newer_since_seconds = generation.number < status_.newest ? generation.created_seconds : 0;
  for (const FeedPart* part : parts) {
    status_.rows += part->rows;
    status_.erased += part->erased;
  }
  status_.full_copies += is_full ? 1 : 0;
}

void Follower::Assign(const Weights& weights) {
  for (size_t w = 0; w < weights_.size(); ++w) {
    if (!weights[w]) continue;
    tensorflow::Var* const variable = weights_[w].variable.get();
    tensorflow::mutex_lock lock(*variable->mu());
    *variable->tensor() = *weights[w];  // who has read the one before keeps it
    variable->is_initialized = true;
  }
}

}  // namespace dynemb
