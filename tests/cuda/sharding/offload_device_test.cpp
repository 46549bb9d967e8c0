// Masters, gradients and moments on the host: the bits of a run that has them on the GPU, and
// memory as planned.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "checkpoint/sharded_state.h"
#include "cuda/sharding/offload_testing.h"
#include "engine/device/memory.h"
#include "sharding/memory/buffer_plan.h"
#include "sharding/memory/layouts.h"
#include "sharding/plan/plan.h"

namespace tessera {
namespace {

using testing::OffloadOnDevice;
using testing::placements;
using testing::placements_of;
using testing::toy_options;
using testing::ToyTransformer;
using testing::TrainingCase;

TEST_F(OffloadOnDevice, EveryWayOfTrainingKeepsItsBits) {
  std::size_t turn = 0;
  for (const TrainingCase& what : testing::training_cases()) {
    for (ShardingOptions options :
         {toy_options(Strategy::full_shard), toy_options(Strategy::no_shard)}) {
      options.param_dtype = bfloat16;
      options.activation_checkpointing =
          turn++ % 2 == 0 ? ActivationCheckpointing::full : ActivationCheckpointing::none;
      testing::expect_offload_keeps_bits(2, options, what, {placements().front()});
    }
  }
}

// All state on the host, and one of the other placements in turn.
TEST_F(OffloadOnDevice, StrategiesKeepTheirBits) {
  const std::vector<OffloadOptions> all = placements();
  std::size_t turn = 0;
  for (const ShardingOptions& options : testing::all_strategies(2)) {
    testing::expect_offload_keeps_bits(2, options, {.micro_batches = 2, .max_norm = 1e-3},
                                       {all.front(), all[1 + turn++ % (all.size() - 1)]});
  }
}

TEST_F(OffloadOnDevice, EveryPlacementKeepsItsBits) {
  testing::expect_offload_keeps_bits(2, toy_options(Strategy::full_shard),
                                     {.micro_batches = 2, .max_norm = 1e-3}, placements());
}

// The parameters, their gradients and momenta after some steps of SGD, where one unit is frozen,
// one parameter's gradient is dropped between two backwards, clipping is left pending, and no norm
// is computed between the last backward and a step.
std::vector<std::vector<double>> trained_by_hand(const OffloadOptions& offload) {
  std::vector<std::vector<double>> seen;
  const auto rank = [&](Context& context) {
    const testing::OneThread one_thread;
    manual_seed(11);
    ToyTransformer net;
    for (const auto& parameter : net.named_parameters()) {
      Tensor tensor = parameter.tensor;
      if (parameter.name.starts_with("blocks.1.")) tensor.set_requires_grad(false);
    }
    ShardingOptions options = toy_options(Strategy::full_shard);
    options.offload = offload;
    ShardedModel model = fully_shard(net, context, options);
    optim::Sgd optimizer(model.parameters(), {.lr = 0.1, .momentum = 0.9, .nesterov = true});
    const auto train_once = [&] {
      const auto batch = testing::toy_batch(context.rank(), 1);
      net.loss(batch.ids.to(context.device()), batch.targets.to(context.device())).backward();
    };
    for (int step = 0; step < 3; ++step) {
      train_once();
      (void)model.clip_grad_norm(1e-2);
      model.parameters()[1].tensor.zero_grad();
      train_once();  // adds to the clipped gradients
      if (step == 1) {
        Tensor first = model.parameters().front().tensor;
        first.copy_from(Tensor::full(first.shape(), 0.01));
      }
      if (step < 2) {
        optimizer.step();
        optimizer.zero_grad();
      }
    }
    if (!context.is_main()) return;
    const auto parameters = model.parameters();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      seen.push_back(parameters[i].tensor.to_vector());
      if (!parameters[i].tensor.requires_grad()) continue;
      seen.push_back(parameters[i].tensor.grad().to_vector());
      seen.push_back(optimizer.state(i, "momentum").to_vector());
    }
  };
  launch(2, rank, Device::cuda());
  return seen;
}

TEST_F(OffloadOnDevice, UsersSeeTheSameValues) {
  const auto expected = trained_by_hand({});
  for (const OffloadOptions& offload : placements()) {
    EXPECT_EQ(trained_by_hand(offload), expected) << placements_of(offload);
  }
}

// Reads a gradient between a step and the next backward, e.g. for logging: clipping is still
// pending in it, and the GPU may still read it.
std::vector<std::vector<double>> trained_with_a_look(const OffloadOptions& offload) {
  std::vector<std::vector<double>> seen;
  const auto rank = [&](Context& context) {
    const testing::OneThread one_thread;
    manual_seed(11);
    ToyTransformer net;
    ShardingOptions options = toy_options(Strategy::full_shard);
    options.offload = offload;
    ShardedModel model = fully_shard(net, context, options);
    optim::AdamW optimizer(model.parameters(), {.lr = 0.1});
    for (int step = 0; step < 2; ++step) {
      const auto batch = testing::toy_batch(context.rank(), 1);
      net.loss(batch.ids.to(context.device()), batch.targets.to(context.device())).backward();
      (void)model.clip_grad_norm(1e-2);
      optimizer.step();
      for (const auto& parameter : model.parameters()) {
        seen.push_back(parameter.tensor.grad().to_vector());
      }
      optimizer.zero_grad();
    }
    for (const auto& parameter : model.parameters()) seen.push_back(parameter.tensor.to_vector());
  };
  launch(1, rank, Device::cuda());
  return seen;
}

TEST_F(OffloadOnDevice, AGradientMayBeReadAfterItsStep) {
  const auto expected = trained_with_a_look({});
  for (const OffloadOptions& offload : placements()) {
    EXPECT_EQ(trained_with_a_look(offload), expected) << placements_of(offload);
  }
}

Tensor toy_loss_on(const ToyTransformer& net, Device device) {
  const auto batch = testing::toy_batch(0, 2);
  return net.loss(batch.ids.to(device), batch.targets.to(device));
}

// Two steps of rank 0 of two ranks that share the GPU.
RankMemory measured_with(const ShardingOptions& options) {
  RankMemory measured;
  const auto rank = [&](Context& context) {
    manual_seed(5);
    std::optional<ToyTransformer> net;
    {
      const DeviceGuard deferred(Device::meta());
      net.emplace();
    }
    ShardedModel model = fully_shard(*net, context, options);
    optim::AdamW optimizer(model.parameters(), {});
    for (int step = 0; step < 2; ++step) {
      toy_loss_on(*net, context.device()).backward();
      (void)model.clip_grad_norm(1.0);
      optimizer.step();
      optimizer.zero_grad();
    }
    const HeldBytes held = model.held_bytes();
    const RankMemory mine = measure_memory(context);
    EXPECT_EQ(held.parameters, mine.of(MemoryKind::parameters));
    EXPECT_EQ(held.gradients, mine.of(MemoryKind::gradients));
    if (context.is_main()) measured = mine;
  };
  launch(2, rank, Device::cuda());
  return measured;
}

RankMemory planned_with(const ShardingOptions& options) {
  const DeviceGuard deferred(Device::meta());
  ToyTransformer net;
  PlanOptions plan_options;
  plan_options.sharding = options;
  plan_options.loss = [&](Device device) { return toy_loss_on(net, device); };
  return plan(net, {.ranks = 2, .device = DeviceType::cuda, .one_memory = true}, plan_options)
      .memory;
}

BufferPlan table_of(const ShardingOptions& options) {
  const DeviceGuard deferred(Device::meta());
  ToyTransformer net;
  std::vector<UnitLayout> layouts;
  std::vector<PlannedUnit> units;
  const auto expected = testing::expected_units(net, options.wrap);
  for (const auto& unit : expected) layouts.push_back(unit.layout(shards_of(options, 2)));
  for (std::size_t i = 0; i < expected.size(); ++i)
    units.push_back({expected[i].name, &layouts[i]});
  return buffer_plan(units, options, {.size = 2, .device = Device::cuda()});
}

// Offloaded state moves to the host byte for byte; the GPU has only windows in addition.
TEST_F(OffloadOnDevice, MemoryMovesByteForByte) {
  for (const Strategy strategy : {Strategy::full_shard, Strategy::no_shard}) {
    ShardingOptions options = toy_options(strategy);
    const RankMemory before = measured_with(options);
    EXPECT_EQ(before.on_host.total(), 0u);
    for (const OffloadOptions& offload : placements()) {
      options.offload = offload;
      const std::string what = testing::describe(options) + placements_of(offload);
      const RankMemory planned = planned_with(options), measured = measured_with(options);
      const BufferPlan table = table_of(options);
      for (const MemoryKind kind : {MemoryKind::parameters, MemoryKind::gradients,
                                    MemoryKind::optimizer, MemoryKind::communication}) {
        EXPECT_EQ(planned.of(kind), measured.of(kind)) << what << ", " << name_of(kind);
        EXPECT_EQ(planned.on_host[kind], measured.on_host[kind]) << what << ", " << name_of(kind);
      }
      EXPECT_EQ(planned.total(), measured.total()) << what;
      std::size_t windows = 0, windows_on_host = 0;
      for (const PlannedBuffer& buffer : table.buffers) {
        const bool state =
            buffer.use == BufferUse::masters || buffer.use == BufferUse::gradient_shard;
        if (state || buffer.kind == MemoryKind::communication) continue;
        (buffer.on_host ? windows_on_host : windows) += buffer.total();
      }
      for (const MemoryKind kind : {MemoryKind::parameters, MemoryKind::gradients}) {
        EXPECT_EQ(measured.of(kind), table.bytes(kind)) << what << ", " << name_of(kind);
        EXPECT_EQ(measured.on_host[kind], table.bytes_on_host(kind)) << what;
      }
      const auto state_of = [](const RankMemory& memory) {
        std::size_t bytes = 0;
        for (const MemoryKind kind :
             {MemoryKind::parameters, MemoryKind::gradients, MemoryKind::optimizer})
          bytes += memory.of(kind) + memory.on_host[kind];
        return bytes;
      };
      EXPECT_EQ(state_of(measured), state_of(before) + windows + windows_on_host) << what;
      EXPECT_EQ(measured.of(MemoryKind::optimizer) == 0, offload.optimizer == Placement::host);
    }
  }
}

// Trains with one placement, then with the others from its checkpoint, in the middle of training.
TEST_F(OffloadOnDevice, CheckpointsAreIndependentOfIt) {
  const std::filesystem::path folder =
      std::filesystem::path(::testing::TempDir()) / ("offload-device-" + std::to_string(getpid()));
  const auto run = [&](const OffloadOptions& offload, const std::string& from,
                       const std::string& to, checkpoint::StateDictType type) {
    const auto rank = [&](Context& context) {
      const testing::OneThread one_thread;
      manual_seed(from.empty() ? 3 : 4);
      ToyTransformer net;
      ShardingOptions options = toy_options(Strategy::full_shard);
      options.offload = offload;
      ShardedModel model = fully_shard(net, context, options);
      optim::AdamW optimizer(model.parameters(), {});
      if (!from.empty()) load(context, folder / from / "step-1", model, optimizer);
      for (int step = 0; step < 2; ++step) {
        toy_loss_on(net, context.device()).backward();
        optimizer.step();
        optimizer.zero_grad();
      }
      save(context, folder / to, model, optimizer, {.step = 1, .type = type});
    };
    launch(2, rank, Device::cuda());
  };
  const auto files = [&](const std::string& name) {
    std::map<std::string, std::string> contents;
    for (const auto& entry : std::filesystem::directory_iterator(folder / name / "step-1")) {
      if (entry.path().extension() != ".safetensors") continue;
      std::ifstream in(entry.path(), std::ios::binary);
      contents[entry.path().filename()] = {std::istreambuf_iterator<char>(in), {}};
    }
    return contents;
  };
  for (const auto type : {checkpoint::StateDictType::full, checkpoint::StateDictType::sharded}) {
    run({}, {}, "first", type);
    run({}, "first", "expected", type);
    int number = 0;
    for (const OffloadOptions& offload : {placements().front(), placements()[3]}) {
      const std::string name = std::to_string(number++);
      run(offload, {}, "first" + name, type);
      run(offload, "first" + name, "second" + name, type);
      EXPECT_TRUE(files("first" + name) == files("first")) << placements_of(offload);
      EXPECT_TRUE(files("second" + name) == files("expected")) << placements_of(offload);
    }
  }
  std::filesystem::remove_all(folder);
}

TEST_F(OffloadOnDevice, FilesAreRefusedByName) {
  ShardingOptions options = toy_options(Strategy::full_shard);
  options.offload.gradients = Placement::file;
  options.offload.folder = ::testing::TempDir();
  const auto train = [&] {
    launch(
        1,
        [&](Context& context) {
          ToyTransformer net;
          (void)fully_shard(net, context, options);
        },
        Device::cuda());
  };
  EXPECT_EQ(testing::message_of<Error>(train),
            "sharding.offload.gradients: file is for CPU ranks in this version; on a GPU `host` "
            "works, which keeps it in the host's memory");
}

}  // namespace
}  // namespace tessera
