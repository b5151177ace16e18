// Exchange: what each process sends is what the others get, whatever sizes meet; refusals and
// programs that differ are the same error in all; and a process that is gone, or late, or a
// stranger, is noticed; all in one stage and in two, through sockets and through shared memory.
// Processes are threads here, each with connections of its own.
#include "cc/core/shard/exchange.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <functional>
#include <future>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

namespace dynemb {
namespace {

const char kSecret[] = "sixteen letters.";

// Calls body(number) for each process, each on a thread.
void InEach(int processes, const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  for (int p = 0; p < processes; ++p) threads.emplace_back(body, p);
  for (std::thread& thread : threads) thread.join();
}

std::string AddressOf(int port) { return StrCat("127.0.0.1:", port); }

std::vector<std::unique_ptr<Exchange>> MakeExchanges(const Grid& grid, bool shared_memory) {
  std::vector<Connections> connections(static_cast<size_t>(grid.processes()));
  std::vector<std::string> addresses;
  for (Connections& one : connections) {
    EXPECT_TRUE(one.Listen(0).ok());
    addresses.push_back(AddressOf(one.port()));
  }
  std::vector<std::unique_ptr<Exchange>> exchanges(connections.size());
  InEach(grid.processes(), [&](int p) {
    const Status status =
        connections[p].Connect(addresses, p, grid.Peers(p), kSecret, shared_memory, 60);
    ASSERT_TRUE(status.ok()) << status.message();
    for (const int peer : grid.Peers(p))
      EXPECT_EQ(connections[p].channel(peer).has_rings(), shared_memory);
    ASSERT_TRUE(Exchange::Make(std::move(connections[p]), grid, &exchanges[p]).ok());
  });
  return exchanges;
}

// Of so many processes, each to each other or through a process between; through shared memory, or
// sockets alone.
struct Shape {
  int processes, stages;
};
class ExchangeOf : public testing::TestWithParam<std::tuple<Shape, bool>> {
 protected:
  int processes() const { return std::get<0>(GetParam()).processes; }
  Grid grid() const { return Grid(processes(), std::get<0>(GetParam()).stages); }
  std::vector<std::unique_ptr<Exchange>> MakeExchanges() const {
    return dynemb::MakeExchanges(grid(), std::get<1>(GetParam()));
  }
};

auto EachWay(const std::vector<Shape>& shapes) {
  return testing::Combine(testing::ValuesIn(shapes), testing::Bool());
}
std::string NameOf(const testing::TestParamInfo<std::tuple<Shape, bool>>& info) {
  const auto& [shape, shared_memory] = info.param;
  return StrCat(shape.processes, "in", shape.stages, shared_memory ? "shared" : "");
}
INSTANTIATE_TEST_SUITE_P(Stages, ExchangeOf,
                         EachWay({{3, 1}, {3, 2}, {4, 2}, {5, 2}, {7, 2}, {9, 2}}), NameOf);
// Squares, products, primes, and grids whose last row is one process or lacks one.
class AnyExchangeOf : public ExchangeOf {};
INSTANTIATE_TEST_SUITE_P(Stages, AnyExchangeOf,
                         EachWay({{1, 1},
                                  {2, 1},
                                  {3, 1},
                                  {5, 1},
                                  {1, 2},
                                  {2, 2},
                                  {3, 2},
                                  {4, 2},
                                  {5, 2},
                                  {6, 2},
                                  {7, 2},
                                  {10, 2},
                                  {11, 2},
                                  {16, 2},
                                  {17, 2},
                                  {24, 2},
                                  {31, 2},
                                  {37, 2}}),
                         NameOf);

struct Answer {
  Status status;
  std::vector<int64_t> largest, counts;
  std::vector<std::string> parts;
};

// Does a call and waits for it.
Answer Do(Exchange* exchange, ExchangeCall call) {
  std::promise<Answer> promise;
  Answer answer;
  const std::vector<int64_t> item_bytes = call.item_bytes;
  const int64_t tables = call.tables;
  call.allocate = [&answer, item_bytes, tables](const std::vector<int64_t>& counts,
                                                std::vector<char*>* parts) {
    answer.parts.resize(item_bytes.size());
    for (size_t part = 0; part < item_bytes.size(); ++part) {
      int64_t bytes = 0;
      for (size_t at = part % static_cast<size_t>(tables); at < counts.size();
           at += static_cast<size_t>(tables)) {
        bytes += counts[at] * item_bytes[part];
      }
      answer.parts[part].resize(static_cast<size_t>(bytes));
      parts->push_back(answer.parts[part].data());
    }
    return Status();
  };
  call.done = [&](const Status& status, const ExchangeResult& result) {
    answer.status = status;
    answer.largest = result.largest;
    answer.counts = result.counts;
    promise.set_value({});
  };
  if (const Status started = exchange->Start(std::move(call)); !started.ok())
    return {started, {}, {}, {}};
  promise.get_future().wait();
  return answer;
}

ExchangeCall Saying(const std::string& program, const std::string& problem = "") {
  ExchangeCall call;
  call.program = program;
  call.problem = problem;
  return call;
}

TEST_P(AnyExchangeOf, WhatIsSentIsWhatArrives) {
  const int processes = this->processes();
  const auto exchanges = MakeExchanges();
  std::mt19937 random(static_cast<uint32_t>(processes));
  for (int round = 0; round < 10; ++round) {
    const int64_t tables = random() % 3 + 1, columns = random() % 2 + 1;
    const bool to_all = round % 5 == 4;
    const int64_t rows = to_all ? 1 : processes;
    std::vector<int64_t> item_bytes;
    for (int64_t part = 0; part < tables * columns; ++part) item_bytes.push_back(random() % 40 + 1);
    // counts[from][to * tables + table], items[from][part]
    std::vector<std::vector<int64_t>> counts(processes);
    std::vector<std::vector<std::string>> items(processes);
    const int64_t most =
        round == 7 ? 500000 / (processes * processes) : 50;  // more than a socket holds, too
    for (int from = 0; from < processes; ++from) {
      for (int64_t n = 0; n < rows * tables; ++n)
        counts[from].push_back(random() % 3 == 0 ? 0 : random() % most);
      for (size_t part = 0; part < item_bytes.size(); ++part) {
        int64_t bytes = 0;
        for (int64_t to = 0; to < rows; ++to)
          bytes +=
              counts[from][to * tables + static_cast<int64_t>(part) % tables] * item_bytes[part];
        std::string bytes_of_part(static_cast<size_t>(bytes), ' ');
        uint32_t next = static_cast<uint32_t>(random());
        for (char& c : bytes_of_part)
          c = static_cast<char>((next = next * 1664525 + 1013904223) >> 24);
        items[from].push_back(std::move(bytes_of_part));
      }
    }
    InEach(processes, [&](int p) {
      ExchangeCall call = Saying("round");
      call.numbers = {p, 10 - p};
      call.tables = tables;
      call.counts = counts[p];
      call.item_bytes = item_bytes;
      for (const std::string& part : items[p]) call.parts.push_back(part.data());
      call.to_all = to_all;
      const Answer answer = Do(exchanges[p].get(), std::move(call));
      ASSERT_TRUE(answer.status.ok()) << answer.status.message();
      EXPECT_EQ(answer.largest, (std::vector<int64_t>{processes - 1, 10}));
      std::vector<int64_t> want_counts;
      std::vector<std::string> want(item_bytes.size());
      for (int from = 0; from < processes; ++from) {
        const int64_t to = to_all ? 0 : p;
        for (int64_t t = 0; t < tables; ++t) want_counts.push_back(counts[from][to * tables + t]);
        for (size_t part = 0; part < item_bytes.size(); ++part) {
          const int64_t table = static_cast<int64_t>(part) % tables;
          int64_t before = 0;
          for (int64_t r = 0; r < to; ++r) before += counts[from][r * tables + table];
          want[part] += items[from][part].substr(
              static_cast<size_t>(before * item_bytes[part]),
              static_cast<size_t>(counts[from][to * tables + table] * item_bytes[part]));
        }
      }
      EXPECT_EQ(answer.counts, want_counts);
      EXPECT_TRUE(answer.parts == want);
    });
  }
}

TEST_P(ExchangeOf, WhatOneRefusesAllRefuseAndTheNextCallIsDone) {
  const auto exchanges = MakeExchanges();
  const std::vector<int64_t> counts(static_cast<size_t>(processes()), 2);
  const std::string items(2 * counts.size(), 'x');
  for (int refusing = 0; refusing < processes(); ++refusing) {
    InEach(processes(), [&](int p) {
      ExchangeCall call = Saying("training", p == refusing ? "no room" : "");
      call.refusal = Code::kResourceExhausted;
      call.tables = 1;
      call.counts = counts;
      call.item_bytes = {1};
      call.parts = {items.data()};
      const Answer refused = Do(exchanges[p].get(), std::move(call));
      EXPECT_EQ(refused.status.code(), Code::kResourceExhausted);
      EXPECT_EQ(refused.status.message(),
                StrCat("processes refuse what they were to do: process ", refusing, ": no room"));
      EXPECT_TRUE(Do(exchanges[p].get(), Saying("training")).status.ok());
    });
  }
}

TEST_P(ExchangeOf, ProgramsThatDifferAreToldByAll) {
  const auto exchanges = MakeExchanges();
  const std::vector<int64_t> counts(static_cast<size_t>(processes()), 3);
  const std::string items(3 * counts.size(), 'x');
  for (int other = 0; other < processes(); ++other) {
    std::string want = "Got ";
    for (int p = 0; p < processes(); ++p)
      want += StrCat(p > 0 ? "; " : "", "process ", p, ": ", p == other ? "update" : "lookup");
    InEach(processes(), [&](int p) {
      ExchangeCall call = Saying(p == other ? "update" : "lookup");
      if (p != other) {  // which sends more than the other one expects
        call.tables = 1;
        call.counts = counts;
        call.item_bytes = {1};
        call.parts = {items.data()};
      } else {
        call.numbers = {7};
      }
      const Answer differs = Do(exchanges[p].get(), std::move(call));
      EXPECT_EQ(differs.status.code(), Code::kInvalidArgument);
      EXPECT_NE(differs.status.message().find(want), std::string::npos) << differs.status.message();
      EXPECT_TRUE(Do(exchanges[p].get(), Saying("again")).status.ok());
    });
  }
}

TEST_P(ExchangeOf, OneThatIsGoneIsAnErrorOfAllOthersAndOfTheirNextCalls) {
  for (int gone = 0; gone < processes(); ++gone) {
    auto exchanges = MakeExchanges();
    exchanges[gone].reset();
    InEach(processes(), [&](int p) {
      if (p == gone) return;
      const Answer lost = Do(exchanges[p].get(), Saying("a step"));
      EXPECT_EQ(lost.status.code(), Code::kUnavailable) << lost.status.message();
      EXPECT_NE(lost.status.message().find("has lost process"), std::string::npos);
      const Answer next = Do(exchanges[p].get(), Saying("a step"));
      EXPECT_EQ(next.status.code(), Code::kUnavailable);
      EXPECT_NE(next.status.message().find("the exchange has ended: "), std::string::npos);
    });
  }
}

// Those that come later find connections closed by others that are there.
TEST_P(ExchangeOf, OneThatIsGoneIsNamedByAllWhoHadAConnectionToIt) {
  for (int gone = 0; gone < processes(); ++gone) {
    auto exchanges = MakeExchanges();
    exchanges[gone].reset();
    for (int p = processes() - 1; p >= 0; --p) {
      const std::vector<int> peers = grid().Peers(p);
      if (std::find(peers.begin(), peers.end(), gone) == peers.end()) continue;
      const std::string text = Do(exchanges[p].get(), Saying("a step")).status.message();
      const bool is_named =
          text.find(StrCat("has lost process ", gone, " at")) != std::string::npos;
      const size_t others = text.find(", and so did ");
      EXPECT_TRUE(is_named || text.find(StrCat(" ", gone), others) < text.find("; one that"))
          << gone << ": " << text;
    }
  }
}

TEST_P(ExchangeOf, OneThatDoesNotComeIsNamedAfterTheTime) {
  for (int absent = 0; absent < processes(); ++absent) {
    auto exchanges = MakeExchanges();
    std::atomic<int> late{0};
    InEach(processes(), [&](int p) {
      if (p == absent) return;
      ExchangeCall call = Saying("a step");
      call.timeout_seconds = 0.05;
      const Status status = Do(exchanges[p].get(), std::move(call)).status;
      // The first that gives up ends the exchange, which others may see before their own time.
      if (status.code() == Code::kUnavailable) return;
      EXPECT_EQ(status.code(), Code::kDeadlineExceeded) << status.message();
      ++late;
      const std::string& text =
          status.message();  // "... process 1 ..." or "... processes 0, 1 ..."
      const size_t named = text.find(StrCat(" ", absent), text.find("has waited for "));
      EXPECT_LT(named, text.find(" for the timeout_seconds")) << text;
    });
    EXPECT_GE(late, 1);
  }
}

TEST_P(ExchangeOf, MemoryThatIsNotThereIsAnErrorOfThatProcessAlone) {
  auto exchanges = MakeExchanges();
  const std::vector<int64_t> counts(static_cast<size_t>(processes()), 1);
  InEach(processes(), [&](int p) {
    const std::string items(counts.size(), static_cast<char>('a' + p));
    ExchangeCall call = Saying("a step");
    call.tables = 1;
    call.counts = counts;
    call.item_bytes = {1};
    call.parts = {items.data()};
    std::string got(counts.size(), ' '), want;
    for (int from = 0; from < processes(); ++from) want += static_cast<char>('a' + from);
    std::promise<Status> promise;
    call.allocate = [&](const std::vector<int64_t>&, std::vector<char*>* parts) {
      parts->push_back(got.data());
      return p == 0 ? ResourceExhausted("full") : Status();
    };
    call.done = [&](const Status& status, const ExchangeResult&) { promise.set_value(status); };
    ASSERT_TRUE(exchanges[p]->Start(std::move(call)).ok());
    EXPECT_EQ(promise.get_future().get().message(), p == 0 ? "full" : "");
    EXPECT_EQ(got, p == 0 ? std::string(got.size(), ' ') : want);
    EXPECT_TRUE(Do(exchanges[p].get(), Saying("again")).status.ok());
  });
}

TEST(Exchange, RefusesCountsThatCannotBe) {
  const auto exchanges = MakeExchanges(Grid(1, 1), true);
  const std::string items(2, 'x');
  for (const std::vector<int64_t>& counts :
       {std::vector<int64_t>{-1}, {1, 1}, {}, {int64_t{1} << 60}}) {
    ExchangeCall call = Saying("a step");
    call.tables = 1;
    call.counts = counts;
    call.item_bytes = {8};
    call.parts = {items.data()};
    EXPECT_EQ(Do(exchanges[0].get(), std::move(call)).status.code(), Code::kInvalidArgument);
  }
}

// All come at once; that more is sent than moves in the time is no matter.
TEST_P(ExchangeOf, TheTimeIsForComing) {
  auto exchanges = MakeExchanges();
  constexpr int64_t kMany = 1 << 26;
  const std::string items(kMany, 'x');
  // From the first to the last, which in two stages is not in its row.
  std::vector<int64_t> counts(static_cast<size_t>(processes()), 0);
  const std::vector<int64_t> none = counts;
  counts.back() = kMany;
  InEach(processes(), [&](int p) {
    EXPECT_TRUE(Do(exchanges[p].get(), Saying("together")).status.ok());
    ExchangeCall call = Saying("a step");
    call.tables = 1;
    call.counts = p == 0 ? counts : none;
    call.item_bytes = {1};
    call.parts = {items.data()};
    call.timeout_seconds = 0.1;
    std::promise<Status> promise;
    std::string got;
    call.allocate = [&](const std::vector<int64_t>& sizes, std::vector<char*>* parts) {
      // The time is over before the first byte can come.
      const auto over = std::chrono::steady_clock::now() + std::chrono::milliseconds(200);
      while (std::chrono::steady_clock::now() < over) std::this_thread::yield();
      got.resize(static_cast<size_t>(std::accumulate(sizes.begin(), sizes.end(), int64_t{0})));
      parts->push_back(got.data());
      return Status();
    };
    call.done = [&](const Status& status, const ExchangeResult&) { promise.set_value(status); };
    ASSERT_TRUE(exchanges[p]->Start(std::move(call)).ok());
    const Status status = promise.get_future().get();
    EXPECT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(got.size(), p + 1 < processes() ? 0u : items.size());
  });
}

// What is forked keeps no connection open.
class OneOfTwo : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(SharedMemory, OneOfTwo, testing::Bool());

TEST_P(OneOfTwo, ThatDiesIsMissedThoughItsChildLives) {
  int to_child[2];
  ASSERT_EQ(pipe(to_child), 0);
  Connections first, second;
  ASSERT_TRUE(first.Listen(0).ok());
  ASSERT_TRUE(second.Listen(0).ok());
  const std::vector<std::string> addresses = {AddressOf(first.port()), AddressOf(second.port())};
  std::unique_ptr<Exchange> exchange;
  InEach(2, [&](int p) {
    ASSERT_TRUE(
        (p == 0 ? first : second).Connect(addresses, p, {1 - p}, kSecret, GetParam(), 60).ok());
  });
  const pid_t child = fork();  // which lives on until the end, with the descriptors of its parent
  if (child == 0) {
    char end;
    _exit(read(to_child[0], &end, 1) == 1 ? 0 : 1);
  }
  ASSERT_TRUE(Exchange::Make(std::move(first), Grid(2, 1), &exchange).ok());
  second = Connections();  // is gone
  EXPECT_EQ(Do(exchange.get(), Saying("a step")).status.code(), Code::kUnavailable);
  EXPECT_EQ(write(to_child[1], "x", 1), 1);
  int status = 1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  for (const int descriptor : to_child) close(descriptor);
}

// Lets this process have files, and so shared memory, of so many bytes.
class FilesOf {
 public:
  explicit FilesOf(rlim_t bytes) : handler_(signal(SIGXFSZ, SIG_IGN)) {
    EXPECT_EQ(getrlimit(RLIMIT_FSIZE, &before_), 0);
    const rlimit limit = {std::min(bytes, before_.rlim_max), before_.rlim_max};
    EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  }
  ~FilesOf() {
    setrlimit(RLIMIT_FSIZE, &before_);
    signal(SIGXFSZ, handler_);
  }

