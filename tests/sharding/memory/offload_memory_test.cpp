// Trains state three times the memory limit of a process, through files: the same bits, in
// processes with a real limit.
#include <gtest/gtest.h>
#include <malloc.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "sharding/sharding_testing.h"
#include "support/memory_limit.h"
#include "support/sanitizers.h"

namespace tessera {
namespace {

constexpr std::int64_t offload_width = 512;
constexpr std::int64_t offload_layers = 16;
constexpr std::size_t state_bytes =
    16 * std::size_t{offload_layers} * offload_width * offload_width;  // 64 MiB
constexpr std::size_t limit_bytes = state_bytes / 3;

class WideLayerImpl : public nn::Module {
 public:
  explicit WideLayerImpl(std::int64_t width) {
    linear_ = register_module("linear", nn::Linear(width, width));
  }
  Tensor forward(const Tensor& x) const { return x + gelu(linear_(x)); }

 private:
  nn::Linear linear_;
};
TESSERA_MODULE(WideLayer);

class WideModel : public nn::Module {
 public:
  WideModel() {
    std::vector<WideLayer> made;
    for (std::int64_t i = 0; i < offload_layers; ++i) made.emplace_back(offload_width);
    layers_ = register_module("layers", nn::ModuleList<WideLayer>(std::move(made)));
  }
  Tensor forward(Tensor x) const {
    for (std::size_t i = 0; i < layers_->size(); ++i) x = (*layers_)[i](x);
    return x;
  }

 private:
  nn::ModuleList<WideLayer> layers_;
};

struct Trained {
  std::vector<double> losses, norms;
  bool operator==(const Trained&) const = default;
};

// Accumulates and clips, without saving.
Trained train(bool in_files) {
  Trained trained;
  launch(1, [&](Context& context) {
    const testing::OneThread one_thread;
    manual_seed(23);
    std::optional<WideModel> net;
    {
      const DeviceGuard deferred(Device::meta());
      net.emplace();
    }
    ShardingOptions options{.strategy = Strategy::full_shard,
                            .wrap = WrapPolicy::transformer({"WideLayer"})};
    if (in_files) {
      options.offload = {.parameters = Placement::file,
                         .gradients = Placement::file,
                         .optimizer = Placement::file,
                         .folder = ::testing::TempDir(),
                         .piece_bytes = std::size_t{128} << 10};
    }
    ShardedModel model = fully_shard(*net, context, options);
    optim::AdamW optimizer(model.parameters(), {.lr = 1e-3});
    for (int step = 0; step < 3; ++step) {
      for (int micro = 0; micro < 2; ++micro) {
        const Tensor x =
            Tensor::full({4, offload_width}, 0.01 * (step + micro + 1), float32, Device::cpu());
        const Tensor loss = mean(net->forward(x));
        loss.backward();
        trained.losses.push_back(loss.item());
      }
      trained.norms.push_back(model.clip_grad_norm(1e-3));
      optimizer.step();
      optimizer.zero_grad();
    }
  });
  return trained;
}

// Runs in a separate process whose heap returns freed memory to the system and whose threads have
// small stacks; the exit status is what `body` returns.
int in_process(const std::function<int()>& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::mallopt(M_MMAP_THRESHOLD, 64 << 10);
    ::mallopt(M_ARENA_MAX, 1);
    pthread_attr_t attributes;
    ::pthread_attr_init(&attributes);
    ::pthread_attr_setstacksize(&attributes, 256 << 10);
    ::pthread_setattr_default_np(&attributes);
    int status = 99;
    try {
      status = body();
    } catch (const std::exception& error) {
      ::fprintf(stderr, "%s\n", error.what());
    }
    ::fflush(stderr);
    ::_exit(status);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

class OffloadMemory : public ::testing::Test {
 protected:
  void SetUp() override {
    if (testing::address_sanitizer || testing::thread_sanitizer)
      GTEST_SKIP() << "a sanitizer's own memory is larger than the limit";
  }
};

TEST_F(OffloadMemory, ThreeTimesTheLimitTrainsWithTheSameBits) {
  EXPECT_EQ(in_process([] {
              const Trained expected = train(false);
              ::malloc_trim(0);
              testing::limit_memory(limit_bytes);
              return train(true) == expected ? 0 : 1;
            }),
            0);
}

// Shows that the limit is effective.
TEST_F(OffloadMemory, WithoutFilesTheLimitIsTooLow) {
  EXPECT_EQ(in_process([] {
              (void)train(true);
              ::malloc_trim(0);
              testing::limit_memory(limit_bytes);
              try {
                (void)train(false);
              } catch (const Error& error) {
                return error.code() == ErrorCode::out_of_memory ? 7 : 8;
              }
              return 0;
            }),
            7);
}

// Mapped and cached memory too: the growth of the process's memory.
TEST_F(OffloadMemory, ResidentMemoryStaysBelowTheLimit) {
  EXPECT_EQ(in_process([] {
              (void)train(true);  // code and libraries
              ::malloc_trim(0);
              std::ofstream("/proc/self/clear_refs") << 5;  // resets the peak
              const std::size_t before = testing::status_kib("VmRSS");
              (void)train(true);
              const std::size_t grown = testing::status_kib("VmHWM") - before;
              ::fprintf(stderr, "%zu KiB of state, %zu KiB resident at most\n", state_bytes / 1024,
                        grown);
              return grown < limit_bytes / 1024 ? 0 : 1;
            }),
            0);
}

}  // namespace
}  // namespace tessera
