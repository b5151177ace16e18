// RequestGate: who enters when, and that memory that runs out while it is closed loses nobody.
#include "cc/core/base/request_gate.h"

#include <gtest/gtest.h>

#include <atomic>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "cc/core/testing/failing_allocations.h"

namespace dynemb {
namespace {

using Seconds = std::chrono::duration<double>;

// Enters on this thread what waited.
void OpenHere(RequestGate* gate) {
  gate->Open([](std::function<void()> entered) { entered(); });
}

TEST(RequestGate, ThoseWhoComeWhileItIsClosedEnterWhenItOpens) {
  RequestGate gate;
  std::string log;
  gate.Enter(1, [&] { log += "1 "; });
  EXPECT_FALSE(gate.Close(Seconds(0)));
  gate.Enter(1, [&] { log += "1 again "; });  // within itself
  gate.Enter(2, [&] { log += "2 "; });
  EXPECT_EQ(log, "1 1 again ");
  gate.Leave(1);
  EXPECT_FALSE(gate.Close(Seconds(0)));
  gate.Leave(1);
  EXPECT_TRUE(gate.Close(Seconds(0)));
  OpenHere(&gate);
  EXPECT_EQ(log, "1 1 again 2 ");
  EXPECT_FALSE(gate.Close(Seconds(0)));
  gate.Leave(2);
  EXPECT_TRUE(gate.Close(Seconds(0)));
}

TEST(RequestGate, ASwitchWaitsForTheLastRequest) {
  RequestGate gate;
  for (int64_t request = 0; request < 8; ++request) gate.Enter(request, [] {});
  std::thread leaving([&] {
    for (int64_t request = 0; request < 8; ++request) gate.Leave(request);
  });
  EXPECT_TRUE(gate.Close(Seconds(60)));
  leaving.join();
  gate.Enter(1, [] {});  // waits
  EXPECT_TRUE(gate.Close(Seconds(0)));
}

TEST(RequestGate, AfterItWasClosedASwitchWaitsForAMomentWithoutRequests) {
  RequestGate gate;
  std::string log;
  gate.Enter(1, [] {});
  EXPECT_FALSE(gate.Close(Seconds(2)));
  OpenHere(&gate);  // and is not closed by force in the next 18 seconds
  std::atomic<bool> closed{false};
  std::thread closing([&] { closed = gate.Close(Seconds(0)); });
  for (int64_t request = 2; request < 1000; ++request) {
    gate.Enter(request, [&] { log += "."; });
    gate.Leave(request - 1);
    std::this_thread::yield();
  }
  EXPECT_EQ(log, std::string(998, '.'));
  gate.Leave(999);
  closing.join();
  EXPECT_TRUE(closed);
  gate.Enter(1000, [&] { log += "!"; });
  EXPECT_EQ(log.back(), '.');  // it is closed
  OpenHere(&gate);
  EXPECT_EQ(log.back(), '!');
}

TEST(RequestGate, TheEndEndsAlsoTheWaitForAMomentWithoutRequests) {
  RequestGate gate;
  gate.Enter(1, [] {});
  EXPECT_FALSE(gate.Close(Seconds(2)));
  OpenHere(&gate);
  std::thread ending([&] { gate.End(); });
  EXPECT_FALSE(gate.Close(Seconds(0)));
  ending.join();
}

TEST(RequestGate, AfterTheEndNoSwitchWaits) {
  RequestGate gate;
  gate.Enter(1, [] {});
  gate.End();
  EXPECT_FALSE(gate.Close(Seconds(3600)));
}

// Every allocation of Enter and of Open fails in turn.
TEST(RequestGate, WithoutMemoryNobodyIsLost) {
  int64_t failed = 0;
  for (const bool closed : {false, true}) {
    for (int64_t left = 0;; ++left) {
      RequestGate gate;
      int entered = 0;
      gate.Enter(1, [] {});
      if (closed) {
        EXPECT_FALSE(gate.Close(Seconds(0)));
      }
      const std::string captured(100, 'x');  // makes the function one that takes memory
      std::function<void()> enter = [&entered, captured] { ++entered; };
      bool threw = false;
      allocations_left = left;
      try {
        gate.Enter(2, std::move(enter));
      } catch (const std::bad_alloc&) {
        threw = true;
      }
      allocations_left = -1;
      failed += threw;
      EXPECT_EQ(entered, threw || closed ? 0 : 1);
      if (!closed) {
        EXPECT_FALSE(gate.Close(Seconds(0)));
      }
      gate.Leave(1);
      if (closed || threw) {
        EXPECT_TRUE(gate.Close(Seconds(0))) << "somebody is said to be inside";
      }
      allocations_left = 0;
      OpenHere(&gate);
      allocations_left = -1;
      EXPECT_EQ(entered, threw ? 0 : 1);
      EXPECT_EQ(gate.Close(Seconds(0)), threw);
      if (!threw) break;
    }
  }
  EXPECT_GT(failed, 2);
}

}  // namespace
}  // namespace dynemb
