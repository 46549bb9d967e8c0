// Masters, gradients and moments in files: the bits of a run that has them in memory, and memory as
// planned.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <csignal>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "sharding/memory/buffer_plan.h"
#include "sharding/memory/layouts.h"
#include "sharding/sharding_testing.h"
#include "sharding/strategies/strategy_bits.h"

namespace tessera {
namespace {

using testing::ToyTransformer;
using testing::TrainingCase;

constexpr Placement in_memory = Placement::device;
constexpr Placement in_file = Placement::file;

// Pieces of two blocks, so that the toy's shards need several.
OffloadOptions small_pieces(Placement parameters, Placement gradients, Placement optimizer) {
  OffloadOptions options;
  options.parameters = parameters;
  options.gradients = gradients;
  options.optimizer = optimizer;
  options.folder = ::testing::TempDir();
  options.piece_bytes = 8192;
  return options;
}

const std::vector<OffloadOptions>& placements() {
  static const std::vector<OffloadOptions> all{
      small_pieces(in_file, in_memory, in_memory), small_pieces(in_memory, in_file, in_memory),
      small_pieces(in_memory, in_memory, in_file), small_pieces(in_file, in_file, in_file)};
  return all;
}

std::string placements_of(const OffloadOptions& options) {
  std::string text;
  for (const Placement placement : {options.parameters, options.gradients, options.optimizer})
    text += " " + std::string(name_of(placement));
  return text;
}

// All of them in files, and each alone in turn.
void expect_same_bits(int world, ShardingOptions options, const TrainingCase& what,
                      std::size_t turn) {
  const testing::Trajectory expected = testing::train_toy(world, options, what);
  for (const OffloadOptions& offload : {placements()[turn % 3], placements().back()}) {
    options.offload = offload;
    EXPECT_TRUE(testing::same_bits(expected, testing::train_toy(world, options, what)))
        << testing::describe(options) << " on " << world << " ranks, " << what.name << ", offload"
        << placements_of(offload);
  }
}

TEST(Offload, EveryStrategyKeepsItsBits) {
  std::size_t turn = 0;
  for (const int world : {1, 2, 3}) {
    for (const ShardingOptions& options : testing::all_strategies(world)) {
      expect_same_bits(world, options, {.micro_batches = 2, .max_norm = 1e-3}, turn++);
    }
  }
}

TEST(Offload, EveryWayOfTrainingKeepsItsBits) {
  std::size_t turn = 0;
  for (const TrainingCase& what : testing::training_cases()) {
    for (ShardingOptions options :
         {testing::toy_options(Strategy::full_shard), testing::toy_options(Strategy::no_shard),
          testing::toy_options(Strategy::hybrid_shard, 2)}) {
      options.param_dtype = bfloat16;
      options.activation_checkpointing =
          turn % 2 == 0 ? ActivationCheckpointing::full : ActivationCheckpointing::none;
      expect_same_bits(4, options, what, turn++);
    }
  }
}

TEST(Offload, ThePageCacheChangesNothing) {
  ShardingOptions options = testing::toy_options(Strategy::full_shard);
  const testing::Trajectory expected = testing::train_toy(2, options);
  options.offload = placements().back();
  options.offload.direct = false;
  EXPECT_TRUE(testing::same_bits(expected, testing::train_toy(2, options)));
  options.offload.folder = "/dev/shm";  // a file system of another kind
  EXPECT_TRUE(testing::same_bits(expected, testing::train_toy(2, options)));
}

// The parameters, their gradients and momenta after some steps of SGD, where one unit is frozen,
// one parameter's gradient is dropped between two backwards, and clipping is left pending.
std::vector<std::vector<double>> trained_by_hand(const OffloadOptions& offload) {
  std::vector<std::vector<double>> seen;
  launch(2, [&](Context& context) {
    const testing::OneThread one_thread;
    manual_seed(11);
    ToyTransformer net;
    for (const auto& parameter : net.named_parameters()) {
      Tensor tensor = parameter.tensor;
      if (parameter.name.starts_with("blocks.1.")) tensor.set_requires_grad(false);
    }
    ShardingOptions options = testing::toy_options(Strategy::full_shard);
    options.offload = offload;
    ShardedModel model = fully_shard(net, context, options);
    optim::Sgd optimizer(model.parameters(), {.lr = 0.1, .momentum = 0.9, .nesterov = true});
    for (int step = 0; step < 3; ++step) {
      testing::train_once(context, net);
      (void)model.clip_grad_norm(1e-2);
      model.parameters()[1].tensor.zero_grad();
      testing::train_once(context, net);  // adds to the clipped gradients
      (void)model.clip_grad_norm(1e-2);
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
  });
  return seen;
}

TEST(Offload, UsersSeeTheSameValues) {
  const auto expected = trained_by_hand({});
  for (const OffloadOptions& offload : placements()) {
    EXPECT_EQ(trained_by_hand(offload), expected) << placements_of(offload);
  }
}

TEST(Offload, ValuesThatUsersWriteAreTrained) {
  const auto train = [](const OffloadOptions& offload) {
    std::vector<double> losses;
    ShardingOptions options = testing::toy_options(Strategy::full_shard);
    options.offload = offload;
    testing::on_ranks(2, options, [&](Context& context, ToyTransformer& net, ShardedModel& model) {
      optim::AdamW optimizer(model.parameters(), {.lr = 1e-2});
      for (int step = 0; step < 3; ++step) {
        const auto batch = testing::toy_batch(context.rank(), 2);
        const Tensor loss = net.loss(batch.ids, batch.targets);
        loss.backward();
        if (context.is_main()) losses.push_back(loss.item());
        optimizer.step();
        optimizer.zero_grad();
        Tensor first = model.parameters().front().tensor;
        first.copy_from(Tensor::full(first.shape(), 0.01 * step));
      }
    });
    return losses;
  };
  EXPECT_EQ(train(placements().back()), train({}));
}

// The plan for this rank, computed only by the table.
BufferPlan plan_of(const Context& context, const ShardingOptions& options) {
  const DeviceGuard deferred(Device::meta());
  ToyTransformer net;
  std::vector<UnitLayout> layouts;
  std::vector<PlannedUnit> units;
  const auto expected = testing::expected_units(net, options.wrap);
  for (const auto& unit : expected)
    layouts.push_back(unit.layout(shards_of(options, context.world_size())));
  for (std::size_t i = 0; i < expected.size(); ++i)
    units.push_back({expected[i].name, &layouts[i]});
  return buffer_plan(units, options, {.size = context.world_size()});
}

TEST(Offload, FilesDoNotCountAsMemory) {
  for (const OffloadOptions& offload : placements()) {
    ShardingOptions options = testing::toy_options(Strategy::full_shard);
    options.offload = offload;
    launch(2, [&](Context& context) {
      const testing::OneThread one_thread;
      manual_seed(3);
      std::optional<ToyTransformer> net;
      {
        const DeviceGuard deferred(Device::meta());
        net.emplace();
      }
      ShardedModel model = fully_shard(*net, context, options);
      optim::AdamW optimizer(model.parameters(), {});
      testing::train_once(context, *net);
      optimizer.step();
      const BufferPlan plan = plan_of(context, options);
      const MemoryStats stats = MemoryPool::current()->stats();
      for (const MemoryKind kind : {MemoryKind::parameters, MemoryKind::gradients}) {
        EXPECT_EQ(stats.use[kind], plan.bytes(kind)) << name_of(kind) << placements_of(offload);
        EXPECT_EQ(stats.in_files[kind], plan.bytes_in_files(kind)) << name_of(kind);
      }
      EXPECT_EQ(model.held_bytes().parameters, plan.bytes(MemoryKind::parameters));
      EXPECT_EQ(model.held_bytes().gradients, plan.bytes(MemoryKind::gradients));
      const bool moments = offload.optimizer == in_file;
      EXPECT_EQ(stats.in_files[MemoryKind::optimizer] > 0, moments);
      // Two windows of four pieces.
      EXPECT_EQ(stats.use[MemoryKind::optimizer] == 2 * (4 * (8192 + 4096) + 4096), moments);
    });
  }
}

TEST(Offload, NothingIsLeftInTheFolder) {
  const std::filesystem::path folder = ::testing::TempDir() + "offload-empty";
  ShardingOptions options = testing::toy_options(Strategy::full_shard);
  options.offload = placements().back();
  options.offload.folder = folder.string();
  testing::on_ranks(2, options, [&](Context& context, ToyTransformer& net, ShardedModel& model) {
    optim::AdamW optimizer(model.parameters(), {});
    testing::train_once(context, net);
    EXPECT_TRUE(std::filesystem::is_empty(folder));
  });
  std::filesystem::remove(folder);
}

std::string refusal_of(const OffloadOptions& offload) {
  ShardingOptions options = testing::toy_options(Strategy::full_shard);
  options.offload = offload;
  return testing::message_of<Error>([&] { testing::on_ranks(1, options, [](const auto&...) {}); });
}

TEST(Offload, AnInvalidFolderIsRefused) {
  OffloadOptions options = placements().front();
  options.folder.clear();
  EXPECT_NE(refusal_of(options).find("sharding.offload.folder"), std::string::npos);
  options.folder = "/proc/tessera";
  EXPECT_NE(refusal_of(options).find("the offload folder '/proc/tessera' cannot be made"),
            std::string::npos)
      << refusal_of(options);
}

TEST(Offload, GpusOffloadToTheHostAndNotToFiles) {
  OffloadOptions options;
  options.gradients = Placement::host;
  EXPECT_NO_THROW(check_offload(options, DeviceType::cpu));
  EXPECT_NO_THROW(check_offload(options, DeviceType::cuda));
  EXPECT_FALSE(options.on(DeviceType::cpu).uses_host());
  EXPECT_TRUE(options.on(DeviceType::cuda).uses_host());
  options.parameters = Placement::file;
  options.folder = "/tmp";
  EXPECT_EQ(testing::message_of<Error>([&] { check_offload(options, DeviceType::cuda); }),
            "sharding.offload.parameters: file is for CPU ranks in this version; on a GPU `host` "
            "works, which keeps it in the host's memory");
}

// Limits the size of files of this process for a scope, like a full disk.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  rlimit before_{};
  void (*handler_)(int);
};

TEST(Offload, AFolderWithoutRoomIsRefusedBeforeTheFirstStep) {
  const FileSizeLimit limit(10'000);
  const std::string refusal = refusal_of(placements().front());
  EXPECT_NE(refusal.find("has no room for the master parameters of rank 0: "), std::string::npos)
      << refusal;
  EXPECT_NE(refusal.find(" bytes are needed and "), std::string::npos) << refusal;
}

// At whatever write the disk fails first, the step ends with the file's name on that rank.
TEST(Offload, ADiskThatFailsEndsTheStep) {
  for (const OffloadOptions& offload : placements()) {
    ShardingOptions options = testing::toy_options(Strategy::full_shard);
    options.offload = offload;
    std::optional<FileSizeLimit> limit;
    const std::string failure = testing::message_of<Error>([&] {
      testing::on_ranks(2, options,
                        [&](Context& context, ToyTransformer& net, ShardedModel& model) {
                          optim::AdamW optimizer(model.parameters(), {});
                          testing::train_once(context, net);
                          optimizer.step();
                          optimizer.zero_grad();
                          context.barrier();
                          if (context.is_main()) limit.emplace(4096);
                          context.barrier();
                          testing::train_once(context, net);
                          optimizer.step();
                        });
    });
    limit.reset();
    EXPECT_NE(failure.find("cannot write byte "), std::string::npos) << failure;
    EXPECT_NE(failure.find("in the offload folder '"), std::string::npos) << failure;
    EXPECT_NE(failure.find("EFBIG"), std::string::npos) << failure;
  }
}

}  // namespace
}  // namespace tessera
