// The hub's state and the work of its thread: hub.cpp serves the connections, hub_watch.cpp finds
// out which ranks are missing, and why.
#pragma once

#include <atomic>
#include <chrono>
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "comm/control/door.h"
#include "comm/control/frame_stream.h"
#include "comm/control/hub.h"
#include "comm/control/payloads.h"
#include "comm/history.h"
#include "comm/wait_notice.h"
#include "comm/watch/running_clock.h"

struct pollfd;

namespace tessera::comm::control {

class HubServer {
 public:
  HubServer(FileDescriptor listener, const World& world, const JobKey& key,
            const Hub::Options& options);

  void serve();
  // Ends serve() when all have left. From any thread.
  void stop();

 private:
  using Time = std::chrono::nanoseconds;                     // while this process ran
  using RoundKey = std::pair<std::uint64_t, std::uint64_t>;  // group, round

  struct Rank {
    FrameStream connection;
    Introduction introduction;
    bool present = false;  // has come
    bool left = false;
    Time heard{0};  // when it last sent anything
    Time took{0};   // when it last took bytes that wait for it
    BeatOfRank beat;
    std::deque<HistoryEntry> history;
  };
  struct Group {
    GroupOfRanks ranks;
    KnownNames names;
  };
  struct Round {
    Time began{0};
    std::map<std::int32_t, Post> posts;  // by rank
  };

  // hub.cpp
  [[nodiscard]] bool over();
  [[nodiscard]] std::vector<std::int32_t> open_connections() const;
  [[nodiscard]] std::vector<pollfd> to_watch(const std::vector<std::int32_t>& open) const;
  void let_in();
  void introduce(Door::Caller caller);
  [[nodiscard]] std::string reason_to_refuse(const Introduction& its) const;
  void receive_from(std::int32_t number);
  void take_frame(std::int32_t number, const Frame& frame);
  void flush_to(std::int32_t number);
  void take_group(std::int32_t number, std::uint64_t id, GroupOfRanks group);
  void take_post(std::int32_t number, const FrameHeader& header, std::string_view payload);
  void answer_round(const RoundKey& key, const Round& round, const Group& group);
  void send_to(std::int32_t rank, const FrameHeader& header, std::string_view payload);
  void beat();
  void fail_job(const std::string& text);
  void tell_failure(Rank& rank);

  // hub_watch.cpp
  void look_at_clocks();
  void look_at_round(const RoundKey& key, const Round& round);
  void look_for_silent_ranks();
  void look_for_stopped_ranks(const RoundKey& key, const Round& round);
  void report_standstill();
  [[nodiscard]] bool is_silent(std::int32_t rank);
  // The call that a rank waits in: its own call in a round that others have not joined within the
  // limit. Null when the rank does not wait, as far as the hub knows.
  [[nodiscard]] const Post* waits_in(std::int32_t rank, std::string* group_name) const;
  [[nodiscard]] std::vector<std::int32_t> missing_in(const RoundKey& key, const Round& round) const;
  // "rank(s) 2, 3 of 4".
  [[nodiscard]] std::string missing_at_rendezvous() const;
  [[nodiscard]] std::string name_of_rank(std::int32_t rank) const;
  [[nodiscard]] std::string names_of(const std::vector<std::int32_t>& ranks) const;
  [[nodiscard]] std::string describe_last_call(const Rank& rank) const;
  // The failure's cause, with the histories of all ranks.
  [[nodiscard]] std::string with_histories(const std::string& cause) const;

  [[nodiscard]] Rank& rank_at(std::int32_t rank) { return ranks_[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] const Rank& rank_at(std::int32_t rank) const {
    return ranks_[static_cast<std::size_t>(rank)];
  }

  const Hub::Options options_;
  const Introduction own_;
  Door door_;
  FileDescriptor wake_;
  std::atomic<std::chrono::steady_clock::rep> stop_at_{0};
  std::chrono::steady_clock::time_point delivered_{};  // when there was nothing left to deliver
  const std::chrono::steady_clock::time_point began_;
  WaitNotice notice_;
  RunningClock clock_;
  Time last_post_{0};
  Time last_look_{0};
  Time last_beat_{0};
  bool complete_ = false;  // all ranks have come
  std::vector<Rank> ranks_;
  std::map<std::uint64_t, Group> groups_;
  std::map<RoundKey, Round> rounds_;
  std::string failure_;
};

}  // namespace tessera::comm::control