 private:
  void (*const handler_)(int);
  rlimit before_;
};

TEST(Connections, ShareMemoryWhereBothAllowItAndItIsThere) {
  for (const auto& [one_allows, other_allows, there] :
       {std::tuple(true, true, true), std::tuple(true, false, true), std::tuple(false, true, true),
        std::tuple(true, true, false)}) {
    const FilesOf limit(there ? RLIM_INFINITY : 4096);
    Connections first, second;
    ASSERT_TRUE(first.Listen(0).ok());
    ASSERT_TRUE(second.Listen(0).ok());
    // As the name of a machine is for itself, on Debian.
    const std::vector<std::string> addresses = {StrCat("127.0.1.1:", first.port()),
                                                AddressOf(second.port())};
    InEach(2, [&, allowed = std::array{one_allows, other_allows}](int p) {
      Connections& own = p == 0 ? first : second;
      const Status status = own.Connect(addresses, p, {1 - p}, kSecret, allowed[p], 60);
      EXPECT_TRUE(status.ok()) << status.message();
    });
    EXPECT_EQ(first.channel(1).has_rings(), one_allows && other_allows && there);
    EXPECT_EQ(second.channel(0).has_rings(), one_allows && other_allows && there);
  }
}

TEST(Connections, StrangersAreTurnedAway) {
  Connections first, second;
  ASSERT_TRUE(first.Listen(0).ok());
  ASSERT_TRUE(second.Listen(0).ok());
  const std::vector<std::string> addresses = {AddressOf(first.port()), AddressOf(second.port())};
  const int number = socket(AF_INET, SOCK_STREAM, 0);
  const Socket silent(number), wrong(socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(first.port()));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  for (const Socket* stranger : {&silent, &wrong}) {
    ASSERT_EQ(
        connect(stranger->descriptor(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  }
  const std::string garbage(200, 'G');
  ASSERT_EQ(send(wrong.descriptor(), garbage.data(), garbage.size(), 0), 200);
  InEach(2, [&](int p) {
    const Status status =
        (p == 0 ? first : second).Connect(addresses, p, {1 - p}, kSecret, true, 60);
    EXPECT_TRUE(status.ok()) << status.message();
  });
}

TEST(Connections, SayWhomTheyDoNotReach) {
  Connections alone;
  ASSERT_TRUE(alone.Listen(0).ok());
  Connections gone;
  ASSERT_TRUE(gone.Listen(0).ok());
  std::vector<std::string> addresses = {AddressOf(gone.port()), AddressOf(alone.port())};
  gone = Connections();  // refuses from now on
  Status status = alone.Connect(addresses, 1, {0}, kSecret, true, 60);
  EXPECT_EQ(status.code(), Code::kUnavailable);
  EXPECT_NE(status.message().find("process 1 has no connection to process 0 at " + addresses[0]),
            std::string::npos)
      << status.message();

  ASSERT_TRUE(alone.Listen(0).ok());
  status = alone.Connect({AddressOf(alone.port()), "127.0.0.1:1"}, 0, {1}, kSecret, true, 0.05);
  EXPECT_EQ(status.code(), Code::kUnavailable);
  EXPECT_NE(status.message().find("process 0 has no connection to process 1"), std::string::npos)
      << status.message();

  // Another job's process, with a secret of its own.
  Connections other;
  ASSERT_TRUE(alone.Listen(0).ok());
  ASSERT_TRUE(other.Listen(0).ok());
  addresses = {AddressOf(alone.port()), AddressOf(other.port())};
  InEach(2, [&](int p) {
    const std::string secret = p == 0 ? kSecret : "another secret.!";
    EXPECT_EQ((p == 0 ? alone : other).Connect(addresses, p, {1 - p}, secret, true, 0.2).code(),
              Code::kUnavailable);
  });
}

TEST(Connections, RefuseArgumentsThatCannotBe) {
  Connections one;
  EXPECT_EQ(one.Listen(70000).code(), Code::kInvalidArgument);
  EXPECT_EQ(one.Connect({"127.0.0.1:1"}, 0, {}, kSecret, true, 1).code(),
            Code::kFailedPrecondition);
  ASSERT_TRUE(one.Listen(0).ok());
  Connections taken;
  EXPECT_EQ(taken.Listen(one.port()).code(), Code::kUnavailable);
  EXPECT_EQ(one.Connect({"127.0.0.1:1"}, 1, {}, kSecret, true, 1).code(), Code::kInvalidArgument);
  EXPECT_EQ(one.Connect({"127.0.0.1:1"}, 0, {1}, kSecret, true, 1).code(), Code::kInvalidArgument);
  EXPECT_EQ(one.Connect({"127.0.0.1:1"}, 0, {}, "short", true, 1).code(), Code::kInvalidArgument);
  for (const char* address : {"host", ":1", "host:"}) {
    Connections two;
    ASSERT_TRUE(two.Listen(0).ok());
    EXPECT_EQ(two.Connect({address, "127.0.0.1:1"}, 1, {0}, kSecret, true, 1).code(),
              Code::kInvalidArgument);
  }
}

}  // namespace
}  // namespace dynemb
