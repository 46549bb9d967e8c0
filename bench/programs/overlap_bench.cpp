// Measures how much communication a step hides, with delays in place of links and of products:
//   overlap_bench [--ranks N] [--layers L] [--ms M] [--rounds R] [--strategy NAME]
//                 [--group N] [--reshard N] [--limit N] [--prefetch true|false] [--json FILE]
// Ranks are threads. A layer's forward sleeps M milliseconds and its backward twice as long.
// Collectives sleep in proportion to the bytes that reach a rank; the rate is chosen so that a
// step's collectives take as long as its computation. `ratio` is the median step against the longer
// of the two: 1 if everything is hidden, 2 if nothing is. Target: below 1.15 for FULL_SHARD.
#include <fmt/core.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "bench/harness/median.h"
#include "bench/programs/options.h"
#include "engine/autograd.h"
#include "engine/nn/layers.h"
#include "engine/nn/module_list.h"
#include "engine/ops.h"
#include "engine/optim/optimizer.h"
#include "sharding/fully_shard.h"

namespace {

using namespace tessera;

constexpr std::int64_t width = 64;

void sleep_for(double seconds) {
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

// The durations of the delays: one object per rank, read by its communicators.
struct Delay {
  std::atomic<double> seconds_per_byte{0};
  std::atomic<std::uint64_t> bytes{0};  // that ranks waited for

  void of(std::uint64_t reached) {
    bytes += reached;
    sleep_for(static_cast<double>(reached) * seconds_per_byte);
  }
};

// A communicator that makes the collectives of another one take longer.
class DelayedCommunicator final : public comm::Communicator {
 public:
  DelayedCommunicator(comm::Communicator& inner, std::shared_ptr<Delay> delay)
      : inner_(inner), delay_(std::move(delay)) {}
  DelayedCommunicator(const std::shared_ptr<comm::Communicator>& inner,
                      std::shared_ptr<Delay> delay)
      : own_(inner), inner_(*inner), delay_(std::move(delay)) {}

  [[nodiscard]] comm::ControlGroup& control() const override { return inner_.control(); }
  [[nodiscard]] std::string_view backend() const override { return inner_.backend(); }
  [[nodiscard]] Device device() const override { return inner_.device(); }
  [[nodiscard]] bool one_memory() const override { return inner_.one_memory(); }
  [[nodiscard]] int ranks_per_host() const override { return inner_.ranks_per_host(); }
  [[nodiscard]] bool fixed_order() const override { return inner_.fixed_order(); }

  std::shared_ptr<comm::Buffer> allocate(std::string_view name, std::size_t bytes,
                                         comm::Sharing sharing) override {
    return inner_.allocate(name, bytes, sharing);
  }
  void acquire(comm::Buffer& buffer, comm::Tag tag) override { inner_.acquire(buffer, tag); }
  void reserve_scratch(std::size_t bytes) override { inner_.reserve_scratch(bytes); }
  std::shared_ptr<comm::Communicator> split(int color, int key, std::string_view name) override {
    return delayed(inner_.split(color, key, name));
  }
  std::shared_ptr<comm::Communicator> duplicate(std::string_view name) override {
    return delayed(inner_.duplicate(name));
  }
  [[nodiscard]] std::size_t held_bytes() const override { return inner_.held_bytes(); }

 private:
  void do_all_gather(comm::Buffer& buffer, const std::vector<comm::GatheredRange>& ranges,
                     comm::Tag tag) override {
    const std::uint64_t bytes = comm::total_bytes(ranges);
    delay_->of(bytes - bytes / ranks());
    inner_.all_gather(buffer, ranges, tag);
  }
  void do_reduce_scatter(comm::Buffer& buffer, const std::vector<comm::ReducedRange>& ranges,
                         const comm::Reduction& reduction, comm::Tag tag) override {
    std::uint64_t bytes = 0;
    for (const comm::ReducedRange& range : ranges)
      bytes += static_cast<std::uint64_t>(range.count) * size_of(reduction.in_dtype);
    delay_->of(bytes * (ranks() - 1));
    inner_.reduce_scatter(buffer, ranges, reduction, tag);
  }
  void do_all_reduce(comm::Buffer& buffer, std::int64_t count, void* out,
                     const comm::Reduction& reduction, comm::Tag tag) override {
    const std::uint64_t bytes = static_cast<std::uint64_t>(count) * size_of(reduction.in_dtype);
    delay_->of(2 * bytes * (ranks() - 1) / ranks());
    inner_.all_reduce(buffer, count, out, reduction, tag);
  }
  void do_all_to_all(comm::Buffer& buffer, std::size_t bytes, void* out, comm::Tag tag) override {
    delay_->of(bytes * (ranks() - 1));
    inner_.all_to_all(buffer, bytes, out, tag);
  }
  void do_send(const void* memory, std::size_t bytes, int to, comm::Tag tag) override {
    inner_.send(memory, bytes, to, tag);
  }
  void do_receive(void* memory, std::size_t bytes, int from, comm::Tag tag) override {
    delay_->of(bytes);
    inner_.receive(memory, bytes, from, tag);
  }
  void do_broadcast(void* memory, std::size_t bytes, int root, comm::Tag tag) override {
    if (rank() != root) delay_->of(bytes);
    inner_.broadcast(memory, bytes, root, tag);
  }

  [[nodiscard]] std::uint64_t ranks() const { return static_cast<std::uint64_t>(size()); }
  [[nodiscard]] std::shared_ptr<comm::Communicator> delayed(
      const std::shared_ptr<comm::Communicator>& part) const {
    return std::make_shared<DelayedCommunicator>(part, delay_);
  }

  std::shared_ptr<comm::Communicator> own_;
  comm::Communicator& inner_;
  std::shared_ptr<Delay> delay_;
};

// A layer whose products take a given time.
class SleepingLayer : public nn::Module {
 public:
  explicit SleepingLayer(double seconds) : seconds_(seconds) {
    linear_ = register_module("linear", nn::Linear(width, width));
  }
  Tensor forward(const Tensor& x) const {
    const Tensor in = linear_(x);
    sleep_for(seconds_);
    Tensor out = in.detach();
    autograd::record(Op::reshape, {in}, {out},
                     [seconds = seconds_](std::vector<Tensor>& dout, autograd::GradientSink& sink) {
                       sleep_for(2 * seconds);
                       sink.add(0, dout[0]);
                     });
    return out;
  }

 private:
  double seconds_;
  nn::Linear linear_;
};

class SleepingModel : public nn::Module {
 public:
  SleepingModel(int layers, double seconds) {
    register_parameter("scale", nn::make_parameter({width}, nn::constant(1)));
    std::vector<nn::ModuleHandle<SleepingLayer>> list;
    for (int i = 0; i < layers; ++i) list.emplace_back(std::make_shared<SleepingLayer>(seconds));
    layers_ =
        register_module("layers", nn::ModuleList<nn::ModuleHandle<SleepingLayer>>(std::move(list)));
  }
  [[nodiscard]] Tensor loss(Tensor x) const {
    x = x * parameter("scale");
    for (std::size_t i = 0; i < layers_->size(); ++i) x = (*layers_)[i](x);
    return sum(x);
  }

 private:
  nn::ModuleList<nn::ModuleHandle<SleepingLayer>> layers_;
};

struct Asked {
  int ranks = 2, layers = 12, rounds = 5;
  double milliseconds = 10;
  ShardingOptions sharding = {};
  std::string json;
};

struct Result {
  double step = 0, computation = 0, communication = 0, exposed = 0;
};

Result measure(const Asked& asked) {
  Result result;
  launch(asked.ranks, [&](Context& context) {
    const auto delay = std::make_shared<Delay>();
    const Context slow(context.world(),
                       std::make_shared<DelayedCommunicator>(context.communicator(), delay));
    SleepingModel net(asked.layers, asked.milliseconds * 1e-3);
    ShardedModel model = fully_shard(net, slow, asked.sharding);
    optim::Sgd optimizer(model.parameters(), {.lr = 1e-3});
    const Tensor x = Tensor::full({4, width}, 1.0);
    const auto step = [&] {
      context.barrier();
      const auto begin = std::chrono::steady_clock::now();
      net.loss(x).backward();
      optimizer.step();
      optimizer.zero_grad();
      return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    };
    for (int i = 0; i < 2; ++i) (void)step();
    const std::uint64_t before = delay->bytes;
    (void)step();
    const double computation = 3 * asked.layers * asked.milliseconds * 1e-3;
    const std::uint64_t bytes = delay->bytes - before;
    TESSERA_CHECK(bytes > 0, ErrorCode::configuration, "nothing moves: use two ranks or more");
    delay->seconds_per_byte = computation / static_cast<double>(bytes);
    (void)step();
    const double stalled = model.communication().exposed_seconds;
    std::vector<double> steps;
    for (int i = 0; i < asked.rounds; ++i) steps.push_back(step());
    if (!context.is_main()) return;
    result.step = bench::median(steps);
    result.computation = computation;
    result.communication = static_cast<double>(bytes) * delay->seconds_per_byte;
    result.exposed = (model.communication().exposed_seconds - stalled) / asked.rounds;
  });
  return result;
}

std::optional<Strategy> strategy_named(const std::string& name) {
  for (const StrategyRow& row : strategy_table) {
    if (row.name == name) return row.strategy;
  }
  return std::nullopt;
}

std::vector<bench::Option> options_of(Asked& asked) {
  ShardingOptions& sharding = asked.sharding;
  return {bench::number("--ranks", asked.ranks, 1, "ranks, which are threads"),
          bench::number("--layers", asked.layers, 1, "layers of the model"),
          bench::number("--ms", asked.milliseconds, 0.001, "milliseconds of a layer's forward"),
          bench::number("--rounds", asked.rounds, 1, "steps, of which the median counts"),
          {"--strategy", "a sharding strategy (FULL_SHARD)",
           [&sharding](const std::string& name) {
             const auto strategy = strategy_named(name);
             sharding.strategy = strategy.value_or(Strategy::full_shard);
             return strategy.has_value();
           }},
          bench::number("--group", sharding.group_size, 1, "ranks of a group in HYBRID_*"),
          {"--reshard", "reshard_after_forward to this number of ranks",
           [&sharding](const std::string& given) {
             int ranks = 0;
             const bool good = bench::number("", ranks, 1, "").read(given);
             if (good) sharding.reshard_after_forward = ranks;
             return good;
           }},
          bench::number("--limit", sharding.limit_all_gathers, 1, "gathers ahead"),
          {"--prefetch", "true or false (true)",
           [&sharding](const std::string& given) {
             sharding.forward_prefetch = given == "true";
             sharding.backward_prefetch =
                 sharding.forward_prefetch ? BackwardPrefetch::pre : BackwardPrefetch::none;
             return given == "true" || given == "false";
           }},
          bench::text("--json", asked.json, "a file for the results")};
}

}  // namespace

int main(int argc, char** argv) {
  Asked asked;
  asked.sharding.wrap = WrapPolicy::transformer({"SleepingLayer"});
  bench::read_options(
      argc, argv, "The communication that a training step hides, with delays in place of links.",
      options_of(asked));
  try {
    const Result got = measure(asked);
    const double longer = std::max(got.computation, got.communication);
    const nlohmann::ordered_json json = {{"strategy", name_of(asked.sharding.strategy)},
                                         {"ranks", asked.ranks},
                                         {"layers", asked.layers},
                                         {"step_s", got.step},
                                         {"computation_s", got.computation},
                                         {"communication_s", got.communication},
                                         {"exposed_s", got.exposed},
                                         {"ratio", got.step / longer}};
    fmt::print("{}\n", json.dump(2));
    if (!asked.json.empty()) std::ofstream(asked.json) << json.dump(2) << '\n';
  } catch (const std::exception& error) {
    fmt::print(stderr, "overlap_bench: {}\n", error.what());
    return 1;
  }
  return 0;
}
