// Shared by the tests of sharding: a small transformer, and a training run that returns everything
// that must be bit-identical under every strategy.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "engine/autograd.h"
#include "engine/device/memory.h"
#include "engine/device/memory_step.h"
#include "engine/nn/layers.h"
#include "engine/nn/module_list.h"
#include "engine/ops.h"
#include "engine/optim/optimizer.h"
#include "engine/places/step_statistics.h"
#include "engine/random.h"
#include "sharding/fully_shard.h"
#include "support/one_thread.h"

namespace tessera::testing {

// Sizes are not powers of two where possible, so that shards cut through parameters.
constexpr std::int64_t toy_vocabulary = 29;
constexpr std::int64_t toy_width = 24;
constexpr std::int64_t toy_length = 6;

class ToyAttentionImpl : public nn::Module {
 public:
  explicit ToyAttentionImpl(double dropout) : dropout_(dropout) {
    qkv_ = register_module("qkv", nn::Linear(toy_width, 3 * toy_width));
    projection_ = register_module("projection", nn::Linear(toy_width, toy_width));
  }
  Tensor forward(const Tensor& x) const {
    const AttentionOptions options{
        .heads = 3, .causal = true, .dropout = is_training() ? dropout_ : 0.0};
    return projection_(packed_attention(qkv_(x), options));
  }

 private:
  double dropout_;
  nn::Linear qkv_, projection_;
};
TESSERA_MODULE(ToyAttention);

class ToyBlockImpl : public nn::Module {
 public:
  explicit ToyBlockImpl(double dropout) {
    norm1_ = register_module("norm1", nn::LayerNorm(toy_width));
    attention_ = register_module("attention", ToyAttention(dropout));
    norm2_ = register_module("norm2", nn::RmsNorm(toy_width));
    in_ = register_module("in", nn::Linear(toy_width, 2 * toy_width));
    out_ = register_module("out", nn::Linear(2 * toy_width, toy_width));
    dropout_ = register_module("dropout", nn::Dropout(dropout));
  }
  Tensor forward(const Tensor& x) const {
    const Tensor y = x + dropout_(attention_(norm1_(x)));
    return y + dropout_(out_(gelu(in_(norm2_(y)))));
  }

 private:
  nn::LayerNorm norm1_;
  ToyAttention attention_;
  nn::RmsNorm norm2_;
  nn::Linear in_, out_;
  nn::Dropout dropout_;
};
TESSERA_MODULE(ToyBlock);

// The head shares the token table.
class ToyTransformer : public nn::Module {
 public:
  explicit ToyTransformer(double dropout = 0) {
    tokens_ = register_module("tokens", nn::Embedding(toy_vocabulary, toy_width, 0.3));
    positions_ = register_parameter(
        "positions", nn::make_parameter({toy_length, toy_width}, nn::normal(0, 0.1)));
    std::vector<ToyBlock> blocks;
    for (int i = 0; i < 3; ++i) blocks.emplace_back(dropout);
    blocks_ = register_module("blocks", nn::ModuleList<ToyBlock>(std::move(blocks)));
    norm_ = register_module("norm", nn::LayerNorm(toy_width));
  }
  // The first block and everything before it; head() is the rest.
  Tensor embed(const Tensor& ids) const {
    return (*blocks_)[0](tokens_(ids) + parameter("positions"));
  }
  Tensor head(Tensor x) const {
    for (std::size_t i = 1; i < blocks_->size(); ++i) x = (*blocks_)[i](x);
    return linear(norm_(x), tokens_->weight());
  }
  Tensor forward(const Tensor& ids) const { return head(embed(ids)); }
  [[nodiscard]] Tensor loss(const Tensor& ids, const Tensor& targets) const {
    return cross_entropy(forward(ids), targets);
  }

