// Connections: between processes that share tables.
//
// Each process listens, all learn all addresses from outside, and each connects to those of its
// peers whose number is less than its own, by TCP. Both ends begin with a secret that only these
// processes know, so that a stranger who connects is turned away. Two on one machine share rings in
// memory, if both allow it and it can be had.
#ifndef TF_DYNEMB_CC_CORE_SHARD_CONNECTIONS_H_
#define TF_DYNEMB_CC_CORE_SHARD_CONNECTIONS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "cc/core/base/status.h"
#include "cc/core/shard/channel.h"

namespace dynemb {

class Connections {
 public:
  // Listens on a port of all addresses of this machine; 0: on a free one. Errors: kUnavailable if
  // it cannot be had.
  Status Listen(int port);
  // On which it listens.
  int port() const { return port_; }

  // Connects this process, number `index` of those at `addresses` ("host:port", "[::1]:port"), to
  // its peers, ascending, and listens no more, also if it fails. All call it with the same
  // addresses and secret, and are peers of their peers. Errors: kInvalidArgument for an address,
  // peer or secret that cannot be; kUnavailable for a process that cannot be reached, or does not
  // come within the time, by name.
  Status Connect(const std::vector<std::string>& addresses, int index,
                 const std::vector<int>& peers, const std::string& secret, bool shared_memory,
                 double timeout_seconds);

  int processes() const { return static_cast<int>(channels_.size()); }
  int index() const { return index_; }
  // To the process of a number; the sockets of those to others than its peers are not open.
  Channel& channel(int process) { return channels_[static_cast<size_t>(process)]; }
  const std::string& address(int process) const { return addresses_[static_cast<size_t>(process)]; }

 private:
  Socket listener_;
  int port_ = 0;
  int index_ = 0;
  std::vector<std::string> addresses_;
  std::vector<Channel> channels_;
};

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_SHARD_CONNECTIONS_H_
