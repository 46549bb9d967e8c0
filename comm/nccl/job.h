// The parts that the NCCL communicators of one rank share: the control plane, and a watch that ends
// collectives which cannot end by themselves.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "comm/call.h"
#include "comm/control/bootstrap.h"
#include "comm/held_memory.h"
#include "comm/nccl/channel.h"
#include "comm/watch/running_clock.h"
#include "engine/device/queue.h"

namespace tessera::comm {

class NcclJob {
 public:
  NcclJob(control::ControlPlane plane, Device device, std::chrono::milliseconds timeout);
  ~NcclJob();
  NcclJob(const NcclJob&) = delete;
  NcclJob& operator=(const NcclJob&) = delete;

  [[nodiscard]] control::RankControl& control() const { return *plane_.control; }
  [[nodiscard]] const std::shared_ptr<control::RankControl>& shared_control() const {
    return plane_.control;
  }
  [[nodiscard]] Device device() const { return device_; }
  [[nodiscard]] const std::shared_ptr<HeldMemory>& held_memory() const { return held_memory_; }
  [[nodiscard]] std::chrono::milliseconds timeout() const { return timeout_; }

  // The channel is aborted when the job fails.
  void watch(const std::shared_ptr<NcclChannel>& channel);
  // A collective was put into the queue; `end` is the point behind it. When the queue does not
  // reach it in time, the job tells every rank and aborts the channels.
  void expect(const Call& call, PointHandle end);

 private:
  struct Pending {
    Call call;
    PointHandle end;
    std::chrono::steady_clock::time_point deadline;
  };
  void look_on();
  void look_for_standstill();
  void look_for_failures();
  void abort_channels();

  control::ControlPlane plane_;
  Device device_;
  std::chrono::milliseconds timeout_;
  std::shared_ptr<HeldMemory> held_memory_ = std::make_shared<HeldMemory>();
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ending_ = false;
  std::vector<std::weak_ptr<NcclChannel>> channels_;
  std::vector<Pending> pending_;
  RunningClock clock_;
  std::chrono::nanoseconds last_end_{0};  // of a collective, or when none was pending
  std::thread watcher_;
};

}  // namespace tessera::comm
