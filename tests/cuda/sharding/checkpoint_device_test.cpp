// Checkpoints between a GPU and the CPU: the same files, the same state, in both directions.
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "checkpoint/save/async_save.h"
#include "checkpoint/sharded_state.h"
#include "checkpoint/state/transfer.h"
#include "engine/device/queue.h"
#include "sharding/sharding_testing.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using checkpoint::StateDictType;

class CheckpointDevice : public ::testing::TestWithParam<StateDictType> {
 protected:
  CheckpointDevice()
      : folder_(fs::temp_directory_path() /
                ("tessera-checkpoint-device-" + std::to_string(getpid()))) {
    fs::create_directories(folder_);
  }
  ~CheckpointDevice() override { fs::remove_all(folder_); }

  fs::path folder_;
};
INSTANTIATE_TEST_SUITE_P(Types, CheckpointDevice,
                         ::testing::Values(StateDictType::full, StateDictType::sharded),
                         [](const auto& parameter) {
                           return parameter.param == StateDictType::full ? "Full" : "Sharded";
                         });

// Runs on two ranks of `device`: a model, loaded from `from` or else trained for a step, saved
// under `to`. The file has bf16, so elements are converted.
void run(Device device, Strategy strategy, const fs::path& from, const fs::path& to,
         StateDictType type, DType model_dtype) {
  launch(
      2,
      [&](Context& context) {
        const testing::OneThread one_thread;
        manual_seed(from.empty() ? 3 : 4);
        testing::ToyTransformer net;
        ShardedModel model = fully_shard(net, context, testing::toy_options(strategy));
        optim::AdamW optimizer(model.parameters(), {});
        if (from.empty()) {
          const auto batch = testing::toy_batch(context.rank(), 1);
          net.loss(batch.ids.to(device), batch.targets.to(device)).backward();
          optimizer.step();
        } else {
          load(context, from, model, optimizer);
        }
        save(context, to, model, optimizer, {.step = 1, .type = type, .model_dtype = model_dtype});
      },
      device);
}

// The contents of all tensor files by name.
std::map<std::string, std::string> tensor_files(const fs::path& step) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::directory_iterator(step)) {
    if (entry.path().extension() != ".safetensors") continue;
    std::ifstream in(entry.path(), std::ios::binary);
    files[entry.path().filename()] = {std::istreambuf_iterator<char>(in), {}};
  }
  return files;
}

TEST_P(CheckpointDevice, GoesToTheCpuAndBack) {
  const StateDictType type = GetParam();
  run(Device::cuda(), Strategy::full_shard, {}, folder_ / "trained", type, float32);
  run(Device::cpu(), Strategy::full_shard, folder_ / "trained/step-1", folder_ / "cpu", type,
      float32);
  run(Device::cuda(), Strategy::full_shard, folder_ / "cpu/step-1", folder_ / "back", type,
      float32);
  const auto trained = tensor_files(folder_ / "trained/step-1");
  EXPECT_EQ(trained.size(), type == StateDictType::full ? 2u : 4u);
  EXPECT_TRUE(tensor_files(folder_ / "cpu/step-1") == trained);
  EXPECT_TRUE(tensor_files(folder_ / "back/step-1") == trained);
}

TEST_P(CheckpointDevice, ConvertsAsTheCpuDoes) {
  const StateDictType type = GetParam();
  run(Device::cuda(), Strategy::full_shard, {}, folder_ / "trained", type, float32);
  for (const Device device : {Device::cpu(), Device::cuda()}) {
    run(device, Strategy::no_shard, folder_ / "trained/step-1", folder_ / device.to_string(), type,
        bfloat16);
  }
  EXPECT_TRUE(tensor_files(folder_ / "cpu/step-1") == tensor_files(folder_ / "cuda:0/step-1"));
  // And from bf16 in the file to fp32 in memory.
  run(Device::cuda(), Strategy::full_shard, folder_ / "cpu/step-1", folder_ / "again", type,
      bfloat16);
  run(Device::cpu(), Strategy::full_shard, folder_ / "cpu/step-1", folder_ / "again-cpu", type,
      bfloat16);
  EXPECT_TRUE(tensor_files(folder_ / "again/step-1") == tensor_files(folder_ / "again-cpu/step-1"));
}

// The copy has the values at the time of the save, even if the device reaches it later.
TEST_P(CheckpointDevice, IsSavedDuringTraining) {
  launch(
      2,
      [&](Context& context) {
        const testing::OneThread one_thread;
        manual_seed(3);
        testing::ToyTransformer net;
        ShardedModel model = fully_shard(net, context, testing::toy_options(Strategy::full_shard));
        optim::AdamW optimizer(model.parameters(), {.lr = 0.1});
        AsyncSaver saver(context, model, optimizer);
        const auto train = [&](std::int64_t sample) {
          const auto batch = testing::toy_batch(sample + context.rank(), 1);
          const Device device = context.device();
          net.loss(batch.ids.to(device), batch.targets.to(device)).backward();
          optimizer.step();
          optimizer.zero_grad();
        };
        for (std::int64_t step = 1; step <= 2; ++step) {
          train(step);
          const SaveOptions options{.step = step, .type = GetParam(), .model_dtype = bfloat16};
          save(context, folder_ / "now", model, optimizer, options);
          (void)saver.save(folder_ / "meanwhile", options);
          train(step + 100);
        }
        (void)saver.wait();
      },
      Device::cuda());
  for (const char* step : {"step-1", "step-2"}) {
    EXPECT_TRUE(tensor_files(folder_ / "now" / step) == tensor_files(folder_ / "meanwhile" / step));
  }
}

// More elements than a staging buffer holds, for every combination of devices and dtypes.
TEST(StagingDevice, MovesInSlices) {
  const std::int64_t count = checkpoint::Staging::bytes / 4 + 12'345;
  std::vector<float> values(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i) * 0.37f - 3e5f;
  const Tensor host = Tensor::from(values, {count});
  const Tensor device = host.to(Device::cuda());
  checkpoint::Staging staging;
  const auto stored = [&](const Tensor& tensor, DType to) {
    std::string bytes;
    staging.store(tensor.data(), tensor.device(), count, float32, to,
                  [&](std::uint64_t offset, const void* data, std::size_t size) {
                    EXPECT_EQ(offset, bytes.size());
                    bytes.append(static_cast<const char*>(data), size);
                  });
    return bytes;
  };
  for (const DType in_file : {float32, bfloat16}) {
    const std::string bytes = stored(host, in_file);
    EXPECT_EQ(bytes.size(), static_cast<std::size_t>(count) * size_of(in_file));
    EXPECT_TRUE(stored(device, in_file) == bytes);
    std::vector<std::vector<double>> loaded;
    for (const Device place : {Device::cpu(), Device::cuda()}) {
      Tensor out = Tensor::zeros({count}, float32, place);
      staging.load(out.data(), place, count, in_file, float32,
                   [&](std::uint64_t offset, void* data, std::size_t size) {
                     bytes.copy(static_cast<char*>(data), size, offset);
                   });
      loaded.push_back(out.to_vector());
    }
    EXPECT_TRUE(loaded[0] == loaded[1]);
    EXPECT_EQ(loaded[0][1] == static_cast<double>(values[1]), in_file == float32);
  }
}

}  // namespace
}  // namespace tessera