 private:
  nn::Embedding tokens_;
  Tensor positions_;
  nn::ModuleList<ToyBlock> blocks_;
  nn::LayerNorm norm_;
};

struct ToyBatch {
  Tensor ids, targets;
};

// Sequences [first, first + count) of an endless data set.
inline ToyBatch toy_batch(std::int64_t first, std::int64_t count, std::int64_t length = toy_length,
                          std::int64_t vocabulary = toy_vocabulary) {
  std::vector<std::int32_t> ids, targets;
  for (std::int64_t sample = first; sample < first + count; ++sample) {
    for (std::int64_t t = 0; t < length; ++t) {
      ids.push_back(static_cast<std::int32_t>((sample * 7 + t * (sample % 5 + 1)) % vocabulary));
      targets.push_back(static_cast<std::int32_t>((sample * 11 + t * t + 3) % vocabulary));
    }
  }
  return {Tensor::from(ids, {count, length}), Tensor::from(targets, {count, length})};
}

// Whole parameters by name, assembled from the ranks' parts. Ranks are threads: each writes its own
// part.
class Collected {
 public:
  void add(const ShardedModel& model) {
    const std::lock_guard lock(mutex_);
    for (const ShardedParameter& part : model.sharded_parameters()) {
      auto& whole = values_[part.name];
      auto& covered = covered_[part.name];
      whole.resize(static_cast<std::size_t>(part.shape.elements()));
      covered.resize(whole.size());
      const std::vector<double> mine = part.local.to_vector();
      for (std::int64_t i = part.save_first; i < part.save_first + part.save_count; ++i) {
        const auto at = static_cast<std::size_t>(part.first + i);
        whole.at(at) = mine.at(static_cast<std::size_t>(i));
        ++covered.at(at);
      }
    }
  }
  // One element, from the parts added so far.
  double value(const std::string& name, std::size_t element) {
    const std::lock_guard lock(mutex_);
    return values_.at(name).at(element);
  }
  // Call it after every rank has added its part: each element must have been added once.
  const std::map<std::string, std::vector<double>>& values() const {
    for (const auto& [name, counts] : covered_) {
      EXPECT_TRUE(std::all_of(counts.begin(), counts.end(), [](int n) { return n == 1; })) << name;
    }
    return values_;
  }

 private:
  std::mutex mutex_;
  std::map<std::string, std::vector<double>> values_;
  std::map<std::string, std::vector<int>> covered_;
};

struct TrainingCase {
  std::string name = "plain";
  double dropout = 0;
  int micro_batches = 1;
  bool no_sync = false;
  double max_norm = 0;
  int steps = 3;
  std::int64_t batch = 2;
  bool placed = false;  // each step is a MemoryStep
  Device device = Device::cpu();
  // Starts the ranks; none: as threads that share `device`.
  std::function<void(int ranks, const std::function<void(Context&)>&)> launcher = nullptr;
};

// The losses of every rank, norms, and the final parameters. Comparison is bitwise, except for the
// sign of zero.
struct Trajectory {
  std::vector<std::vector<double>> losses;  // by rank
  std::vector<double> norms;
  std::map<std::string, std::vector<double>> parameters;
  bool operator==(const Trajectory&) const = default;

  // The mean over ranks of the loss of each backward.
  [[nodiscard]] std::vector<double> mean_losses() const {
    std::vector<double> means(losses.front().size());
    for (const auto& of_rank : losses) {
      for (std::size_t i = 0; i < means.size(); ++i)
        means[i] += of_rank[i] / static_cast<double>(losses.size());
    }
    return means;
  }
};

// The allocations of a rank since its start: blocks of its pool from the system, collective memory.
struct Allocations {
  std::uint64_t blocks = 0, collective = 0;
  bool operator==(const Allocations&) const = default;
  friend std::ostream& operator<<(std::ostream& out, const Allocations& a) {
    return out << a.blocks << " blocks, " << a.collective << " collective";
  }

