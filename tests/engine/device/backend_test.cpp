// Backends and queues: those of the CPU, and errors for a missing GPU.
#include "engine/device/backend.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "engine/tensor.h"

namespace tessera {
namespace {

std::string configuration_error(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::configuration) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

TEST(Backend, DevicesHaveNames) {
  EXPECT_EQ(parse_device("cpu"), Device::cpu());
  EXPECT_EQ(parse_device("cuda"), Device::cuda(0));
  EXPECT_EQ(parse_device("cuda:7"), Device::cuda(7));
  for (const char* text : {"", "CPU", "gpu", "cuda:", "cuda:-1", "cuda:1 ", "cuda:x", "meta"}) {
    const std::string error = configuration_error([&] { (void)parse_device(text); });
    EXPECT_NE(error.find(std::string("\"") + text + '"'), std::string::npos) << error;
    EXPECT_NE(error.find("auto"), std::string::npos) << error;
  }
}

TEST(Backend, TheCpuIsAlwaysAvailable) {
  const Backend& cpu = backend_of(DeviceType::cpu);
  EXPECT_EQ(cpu.device_count(), 1);
  EXPECT_EQ(cpu.unavailable_reason(), "");
  EXPECT_GT(cpu.describe().front().memory_bytes, 0u);
  require_device(Device::cpu());
  EXPECT_THROW((void)backend_of(DeviceType::meta), std::logic_error);
  EXPECT_THROW(require_device(Device::meta()), std::logic_error);
}

TEST(Backend, AGpuIsAvailableOrHasAReason) {
  const Backend& gpus = backend_of(DeviceType::cuda);
  const int count = gpus.device_count();
  EXPECT_EQ(gpus.unavailable_reason().empty(), count > 0);
  EXPECT_EQ(parse_device("auto"), count > 0 ? Device::cuda() : Device::cpu());
  const Device missing = Device::cuda(count);
  const std::string error = configuration_error([&] { require_device(missing); });
  EXPECT_NE(error.find(missing.to_string()), std::string::npos) << error;
  if (count == 0) {
    EXPECT_NE(error.find(gpus.unavailable_reason()), std::string::npos) << error;
  }
  configuration_error([&] { (void)current_queue(missing); });
  configuration_error([&] { (void)Tensor::zeros({2}, float32, missing); });
  configuration_error([&] { (void)Tensor::zeros({2}).to(missing); });
}

TEST(CpuQueue, HasFinishedWhenACallReturns) {
  DeviceQueue& queue = current_queue(Device::cpu());
  EXPECT_EQ(queue.device(), Device::cpu());
  EXPECT_EQ(queue.native().native, nullptr);
  EXPECT_EQ(queue.record(), nullptr);
  EXPECT_EQ(queue.record_timed(), nullptr);
  queue.wait(nullptr);
  queue.synchronize();
  const std::vector<int> from{1, 2, 3};
  std::vector<int> to(3);
  const std::size_t bytes = 3 * sizeof(int);
  using Copy = void (DeviceQueue::*)(void*, const void*, std::size_t);
  for (const Copy copy :
       {Copy(&DeviceQueue::copy), Copy(&DeviceQueue::copy_from_host),
        Copy(&DeviceQueue::copy_to_host), Copy(&DeviceQueue::enqueue_copy_from_pinned),
        Copy(&DeviceQueue::enqueue_copy_to_pinned)}) {
    (queue.*copy)(to.data(), from.data(), bytes);
    EXPECT_EQ(to, from);
    (queue.*copy)(nullptr, nullptr, 0);
    queue.zero(to.data(), bytes);
    EXPECT_EQ(to, std::vector<int>(3));
  }
}

TEST(CpuQueue, GuardsMakeOneCurrentForTheirThread) {
  const Backend& cpu = backend_of(DeviceType::cpu);
  DeviceQueue& mine = current_queue(Device::cpu());
  const auto other = cpu.make_queue(Device::cpu(), "other", QueuePriority::normal);
  {
    const QueueGuard guard(*other);
    EXPECT_EQ(&current_queue(Device::cpu()), other.get());
    std::thread([&] { EXPECT_NE(&current_queue(Device::cpu()), other.get()); }).join();
  }
  EXPECT_EQ(&current_queue(Device::cpu()), &mine);
}

TEST(CpuBackend, PinnedMemoryIsAlignedMemory) {
  const auto memory = backend_of(DeviceType::cpu).allocate_pinned(1000);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory.get()) % 64, 0u);
  std::memset(memory.get(), 1, 1000);
}

TEST(DefaultDevice, BelongsToTheThread) {
  set_default_device(Device::meta());
  EXPECT_TRUE(Tensor::empty({2}).is_meta());
  std::thread([] { EXPECT_EQ(default_device(), Device::cpu()); }).join();
  set_default_device(Device::cpu());
  EXPECT_FALSE(Tensor::empty({2}).is_meta());
}

}  // namespace
}  // namespace tessera
