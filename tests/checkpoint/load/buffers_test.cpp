// Persistent buffers in checkpoints: rank 0's values, loaded by any world, and by name.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "checkpoint/sharded_state.h"
#include "checkpoint/support.h"
#include "sharding/sharding_testing.h"

namespace tessera::checkpoint {
namespace {

using BufferValues = std::vector<double>;

struct Counted : nn::Module {
  explicit Counted(bool with_extra = false) : in(register_module("in", nn::Linear(6, 5))) {
    register_buffer("mean", nn::make_buffer({2, 3}, nn::constant(0)));
    register_buffer("count", nn::make_buffer({1}, nn::constant(0), int64));
    register_buffer("scratch", nn::make_buffer({4}, nn::constant(0)), false);
    if (with_extra) register_buffer("extra", nn::make_buffer({1}, nn::constant(8)));
  }
  void write(int rank) {
    const float base = static_cast<float>(rank) * 10;
    set_buffer("mean",
               Tensor::from({base, base + 1, base + 2, base + 3, base + 4, base + 5}, {2, 3}));
    set_buffer("count", Tensor::from({std::int64_t{7} + rank}, {1}));
    set_buffer("scratch", Tensor::full({4}, 9));
  }
  [[nodiscard]] BufferValues values(const char* name) const { return buffer(name).to_vector(); }
  nn::Linear in;
};

void save_buffers(int world, const std::filesystem::path& folder, StateDictType type) {
  launch(world, [&](Context& context) {
    manual_seed(3);
    Counted net;
    ShardedModel model = fully_shard(net, context);
    optim::AdamW optimizer(model.parameters(), {});
    net.write(context.rank());
    tessera::save(context, folder, model, optimizer, {.step = 1, .type = type});
  });
}

TEST(BuffersInCheckpoints, AreRankZerosOnEveryRankOfAnyWorld) {
  for (const StateDictType type : {StateDictType::full, StateDictType::sharded}) {
    const testing::TemporaryFolder folder;
    save_buffers(3, folder.path(), type);
    verify(folder.path() / "step-1");
    for (const int world : {1, 2, 4}) {
      launch(world, [&](Context& context) {
        manual_seed(99);
        Counted net;
        ShardedModel model = fully_shard(net, context);
        optim::AdamW optimizer(model.parameters(), {});
        (void)tessera::load(context, folder.path() / "step-1", model, optimizer);
        EXPECT_EQ(net.values("mean"), (BufferValues{0, 1, 2, 3, 4, 5}));
        EXPECT_EQ(net.values("count"), BufferValues{7});
        EXPECT_EQ(net.values("scratch"), BufferValues(4, 0));
      });
    }
  }
}

TEST(BuffersInCheckpoints, OneThatIsMissingIsNamedOrKeepsItsValue) {
  const testing::TemporaryFolder folder;
  save_buffers(2, folder.path(), StateDictType::full);
  launch(2, [&](Context& context) {
    manual_seed(3);
    Counted net(true);
    ShardedModel model = fully_shard(net, context);
    const std::string step = folder.path() / "step-1";
    EXPECT_TRUE(testing::has(testing::error_of([&] { (void)tessera::load(context, step, model); },
                                               ErrorCode::checkpoint),
                             "extra"));
    LoadOptions options;
    options.strict = false;
    options.names = [](const std::string& name, bool trained) {
      EXPECT_EQ(trained, name.starts_with("in."));
      return name == "mean" ? std::string() : name;
    };
    const LoadResult result = tessera::load(context, step, model, options);
    EXPECT_EQ(result.model.missing, std::vector<std::string>{"extra"});
    EXPECT_EQ(result.model.unexpected, std::vector<std::string>{"mean"});
    EXPECT_EQ(net.values("extra"), BufferValues{8});
    EXPECT_EQ(net.values("mean"), BufferValues(6, 0));
    EXPECT_EQ(net.values("count"), BufferValues{7});
  });
}

}  // namespace
}  // namespace tessera::checkpoint
