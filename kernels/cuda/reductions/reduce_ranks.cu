// The sum over ranks in a fixed binary tree. The tree is evaluated in registers, so every input is
// read once and the output written once; the bits are the CPU's.
#include <algorithm>
#include <bit>
#include <limits>
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

constexpr int most_ranks = 64;  // of a launch
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
void run_once(const ReduceRanks& a, Context& context) {
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

// How a sum over more ranks than a launch takes is split: `piece` neighbouring ranks a launch, and
// the tree over the pieces' sums.
struct Pieces {
  int piece;
  int group;  // pieces in a group of the tree over pieces
};
Pieces pieces_of(int ranks, int group) {
  const bool plain = std::has_single_bit(static_cast<unsigned>(group)) || group >= ranks;
  // A power of two of neighbouring ranks is a complete subtree of the plain tree, and a power of
  // two of groups one of the tree over groups. Only the last piece can have fewer.
  if (plain) return {most_ranks, std::numeric_limits<int>::max()};
  if (group <= most_ranks) {
    const auto groups = static_cast<int>(std::bit_floor(static_cast<unsigned>(most_ranks / group)));
    return {groups * group, std::numeric_limits<int>::max()};
  }
  return {most_ranks, (group + most_ranks - 1) / most_ranks};
}

// The pieces' first ranks, and the end. A group's last piece ends with the group.
std::vector<int> piece_bounds(int ranks, int group, const Pieces& pieces) {
  const int span = pieces.group == std::numeric_limits<int>::max() ? ranks : group;
  std::vector<int> bounds;
  for (int first = 0; first < ranks; first += span) {
    for (int at = first; at < std::min(first + span, ranks); at += pieces.piece) {
      bounds.push_back(at);
    }
  }
  bounds.push_back(ranks);
  return bounds;
}

// Sums over more than most_ranks ranks: first pieces of them, into scratch memory in the arithmetic
// type, then the pieces' sums. It does so for a part of the elements at a time.
template <class In, class Out>
void run(const ReduceRanks& a, Context& context) {
  if (a.ranks <= most_ranks) return run_once<In, Out>(a, context);
  using C = Compute<In>;
  constexpr std::int64_t part = 1 << 20;
  const Pieces pieces = pieces_of(a.ranks, a.group);
  const std::vector<int> bounds = piece_bounds(a.ranks, a.group, pieces);
  const auto count = static_cast<int>(bounds.size()) - 1;
  if (count > most_ranks) {
    misuse_of("reduce_ranks", "more ranks than two levels of sums have", a.ranks);
  }
  const std::int64_t stride = std::min(part, (a.n + 63) / 64 * 64);
  auto* const sums =
      static_cast<C*>(context.scratch(static_cast<std::size_t>(stride * count) * sizeof(C)));
  std::vector<const void*> in(static_cast<std::size_t>(a.ranks)), of_pieces;
  for (int i = 0; i < count; ++i) of_pieces.push_back(sums + i * stride);
  for (std::int64_t first = 0; first < a.n; first += part) {
    const std::int64_t n = std::min(part, a.n - first);
    std::transform(a.in, a.in + a.ranks, in.begin(),
                   [&](const void* array) { return static_cast<const In*>(array) + first; });
    for (int i = 0; i < count; ++i) {
      const int ranks = bounds[i + 1] - bounds[i];
      ReduceRanks piece = a;
      piece.in = in.data() + bounds[i];
      piece.ranks = ranks;
      piece.group = std::min(a.group, ranks);
      piece.out = sums + i * stride;
      piece.n = n;
      piece.scale = 1.0f;
      piece.accumulate = false;
      run_once<In, C>(piece, context);
    }
    ReduceRanks whole = a;
    whole.in = of_pieces.data();
    whole.ranks = count;
    whole.group = std::min(pieces.group, count);
    whole.out = static_cast<Out*>(a.out) + first;
    whole.n = n;
    run_once<C, Out>(whole, context);
  }
}

void check(const ReduceRanks& a) {
  if (a.ranks < 1) misuse_of("reduce_ranks", "there must be at least one rank", a.ranks);
  if (a.group < 1) misuse_of("reduce_ranks", "a group has at least one rank", a.group);
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
