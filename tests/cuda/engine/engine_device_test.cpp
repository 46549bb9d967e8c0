// The engine's GPU: its description, queues, points, copies, pinned memory, and tensors on it.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include "cuda/engine/engine_testing.h"
#include "engine/cuda/device.h"
#include "engine/device/backend.h"
#include "engine/device/stream.h"
#include "engine/ops.h"

namespace tessera {
namespace {

using testing::counting;
using testing::error_of;
using testing::fetch;
using testing::Gate;
using testing::gpu;
using testing::on_gpu;

TEST(Device, IsFoundByName) {
  EXPECT_EQ(parse_device("cpu"), Device::cpu());
  EXPECT_EQ(parse_device("cuda"), Device::cuda(0));
  EXPECT_EQ(parse_device("cuda:3"), Device::cuda(3));
  EXPECT_EQ(parse_device("auto"), gpu);
  for (const char* text : {"", "gpu", "cuda:", "cuda:-1", "cuda:1x", "meta"}) {
    EXPECT_EQ(error_of([&] { (void)parse_device(text); }).code(), ErrorCode::configuration) << text;
  }
}

TEST(Device, DescribesItself) {
  const Backend& backend = backend_of(DeviceType::cuda);
  ASSERT_GE(backend.device_count(), 1);
  EXPECT_EQ(backend.unavailable_reason(), "");
  const DeviceDescription device = backend.describe().front();
  EXPECT_EQ(device.device, gpu);
  EXPECT_FALSE(device.name.empty());
  EXPECT_GT(device.memory_bytes, 0u);
  EXPECT_GT(device.multiprocessors, 0);
  EXPECT_GT(device.compute_capability, 0);
}

TEST(Device, DescribingAllOfThemBindsNone) {
  const Backend& backend = backend_of(DeviceType::cuda);
  std::thread([&] {
    int before = -1, after = -1;
    TESSERA_CUDA(cudaGetDevice(&before));
    EXPECT_EQ(backend.describe().size(), static_cast<std::size_t>(backend.device_count()));
    TESSERA_CUDA(cudaGetDevice(&after));
    EXPECT_EQ(before, after);
  }).join();
}

// Loading a kernel at its first launch could wait for a collective that waits for this rank.
TEST(Device, LoadsAllKernelsAtTheStart) {
  ASSERT_GE(cuda::availability().count, 1);
  ASSERT_NE(std::getenv("CUDA_MODULE_LOADING"), nullptr);
  EXPECT_STREQ(std::getenv("CUDA_MODULE_LOADING"), "EAGER");
}

TEST(Device, ThatCannotBeUsedHasAReason) {
  const auto reason = [](cudaError_t error, int driver) {
    const cuda::Availability found = cuda::availability_from(error, 0, driver);
    EXPECT_EQ(found.count, 0);
    EXPECT_EQ(found.driver, driver > 0);
    return found.reason;
  };
  EXPECT_EQ(reason(cudaErrorInsufficientDriver, 0), "no NVIDIA driver");
  EXPECT_EQ(reason(cudaErrorNoDevice, 13000), "no NVIDIA GPU");
  EXPECT_EQ(
      reason(cudaErrorInsufficientDriver, 12040),
      fmt::format("the NVIDIA driver is too old: it is for CUDA 12.4, and this build needs {}.0",
                  CUDART_VERSION / 1000));
  EXPECT_NE(reason(cudaErrorInitializationError, 13000).find("cudaErrorInitializationError"),
            std::string::npos);
  EXPECT_EQ(cuda::availability_from(cudaSuccess, 2, 13000).reason, "");
}

TEST(Device, ThatIsMissingIsAConfigurationError) {
  const Error error = error_of([] { (void)Tensor::zeros({2}, float32, Device::cuda(99)); });
  EXPECT_EQ(error.code(), ErrorCode::configuration);
  EXPECT_NE(std::string(error.what()).find("cuda:99"), std::string::npos) << error.what();
  EXPECT_THROW((void)current_queue(Device::cuda(99)), Error);
}

TEST(Queue, RunsInOrderAndWithoutTheHost) {
  const Tensor x = on_gpu(counting(1000));
  DeviceQueue& queue = current_queue(gpu);
  PointHandle point;
  Tensor y;
  {
    Gate gate(queue);
    y = x * 2.0 + x;
    point = queue.record();
    EXPECT_FALSE(point->reached());
    gate.open();
    point->synchronize();
  }
  EXPECT_TRUE(point->reached());
  EXPECT_EQ(fetch(y)[999], 2997.0f);
}

TEST(Queue, WaitsForAPointOfAnother) {
  const auto other = backend_of(DeviceType::cuda).make_queue(gpu, "other", QueuePriority::normal);
  const Tensor x = on_gpu(counting(256));
  Tensor y = Tensor::zeros({256}, float32, gpu);
  DeviceQueue& queue = current_queue(gpu);
  other->wait(queue.record());
  PointHandle end;
  {
    Gate gate(queue);
    Tensor doubled = x * 2.0;
    other->wait(queue.record());
    other->copy(y.data(), doubled.data(), y.bytes());
    end = other->record();
    EXPECT_FALSE(end->reached());
    queue.wait(end);  // after this `doubled` may be reused
    gate.open();
  }
  EXPECT_EQ(fetch(y)[255], 510.0f);
  EXPECT_TRUE(end->reached());
}

// A collective's few blocks must not wait for all blocks of a product.
TEST(Queue, SideStreamsComeBeforeComputation) {
  const auto priority_of = [](DeviceQueue& queue) {
    int priority = 0;
    TESSERA_CUDA(
        cudaStreamGetPriority(kernels::cuda::context_of(queue.native()).stream, &priority));
    return priority;
  };
  int lowest = 0, highest = 0, of_side = 0;
  TESSERA_CUDA(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
  ASSERT_LT(highest, lowest);
  EXPECT_EQ(priority_of(current_queue(gpu)), lowest);
  Stream side("side", gpu);
  side.run([&] { of_side = priority_of(current_queue(gpu)); });
  EXPECT_EQ(of_side, highest);
}

TEST(Queue, GuardsMakeOneCurrent) {
  const auto other = backend_of(DeviceType::cuda).make_queue(gpu, "other", QueuePriority::normal);
  DeviceQueue& mine = current_queue(gpu);
  {
    const QueueGuard guard(*other);
    EXPECT_EQ(&current_queue(gpu), other.get());
  }
  EXPECT_EQ(&current_queue(gpu), &mine);
  DeviceQueue* theirs = nullptr;
  std::thread([&] { theirs = &current_queue(gpu); }).join();
  EXPECT_NE(theirs, nullptr);
  EXPECT_NE(theirs, &mine);
}

TEST(Queue, MeasuresTimeBetweenPoints) {
  DeviceQueue& queue = current_queue(gpu);
  const PointHandle begin = queue.record_timed();
  {
    Gate gate(queue);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  const PointHandle end = queue.record_timed();
  end->synchronize();
  EXPECT_GE(end->seconds_since(*begin), 0.015);
  EXPECT_LT(end->seconds_since(*begin), 60.0);
  const PointHandle untimed = queue.record();
  untimed->synchronize();
  EXPECT_THROW((void)untimed->seconds_since(*begin), std::logic_error);
}

// More than the staging ring's capacity, in sizes that wrap around its end; the source changes at
// once.
TEST(Queue, CopiesFromTheHostMayBeOverwrittenAtOnce) {
  DeviceQueue& queue = current_queue(gpu);
  const std::size_t elements = 700'001;
  std::vector<Tensor> targets;
  {
    std::vector<float> source(elements);
    for (int i = 0; i < 5; ++i) {
      std::fill(source.begin(), source.end(), static_cast<float>(i));
      targets.push_back(Tensor::empty({700'001}, float32, gpu));
      queue.copy_from_host(targets.back().data(), source.data(), elements * sizeof(float));
    }
    std::fill(source.begin(), source.end(), -1.0f);
  }
  std::vector<float> result(elements);
  for (int i = 0; i < 5; ++i) {
    queue.copy_to_host(result.data(), targets[static_cast<std::size_t>(i)].data(),
                       elements * sizeof(float));
    EXPECT_EQ(result, std::vector<float>(elements, static_cast<float>(i)));
  }
}

TEST(Queue, SmallCopiesDoNotWaitForTheDevice) {
  DeviceQueue& queue = current_queue(gpu);
  const Tensor target = Tensor::empty({64}, float32, gpu);
  Gate gate(queue);
  for (int i = 0; i < 100; ++i) {
    const std::vector<float> source(64, static_cast<float>(i));
    queue.copy_from_host(target.raw_data(), source.data(), target.bytes());
  }
  gate.open();
  EXPECT_EQ(fetch(target), std::vector<float>(64, 99.0f));
}

TEST(Queue, ZeroesAndCopiesZeroBytes) {
  DeviceQueue& queue = current_queue(gpu);
  const Tensor x = on_gpu(counting(100, 1));
  queue.zero(x.raw_data() + 4, 8);
  EXPECT_EQ(fetch(x)[0], 1.0f);
  EXPECT_EQ(fetch(x)[2], 0.0f);
  EXPECT_EQ(fetch(x)[3], 4.0f);
  queue.zero(nullptr, 0);
  queue.copy(nullptr, nullptr, 0);
  queue.copy_from_host(nullptr, nullptr, 0);
  queue.copy_to_host(nullptr, nullptr, 0);
}

TEST(Pinned, IsReachedByCopiesThatReturnAtOnce) {
  DeviceQueue& queue = current_queue(gpu);
  const Backend& backend = backend_of(DeviceType::cuda);
  const std::size_t bytes = 1000 * sizeof(float);
  const auto in = backend.allocate_pinned(bytes);
  const auto out = backend.allocate_pinned(bytes);
  const std::vector<float> values = counting(1000, 5);
  std::memcpy(in.get(), values.data(), bytes);
  const Tensor x = Tensor::empty({1000}, float32, gpu);
  PointHandle done;
  {
    Gate gate(queue);
    queue.enqueue_copy_from_pinned(x.raw_data(), in.get(), bytes);
    queue.enqueue_copy_to_pinned(out.get(), x.data(), bytes);
    done = queue.record();
    EXPECT_FALSE(done->reached());
  }
  done->synchronize();
  EXPECT_EQ(std::memcmp(out.get(), values.data(), bytes), 0);
}

TEST(Pinned, IsKeptForTheNextUser) {
  const Backend& backend = backend_of(DeviceType::cuda);
  const std::byte* first = backend.allocate_pinned(5'000'000).get();
  EXPECT_EQ(backend.allocate_pinned(5'000'000).get(), first);
}

TEST(Tensors, MoveBetweenDevices) {
  const Tensor host = Tensor::from(counting(300, -7), {3, 100});
  const Tensor device = host.to(gpu);
  EXPECT_EQ(device.device(), gpu);
  EXPECT_EQ(device.to_vector(), host.to_vector());
  EXPECT_EQ(device.to(gpu).data(), device.data());
  EXPECT_EQ(device.to(Device::cpu()).to_vector(), host.to_vector());
  EXPECT_NE(device.clone().data(), device.data());
  EXPECT_EQ(device.clone().to_vector(), host.to_vector());
  EXPECT_TRUE(device.to(Device::meta()).is_meta());
  for (const DType dtype : {bfloat16, float16, float64}) {
    Tensor there = Tensor::empty({3, 100}, dtype, gpu);
    there.copy_from(host);
    Tensor rounded = Tensor::empty({3, 100}, dtype, Device::cpu());
    rounded.copy_from(host);
    EXPECT_EQ(there.to_vector(), rounded.to_vector()) << name_of(dtype);
    Tensor here = Tensor::empty({3, 100}, float32, Device::cpu());
    here.copy_from(there);
    EXPECT_EQ(here.to_vector(), rounded.to_vector()) << name_of(dtype);
  }
  EXPECT_EQ(Tensor::full({2}, 2.5, bfloat16, gpu).to_vector(), (std::vector<double>{2.5, 2.5}));
  EXPECT_EQ(Tensor::full({}, -3, float64, gpu).item(), -3);
}

// More than one staging part, from the middle of a parameter.
TEST(Tensors, DrawTheSameInitialValues) {
  constexpr std::int64_t n = 1'500'000;
  using Kind = Initializer::Kind;
  for (const Initializer& initializer :
       {Initializer{Kind::constant, 0.3}, Initializer{Kind::uniform, -1, 1, 7, 3},
        Initializer{Kind::normal, 0, 0.02, 7, 4}}) {
    const Tensor host = Tensor::empty({n}, bfloat16, Device::cpu());
    const Tensor device = Tensor::empty({n}, bfloat16, gpu);
    initializer.fill(host.raw_data(), bfloat16, 33, n);
    initializer.fill(device.raw_data(), bfloat16, 33, n, gpu);
    EXPECT_EQ(device.to_vector(), host.to_vector());
  }
}

TEST(Tensors, OfTwoDevicesAreRefusedInAnOp) {
  const Tensor host = Tensor::zeros({2, 2});
  const Tensor device = host.to(gpu);
  const Tensor ids = Tensor::zeros({2}, int32);
  const Tensor mask = Tensor::zeros({1, 2}, uint8);
  const Tensor q = Tensor::zeros({1, 2, 4}, float32, gpu);
  const auto refused = [](const std::function<Tensor()>& op) {
    try {
      (void)op();
      ADD_FAILURE() << "an op took inputs of two devices";
    } catch (const std::logic_error& error) {
      const std::string what = error.what();
      EXPECT_NE(what.find("cpu"), std::string::npos) << what;
      EXPECT_NE(what.find("cuda:0"), std::string::npos) << what;
    }
  };
  refused([&] { return host + device; });
  refused([&] { return matmul(host, device); });
  refused([&] { return linear(host, device); });
  refused([&] { return linear(device, device, Tensor::zeros({2})); });
  refused([&] { return bias_gelu_linear(device, Tensor::zeros({2}), device, {}, {}, true); });
  refused([&] { return swiglu_linear(device, host, device, {}); });
  refused([&] { return embedding(ids, device); });
  refused([&] { return layer_norm(device, Tensor::zeros({2}), {}); });
  refused([&] { return cross_entropy(device, ids); });
  refused([&] { return attention(q, q, q.to(Device::cpu()), {}); });
  refused([&] { return attention(q, q, q, {.key_mask = mask}); });
  refused([&] { return rotary(q, 1, host, device); });
}

}  // namespace
}  // namespace tessera
