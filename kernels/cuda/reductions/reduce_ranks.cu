// The sum over ranks in a fixed binary tree. The tree is evaluated in registers, so every input is
// read once and the output written once; the bits are the CPU's.
#include <algorithm>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/rank_tree.h"
#include "kernels/cuda/device/arithmetic.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/map.h"
#include "kernels/cuda/device/registry.h"
#include "kernels/cuda/device/types.h"

namespace tessera::kernels::cuda {
namespace {

constexpr int most_ranks = 64;
// No tree over this many ranks, with any groups, has more waiting sums.
constexpr int most_waiting = 5;

// The inputs and the tree, passed by value: launches need no memory of their own.
struct RankTree {
  const void* in[most_ranks];
  TreeStep steps[most_ranks];
  int step_count;
};

template <class C, int width>
struct Sums {
  C value[width];

  __device__ __forceinline__ void add_on_the_right(const Sums& left) {
#pragma unroll
    for (int k = 0; k < width; ++k) value[k] = left.value[k] + value[k];
  }
};

// The sum of `leaves` neighbouring ranks.
template <int leaves, class In, int width>
__device__ __forceinline__ Sums<Compute<In>, width> subtree_sum(const Place<width>& place,
                                                                const void* const* in) {
  Sums<Compute<In>, width> sum;
  if constexpr (leaves == 1) {
    place.load(static_cast<const In*>(in[0]), sum.value);
  } else {
    const auto left = subtree_sum<leaves / 2, In>(place, in);
    sum = subtree_sum<leaves / 2, In>(place, in + leaves / 2);
    sum.add_on_the_right(left);
  }
  return sum;
}

template <class In, int width>
__device__ __forceinline__ Sums<Compute<In>, width> step_sum(const Place<width>& place,
                                                             const void* const* in, int leaves) {
  switch (leaves) {
    case 1:
      return subtree_sum<1, In>(place, in);
    case 2:
      return subtree_sum<2, In>(place, in);
    case 4:
      return subtree_sum<4, In>(place, in);
    default:
      return subtree_sum<8, In>(place, in);
  }
}

template <class In, int width>
__device__ __forceinline__ Sums<Compute<In>, width> tree_sum(const Place<width>& place,
                                                             const RankTree& tree) {
  using S = Sums<Compute<In>, width>;
  // The topmost waiting sum is always the first: values move between registers. An index would put
  // the stack into memory.
  S waiting[most_waiting] = {};
  S sum = {};
  for (int s = 0; s < tree.step_count; ++s) {
    if (s > 0) {
#pragma unroll
      for (int i = most_waiting - 1; i > 0; --i) waiting[i] = waiting[i - 1];
      waiting[0] = sum;
    }
    sum = step_sum<In>(place, tree.in + tree.steps[s].first, tree.steps[s].leaves);
    for (int merge = 0; merge < tree.steps[s].merges; ++merge) {
      sum.add_on_the_right(waiting[0]);
#pragma unroll
      for (int i = 0; i + 1 < most_waiting; ++i) waiting[i] = waiting[i + 1];
    }
  }
  return sum;
}

// out[i] (+)= scale * (tree sum over ranks of in[r][i]), in: ranks arrays of n elements of In, out:
// n of Out. Bytes: read the inputs (and out to accumulate), write out.
template <class In, class Out>
__global__ void __launch_bounds__(map_threads, 2)
    reduce_ranks_kernel(Layout layout, const __grid_constant__ RankTree tree, Out* out,
                        Compute<In> scale, bool accumulate) {
  constexpr int width = width_for<In>;
  using Wide =
      std::conditional_t<std::is_same_v<Out, double> || std::is_same_v<In, double>, double, float>;
  for_places<width>(layout, [&](const Place<width>& place) {
    auto sum = tree_sum<In>(place, tree);
#pragma unroll
    for (int k = 0; k < width; ++k) sum.value[k] = product(sum.value[k], scale);
    if (!accumulate) return place.store(out, sum.value);
    Wide total[width];
    place.load(out, total);
#pragma unroll
    for (int k = 0; k < width; ++k) total[k] += static_cast<Wide>(sum.value[k]);
    place.store(out, total);
  });
}

RankTree rank_tree(const ReduceRanks& a) {
  const std::vector<TreeStep> steps = tree_steps(a.ranks, a.group);
  RankTree tree{};
  std::copy(a.in, a.in + a.ranks, tree.in);
  std::copy(steps.begin(), steps.end(), tree.steps);
  tree.step_count = static_cast<int>(steps.size());
  int waiting = 0;
  for (const TreeStep& step : steps) {
    if (waiting > most_waiting) misuse_of("reduce_ranks", "too many sums wait", waiting);
    waiting += 1 - step.merges;
  }
  return tree;
}

template <class In, class Out>
void run(const ReduceRanks& a, Context& context) {
  constexpr int width = width_for<In>;
  const RankTree tree = rank_tree(a);
  Layout layout{a.n};
  // Uses vectors if a skew suits the output and every input.
  for (int skew = 0; skew < width && !layout.vectors; ++skew) {
    const bool suits = groups_are_aligned<width>({a.out, sizeof(Out)}, skew) &&
                       std::all_of(a.in, a.in + a.ranks, [&](const void* in) {
                         return groups_are_aligned<width>({in, sizeof(In)}, skew);
                       });
    if (suits) layout = {a.n, skew, true};
  }
  const std::int64_t in_bytes = a.n * static_cast<std::int64_t>(sizeof(In));
  const auto start = [&]<std::size_t... rank>(std::index_sequence<rank...>) {
    launch(context,
           {"reduce_ranks",
            {a.n, a.ranks, a.group},
            {reads(tree.in[rank], in_bytes)...,
             writes(a.out, a.n * static_cast<std::int64_t>(sizeof(Out)))}},
           configuration_of<width>(layout), reduce_ranks_kernel<In, Out>, layout, tree,
           static_cast<Out*>(a.out), static_cast<Compute<In>>(a.scale), a.accumulate);
  };
  start(std::make_index_sequence<most_ranks>{});
}

void check(const ReduceRanks& a) {
  if (a.ranks < 1) misuse_of("reduce_ranks", "there must be at least one rank", a.ranks);
  if (a.group < 1) misuse_of("reduce_ranks", "a group has at least one rank", a.group);
  if (a.ranks > most_ranks) {
    misuse_of("reduce_ranks",
              "more than 64 ranks; reduce the groups first, then the groups' results", a.ranks);
  }
}

}  // namespace

void reduce_ranks(const ReduceRanks& a, Queue queue) {
  check(a);
  Context& context = context_of(queue);
  for_floating(a.in_dtype, "reduce_ranks", [&](auto tag) {
    using In = typename decltype(tag)::type;
    if (a.out_dtype == a.in_dtype) return run<In, In>(a, context);
    if (a.out_dtype == DType::float32) return run<In, float>(a, context);
    if (a.out_dtype == DType::float64) return run<In, double>(a, context);
    unsupported("reduce_ranks", a.out_dtype);
  });
}

}  // namespace tessera::kernels::cuda
