// Ranks send one another the elements of blocks that the ends of their ranges cut.
#include "trainer/pruning/groups.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

namespace tessera {
namespace {

// Elements [first, first + values.size()) of a tensor.
struct Fragment {
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
    const std::array<std::int64_t, 2> head = {fragment.first,
                                              static_cast<std::int64_t>(fragment.values.size())};
    append(text, head.data(), sizeof head);
    append(text, fragment.values.data(), fragment.values.size() * sizeof(float));
  }
  return text;
}

void read_fragments(const std::string& text, std::vector<Fragment>& fragments) {
  for (std::size_t at = 0; at < text.size();) {
    std::array<std::int64_t, 2> head{};
    std::memcpy(head.data(), text.data() + at, sizeof head);
    at += sizeof head;
    Fragment fragment{head[0], std::vector<float>(static_cast<std::size_t>(head[1]))};
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
std::vector<Fragment> cut_blocks(const PrunedRun& run, std::int64_t block) {
  const std::int64_t begin = run.save_first, end = begin + run.save_count;
  const std::int64_t whole_begin = std::min(end, round_up(begin, block));
  const std::int64_t whole_end = std::max(whole_begin, end / block * block);
  std::vector<Fragment> fragments;
  if (whole_begin == begin && whole_end == end) return fragments;
  const std::vector<float> values = run.values();
  const auto add = [&](std::int64_t from, std::int64_t to) {
    if (from == to) return;
    const auto first = values.begin() + (from - run.first);
    fragments.push_back({from, {first, first + (to - from)}});
  };
  add(begin, whole_begin);
  add(whole_end, end);
  return fragments;
}

// Sets the bytes of the chosen elements of whole blocks.
void choose_in_blocks(const std::vector<float>& values, const GroupLayout& layout,
                      std::int64_t zeros, std::vector<std::uint8_t>& chosen) {
  const auto step = static_cast<std::size_t>(layout.stride);
  const auto first = [&](std::size_t a, std::size_t b) {
    const float of_a = std::abs(values[a]), of_b = std::abs(values[b]);
    return of_a < of_b || (of_a == of_b && a < b);
  };
  std::vector<std::size_t> order(static_cast<std::size_t>(layout.size));
  const auto end = order.begin() + zeros;
  for (std::size_t block = 0; block < values.size(); block += order.size() * step) {
    for (std::size_t column = 0; column < step; ++column) {
      for (std::size_t i = 0; i < order.size(); ++i) order[i] = block + i * step + column;
      if (end != order.end()) std::nth_element(order.begin(), end, order.end(), first);
      for (auto place = order.begin(); place != end; ++place) chosen[*place] = 1;
    }
  }
}

std::vector<std::uint8_t> choose_in_run(const PrunedRun& run, const GroupLayout& layout,
                                        std::int64_t zeros, const RankExchange& exchange) {
  std::string own;
  if (run.save_count > 0) own = text_of(cut_blocks(run, layout.block()));
  std::vector<Fragment> all;
  for (const std::string& part : exchange(own)) read_fragments(part, all);
  if (run.size == 0) return {};
  const std::int64_t block = layout.block();
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
  for (const Fragment& fragment : all) put(fragment.first, fragment.values);
  put(run.first, run.values());
  std::vector<std::uint8_t> chosen(values.size());
  choose_in_blocks(values, layout, zeros, chosen);
  const auto first = chosen.begin() + (run.first - begin);
  return {first, first + run.size};
}

}  // namespace

void choose_in_groups(std::span<const PrunedRun> runs, std::span<const GroupLayout> layouts,
                      std::span<const std::int64_t> zeros, const RankExchange& exchange,
                      const std::function<void(std::size_t run, std::vector<std::uint8_t>)>& use) {
  for (std::size_t i = 0; i < runs.size(); ++i) {
    use(i, choose_in_run(runs[i], layouts[i], zeros[i], exchange));
  }
}

}  // namespace tessera
