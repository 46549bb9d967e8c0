// Finds the ranks that do not come, and the reason: stopped, in a deadlock, gone, late, or all in
// one circle.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "comm/control/hub_server.h"

namespace tessera::comm::control {
namespace {

double seconds(std::chrono::milliseconds time) {
  return std::chrono::duration<double>(time).count();
}

}  // namespace

void HubServer::look_at_clocks() {
  if (!failure_.empty()) return;
  if (!complete_) {
    if (std::chrono::steady_clock::now() - began_ > options_.rendezvous) {
      fail_job(fmt::format("{} did not come within {} s", missing_at_rendezvous(),
                           seconds(options_.rendezvous)));
    }
    notice_.look([this] { return "rank 0 waits for " + missing_at_rendezvous(); });
    return;
  }
  look_for_silent_ranks();
  if (!failure_.empty()) return;
  for (const auto& [key, round] : rounds_) {
    look_at_round(key, round);
    if (!failure_.empty()) return;
  }
  if (clock_.time() - last_post_ > options_.standstill) report_standstill();
}

void HubServer::look_at_round(const RoundKey& key, const Round& round) {
  const std::vector<std::int32_t> missing = missing_in(key, round);
  const auto& [first, post] = *round.posts.begin();
  const auto gone = std::find_if(missing.begin(), missing.end(),
                                 [&](std::int32_t rank) { return rank_at(rank).left; });
  if (gone != missing.end()) {
    fail_job(
        with_histories(fmt::format("{} has left, and {} waits for it in {}", name_of_rank(*gone),
                                   name_of_rank(first), describe(post.call))));
    return;
  }
  look_for_stopped_ranks(key, round);
  if (failure_.empty() && clock_.time() - round.began > options_.collective) {
    fail_job(with_histories(fmt::format("{} did not come to {} on '{}' within {} s; {} waits there",
                                        names_of(missing), describe(post.call),
                                        groups_.at(key.first).ranks.name,
                                        seconds(options_.collective), name_of_rank(first))));
  }
}

// A rank that waits for a silent one may do so inside of NCCL, which the hub does not see.
void HubServer::look_for_silent_ranks() {
  std::string text;
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    const auto number = static_cast<std::int32_t>(rank);
    if (ranks_[rank].left || !is_silent(number)) continue;
    text += fmt::format(
        "{}{} has given no sign of life for {:.1f} s: its process was stopped or gets no processor "
        "time, or its host cannot be reached; {}",
        text.empty() ? "" : "; and ", name_of_rank(number), seconds(options_.standstill),
        describe_last_call(ranks_[rank]));
  }
  if (text.empty()) return;
  fail_job(with_histories(text + "; find out who stopped it, and start the job again "
                                 "(TESSERA_STANDSTILL_TIMEOUT=SECONDS waits longer)"));
}

// Ranks that live, do not move, and wait for no other rank.
void HubServer::look_for_stopped_ranks(const RoundKey& key, const Round& round) {
  const std::chrono::milliseconds limit = options_.standstill;
  if (clock_.time() - round.began < limit) return;
  const auto& [first, post] = *round.posts.begin();
  std::string text;
  for (const std::int32_t number : missing_in(key, round)) {
    const Rank& rank = rank_at(number);
    if (rank.beat.beat.still < limit.count() || waits_in(number, nullptr) != nullptr) continue;
    text += fmt::format(
        "{}{} has stood still for {:.1f} s: none of its threads computes or waits for a disk, and "
        "its own thread {}; {}",
        text.empty() ? "" : "; and ", name_of_rank(number), seconds(limit), rank.beat.wait,
        describe_last_call(rank));
  }
  if (text.empty()) return;
  fail_job(with_histories(fmt::format(
      "{}; {} waits for it in {} on '{}'; see where it stands (gdb -p), or, when it waits for "
      "something outside of the job, say so (OutsideWait) or wait longer "
      "(TESSERA_STANDSTILL_TIMEOUT=SECONDS)",
      text, name_of_rank(first), describe(post.call), groups_.at(key.first).ranks.name)));
}

bool HubServer::is_silent(std::int32_t number) {
  Rank& rank = rank_at(number);
  const Time silence = clock_.time() - rank.heard;
  // A user looks at it with a debugger.
  if (silence >= options_.standstill / 2 && is_traced_here(rank.introduction)) {
    rank.heard = clock_.time();
  }
  return clock_.time() - rank.heard >= options_.standstill;
}

const Post* HubServer::waits_in(std::int32_t number, std::string* group_name) const {
  const Beat& beat = rank_at(number).beat.beat;
  const std::int64_t limit = options_.standstill.count();
  if (beat.waits_for_others == 0 && beat.still < limit && beat.device_still < limit) return nullptr;
  for (const auto& [key, round] : rounds_) {
    const auto post = round.posts.find(number);
    if (post == round.posts.end() || clock_.time() - round.began < options_.standstill) continue;
    if (group_name != nullptr) *group_name = groups_.at(key.first).ranks.name;
    return &post->second;
  }
  return nullptr;
}

// Every rank waits, for messages or for its device, in a round that another has not joined: none
// can continue. Ranks that make their calls in one order never reach this state: the ranks that
// have not made the first such call wait for no other rank.
void HubServer::report_standstill() {
  std::string text;
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    const auto number = static_cast<std::int32_t>(rank);
    if (ranks_[rank].left) continue;
    std::string group;
    const Post* post = waits_in(number, &group);
    if (post == nullptr) return;
    text += fmt::format("{} {} in {} on '{}'", text.empty() ? "" : ";", name_of_rank(number),
                        describe(post->call), group);
  }
  if (!text.empty()) fail_job(with_histories("all ranks wait for one another:" + text));
}

std::vector<std::int32_t> HubServer::missing_in(const RoundKey& key, const Round& round) const {
  std::vector<std::int32_t> missing;
  for (const std::int32_t member : groups_.at(key.first).ranks.members) {
    if (!round.posts.contains(member)) missing.push_back(member);
  }
  return missing;
}

std::string HubServer::missing_at_rendezvous() const {
  std::string missing;
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    if (!ranks_[rank].present) missing += fmt::format("{}{}", missing.empty() ? "" : ", ", rank);
  }
  return fmt::format("rank(s) {} of {}", missing, ranks_.size());
}

std::string HubServer::name_of_rank(std::int32_t rank) const {
  const Rank& it = rank_at(rank);
  if (!it.present) return fmt::format("rank {} (has not come)", rank);
  return name_of(it.introduction);
}

std::string HubServer::names_of(const std::vector<std::int32_t>& ranks) const {
  std::string names;
  for (const std::int32_t rank : ranks) names += (names.empty() ? "" : ", ") + name_of_rank(rank);
  return names;
}

std::string HubServer::describe_last_call(const Rank& rank) const {
  if (rank.history.empty()) return "it has made no call yet";
  const HistoryEntry& last = rank.history.back();
  return fmt::format("its last call was {} on '{}'", describe(last.call), last.channel_name.data());
}

std::string HubServer::with_histories(const std::string& cause) const {
  std::vector<RankHistory> histories;
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    const auto& history = ranks_[rank].history;
    histories.push_back({static_cast<int>(rank), {history.begin(), history.end()}});
  }
  const std::string text = describe_histories(histories);
  return text.empty() ? cause : cause + "; " + text;
}

}  // namespace tessera::comm::control
