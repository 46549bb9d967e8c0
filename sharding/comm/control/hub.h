// Rank 0's part of the control plane: it brings the ranks' messages together, compares what they
// call, and tells everybody the job's first failure.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "sharding/comm/call.h"
#include "sharding/comm/control/wire.h"
#include "sharding/comm/world.h"

namespace tessera::comm::control {

// What a rank says first.
struct Introduction {
  static constexpr std::uint32_t protocol_version = 1;
  std::uint32_t protocol = protocol_version;
  std::int32_t rank = 0;
  std::int32_t size = 0;
  std::int32_t pid = 0;
  char host[64]{};
  char library[32]{};
  std::uint64_t run = 0;  // fingerprint of the run id
};
Introduction introduction_of(const World& world);

// A rank's part of a round.
struct Post {
  Call call;
  bool wants_answer = false;  // it waits for the others' messages
  std::vector<std::int32_t> members;
  std::string group_name;
  std::string message;
};
std::string encode(const Post& post);
Post decode_post(std::string_view payload);

// Serves on a thread of its own from construction until every rank has left, or its connection is
// gone, or the destructor has waited for that for `patience`.
class Hub {
 public:
  struct Options {
    std::chrono::milliseconds rendezvous{60'000};  // for all ranks to come
    std::chrono::milliseconds collective{300'000};
    std::chrono::milliseconds standstill{8'000};  // all ranks wait and nothing moves
    std::chrono::milliseconds patience{10'000};
  };
  Hub(FileDescriptor listener, const World& world, const Options& options);
  ~Hub();
  Hub(const Hub&) = delete;
  Hub& operator=(const Hub&) = delete;

 private:
  class Server;
  std::unique_ptr<Server> server_;
  std::jthread thread_;
};

}  // namespace tessera::comm::control
