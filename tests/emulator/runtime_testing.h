// Shared by the tests of the emulated runtime: owned memory, streams and events, and launches.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "emulator/cuda/hooks.h"
#include "emulator/runtime/launch.h"

namespace tessera::emulator::testing {

inline constexpr int count = 1024;
inline constexpr std::size_t array_bytes = count * sizeof(int);

#define EXPECT_CUDA(call) EXPECT_EQ((call), cudaSuccess)
#define ASSERT_CUDA(call) ASSERT_EQ((call), cudaSuccess)

class Memory {
 public:
  explicit Memory(std::size_t size = array_bytes) { EXPECT_CUDA(cudaMalloc(&memory_, size)); }
  ~Memory() { EXPECT_CUDA(cudaFree(memory_)); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  [[nodiscard]] int* data() const { return static_cast<int*>(memory_); }
  [[nodiscard]] std::vector<int> read() const {
    std::vector<int> values(count);
    EXPECT_CUDA(cudaDeviceSynchronize());
    EXPECT_CUDA(cudaMemcpy(values.data(), memory_, array_bytes, cudaMemcpyDeviceToHost));
    return values;
  }

 private:
  void* memory_ = nullptr;
};

class Pinned {
 public:
  Pinned() { EXPECT_CUDA(cudaMallocHost(&memory_, array_bytes)); }
  ~Pinned() { EXPECT_CUDA(cudaFreeHost(memory_)); }
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;
  [[nodiscard]] int* data() const { return static_cast<int*>(memory_); }

 private:
  void* memory_ = nullptr;
};

class OwnedStream {
 public:
  explicit OwnedStream(const char* name, unsigned flags = cudaStreamNonBlocking) {
    EXPECT_CUDA(cudaStreamCreateWithFlags(&stream_, flags));
    tessera_emulator_name_stream(stream_, name);
  }
  ~OwnedStream() { EXPECT_CUDA(cudaStreamDestroy(stream_)); }
  OwnedStream(const OwnedStream&) = delete;
  OwnedStream& operator=(const OwnedStream&) = delete;
  operator cudaStream_t() const { return stream_; }  // NOLINT: used like the handle

 private:
  cudaStream_t stream_ = nullptr;
};

class OwnedEvent {
 public:
  explicit OwnedEvent(unsigned flags = cudaEventDefault) {
    EXPECT_CUDA(cudaEventCreateWithFlags(&event_, flags));
  }
  ~OwnedEvent() { EXPECT_CUDA(cudaEventDestroy(event_)); }
  OwnedEvent(const OwnedEvent&) = delete;
  OwnedEvent& operator=(const OwnedEvent&) = delete;
  operator cudaEvent_t() const { return event_; }  // NOLINT

 private:
  cudaEvent_t event_ = nullptr;
};

// Kernels of one thread: these tests check the order between kernels.
inline void add_to_all(int* values, int addend) {
  for (int i = 0; i < count; ++i) values[i] += addend;
}
inline void copy_all(int* destination, const int* source) {
  for (int i = 0; i < count; ++i) destination[i] = source[i];
}

inline LaunchRecord record_of(const char* kernel, std::vector<Access> accesses = {}) {
  return {kernel, dim3(1), dim3(1), 0, std::move(accesses)};
}
inline cudaError_t launch_add(cudaStream_t stream, int* values, int addend) {
  return launch(
      stream, record_of("add_to_all", {{values, array_bytes, false}, {values, array_bytes, true}}),
      add_to_all, values, addend);
}
inline cudaError_t launch_copy(cudaStream_t stream, int* destination, const int* source) {
  return launch(
      stream,
      record_of("copy_all", {{source, array_bytes, false}, {destination, array_bytes, true}}),
      copy_all, destination, source);
}

inline void expect_all(const std::vector<int>& values, int expected) {
  EXPECT_EQ(values, std::vector<int>(values.size(), expected));
}

}  // namespace tessera::emulator::testing
