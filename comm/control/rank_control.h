// A rank's part of the control plane, and groups of ranks on it.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/home_process.h"
#include "comm/call.h"
#include "comm/control/door.h"
#include "comm/control/job_key.h"
#include "comm/control/payloads.h"
#include "comm/control/wire.h"
#include "comm/control_group.h"
#include "comm/history.h"
#include "comm/watch/pulse.h"
#include "comm/watch/standstill.h"
#include "comm/world.h"

namespace tessera::comm::control {

// Timeouts of a rank: for all to come, for a peer in a call, for a rank that does not move.
struct Patience {
  std::chrono::milliseconds rendezvous{60'000};
  std::chrono::milliseconds collective{300'000};
  std::chrono::milliseconds standstill{5'000};
  // For the listener to prove that it is the hub.
  std::chrono::milliseconds introduction{5'000};
};

// The connection to the hub, over which this rank sends heartbeats as long as its process runs.
// Thread-safe.
class RankControl {
 public:
  // Introduces this rank and waits until all have come. The calling thread is the rank's own.
  // Throws NotOurHub when the listener is not this job's hub.
  RankControl(FileDescriptor connection, const World& world, const JobKey& key,
              const Patience& patience);
  ~RankControl();  // leaves in good order, unless an exception is on its way
  RankControl(const RankControl&) = delete;
  RankControl& operator=(const RankControl&) = delete;

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] bool failed() const;
  // Throws Error(rank_failed) with the job's first failure, if there is one.
  void check(const Call& call) const;
  // The same after a consequence of a failure: waits for the cause, which may be on its way.
  void check_soon(const Call& call, std::chrono::milliseconds wait) const;
  // This rank gives up; the hub informs every rank.
  void abort(std::string_view reason) noexcept;

  // Announces a group that this rank will post in.
  void introduce(std::uint64_t group, const GroupOfRanks& ranks);
  // Posts a part of a round. With an answer: waits for all parts, in the order of the members.
  void post(const HistoryEntry& entry, const std::string& payload);
  std::vector<std::string> await(std::uint64_t group, std::uint64_t round, std::size_t members,
                                 const Call& call);

  // The watch over the rank's threads; waits of its own thread and its workers in await() are
  // included.
  [[nodiscard]] StandstillWatch& watch() { return watch_; }
  // The time for which this rank's device has made no progress on a collective that other ranks
  // must join.
  void set_device_still(std::chrono::milliseconds time) { device_still_.store(time.count()); }

 private:
  void read_on();
  void beat_on();
  [[nodiscard]] bool hub_is_silent(RunningClock& clock, std::chrono::nanoseconds& heard);
  void fail_with_silence();
  void fail_with(const std::string& text);
  void send(const FrameHeader& header, std::string_view payload);
  [[noreturn]] void throw_failure(const Call& call) const;

  int rank_;
  HomeProcess home_;
  const Patience patience_;
  FileDescriptor connection_;
  Session session_;   // the reader opens, `sending_` guards sealing
  Introduction hub_;  // rank 0
  StandstillWatch watch_;
  std::atomic<std::int64_t> device_still_{0};  // milliseconds
  History history_;
  std::mutex sending_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::map<std::pair<std::uint64_t, std::uint64_t>, std::string> answers_;
  std::optional<std::string> failure_;
  bool leaving_ = false;
  std::thread reader_;
  std::thread beater_;
};

// A group whose messages go through the hub.
class HubGroup : public ControlGroup {
 public:
  HubGroup(std::shared_ptr<RankControl> control, std::vector<std::int32_t> members,
           std::uint64_t id, std::string name);

  [[nodiscard]] int rank() const override { return position_; }
  [[nodiscard]] int size() const override { return static_cast<int>(members_.size()); }
  [[nodiscard]] const std::string& name() const override { return name_; }
  [[nodiscard]] const std::vector<std::int32_t>& members() const { return members_; }
  [[nodiscard]] RankControl& control() const { return *control_; }

  // Sends a call to the hub, which compares it, and continues.
  void announce(const Call& call);
  using ControlGroup::exchange;
  std::vector<std::string> exchange(const Call& call, std::string_view message) override;
  void abort(std::string_view reason) noexcept override { control_->abort(reason); }
  void note(Activity activity) noexcept override { control_->watch().note(activity); }
  // Collective: a group of the ranks that pass the same colour, ordered by (key, rank).
  HubGroup split(int color, int key, std::string_view name);

 private:
  void post(const Call& call, std::uint64_t round, bool wants_answer, std::string_view message);

  std::shared_ptr<RankControl> control_;
  std::vector<std::int32_t> members_;  // ranks of the world
  std::uint64_t id_;
  std::string name_;
  int position_ = -1;
  std::uint64_t round_ = 0;
  std::uint64_t splits_ = 0;
  bool introduced_ = false;
  SentNames sent_names_;
};

}  // namespace tessera::comm::control
