// A magnitude's bits, without the sign, have the order of the magnitudes. Four rounds of counting
// find the bits of the last chosen magnitude, a byte in each, from the highest one on.
#include "trainer/pruning/selection.h"

#include <array>
#include <bit>
#include <cstring>
#include <optional>

#include "base/error.h"

namespace tessera {
namespace {

constexpr std::uint32_t without_sign = 0x7fffffff;

std::uint32_t magnitude_bits(float value) {
  return std::bit_cast<std::uint32_t>(value) & without_sign;
}

template <class T>
std::string bytes_of(const std::vector<T>& values) {
  std::string bytes(values.size() * sizeof(T), '\0');
  if (!values.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

template <class T>
std::vector<T> values_of(const std::string& bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), values.size() * sizeof(T));
  return values;
}

// The magnitudes below `bits` are chosen, and the first `ties` of those that have them.
struct LastChosen {
  std::uint32_t bits = 0;
  std::int64_t ties = 0;
};

using Counts = std::vector<std::int64_t>;

// The number of this rank's reported elements of each set by the next byte of their bits, for those
// whose higher bits are those found so far.
Counts count_next_byte(std::span<const PrunedRun> runs, std::span<const PrunedSet> sets,
                       const std::vector<LastChosen>& found, int shift) {
  Counts counts(sets.size() * 256);
  for (std::size_t set = 0; set < sets.size(); ++set) {
    const std::uint64_t wanted = found[set].bits >> (shift + 7) >> 1;
    for (const std::size_t number : sets[set].runs) {
      const PrunedRun& run = runs[number];
      if (run.save_count == 0) continue;
      const std::vector<float> values = run.values();
      const std::int64_t begin = run.save_first - run.first;
      for (std::int64_t i = begin; i < begin + run.save_count; ++i) {
        const std::uint64_t bits = magnitude_bits(values[static_cast<std::size_t>(i)]);
        if (bits >> (shift + 8) != wanted) continue;
        ++counts[set * 256 + (bits >> shift & 255)];
      }
    }
  }
  return counts;
}

std::vector<LastChosen> find_last(std::span<const PrunedRun> runs, std::span<const PrunedSet> sets,
                                  const RankExchange& exchange) {
  std::vector<LastChosen> found;
  for (const PrunedSet& set : sets) found.push_back({0, set.count});
  for (const int shift : {24, 16, 8, 0}) {
    Counts all(sets.size() * 256);
    const std::string own = bytes_of(count_next_byte(runs, sets, found, shift));
    for (const std::string& part : exchange(own)) {
      const Counts counts = values_of<std::int64_t>(part);
      TESSERA_REQUIRE(counts.size() == all.size(), "ranks prune different numbers of weights");
      for (std::size_t i = 0; i < all.size(); ++i) all[i] += counts[i];
    }
    for (std::size_t set = 0; set < sets.size(); ++set) {
      LastChosen& last = found[set];
      if (sets[set].count == 0) continue;
      std::uint32_t byte = 0;
      while (byte < 255 && all[set * 256 + byte] < last.ties) last.ties -= all[set * 256 + byte++];
      last.bits |= byte << shift;
    }
  }
  return found;
}

// The elements with the bits of the last chosen one in a reported range.
struct TiesOfRange {
  std::int64_t run = 0;
  std::int64_t first = 0;
  std::int64_t count = 0;
};

std::vector<TiesOfRange> find_ties(std::span<const PrunedRun> runs, std::span<const PrunedSet> sets,
                                   const std::vector<LastChosen>& last,
                                   const RankExchange& exchange) {
  std::vector<TiesOfRange> own;
  for (std::size_t set = 0; set < sets.size(); ++set) {
    for (const std::size_t number : sets[set].runs) {
      const PrunedRun& run = runs[number];
      if (run.save_count == 0) continue;
      const std::vector<float> values = run.values();
      const std::int64_t begin = run.save_first - run.first;
      TiesOfRange ties{static_cast<std::int64_t>(number), run.save_first, 0};
      for (std::int64_t i = begin; i < begin + run.save_count; ++i) {
        if (magnitude_bits(values[static_cast<std::size_t>(i)]) == last[set].bits) ++ties.count;
      }
      own.push_back(ties);
    }
  }
  std::vector<TiesOfRange> all;
  for (const std::string& part : exchange(bytes_of(own))) {
    const std::vector<TiesOfRange> ties = values_of<TiesOfRange>(part);
    all.insert(all.end(), ties.begin(), ties.end());
  }
  return all;
}

}  // namespace

void choose_smallest(std::span<const PrunedRun> runs, std::span<const PrunedSet> sets,
                     const RankExchange& exchange,
                     const std::function<void(std::size_t run, std::vector<std::uint8_t>)>& use) {
  const std::vector<LastChosen> last = find_last(runs, sets, exchange);
  const std::vector<TiesOfRange> ties = find_ties(runs, sets, last, exchange);
  std::vector<std::int64_t> ties_of_run(runs.size());
  for (const TiesOfRange& range : ties) {
    ties_of_run[static_cast<std::size_t>(range.run)] += range.count;
  }
  for (std::size_t set = 0; set < sets.size(); ++set) {
    std::int64_t before = 0;  // ties of the set's earlier tensors
    for (const std::size_t number : sets[set].runs) {
      const PrunedRun& run = runs[number];
      std::int64_t tie = before;
      for (const TiesOfRange& range : ties) {
        if (range.run == static_cast<std::int64_t>(number) && range.first < run.first) {
          tie += range.count;
        }
      }
      before += ties_of_run[number];
      std::vector<std::uint8_t> chosen(static_cast<std::size_t>(run.size));
      const std::vector<float> values =
          run.size == 0 || sets[set].count == 0 ? std::vector<float>(chosen.size()) : run.values();
      for (std::size_t i = 0; i < chosen.size() && sets[set].count > 0; ++i) {
        const std::uint32_t bits = magnitude_bits(values[i]);
        const bool is_tie = bits == last[set].bits;
        chosen[i] = bits < last[set].bits || (is_tie && tie < last[set].ties) ? 1 : 0;
        if (is_tie) ++tie;
      }
      use(number, std::move(chosen));
    }
  }
}

}  // namespace tessera
