// The state of the emulated runtime: devices, streams, memory and checkers.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <shared_mutex>
#include <string>
#include <vector>

#include "emulator/runtime/access_checker.h"
#include "emulator/runtime/executor.h"
#include "emulator/runtime/memory_registry.h"
#include "emulator/runtime/stream.h"

namespace tessera::emulator {

class Runtime {
 public:
  Runtime();

  AccessChecker& checker() { return checker_; }
  MemoryRegistry& memory() { return memory_; }
  Executor& executor() { return *executor_; }

  // The streams of the program. A thread may use another thread's streams. A stream lives at least
  // as long as the pointer that find() returned.
  cudaStream_t create_stream(const StreamOptions& options);
  // Null: no stream has the handle. A null handle is the legacy default stream of `device`.
  std::shared_ptr<Stream> find(cudaStream_t handle, int device);
  // Returns at once: the stream ends when its work is done. False: no stream has the handle.
  bool destroy_stream(cudaStream_t handle);
  // Orders the next addition to the stream with the legacy default stream, as CUDA does unless the
  // stream was created with cudaStreamNonBlocking.
  void order_with_default(Stream& stream);

  // The host waits for all streams of the device, and then knows their work.
  void synchronize(int device);
  void wait(const MarkReference& mark);

  // The first error of an operation on the device: it stays (CUDA's "sticky" errors).
  [[nodiscard]] cudaError_t failure(int device) const;
  void set_failure(int device, cudaError_t error);

  // Returns the same address for the same text, always.
  const std::string* intern(const std::string& text);

 private:
  struct Device {
    std::shared_ptr<Stream> default_stream;  // null until it is used
    std::atomic<cudaError_t> failure{cudaSuccess};
    std::mutex order_mutex;
    // For each blocking stream: how much of it the default stream waits for, and the reverse.
    struct Seen {
      std::uint32_t of_stream = 0;
      std::uint32_t of_default = 0;
    };
    std::map<Stream*, Seen> seen;
  };

  void run(const Stream& stream, StreamOperation& operation);
  void end_idle_retired_streams();
  std::shared_ptr<Stream> default_stream(int device);
  std::shared_ptr<Stream> used_default_stream(int device);
  std::shared_ptr<Stream> make_stream(const StreamOptions& options, const std::string* name);
  std::vector<std::shared_ptr<Stream>> streams_of(int device);

  AccessChecker checker_;
  MemoryRegistry memory_;
  std::unique_ptr<Executor> executor_;
  std::deque<Device> devices_;
  std::shared_mutex streams_mutex_;  // lookups share it, and so order no host threads
  std::map<cudaStream_t, std::shared_ptr<Stream>> streams_;
  std::vector<std::shared_ptr<Stream>> retired_;
  std::vector<std::unique_ptr<MarkPool>> retired_marks_;
  int streams_named_ = 0;
  std::mutex names_mutex_;
  std::set<std::string> names_;
};

// Created at first use. It is never destroyed: static objects may free memory at the program's end.
Runtime& runtime();

}  // namespace tessera::emulator
