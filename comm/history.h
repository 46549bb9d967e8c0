// The last collectives of each rank, for the error that ends the job: the call that each rank was
// in, and where the ranks' calls began to differ.
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

// One rank's entry into a round of a channel (a communicator).
struct HistoryEntry {
  std::uint64_t channel = 0;  // the same number on all ranks
  std::uint64_t round = 0;    // of the channel; the calls of one round belong together
  std::array<char, 24> channel_name{};
  Call call;

  HistoryEntry() = default;
  HistoryEntry(std::uint64_t channel_number, std::uint64_t round_number, std::string_view name,
               const Call& of_call);
};

// The history of one rank, in memory that all ranks see. Its threads add entries, and any thread
// may read at any time.
class History {
 public:
  void add(const HistoryEntry& entry);
  // The oldest entry first. Entries that are being written are left out.
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

// The beginning of describe_histories()' line.
std::string histories_title();
// One line: by channel, the last call that all ranks entered, and the ranks that did not enter
// later ones. Empty when there is nothing to report.
std::string describe_histories(const std::vector<RankHistory>& histories);

}  // namespace tessera::comm
