#include "cc/core/shard/exchange.h"

#include <sys/epoll.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <set>
#include <system_error>
#include <thread>
#include <utility>

#include "cc/core/base/fingerprint.h"
#include "cc/core/base/hash.h"
#include "cc/core/base/no_memory.h"
#include "cc/core/shard/round.h"

namespace dynemb {
namespace {

// Bytes of the items of a process, by the counts of their tables; -1: counts that cannot be.
int64_t BytesOf(const int64_t* counts, int64_t tables, const std::vector<int64_t>& item_bytes) {
  int64_t bytes = 0;
  for (size_t p = 0; p < item_bytes.size(); ++p) {
    const int64_t count = counts[static_cast<int64_t>(p) % tables];
    if (count < 0 || count > (kMostItemBytes - bytes) / item_bytes[p]) return -1;
    bytes += count * item_bytes[p];
  }
  return bytes;
}

// Memory that is kept from call to call, and not written before it is used.
class Buffer {
 public:
  // Room for so many bytes; what was there is lost. Throws std::bad_alloc.
  char* Reserve(int64_t bytes) {
    if (bytes > size_) {
      size_ = 0;
      memory_.reset();
      memory_.reset(new char[static_cast<size_t>(bytes)]);
      size_ = bytes;
    }
    return memory_.get();
  }

 private:
  std::unique_ptr<char[]> memory_;
  int64_t size_ = 0;
};

// One call. A bundle is what one process has for another one, part for part; to all, it is the same
// for each. The message to a process of the row has the bundles for that one's column, its own
// last; the message to a process of the column has a bundle of each of the senders.
class Transfer {
 public:
  Transfer(const Grid& grid, int index, const ExchangeCall& call, uint64_t program, Round* round,
           Buffer* buffer)
      : grid_(grid),
        index_(index),
        call_(call),
        program_(program),
        round_(*round),
        buffer_(*buffer),
        senders_(grid.Senders(index)),
        column_(grid.Column(index)),
        nothing_(static_cast<size_t>(call.tables), 0),
        refuses_(!call.problem.empty()),
        largest_(call.numbers) {}

  // Errors: those that end the exchange.
  Status Run() {
    DYNEMB_RETURN_IF_ERROR(SendAlongRow());
    DYNEMB_RETURN_IF_ERROR(AwaitHeads(senders_, false));
    DYNEMB_RETURN_IF_ERROR(TakeHeadsOfRow());
    DYNEMB_RETURN_IF_ERROR(SendHeadsAlongColumn());
    DYNEMB_RETURN_IF_ERROR(AwaitHeads(column_, true));
    DYNEMB_RETURN_IF_ERROR(TakeHeadsOfColumn());
    if (goes_on()) PlaceItems();
    DYNEMB_RETURN_IF_ERROR(StartItems(senders_));
    // Where processes do not go on, all know it by now, and nothing goes along columns.
    if (goes_on()) DYNEMB_RETURN_IF_ERROR(StartItems(column_));
    for (const int p : senders_)
      if (p != index_) DYNEMB_RETURN_IF_ERROR(round_.AwaitItems(p));
    if (goes_on()) DYNEMB_RETURN_IF_ERROR(SendItemsAlongColumn());
    for (const int p : column_)
      if (p != index_) DYNEMB_RETURN_IF_ERROR(round_.AwaitItems(p));
    for (const int p : grid_.Peers(index_)) DYNEMB_RETURN_IF_ERROR(round_.AwaitSent(p));
    return Status();
  }

  // What all processes know after Run.
  bool goes_on() const { return !refuses_ && !differs_; }
  bool refuses() const { return refuses_; }
  const std::vector<int64_t>& largest() const { return largest_; }
  const std::vector<int64_t>& counts() const { return counts_; }
  // What call.allocate has said.
  const Status& allocated() const { return allocated_; }

 private:
  size_t bundles() const { return call_.to_all ? 1 : column_.size(); }  // of a message of the row
  // Bundles of such a message that are passed on.
  size_t passed() const { return call_.to_all ? column_.size() > 1 : column_.size() - 1; }

