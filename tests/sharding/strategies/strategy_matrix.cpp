// The whole matrix, which takes hours (scripts/strategy-matrix): every way to shard, to prefetch,
// to place state, to recompute and to order work gives the bits of NO_SHARD at the same world size.
// The ordinary tests run a sample of it.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "sharding/strategies/strategy_bits.h"
#include "sharding/units/mixed_module.h"
#include "sharding/units/shared_module.h"

namespace tessera {
namespace {

using testing::TrainingCase;
using testing::Trajectory;

struct MatrixModel {
  std::string name;
  std::vector<std::string> units;
  Trajectory (*train)(int world, const ShardingOptions& options, const TrainingCase& what);
};

const std::vector<MatrixModel>& models() {
  using testing::train_ranks;
  static const std::vector<MatrixModel> all{
      {"Tied",
       {"ToyBlock"},
       [](int world, const ShardingOptions& options, const TrainingCase& what) {
         return testing::train_toy(world, options, what);
       }},
      {"MixedAndFrozen",
       {"FourSegments"},
       [](int world, const ShardingOptions& options, const TrainingCase& what) {
         return train_ranks(world, options, what, [](double dropout) {
           return std::make_unique<testing::MixedAndFrozen>(dropout);
         });
       }},
      {"SharedAndNested",
       {"ToyBlock", "SharedPair"},
       [](int world, const ShardingOptions& options, const TrainingCase& what) {
         return train_ranks(world, options, what,
                            [](double) { return std::make_unique<testing::SharedUnits>(false); });
       }},
  };
  return all;
}

struct Precision {
  std::string name;
  std::optional<DType> compute, reduce;
};

const std::vector<Precision>& precisions() {
  static const std::vector<Precision> all{{"Float32", {}, {}},
                                          {"BFloat16", bfloat16, {}},
                                          {"BFloat16ReducedInFloat32", bfloat16, float32}};
  return all;
}

const std::vector<TrainingCase>& accumulations() {
  static const std::vector<TrainingCase> all{
      {.name = "one", .dropout = 0.1, .max_norm = 1e-3},
      {.name = "two", .dropout = 0.1, .micro_batches = 2, .max_norm = 1e-3},
      {.name = "no_sync", .dropout = 0.1, .micro_batches = 2, .no_sync = true, .max_norm = 1e-3}};
  return all;
}

std::vector<OffloadOptions> placements() {
  OffloadOptions files;
  files.parameters = files.gradients = files.optimizer = Placement::file;
  files.folder = ::testing::TempDir();
  files.piece_bytes = 8192;
  return {{}, files};
}

class SerialStreams {
 public:
  explicit SerialStreams(bool serial) { setenv("TESSERA_SERIAL_STREAMS", serial ? "1" : "0", 1); }
  ~SerialStreams() { unsetenv("TESSERA_SERIAL_STREAMS"); }
  SerialStreams(const SerialStreams&) = delete;
  SerialStreams& operator=(const SerialStreams&) = delete;
};

// The variants of one strategy: schedules, places of state, recomputation, order of work.
template <class F>
void for_all_ways(const ShardingOptions& strategy, F&& visit) {
  using enum BackwardPrefetch;
  using Recompute = ActivationCheckpointing;
  for (const BackwardPrefetch backward : {pre, post, none}) {
    for (const bool forward : {true, false}) {
      for (const OffloadOptions& offload : placements()) {
        for (const auto recompute : {Recompute::none, Recompute::full, Recompute::selective}) {
          for (const bool serial : {false, true}) {
            ShardingOptions options = strategy;
            options.backward_prefetch = backward;
            options.forward_prefetch = forward;
            options.offload = offload;
            options.activation_checkpointing = recompute;
            visit(options, serial);
          }
        }
      }
    }
  }
}

std::string describe_way(const ShardingOptions& options, bool serial) {
  return testing::describe(options) + ", backward prefetch " +
         std::to_string(static_cast<int>(options.backward_prefetch)) +
         (options.forward_prefetch ? ", forward prefetch" : "") +
         (options.offload.uses_files() ? ", files" : "") + ", recomputation " +
         std::to_string(static_cast<int>(options.activation_checkpointing)) +
         (serial ? ", serial streams" : "");
}

// TESSERA_MATRIX_EVERY=N runs each N-th cell, starting at another one in each test.
std::uint64_t taken_cells() {
  const char* text = std::getenv("TESSERA_MATRIX_EVERY");
  const std::uint64_t every = text == nullptr ? 1 : std::strtoull(text, nullptr, 10);
  return every == 0 ? 1 : every;
}

using Cell = std::tuple<int, MatrixModel, Precision>;
class StrategyMatrix : public ::testing::TestWithParam<Cell> {};

TEST_P(StrategyMatrix, GivesTheBitsOfNoShard) {
  const auto& [world, model, precision] = GetParam();
  const std::uint64_t every = taken_cells();
  std::uint64_t cell = static_cast<std::uint64_t>(world), trained = 0;
  for (TrainingCase what : accumulations()) {
    what.steps = 2;
    what.batch = 1;
    const auto train = [&](ShardingOptions options) {
      options.wrap = WrapPolicy::transformer(model.units);
      options.param_dtype = precision.compute;
      options.reduce_dtype = precision.reduce;
      return model.train(world, options, what);
    };
    std::map<int, Trajectory> expected;  // by order of summation
    for (const ShardingOptions& strategy : testing::all_strategies(world)) {
      for_all_ways(strategy, [&](const ShardingOptions& options, bool serial) {
        if (cell++ % every != 0) return;
        const int order = testing::summation_group(options, world);
        if (!expected.contains(order)) {
          ShardingOptions plain = testing::toy_options(Strategy::no_shard);
          plain.reduction_group = order;
          expected[order] = train(plain);
        }
        const SerialStreams streams(serial);
        ++trained;
        ASSERT_TRUE(testing::same_bits(expected[order], train(options)))
            << describe_way(options, serial) << ", " << what.name;
      });
      if (HasFatalFailure()) return;
    }
  }
  std::printf("%llu cells agree\n", static_cast<unsigned long long>(trained));
}

INSTANTIATE_TEST_SUITE_P(All, StrategyMatrix,
                         ::testing::Combine(::testing::Values(1, 2, 3, 4, 5, 7, 8),
                                            ::testing::ValuesIn(models()),
                                            ::testing::ValuesIn(precisions())),
                         [](const auto& cell) {
                           return "On" + std::to_string(std::get<0>(cell.param)) +
                                  std::get<1>(cell.param).name + std::get<2>(cell.param).name;
                         });

}  // namespace
}  // namespace tessera
