// Ranks send one another the elements of blocks that the ends of their ranges cut.
#include "trainer/pruning/groups_of_four.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

namespace tessera {
namespace {

// Elements [first, first + values.size()) of a run's tensor.
struct Fragment {
  std::int64_t run = 0;
  std::int64_t first = 0;
  std::vector<float> values;
};

void append(std::string& text, const void* data, std::size_t bytes) {
  const std::size_t end = text.size();
  text.resize(end + bytes);
  std::memcpy(text.data() + end, data, bytes);
}

std::string text_of(const std::vector<Fragment>& fragments) {
  std::string text;
  for (const Fragment& fragment : fragments) {
    const std::array<std::int64_t, 3> head = {fragment.run, fragment.first,
                                              static_cast<std::int64_t>(fragment.values.size())};
    append(text, head.data(), sizeof head);
    append(text, fragment.values.data(), fragment.values.size() * sizeof(float));
  }
  return text;
}

void read_fragments(const std::string& text, std::vector<Fragment>& fragments) {
  for (std::size_t at = 0; at < text.size();) {
    std::array<std::int64_t, 3> head{};
    std::memcpy(head.data(), text.data() + at, sizeof head);
    at += sizeof head;
    Fragment fragment{head[0], head[1], std::vector<float>(static_cast<std::size_t>(head[2]))};
    const std::size_t bytes = fragment.values.size() * sizeof(float);
    std::memcpy(fragment.values.data(), text.data() + at, bytes);
    at += bytes;
    fragments.push_back(std::move(fragment));
  }
}

std::int64_t round_up(std::int64_t value, std::int64_t block) {
  return (value + block - 1) / block * block;
}

// The parts of blocks that the ends of the reported range cut off.
std::vector<Fragment> cut_blocks(const PrunedRun& run, std::size_t number, std::int64_t block) {
  const std::int64_t begin = run.save_first, end = begin + run.save_count;
  const std::int64_t whole_begin = std::min(end, round_up(begin, block));
  const std::int64_t whole_end = std::max(whole_begin, end / block * block);
  std::vector<Fragment> fragments;
  if (whole_begin == begin && whole_end == end) return fragments;
  const std::vector<float> values = run.values();
  const auto add = [&](std::int64_t from, std::int64_t to) {
    if (from == to) return;
    const auto first = values.begin() + (from - run.first);
    fragments.push_back({static_cast<std::int64_t>(number), from, {first, first + (to - from)}});
  };
  add(begin, whole_begin);
  add(whole_end, end);
  return fragments;
}

// Sets the bytes of the chosen elements of whole blocks.
void choose_in_blocks(const std::vector<float>& values, std::int64_t stride, int zeros,
                      std::vector<std::uint8_t>& chosen) {
  const auto step = static_cast<std::size_t>(stride);
  for (std::size_t block = 0; block < values.size(); block += 4 * step) {
    for (std::size_t column = 0; column < step; ++column) {
      std::array<std::size_t, 4> order{};
      for (std::size_t i = 0; i < 4; ++i) order[i] = block + i * step + column;
      std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
        return std::abs(values[a]) < std::abs(values[b]);
      });
      for (int i = 0; i < zeros; ++i) chosen[order[static_cast<std::size_t>(i)]] = 1;
    }
  }
}

}  // namespace

void choose_in_groups(std::span<const PrunedRun> runs, std::span<const GroupLayout> layouts,
                      int zeros, const RankExchange& exchange,
                      const std::function<void(std::size_t run, std::vector<std::uint8_t>)>& use) {
  std::vector<Fragment> own, all;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    if (runs[i].save_count == 0) continue;
    for (Fragment& fragment : cut_blocks(runs[i], i, layouts[i].block())) {
      own.push_back(std::move(fragment));
    }
  }
  for (const std::string& part : exchange(text_of(own))) read_fragments(part, all);
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const PrunedRun& run = runs[i];
    if (run.size == 0) {
      use(i, {});
      continue;
    }
    const std::int64_t block = layouts[i].block();
    const std::int64_t begin = run.first / block * block;
    std::vector<float> values(
        static_cast<std::size_t>(round_up(run.first + run.size, block) - begin));
    const auto put = [&](std::int64_t first, const std::vector<float>& part) {
      for (std::size_t j = 0; j < part.size(); ++j) {
        const std::int64_t at = first + static_cast<std::int64_t>(j) - begin;
        if (at < 0 || at >= static_cast<std::int64_t>(values.size())) continue;
        values[static_cast<std::size_t>(at)] = part[j];
      }
    };
    for (const Fragment& fragment : all) {
      if (fragment.run == static_cast<std::int64_t>(i)) put(fragment.first, fragment.values);
    }
    put(run.first, run.values());
    std::vector<std::uint8_t> chosen(values.size());
    choose_in_blocks(values, layouts[i].stride, zeros, chosen);
    const auto first = chosen.begin() + (run.first - begin);
    use(i, {first, first + run.size});
  }
}

}  // namespace tessera