  // Of the bundle that this process has for another one.
  const int64_t* OwnCounts(int to) const {
    if (!call_.problem.empty()) return nothing_.data();
    return call_.counts.data + (call_.to_all ? 0 : to * call_.tables);
  }
  const char* const* OwnItems(int to) const {
    return own_items_.data() + (call_.to_all ? 0 : static_cast<size_t>(to) * call_.parts.size());
  }
  // Of the bundle of one of the senders for one of the column, by their places there.
  const int64_t* Counts(size_t sender, size_t to) const {
    if (senders_[sender] == index_) return OwnCounts(column_[to]);
    return round_.words(senders_[sender]).data() + call_.numbers.size() +
           (call_.to_all ? 0 : to * nothing_.size());
  }
  char*& PassedItems(size_t sender, size_t to) {
    return passed_items_[sender * passed() + (call_.to_all ? 0 : to)];
  }
  int64_t Bytes(const int64_t* counts) const {
    return BytesOf(counts, call_.tables, call_.item_bytes);
  }
  int64_t BytesOfPart(const int64_t* counts, size_t part) const {
    return counts[static_cast<int64_t>(part) % call_.tables] * call_.item_bytes[part];
  }

  Header MakeHeader() const {
    Header header;
    header.program = program_;
    header.refuses = refuses_;
    header.differs = differs_;
    return header;
  }

  Status SendAlongRow() {
    const int64_t targets = call_.to_all ? 1 : grid_.processes();
    std::vector<const char*> next = call_.parts;
    for (int64_t to = 0; to < targets; ++to) {
      own_items_.insert(own_items_.end(), next.begin(), next.end());
      const int64_t* const counts = OwnCounts(static_cast<int>(to));
      for (size_t part = 0; part < next.size(); ++part) next[part] += BytesOfPart(counts, part);
    }
    std::vector<int> row = grid_.Row(index_);  // each begins with another one
    std::rotate(row.begin(), std::upper_bound(row.begin(), row.end(), index_), row.end());
    for (const int via : row) {
      if (via == index_) continue;
      Header header = MakeHeader();
      std::vector<int64_t> words = call_.numbers;
      for (const int to : call_.to_all ? std::vector<int>{via} : grid_.Column(via)) {
        const int64_t* const counts = OwnCounts(to);
        words.insert(words.end(), counts, counts + call_.tables);
        header.bytes += Bytes(counts);
        SendOwnItems(via, to);
      }
      DYNEMB_RETURN_IF_ERROR(round_.Send(via, header, std::move(words)));
    }
    return Status();
  }

  void SendOwnItems(int via, int to) {
    for (size_t part = 0; part < call_.parts.size(); ++part)
      round_.SendItems(via, OwnItems(to)[part], BytesOfPart(OwnCounts(to), part));
  }

  Status AwaitHeads(const std::vector<int>& from, bool of_column) {
    for (const int p : from) {
      if (p == index_) continue;
      const Status status = round_.AwaitHead(p);
      if (status.code() == Code::kDeadlineExceeded) return Late(from, of_column);
      DYNEMB_RETURN_IF_ERROR(status);
    }
    return Status();
  }

  // Who passes items on begins with it when all of its senders are there.
  Status Late(const std::vector<int>& from, bool of_column) const {
    std::set<int> missing;
    for (const int p : from) {
      if (p == index_ || round_.has_head(p)) continue;
      const std::vector<int> some = of_column ? grid_.Senders(p) : std::vector<int>{p};
      missing.insert(some.begin(), some.end());
    }
    std::string text;
    for (const int p : missing) text += StrCat(text.empty() ? "" : ", ", p);
    return Status(
        Code::kDeadlineExceeded,
        StrCat("process ", index_, " has waited for ",
               of_column && missing.size() > 1 ? "one or more of the processes " : "process ", text,
               " for the timeout_seconds of the strategy's CommunicationOptions"));
  }

  // What a process says of itself and of those for whom it speaks, with so many bundles.
  Status TakeHeads(const std::vector<int>& from, const std::function<size_t(int)>& bundles) {
    for (const int p : from) {
      if (p == index_) continue;
      refuses_ = refuses_ || round_.header(p).refuses != 0;
      differs_ = differs_ || round_.header(p).differs != 0 || round_.header(p).program != program_;
    }
    if (!goes_on()) return Status();
    const size_t tables = nothing_.size();
    for (const int p : from) {
      if (p == index_) continue;
      const std::vector<int64_t>& words = round_.words(p);
      const size_t count = bundles(p);
      bool fits = words.size() == largest_.size() + count * tables;
      int64_t bytes = 0;
      for (size_t b = 0; fits && b < count; ++b) {
        const int64_t more = Bytes(words.data() + largest_.size() + b * tables);
        fits = more >= 0 && (bytes += more) <= kMostItemBytes;
      }
      if (!fits || bytes != round_.header(p).bytes)
        return Status(Code::kInternal, "a process sent counts that are not of its items");
      for (size_t n = 0; n < largest_.size(); ++n) largest_[n] = std::max(largest_[n], words[n]);
    }
    return Status();
  }

