// A small pipeline with a selected bug: planted_stream_bugs NAME.
// As in sharded training, a copy stream gathers the next layer's weights into one of two buffers
// while a compute stream uses the other; events order the two, in both directions. Each bug omits
// or misplaces one of the orderings. The exit code is 0 with "right", 7 with "WRONG" if the numbers
// are wrong, else that of the tool that found the bug. planted_stream_bugs_test.py runs it under
// every schedule and checker.
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/cuda/device/launch.h"
#if !defined(__CUDACC__)
#include "emulator/cuda/hooks.h"
#include "emulator/runtime/checker.h"
#endif

namespace {

namespace cuda = tessera::kernels::cuda;

constexpr int layers = 12;
constexpr int width = 256;
// Small blocks: the thread sanitizer distinguishes 256 threads, and each thread of a block counts.
// Beyond that it forgets earlier accesses and misses races between the streams.
constexpr int threads = 32;
constexpr std::size_t layer_bytes = width * sizeof(float);
constexpr int numbers_wrong = 7;

__global__ void apply_layer(float* activations, const float* weights) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < width) activations[i] = 0.5f * activations[i] + weights[i];
}

// Reports an access by the host to the emulator; on a GPU it does nothing.
void host_access(const void* memory, std::size_t bytes, bool write) {
#if !defined(__CUDACC__)
  tessera_emulator_host_access(memory, bytes, write, "the test's own code");
#else
  (void)memory, (void)bytes, (void)write;
#endif
}

void name_stream(cudaStream_t stream, const char* name) {
#if !defined(__CUDACC__)
  tessera_emulator_name_stream(stream, name);
#else
  (void)stream, (void)name;
#endif
}

class StreamContext final : public cuda::Context {
 public:
  void* scratch(std::size_t /*bytes*/) override { return nullptr; }  // no kernel here uses it
};

class Pipeline {
 public:
  explicit Pipeline(std::string bug) : bug_(std::move(bug)) {
    TESSERA_CUDA(cudaStreamCreateWithFlags(&compute_.stream, cudaStreamNonBlocking));
    TESSERA_CUDA(cudaStreamCreateWithFlags(&gather_, cudaStreamNonBlocking));
    name_stream(compute_.stream, "compute");
    name_stream(gather_, "gather");
    void* memory = nullptr;
    TESSERA_CUDA(cudaMallocHost(&memory, layers * layer_bytes));
    weights_ = static_cast<float*>(memory);
    TESSERA_CUDA(cudaMallocHost(&memory, layer_bytes));
    result_ = static_cast<float*>(memory);
    TESSERA_CUDA(cudaMalloc(&memory, layer_bytes));
    activations_ = static_cast<float*>(memory);
    for (Buffer& buffer : buffers_) {
      TESSERA_CUDA(cudaMalloc(&memory, layer_bytes));
      buffer.weights = static_cast<float*>(memory);
      TESSERA_CUDA(cudaEventCreateWithFlags(&buffer.gathered, cudaEventDisableTiming));
      TESSERA_CUDA(cudaEventCreateWithFlags(&buffer.unused, cudaEventDisableTiming));
    }
    TESSERA_CUDA(cudaEventCreateWithFlags(&never_recorded_, cudaEventDisableTiming));
    for (int i = 0; i < layers * width; ++i) weights_[i] = static_cast<float>(i / width + 1);
    for (int i = 0; i < width; ++i) result_[i] = -1;
  }

  // True if the numbers are right, as far as they may be read.
  bool run() {
    TESSERA_CUDA(cudaMemsetAsync(activations_, 0, layer_bytes, compute_.stream));
    gather(0);
    for (int layer = 0; layer < layers; ++layer) {
      if (layer + 1 < layers) gather(layer + 1);
      apply(layer);
    }
    if (bug_ == "freed_while_in_use") {
      TESSERA_CUDA(cudaFreeAsync(activations_, gather_));
      TESSERA_CUDA(cudaDeviceSynchronize());
      return true;
    }
    TESSERA_CUDA(cudaMemcpyAsync(result_, activations_, layer_bytes, cudaMemcpyDeviceToHost,
                                 compute_.stream));
    if (bug_ != "host_reads_too_early") TESSERA_CUDA(cudaStreamSynchronize(compute_.stream));
    host_access(result_, layer_bytes, false);
    const bool right = result_is_right();
    TESSERA_CUDA(cudaDeviceSynchronize());
    return right;
  }

