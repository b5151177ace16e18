// Exchange: every process sends every other one what it has for it.
//
// Processes make the same calls in one order. In each of them a process says what it is about to do
// (its program), whether it can, and some numbers; and sends items of some tables, as many to each
// process as that one needs. All processes go on, with the largest of each of the numbers; or all
// get the same error, if their programs differ or one of them cannot go on.
//
// Messages go in one stage or two, as a Grid says. Each has a header, then the numbers and the
// counts of items of each table (together its words), then the items. Who passes items on sends
// their counts on as soon as those of all its senders are here, and the items when it has them all.
// So a process knows of all others before it allocates what is for itself, and takes whatever size
// comes.
#ifndef TF_DYNEMB_CC_CORE_SHARD_EXCHANGE_H_
#define TF_DYNEMB_CC_CORE_SHARD_EXCHANGE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cc/core/base/span.h"
#include "cc/core/base/status.h"
#include "cc/core/shard/connections.h"
#include "cc/core/shard/grid.h"

namespace dynemb {

// What a call has come to.
struct ExchangeResult {
  std::vector<int64_t> largest;  // of each number
  std::vector<int64_t> counts;   // (processes, tables) of items that each process sent
  int64_t sent_bytes = 0;        // to other processes, with what it passed on
  int64_t sent_messages = 0;
};

struct ExchangeCall {
  std::string program;  // what is done, the same in all processes; at most kMostTextBytes are told
  std::string problem;  // why this process cannot, in words; empty: it can
  Code refusal = Code::kInvalidArgument;  // of the error if one cannot
  std::vector<int64_t> numbers;           // as many in all
  // Parts have items of `item_bytes` each; part p is of table p % tables. Those of one process lie
  // after those of the process before. All are the caller's until the call is done.
  int64_t tables = 0;
  Span<const int64_t> counts;  // (processes, tables) items; to all: (1, tables)
  std::vector<int64_t> item_bytes;
  std::vector<const char*> parts;
  bool to_all = false;         // every process gets all items
  double timeout_seconds = 0;  // until all others call; 0: for ever

  // Gives memory for the items of all processes, those of the first one first. Called on the
  // thread of the exchange.
  std::function<Status(const std::vector<int64_t>& counts, std::vector<char*>* parts)> allocate;
  // Called last, on that thread. Throws nothing. Errors: kInvalidArgument if programs differ;
  // `refusal`; what `allocate` says, in this process alone; kUnavailable if a process is gone,
  // kDeadlineExceeded if one does not come, or kResourceExhausted if there is no memory for what
  // this process passes on: these end the exchange, and later calls say so.
  std::function<void(const Status&, const ExchangeResult&)> done;
};

constexpr int64_t kMostTextBytes = 1 << 20;

class Exchange {
 public:
  // Over connections to the peers of the grid. Errors: there is no thread, or no descriptor to be
  // had.
  static Status Make(Connections connections, const Grid& grid,
                     std::unique_ptr<Exchange>* exchange);
  ~Exchange();

  // From any thread; calls are done one after the other. Errors, where `done` is not called: counts
  // that cannot be.
  Status Start(ExchangeCall call);

  int processes() const;
  // With how many of the others it exchanges through shared memory.
  int shared_memory_peers() const;
  // Bytes and messages that were sent to other processes, and calls that were done.
  int64_t sent_bytes() const;
  int64_t sent_messages() const;
  int64_t calls() const;

 private:
  class State;
  explicit Exchange(std::shared_ptr<State> state) : state_(std::move(state)) {}
  // Shared with the thread, which may be the one that deletes this, after the last call.
  const std::shared_ptr<State> state_;
};

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_SHARD_EXCHANGE_H_