  // Receives what is for others of the column.
  Status TakeHeadsOfRow() {
    DYNEMB_RETURN_IF_ERROR(TakeHeads(senders_, [&](int) { return bundles(); }));
    if (!goes_on()) return Status();
    const auto each = [&](const std::function<void(size_t, size_t, int64_t)>& body) {
      for (size_t s = 0; s < senders_.size(); ++s) {
        if (senders_[s] == index_) continue;
        for (size_t to = 0; to < passed(); ++to) body(s, to, Bytes(Counts(s, to)));
      }
    };
    int64_t all_bytes = 0;
    each([&](size_t, size_t, int64_t bytes) { all_bytes += bytes; });
    char* next = buffer_.Reserve(all_bytes);
    passed_items_.resize(senders_.size() * passed());
    each([&](size_t s, size_t to, int64_t bytes) {
      PassedItems(s, to) = next;
      round_.Receive(senders_[s], next, bytes);
      next += bytes;
    });
    for (const int p : senders_)
      if (p != index_) DYNEMB_RETURN_IF_ERROR(round_.Start(p));
    return Status();
  }

  Status SendHeadsAlongColumn() {
    for (size_t to = 0; to + 1 < column_.size(); ++to) {
      Header header = MakeHeader();
      std::vector<int64_t> words = largest_;
      for (size_t s = 0; s < senders_.size() && goes_on(); ++s) {
        const int64_t* const counts = Counts(s, to);
        words.insert(words.end(), counts, counts + call_.tables);
        header.bytes += Bytes(counts);
      }
      DYNEMB_RETURN_IF_ERROR(round_.Send(column_[to], header, std::move(words)));
    }
    return Status();
  }

  Status TakeHeadsOfColumn() {
    DYNEMB_RETURN_IF_ERROR(TakeHeads(column_, [&](int p) { return grid_.Senders(p).size(); }));
    if (!goes_on()) return Status();
    std::vector<size_t> next(static_cast<size_t>(grid_.processes()), 0);  // bundle of its message
    for (int from = 0; from < grid_.processes(); ++from) {
      const int via = grid_.Via(from, index_);
      const size_t bundle = next[static_cast<size_t>(via)]++;
      const int64_t* const counts =
          via == index_ ? Counts(bundle, column_.size() - 1)
                        : round_.words(via).data() + largest_.size() + bundle * nothing_.size();
      counts_.insert(counts_.end(), counts, counts + call_.tables);
    }
    return Status();
  }

  // Says where items for this process go, and puts its own there.
  void PlaceItems() {
    if (call_.parts.empty()) return;
    std::vector<char*> next;
    allocated_ = OrNoMemory([&] { return call_.allocate(counts_, &next); });
    if (!allocated_.ok()) return;
    size_t sender = 0;
    for (int from = 0; from < grid_.processes(); ++from) {
      const int via = grid_.Via(from, index_);
      const char* passed_items = nullptr;
      if (via == index_ && from != index_ && call_.to_all && passed() > 0)
        passed_items = PassedItems(sender, 0);
      if (via == index_) ++sender;
      for (size_t part = 0; part < call_.parts.size(); ++part) {
        const int64_t bytes = BytesOfPart(counts_.data() + from * call_.tables, part);
        if (from == index_) {
          Copy(next[part], OwnItems(index_)[part], bytes);
        } else if (passed_items != nullptr) {
          copies_.push_back({next[part], passed_items, bytes});
          passed_items += bytes;
        } else {
          round_.Receive(via == index_ ? from : via, next[part], bytes);
        }
        next[part] += bytes;
      }
    }
  }

  // Receives what there is, and drops that for which there is no place.
  Status StartItems(const std::vector<int>& from) {
    for (const int p : from) {
      if (p == index_) continue;
      round_.DropRest(p);
      DYNEMB_RETURN_IF_ERROR(round_.Start(p));
    }
    return Status();
  }