 private:
  struct Buffer {
    float* weights = nullptr;
    cudaEvent_t gathered = nullptr;
    cudaEvent_t unused = nullptr;
  };

  void gather(int layer) {
    Buffer& buffer = buffers_[layer % 2];
    float* source = weights_ + static_cast<std::ptrdiff_t>(layer) * width;
    const bool used_before = layer >= 2;
    if (used_before && bug_ != "gather_overwrites_used_buffer") {
      TESSERA_CUDA(cudaStreamWaitEvent(gather_, buffer.unused, 0));
    }
    const bool too_early = bug_ == "event_recorded_too_early";
    if (too_early) TESSERA_CUDA(cudaEventRecord(buffer.gathered, gather_));
    TESSERA_CUDA(
        cudaMemcpyAsync(buffer.weights, source, layer_bytes, cudaMemcpyHostToDevice, gather_));
    if (!too_early) TESSERA_CUDA(cudaEventRecord(buffer.gathered, gather_));
    if (bug_ == "host_writes_too_early") {
      host_access(source, layer_bytes, true);
      for (int i = 0; i < width; ++i) source[i] = 0;
    }
  }

  void apply(int layer) {
    Buffer& buffer = buffers_[layer % 2];
    if (bug_ == "event_never_recorded") {
      TESSERA_CUDA(cudaStreamWaitEvent(compute_.stream, never_recorded_, 0));
    } else if (bug_ != "compute_does_not_wait") {
      TESSERA_CUDA(cudaStreamWaitEvent(compute_.stream, buffer.gathered, 0));
    }
    cuda::launch(compute_,
                 {"apply_layer",
                  {width},
                  {cuda::reads(activations_, layer_bytes), cuda::writes(activations_, layer_bytes),
                   cuda::reads(buffer.weights, layer_bytes)}},
                 {dim3(width / threads), dim3(threads)}, apply_layer, activations_, buffer.weights);
    TESSERA_CUDA(cudaEventRecord(buffer.unused, compute_.stream));
  }

  [[nodiscard]] bool result_is_right() const {
    float expected = 0;
    for (int layer = 0; layer < layers; ++layer) {
      expected = 0.5f * expected + static_cast<float>(layer + 1);
    }
    bool right = true;
    for (int i = 0; i < width; ++i) right = right && result_[i] == expected;
    return right;
  }

  const std::string bug_;
  StreamContext compute_;
  cudaStream_t gather_ = nullptr;
  float* weights_ = nullptr;  // pinned
  float* result_ = nullptr;   // pinned
  float* activations_ = nullptr;
  Buffer buffers_[2];
  cudaEvent_t never_recorded_ = nullptr;
};

const std::vector<std::string> bugs{
    "none",
    "compute_does_not_wait",
    "gather_overwrites_used_buffer",
    "event_recorded_too_early",
    "host_reads_too_early",
    "host_writes_too_early",
    "event_never_recorded",
    "freed_while_in_use",
};

}  // namespace

int main(int argc, char** argv) {
  const std::string bug = argc == 2 ? argv[1] : "--list";
  bool known = false;
  for (const std::string& name : bugs) known = known || name == bug;
  if (!known) {
    for (const std::string& name : bugs) std::printf("%s\n", name.c_str());
    return bug == "--list" ? 0 : 2;
  }
  const bool right = Pipeline(bug).run();
  std::printf("numbers %s\n", right ? "right" : "WRONG");
#if !defined(__CUDACC__)
  std::printf("unordered accesses: %d\n", tessera::emulator::checker::conflicts());
#endif
  return right ? 0 : numbers_wrong;
}
