// The bytes of each kind on a rank after construction, forward, backward and step, under every
// strategy: computed only from the layouts, by the formulas below.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "engine/device/memory.h"
#include "sharding/memory/layouts.h"
#include "sharding/sharding_testing.h"

namespace tessera {
namespace {

using testing::round_up;
using testing::ToyTransformer;

constexpr std::size_t direct_sums = std::size_t{64} << 10;       // all ranks' contents together
constexpr std::size_t all_reduce_chunks = std::size_t{1} << 20;  // two of half a MiB

struct FormulaBytes {
  std::size_t parameters = 0, gradients = 0, optimizer = 0, communication = 0;
};

std::size_t part_of(std::size_t bytes, int ranks) {
  return (bytes + static_cast<std::size_t>(ranks) - 1) / static_cast<std::size_t>(ranks);
}

class Formula {
 public:
  Formula(nn::Module& net, int world, const ShardingOptions& options, int rank)
      : row_(row_of(options.strategy)),
        shards_(row_.shards == ShardGroup::self    ? 1
                : row_.shards == ShardGroup::world ? world
                                                   : options.group_size),
        copies_(world / shards_),
        wire_(size_of(options.reduce_dtype.value_or(options.param_dtype.value_or(float32)))),
        cast_(options.param_dtype.value_or(float32) != float32) {
    const auto units = testing::expected_units(net, options.wrap, options.param_dtype);
    for (std::size_t i = 0; i < units.size(); ++i) add(units[i].layout(shards_), i == 0, rank);
    // Two of the largest unit, which the units use in turn.
    bytes_.communication += 2 * part_of(largest_gathered_, shards_) + 2 * largest_gradient_;
    if (shards_ > 1 && copies_ > 1) bytes_.communication += 2 * largest_shard_;
    const std::size_t summed = shards_ == 1 ? largest_whole_ : largest_shard_;
    const bool in_chunks = copies_ > 2 && summed * static_cast<std::size_t>(copies_) > direct_sums;
    if (in_chunks) bytes_.communication += part_of(all_reduce_chunks, copies_);
  }
  [[nodiscard]] const FormulaBytes& bytes() const { return bytes_; }

 private:
  void add(const UnitLayout& layout, bool root, int rank) {
    std::size_t shard = 0;
    for (const auto& segment : layout.segments()) {
      const auto elements = static_cast<std::size_t>(segment.elements / shards_);
      bytes_.parameters += 4 * elements;
      if (segment.trainable) shard += 4 * round_up<std::size_t>(elements, 128);  // fp32 sums
    }
    const std::size_t whole = static_cast<std::size_t>(layout.gradient_elements()) * wire_;
    bytes_.gradients += shard;
    bytes_.optimizer += 2 * 4 * testing::extent_of(layout, rank % shards_);  // two moments
    // Gathered parameters; with one shard and nothing to cast, the masters are used.
    if (shards_ > 1 || cast_) {
      if (row_.gathered == Gathered::per_pass && !root) {
        largest_gathered_ = std::max(largest_gathered_, layout.bytes());
      } else {
        bytes_.communication += part_of(layout.bytes(), shards_);
      }
    }
    // Gradients before their reduction.
    if (root || row_.reduce == ReduceAt::end_of_backward) {
      bytes_.communication += whole;
    } else {
      largest_gradient_ = std::max(largest_gradient_, whole);
    }
    largest_shard_ = std::max(largest_shard_, shard);
    largest_whole_ = std::max(largest_whole_, whole);
  }

  StrategyRow row_;
  int shards_;
  int copies_;
  std::size_t wire_;
  bool cast_;
  FormulaBytes bytes_;
  std::size_t largest_gathered_ = 0, largest_gradient_ = 0;
  std::size_t largest_shard_ = 0, largest_whole_ = 0;
};

void expect_formula(const Context& context, FormulaBytes expected, bool has_moments,
                    const std::string& where) {
  const MemoryUse use = MemoryPool::current()->stats().use;
  EXPECT_EQ(use[MemoryKind::parameters], expected.parameters) << where;
  EXPECT_EQ(use[MemoryKind::gradients], expected.gradients) << where;
  EXPECT_EQ(use[MemoryKind::optimizer], has_moments ? expected.optimizer : 0) << where;
  EXPECT_EQ(use[MemoryKind::communication] + context.communicator().held_bytes(),
            expected.communication)
      << where;
}

// All parameters except the norms of the blocks, and their biases: so there are units of both kinds
// beside the root.
void freeze_most(nn::Module& net) {
  for (auto& parameter : net.named_parameters()) {
    const bool small = parameter.tensor.dimensions() == 1 && parameter.name.starts_with("blocks.");
    parameter.tensor.set_requires_grad(small);
  }
}

void follow_formula(const Context& context, const ShardingOptions& options, bool mostly_frozen,
                    const std::string& what) {
  const testing::OneThread one_thread;
  manual_seed(5);
  std::optional<ToyTransformer> net;
  {
    const DeviceGuard deferred(Device::meta());
    net.emplace();
  }
  if (mostly_frozen) freeze_most(*net);
  const FormulaBytes expected =
      Formula(*net, context.world_size(), options, context.rank()).bytes();
  ShardedModel model = fully_shard(*net, context, options);
  optim::AdamW optimizer(model.parameters(), {});
  const std::uint64_t allocations = model.communication().allocations;
  MemoryStats settled;
  for (int step = 0; step < 3; ++step) {
    const bool has_moments = step > 0;
    expect_formula(context, expected, has_moments, what + ", made");
    const auto batch = testing::toy_batch(context.rank(), 2);
    const Tensor loss = net->loss(batch.ids, batch.targets);
    expect_formula(context, expected, has_moments, what + ", after the forward");
    loss.backward();
    expect_formula(context, expected, has_moments, what + ", after the backward");
    (void)model.clip_grad_norm(1.0);
    optimizer.step();
    optimizer.zero_grad();
    expect_formula(context, expected, true, what + ", after the step");
    if (step == 1) settled = MemoryPool::current()->stats();
  }
  // The allocations of the first step stay, and no others are added.
  EXPECT_EQ(model.communication().allocations, allocations) << what;
  EXPECT_EQ(MemoryPool::current()->stats().system_allocations, settled.system_allocations) << what;
  EXPECT_EQ(MemoryPool::current()->stats().peak_in_use, settled.peak_in_use) << what;
}

TEST(MemoryFormula, HoldsAtEveryPointOfAStep) {
  for (const int world : {1, 2, 3, 4, 6}) {
    for (ShardingOptions options : testing::all_strategies(world)) {
      for (const std::optional<DType> dtype : {std::optional<DType>{}, {bfloat16}}) {
        options.param_dtype = dtype;
        for (const bool mostly_frozen : {false, true}) {
          const std::string what = testing::describe(options) + " on " + std::to_string(world) +
                                   (dtype ? " in bf16" : "") +
                                   (mostly_frozen ? ", mostly frozen" : "");
          launch(world,
                 [&](Context& context) { follow_formula(context, options, mostly_frozen, what); });
        }
      }
    }
  }
}

}  // namespace
}  // namespace tessera