  // When those of the row are here.
  Status SendItemsAlongColumn() {
    for (size_t to = 0; to + 1 < column_.size(); ++to) {
      for (size_t s = 0; s < senders_.size(); ++s) {
        if (senders_[s] == index_) {
          SendOwnItems(column_[to], column_[to]);
        } else {
          round_.SendItems(column_[to], PassedItems(s, to), Bytes(Counts(s, to)));
        }
      }
      DYNEMB_RETURN_IF_ERROR(round_.Start(column_[to]));
    }
    for (const CopyOfPart& copy : copies_) Copy(copy.to, copy.from, copy.bytes);
    return Status();
  }

  static void Copy(char* to, const char* from, int64_t bytes) {
    if (bytes > 0) memcpy(to, from, static_cast<size_t>(bytes));
  }

  struct CopyOfPart {
    char* to;
    const char* from;
    int64_t bytes;
  };

  const Grid& grid_;
  const int index_;
  const ExchangeCall& call_;
  const uint64_t program_;
  Round& round_;
  Buffer& buffer_;
  const std::vector<int> senders_, column_;
  const std::vector<int64_t> nothing_;  // counts of no items

  std::vector<const char*> own_items_;  // (processes, parts); to all: (1, parts)
  std::vector<char*> passed_items_;     // in the buffer, by sender and process of the column
  std::vector<CopyOfPart> copies_;      // of what was passed on and is for this process as well
  bool refuses_ = false;
  bool differs_ = false;
  std::vector<int64_t> largest_, counts_;
  Status allocated_;
};

}  // namespace

class Exchange::State {
 public:
  State(Connections connections, const Grid& grid)
      : connections_(std::move(connections)), grid_(grid) {}

  Status Init() {
    events_ = Socket(epoll_create1(EPOLL_CLOEXEC));
    if (!events_.is_open()) return ResourceExhausted("epoll: ", strerror(errno));
    for (int p = 0; p < connections_.processes(); ++p) {
      if (!connections_.channel(p).socket().is_open()) continue;
      if (connections_.channel(p).has_rings()) ++shared_memory_peers_;
      epoll_event event = {};
      event.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;
      event.data.u32 = static_cast<uint32_t>(p);
      if (epoll_ctl(events_.descriptor(), EPOLL_CTL_ADD,
                    connections_.channel(p).socket().descriptor(), &event) != 0) {
        return ResourceExhausted("epoll: ", strerror(errno));
      }
    }
    return Status();
  }