  static Allocations of(const Context& context, const ShardedModel& model) {
    return {MemoryPool::current(context.device())->stats().system_allocations,
            model.communication().allocations};
  }
};

// Trains `make(dropout)`, a pointer to a module with loss(ids, targets), as ranks of one process.
template <class Make>
Trajectory train_ranks(int world, const ShardingOptions& options, const TrainingCase& what,
                       Make make, std::int64_t length = toy_length,
                       std::int64_t vocabulary = toy_vocabulary) {
  Trajectory result;
  result.losses.resize(static_cast<std::size_t>(world));
  Collected collected;
  const auto start = [&](int ranks, const std::function<void(Context&)>& fn) {
    if (what.launcher) return what.launcher(ranks, fn);
    launch(ranks, fn, what.device);
  };
  start(world, [&](Context& context) {
    const OneThread one_thread;
    manual_seed(17);
    const auto net = make(what.dropout);
    ShardedModel model = fully_shard(*net, context, options);
    optim::AdamW optimizer(model.parameters(), {.lr = 1e-2, .decay = optim::decay_matrices});
    auto& losses = result.losses[static_cast<std::size_t>(context.rank())];
    std::vector<double> norms;
    const Allocations made = Allocations::of(context, model);
    Allocations trained;
    for (int step = 0; step < what.steps; ++step) {
      std::optional<MemoryStep> memory;
      if (what.placed) memory.emplace(context.device());
      for (int micro = 0; micro < what.micro_batches; ++micro) {
        const std::int64_t number = step * what.micro_batches + micro;
        const std::int64_t first = (number * world + context.rank()) * what.batch;
        begin_batch({static_cast<std::uint64_t>(number), first, what.batch});
        const ToyBatch batch = toy_batch(first, what.batch, length, vocabulary);
        const Tensor ids = batch.ids.to(context.device());
        const Tensor targets = batch.targets.to(context.device());
        const auto pass = [&] {
          const Tensor loss = net->loss(ids, targets) * (1.0 / what.micro_batches);
          loss.backward();
          losses.push_back(loss.item());
        };
        const bool last = micro + 1 == what.micro_batches;
        if (options.defer_replica_sums) model.set_requires_all_reduce(last);
        if (what.no_sync && !last) {
          const auto scope = model.no_sync();
          pass();
        } else {
          pass();
        }
      }
      norms.push_back(model.clip_grad_norm(what.max_norm, 1));
      optimizer.step();
      optimizer.zero_grad();
      // Steps allocate nothing, except for the optimizer's state, the sums of no_sync and the first
      // step's activations; the second step's activations replace blocks that the state has taken.
      // The places of the fourth step are one block.
      const Allocations now = Allocations::of(context, model);
      if (step <= (what.placed ? 3 : 1)) trained = now;
      EXPECT_EQ(now, trained) << "in step " << step;
      if (!what.no_sync) {
        EXPECT_EQ(now.collective, made.collective) << "in step " << step;
      }
    }
    if (what.placed) {
      const StepStatistics memory = MemoryPool::current(context.device())->step_statistics();
      EXPECT_GE(memory.placed, static_cast<std::uint64_t>(what.steps - 3));
      EXPECT_EQ(memory.different, 0u);
      EXPECT_EQ(memory.displaced, 0u);
    }
    collected.add(model);
    if (context.is_main()) result.norms = norms;
  });
  result.parameters = collected.values();
  return result;
}

inline ShardingOptions toy_options(Strategy strategy, int group_size = 0) {
  ShardingOptions options;
  options.strategy = strategy;
  options.wrap = WrapPolicy::transformer({"ToyBlock"});
  options.group_size = group_size;
  return options;
}

inline Trajectory train_toy(int world, const ShardingOptions& options,
                            const TrainingCase& what = {}) {
  return train_ranks(world, options, what,
                     [](double dropout) { return std::make_unique<ToyTransformer>(dropout); });
}

// Every strategy at this world size, HYBRID_* with every group that divides it.
inline std::vector<ShardingOptions> all_strategies(int world) {
  std::vector<ShardingOptions> all;
  for (const StrategyRow& row : strategy_table) {
    if (row.shards != ShardGroup::group) {
      all.push_back(toy_options(row.strategy));
      continue;
    }
    for (int group = 1; group <= world; ++group) {
      if (world % group == 0) all.push_back(toy_options(row.strategy, group));
    }
  }
  return all;
}

inline std::string describe(const ShardingOptions& options) {
  std::string text(name_of(options.strategy));
  if (options.group_size > 0) text += " group " + std::to_string(options.group_size);
  return text;
}

// Names the first difference.
inline ::testing::AssertionResult same_bits(const Trajectory& expected, const Trajectory& got) {
  if (expected.losses != got.losses) return ::testing::AssertionFailure() << "losses differ";
  if (expected.norms != got.norms) {
    return ::testing::AssertionFailure()
           << "norms differ: " << ::testing::PrintToString(expected.norms) << " and "
           << ::testing::PrintToString(got.norms);
  }
  for (const auto& [name, values] : expected.parameters) {
    const auto other = got.parameters.find(name);
    if (other == got.parameters.end() || other->second != values)
      return ::testing::AssertionFailure() << "parameter " << name << " differs";
  }
  if (expected != got) return ::testing::AssertionFailure() << "more parameters";
  return ::testing::AssertionSuccess();
}

// Calls body(context, net, model) on every rank, with a toy model of the same values on each.
template <class F>
void on_ranks(int world, const ShardingOptions& options, F body) {
  launch(world, [&](Context& context) {
    const OneThread one_thread;
    manual_seed(3);
    ToyTransformer net;
    ShardedModel model = fully_shard(net, context, options);
    body(context, net, model);
  });
}

// One backward of this rank's own batch.
inline void train_once(const Context& context, ToyTransformer& net) {
  const auto batch = toy_batch(context.rank(), 2);
  net.loss(batch.ids, batch.targets).backward();
}

// The message of the action's exception; "no exception" if there is none.
template <class Exception, class F>
std::string message_of(F action) {
  try {
    action();
  } catch (const Exception& error) {
    return error.what();
  }
  return "no exception";
}

}  // namespace tessera::testing
