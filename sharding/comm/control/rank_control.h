// A rank's part of the control plane, and groups of ranks on it.
#pragma once

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

#include "kernels/base/error.h"
#include "sharding/comm/call.h"
#include "sharding/comm/control/wire.h"
#include "sharding/comm/world.h"

namespace tessera::comm::control {

// Whoever listens is not this job's hub.
class NotOurHub : public Error {
  using Error::Error;
};

// The connection to the hub. Thread-safe.
class RankControl {
 public:
  // Introduces this rank and waits until all have come. Throws NotOurHub when nobody answers to the
  // introduction.
  RankControl(FileDescriptor connection, const World& world, std::chrono::milliseconds rendezvous,
              std::chrono::milliseconds collective);
  ~RankControl();  // leaves in good order, unless an exception is on its way
  RankControl(const RankControl&) = delete;
  RankControl& operator=(const RankControl&) = delete;

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] bool failed() const;
  // Throws Error(rank_failed) with the job's first failure, if there is one.
  void check(const Call& call) const;
  // The same, for whoever has seen a consequence: the cause may be on its way, and is waited for.
  void check_soon(const Call& call, std::chrono::milliseconds wait) const;
  // This rank gives up; every rank is told.
  void abort(std::string_view reason) noexcept;

  // Posts a part of a round. With an answer: waits for all parts, in the order of the members.
  void post(std::uint64_t group, std::uint64_t round, const std::string& payload);
  std::vector<std::string> await(std::uint64_t group, std::uint64_t round, std::size_t members,
                                 const Call& call);

 private:
  void await_recognition();
  void read_on();
  void fail_with(const std::string& text);
  [[noreturn]] void throw_failure(const Call& call) const;

  int rank_;
  std::chrono::milliseconds collective_;
  FileDescriptor connection_;
  std::mutex sending_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::map<std::pair<std::uint64_t, std::uint64_t>, std::string> answers_;
  std::optional<std::string> failure_;
  bool leaving_ = false;
  std::jthread reader_;
};

// An ordered set of ranks. Calls come from one thread at a time, in the same order on every member.
class ControlGroup {
 public:
  ControlGroup(std::shared_ptr<RankControl> control, std::vector<std::int32_t> members,
               std::uint64_t id, std::string name);

  [[nodiscard]] int rank() const { return position_; }
  [[nodiscard]] int size() const { return static_cast<int>(members_.size()); }
  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] RankControl& control() const { return *control_; }

  // Tells the hub of a call for it to compare, and goes on.
  void announce(const Call& call);
  std::vector<std::string> exchange(const Call& call, std::string_view message);
  // Collective: a group of those that name the same colour, ordered by (key, rank).
  ControlGroup split(int color, int key, std::string_view name);

 private:
  std::string part_of(const Call& call, bool wants_answer, std::string_view message) const;

  std::shared_ptr<RankControl> control_;
  std::vector<std::int32_t> members_;  // ranks of the world
  std::uint64_t id_;
  std::string name_;
  int position_ = -1;
  std::uint64_t round_ = 0;
  std::uint64_t splits_ = 0;
};

}  // namespace tessera::comm::control