  Status Start(ExchangeCall call) {
    const int64_t rows = call.to_all ? 1 : connections_.processes();
    if (call.counts.size != rows * call.tables || (call.tables == 0) != call.parts.empty() ||
        call.item_bytes.size() != call.parts.size()) {
      return InvalidArgument("counts: got ", call.counts.size, " for ", call.parts.size(),
                             " parts, want one for each of ", call.tables, " tables and ", rows,
                             " processes");
    }
    for (const int64_t bytes : call.item_bytes)
      if (bytes < 1) return InvalidArgument("items: got ", bytes, " bytes each, want 1 or more");
    for (int64_t row = 0; row < rows; ++row) {
      if (BytesOf(call.counts.data + row * call.tables, call.tables, call.item_bytes) < 0)
        return InvalidArgument("counts: got negative ones, or more than fit any memory");
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    calls_.push_back(std::move(call));
    changed_.notify_one();
    return Status();
  }

  void End() {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_ending_ = true;
    changed_.notify_one();
  }

  void Serve() {
    while (true) {
      ExchangeCall call;
      {
        std::unique_lock<std::mutex> lock(mutex_);
        changed_.wait(lock, [&] { return is_ending_ || !calls_.empty(); });
        if (calls_.empty()) return;
        call = std::move(calls_.front());
        calls_.pop_front();
      }
      ExchangeResult result;
      Status status = OrNoMemory([&] {
        if (broken_.ok()) return Run(call, &result);
        return Status(broken_.code(), StrCat("the exchange has ended: ", broken_.message()));
      });
      if (is_moving_) Break(status);  // no process knows where it is now
      sent_bytes_ += result.sent_bytes;
      sent_messages_ += result.sent_messages;
      ++done_calls_;
      call.done(status, result);
    }
  }

  int processes() const { return connections_.processes(); }
  int shared_memory_peers() const { return shared_memory_peers_; }
  int64_t sent_bytes() const { return sent_bytes_; }
  int64_t sent_messages() const { return sent_messages_; }
  int64_t calls() const { return done_calls_; }

 private:
  void Break(const Status& status) {
    is_moving_ = false;
    if (!OrNoMemory([&] { broken_ = status; }).ok()) broken_ = NoMemory();
    for (int p = 0; p < connections_.processes(); ++p) connections_.channel(p).Shutdown();
  }

  // `is_telling`: of Tell, in which no process that keeps to the rules refuses or differs.
  Status Run(const ExchangeCall& call, ExchangeResult* result, bool is_telling = false) {
    is_moving_ = true;
    uint64_t program = Fingerprint(call.program);
    for (const size_t shape : {call.numbers.size(), static_cast<size_t>(call.tables),
                               call.parts.size(), size_t{call.to_all}})
      program = Mix64(program ^ shape);
    Round round(&connections_, events_, ++rounds_, call.timeout_seconds);
    Transfer transfer(grid_, connections_.index(), call, program, &round, &buffer_);
    const Status moved = transfer.Run();
    result->sent_bytes += round.sent_bytes();
    result->sent_messages += round.sent_messages();
    DYNEMB_RETURN_IF_ERROR(moved);
    if (!transfer.goes_on() && is_telling)
      return Status(Code::kInternal, "a process has not said why it refuses");
    if (!transfer.goes_on()) return Tell(call, transfer.refuses(), result);
    is_moving_ = false;
    result->largest = transfer.largest();
    result->counts = transfer.counts();
    return transfer.allocated();
  }

  // The error of all processes: what each of them says.
  Status Tell(const ExchangeCall& call, bool refused, ExchangeResult* result) {
    std::string text = refused ? call.problem : call.program;
    if (static_cast<int64_t>(text.size()) > kMostTextBytes) text.resize(kMostTextBytes);
    const auto size = static_cast<int64_t>(text.size());
    std::string texts;
    ExchangeCall telling;
    telling.program = "telling";
    telling.tables = 1;
    telling.counts = {&size, 1};
    telling.item_bytes = {1};
    telling.parts = {text.data()};
    telling.to_all = true;
    telling.allocate = [&](const std::vector<int64_t>& sizes, std::vector<char*>* parts) {
      int64_t bytes = 0;
      for (const int64_t one : sizes) bytes += one;
      texts.resize(static_cast<size_t>(bytes));
      parts->push_back(texts.data());
      return Status();
    };
    ExchangeResult told;
    const Status status = Run(telling, &told, true);
    result->sent_bytes += told.sent_bytes;
    result->sent_messages += told.sent_messages;
    DYNEMB_RETURN_IF_ERROR(status);
    std::string all;
    size_t first = 0;
    for (int p = 0; p < connections_.processes(); ++p) {
      const auto bytes = static_cast<size_t>(told.counts[static_cast<size_t>(p)]);
      if (bytes > 0)
        all += StrCat(all.empty() ? "" : "; ", "process ", p, ": ", texts.substr(first, bytes));
      first += bytes;
    }
    if (refused)
      return Status(call.refusal, StrCat("processes refuse what they were to do: ", all));
    return InvalidArgument(
        "the programs of the processes differ: they must make the same tables, in the same order, "
        "and look them up and train them in the same order. Got ",
        all);
  }

  Connections connections_;
  const Grid grid_;
  Socket events_;
  int shared_memory_peers_ = 0;
  Buffer buffer_;  // of what is passed on
  uint64_t rounds_ = 0;
  bool is_moving_ = false;  // from the beginning of a call until all have had all of it
  Status broken_;
  std::atomic<int64_t> sent_bytes_{0}, sent_messages_{0}, done_calls_{0};

  std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  std::deque<ExchangeCall> calls_;
  bool is_ending_ = false;
};

Status Exchange::Make(Connections connections, const Grid& grid,
                      std::unique_ptr<Exchange>* exchange) {
  const auto state = std::make_shared<State>(std::move(connections), grid);
  DYNEMB_RETURN_IF_ERROR(state->Init());
  try {
    std::thread([state] { state->Serve(); }).detach();
  } catch (const std::system_error& error) {
    return ResourceExhausted("no thread for the exchange between processes: ", error.what());
  }
  exchange->reset(new Exchange(state));
  return Status();
}

Exchange::~Exchange() { state_->End(); }

Status Exchange::Start(ExchangeCall call) { return state_->Start(std::move(call)); }
int Exchange::processes() const { return state_->processes(); }
int Exchange::shared_memory_peers() const { return state_->shared_memory_peers(); }
int64_t Exchange::sent_bytes() const { return state_->sent_bytes(); }
int64_t Exchange::sent_messages() const { return state_->sent_messages(); }
int64_t Exchange::calls() const { return state_->calls(); }

}  // namespace dynemb
