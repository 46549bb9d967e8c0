// The tree in which ReduceRanks adds ranks, in order of evaluation. It is the same on every device.
#pragma once

#include <algorithm>
#include <bit>
#include <vector>

namespace tessera::kernels {

// A step pushes the sum of `leaves` (1, 2, 4 or 8) neighbouring ranks, a complete subtree, on the
// stack of sums. It then replaces the two topmost sums by their sum, `merges` times.
struct TreeStep {
  int first, leaves, merges;
};

namespace detail {

inline int left_size(int count) {
  return static_cast<int>(std::bit_floor(static_cast<unsigned>(count - 1)));
}

inline void append_tree(std::vector<TreeStep>& steps, int first, int count) {
  if (count <= 8 && std::has_single_bit(static_cast<unsigned>(count))) {
    steps.push_back({first, count, 0});
    return;
  }
  const int left = left_size(count);
  append_tree(steps, first, left);
  append_tree(steps, first + left, count - left);
  ++steps.back().merges;
}

inline void append_groups(std::vector<TreeStep>& steps, int ranks, int group, int first,
                          int count) {
  if (count == 1) {
    append_tree(steps, first * group, std::min(group, ranks - first * group));
    return;
  }
  const int left = left_size(count);
  append_groups(steps, ranks, group, first, left);
  append_groups(steps, ranks, group, first + left, count - left);
  ++steps.back().merges;
}

}  // namespace detail

// The tree of ReduceRanks (kernels/reduction.h); ranks and group are at least 1.
inline std::vector<TreeStep> tree_steps(int ranks, int group) {
  std::vector<TreeStep> steps;
  // Groups whose size is a power of two are subtrees of the plain tree, and its larger steps are
  // faster.
  if (std::has_single_bit(static_cast<unsigned>(group)) || group >= ranks) {
    detail::append_tree(steps, 0, ranks);
  } else {
    detail::append_groups(steps, ranks, group, 0, (ranks - 1) / group + 1);
  }
  return steps;
}

}  // namespace tessera::kernels
