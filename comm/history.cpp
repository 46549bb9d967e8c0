// The rings of calls, and their text.
#include "comm/history.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <thread>
#include <utility>

namespace tessera::comm {
namespace {

// A text such as "0-3, 5".
std::string numbers_of(const std::set<int>& ranks) {
  std::string text;
  for (auto first = ranks.begin(); first != ranks.end();) {
    auto last = first;
    while (std::next(last) != ranks.end() && *std::next(last) == *last + 1) ++last;
    text += text.empty() ? "" : ", ";
    text += *first == *last ? std::to_string(*first) : fmt::format("{}-{}", *first, *last);
    first = std::next(last);
  }
  return text;
}

// Calls one after the other, each described by its difference from the one before: "step 7:
// forward: all_gather unit 0 1 2, reduce: reduce_scatter unit 2".
class CallsText {
 public:
  void add(const Call& call) {
    const bool first = text_.empty();
    const bool same_step = !first && call.step == last_.step;
    const bool same_phase = same_step && call.phase == last_.phase;
    const bool same_op = same_phase && call.op == last_.op;
    if (same_op && call.unit == last_.unit) {
      ++times_;
      return;
    }
    end_repetition();
    if (!same_step) text_ += fmt::format("{}step {}: ", first ? "" : "; ", call.step);
    if (!same_phase) text_ += fmt::format("{}{}: ", same_step ? ", " : "", name_of(call.phase));
    if (!same_op) text_ += fmt::format("{}{} unit", same_phase ? ", " : "", name_of(call.op));
    text_ += fmt::format(" {}", call.unit);
    last_ = call;
  }
  [[nodiscard]] std::string take() {
    end_repetition();
    return std::exchange(text_, {});
  }

 private:
  void end_repetition() {
    if (times_ > 1) text_ += fmt::format(" ({} times)", times_);
    times_ = 1;
  }

  std::string text_;
  Call last_;
  int times_ = 1;
};

struct Channel {
  std::string name;
  std::map<int, std::uint64_t> last_round;             // of each rank
  std::map<std::uint64_t, std::map<int, Call>> calls;  // by round and rank
  [[nodiscard]] std::set<int> ranks_at(std::uint64_t round) const {
    std::set<int> ranks;
    for (const auto& [rank, last] : last_round) {
      if (last >= round) ranks.insert(rank);
    }
    return ranks;
  }
};

// A channel's rounds, cut where the set of arrived ranks changes or ranks differ.
std::string describe_channel(const Channel& channel, std::size_t ranks_of_all) {
  std::string text;
  CallsText calls;
  std::set<int> ranks;
  const auto finish = [&] {
    const std::string part = calls.take();
    if (part.empty()) return;
    text += text.empty() ? "" : " | ";
    if (ranks.size() != ranks_of_all) text += fmt::format("rank {} only: ", numbers_of(ranks));
    text += part;
  };
  for (const auto& [round, by_rank] : channel.calls) {
    const Call& of_first = by_rank.begin()->second;
    const bool all_alike =
        std::all_of(by_rank.begin(), by_rank.end(),
                    [&of_first](const auto& one) { return one.second == of_first; });
    if (!all_alike) {
      for (const auto& [rank, call] : by_rank) {
        finish();
        ranks = {rank};
        calls.add(call);
      }
      continue;
    }
    if (const std::set<int> here = channel.ranks_at(round); here != ranks) {
      finish();
      ranks = here;
    }
    calls.add(by_rank.begin()->second);
  }
  finish();
  return fmt::format("'{}' {}", channel.name, text);
}

}  // namespace

HistoryEntry::HistoryEntry(std::uint64_t channel_number, std::uint64_t round_number,
                           std::string_view name, const Call& of_call)
    : channel(channel_number), round(round_number), call(of_call) {
  name.copy(channel_name.data(), channel_name.size() - 1);
}

void History::add(const HistoryEntry& entry) {
  const std::uint64_t number = count_.fetch_add(1);
  Slot& slot = slots_[number % history_length];
  std::array<std::uint64_t, words> content{};
  std::memcpy(content.data(), &entry, sizeof(entry));
  // One thread at a time writes a slot: one that was interrupted in the middle of an entry must not
  // go on in a newer entry.
  std::uint64_t version = slot.version.load(std::memory_order_relaxed);
  do {
    while (version % 2 == 1) {
      std::this_thread::yield();
      version = slot.version.load(std::memory_order_relaxed);
    }
    if (version > 2 * number) return;  // other threads have filled the ring since: it is forgotten
    // A reader that sees a word of this entry finds at least this version when it checks again.
  } while (!slot.version.compare_exchange_weak(version, 2 * number + 1, std::memory_order_acquire,
                                               std::memory_order_relaxed));
  for (std::size_t i = 0; i < words; ++i) {
    slot.content[i].store(content[i], std::memory_order_release);
  }
  slot.version.store(2 * number + 2, std::memory_order_release);
}

std::vector<HistoryEntry> History::get() const {
  std::vector<HistoryEntry> entries;
  const std::uint64_t count = count_.load();
  for (std::uint64_t number = count - std::min<std::uint64_t>(count, history_length);
       number < count; ++number) {
    const Slot& slot = slots_[number % history_length];
    std::array<std::uint64_t, words> content{};
    const std::uint64_t version = slot.version.load(std::memory_order_acquire);
    for (std::size_t i = 0; i < words; ++i) {
      content[i] = slot.content[i].load(std::memory_order_acquire);
    }
    if (version != 2 * number + 2 || slot.version.load() != version) continue;
    std::memcpy(static_cast<void*>(&entries.emplace_back()), content.data(), sizeof(HistoryEntry));
  }
  return entries;
}

std::string histories_title() {
  return fmt::format("the last {} collectives of each rank: ", history_length);
}

std::string describe_histories(const std::vector<RankHistory>& histories) {
  std::vector<std::uint64_t> order;
  std::map<std::uint64_t, Channel> channels;
  for (const RankHistory& history : histories) {
    for (const HistoryEntry& entry : history.entries) {
      Channel& channel = channels[entry.channel];
      if (channel.name.empty()) {
        channel.name = entry.channel_name.data();
        order.push_back(entry.channel);
      }
      std::uint64_t& last = channel.last_round[history.rank];
      last = std::max(last, entry.round);
      channel.calls[entry.round][history.rank] = entry.call;
    }
  }
  std::string text;
  for (const std::uint64_t number : order) {
    text += text.empty() ? "" : "; on ";
    text += describe_channel(channels[number], histories.size());
  }
  return text.empty() ? text : histories_title() + "on " + text;
}

}  // namespace tessera::comm
