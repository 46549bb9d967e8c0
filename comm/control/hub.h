// Rank 0's part of the control plane: it combines the ranks' messages, compares their calls,
// receives their heartbeats, and sends the job's first failure to all ranks.
#pragma once

#include <chrono>
#include <memory>
#include <thread>

#include "comm/control/job_key.h"
#include "comm/control/wire.h"
#include "comm/world.h"

namespace tessera::comm::control {

class HubServer;

// Serves on its own thread from construction until every rank has left or its connection is gone,
// or until the destructor has waited for that for `patience` after the last message was delivered.
class Hub {
 public:
  struct Options {
    std::chrono::milliseconds rendezvous{60'000};  // for all ranks to come
    std::chrono::milliseconds collective{300'000};
    std::chrono::milliseconds standstill{5'000};  // of a rank that others wait for, or of all
    std::chrono::milliseconds patience{10'000};
  };
  Hub(FileDescriptor listener, const World& world, const JobKey& key, const Options& options);
  ~Hub();
  Hub(const Hub&) = delete;
  Hub& operator=(const Hub&) = delete;

 private:
  std::unique_ptr<HubServer> server_;
  std::thread thread_;
};

}  // namespace tessera::comm::control
