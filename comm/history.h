// The last collectives of each rank, for the error that ends the job: which call each of them was
// in, and where their ways parted.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "comm/call.h"

namespace tessera::comm {

inline constexpr std::size_t history_length = 32;

// A rank entered a round of a channel (a communicator).
struct HistoryEntry {
  std::uint64_t channel = 0;  // the same number on all ranks
  std::uint64_t round = 0;    // of the channel; the calls of one round belong together
  std::array<char, 24> channel_name{};
  Call call;

  HistoryEntry() = default;
  HistoryEntry(std::uint64_t channel_number, std::uint64_t round_number, std::string_view name,
               const Call& of_call);
};

// One rank's, in memory that all ranks see. Its threads add, and anybody reads at any time.
class History {
 public:
  void add(const HistoryEntry& entry);
  // The oldest first. Entries that are being written are left out.
  [[nodiscard]] std::vector<HistoryEntry> get() const;

 private:
  static_assert(std::is_trivially_copyable_v<HistoryEntry>);
  static constexpr std::size_t words = (sizeof(HistoryEntry) + 7) / 8;
  struct Slot {
    std::atomic<std::uint64_t> version{0};  // 2 * (number + 1) when entry `number` is written
    std::array<std::atomic<std::uint64_t>, words> content{};
  };
  std::atomic<std::uint64_t> count_{0};
  std::array<Slot, history_length> slots_;
};

struct RankHistory {
  int rank = 0;
  std::vector<HistoryEntry> entries;
};

// How the line of describe_histories() begins.
std::string histories_title();
// One line: by channel, what all of them called once, and who did not come to the rest. Empty when
// there is nothing to tell.
std::string describe_histories(const std::vector<RankHistory>& histories);

}  // namespace tessera::comm
