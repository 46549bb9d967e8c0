// Exact selection of the smallest magnitudes of tensors that are spread over ranks. The choice
// depends on the values alone, not on how they are spread.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

// A rank's elements [first, first + size) of a tensor, row-major. Of these it reports
// [save_first, save_first + save_count): the reported ranges of all ranks cover each element once,
// and `first` and the end are ends of reported ranges.
struct PrunedRun {
  std::int64_t first = 0;
  std::int64_t size = 0;
  std::int64_t save_first = 0;
  std::int64_t save_count = 0;
  // The values, on the host. They are asked for several times, one tensor at a time.
  std::function<std::vector<float>()> values;
};

// Tensors whose elements are chosen together: the `count` smallest magnitudes of all of them. Of
// equal ones, those of earlier tensors and then the earlier elements.
struct PrunedSet {
  std::vector<std::size_t> runs;  // numbers in the list of runs, in the tensors' order
  std::int64_t count = 0;
};

// Sends a text to all ranks and returns those of all ranks, in rank order. Collective.
using RankExchange = std::function<std::vector<std::string>(std::string_view)>;

// Collective: the same sets and tensors on every rank. Calls `use` for each run of the sets, in
// their order, with a byte for each element: 1 for those that are chosen.
void choose_smallest(std::span<const PrunedRun> runs, std::span<const PrunedSet> sets,
                     const RankExchange& exchange,
                     const std::function<void(std::size_t run, std::vector<std::uint8_t>)>& use);

}  // namespace tessera
