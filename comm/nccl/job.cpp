// The watch over a rank's NCCL communicators.
#include "comm/nccl/job.h"

#include <fmt/format.h>
#include <algorithm>

#include "base/error.h"
#include "comm/watch/thread_activity.h"
#include "engine/device/backend.h"

namespace tessera::comm {
namespace {
constexpr std::chrono::milliseconds look_interval{100};
}

NcclJob::NcclJob(control::ControlPlane plane, Device device, std::chrono::milliseconds timeout)
    : plane_(std::move(plane)),
      device_(device),
      timeout_(timeout),
      clock_(2 * look_interval),
      watcher_(start_watcher("nccl", [this] { look_on(); })) {}

NcclJob::~NcclJob() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  watcher_.join();
}

void NcclJob::watch(const std::shared_ptr<NcclChannel>& channel) {
  const std::lock_guard lock(mutex_);
  std::erase_if(channels_, [](const auto& one) { return one.expired(); });
  channels_.push_back(channel);
}

void NcclJob::expect(const Call& call, PointHandle end) {
  if (!end || end->reached()) return;
  const std::lock_guard lock(mutex_);
  pending_.push_back({call, std::move(end), std::chrono::steady_clock::now() + timeout_});
}

// A device that has failed reports it at the next call on it: then this tells every rank and ends
// the collectives.
void NcclJob::look_on() {
  std::unique_lock lock(mutex_);
  try {
    backend_of(device_.type).bind_thread(device_);
    while (!changed_.wait_for(lock, look_interval, [&] { return ending_; })) {
      look_for_standstill();
      if (plane_.control->failed()) {
        abort_channels();
        return;
      }
      look_for_failures();
    }
  } catch (const std::exception& error) {
    plane_.control->abort(error.what());
    abort_channels();
  }
}

// The caller holds the mutex. Reports how long the device has made no progress to the control
// plane, which knows the ranks that have not joined.
void NcclJob::look_for_standstill() {
  const std::chrono::nanoseconds now = clock_.look();
  const bool any_ended =
      std::erase_if(pending_, [](const Pending& one) { return one.end->reached(); }) > 0;
  if (any_ended || pending_.empty()) last_end_ = now;
  plane_.control->set_device_still(
      std::chrono::duration_cast<std::chrono::milliseconds>(now - last_end_));
}

// The caller holds the mutex.
void NcclJob::look_for_failures() {
  const auto now = std::chrono::steady_clock::now();
  const auto late = std::find_if(pending_.begin(), pending_.end(),
                                 [&](const Pending& one) { return now > one.deadline; });
  if (late != pending_.end()) {
    plane_.control->abort(fmt::format("{} was not done after {} s", describe(late->call),
                                      std::chrono::duration<double>(timeout_).count()));
  }
  for (const auto& weak : channels_) {
    const std::shared_ptr<NcclChannel> channel = weak.lock();
    if (!channel) continue;
    if (const auto error = channel->asynchronous_error()) {
      plane_.control->abort("NCCL reports: " + *error);
    }
  }
}

// The caller holds the mutex.
void NcclJob::abort_channels() {
  for (const auto& weak : channels_) {
    if (const std::shared_ptr<NcclChannel> channel = weak.lock()) channel->abort();
  }
}

}  // namespace tessera::comm
