// The measuring tools of cuda_kernels_bench: arrays on the device, a queue, event timing, and the
// rates that kernels are compared with.
#pragma once

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "kernels/cuda/device/context.h"
#include "kernels/cuda/device/error.h"
#include "kernels/cuda/device/registry.h"
#include "kernels/cuda/matmul/matmul_way.h"

namespace tessera::bench {

class DeviceMemory {
 public:
  explicit DeviceMemory(std::size_t bytes) {
    void* memory = nullptr;
    TESSERA_CUDA(cudaMalloc(&memory, std::max<std::size_t>(bytes, 1)));
    memory_.reset(memory);
  }
  [[nodiscard]] void* data() const { return memory_.get(); }

 private:
  struct Free {
    void operator()(void* memory) const { (void)cudaFree(memory); }
  };
  std::unique_ptr<void, Free> memory_;
};

// Scratch memory grows and is kept.
class BenchContext final : public kernels::cuda::Context {
 public:
  BenchContext() : faults_(sizeof(kernels::cuda::Fault)) {
    TESSERA_CUDA(cudaGetDevice(&device));
    TESSERA_CUDA(cudaGetDeviceProperties(&properties_, device));
    multiprocessors = properties_.multiProcessorCount;
    compute_capability = properties_.major * 10 + properties_.minor;
    shared_memory_of_a_block = properties_.sharedMemPerBlockOptin;
    TESSERA_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    fault = static_cast<kernels::cuda::Fault*>(faults_.data());
    TESSERA_CUDA(cudaMemset(fault, 0, sizeof(kernels::cuda::Fault)));
    TESSERA_CUDA(cudaDeviceSynchronize());
  }
  ~BenchContext() override { (void)cudaStreamDestroy(stream); }

  void* scratch(std::size_t bytes) override {
    if (bytes > scratch_bytes_) {
      TESSERA_CUDA(cudaStreamSynchronize(stream));
      scratch_.reset();
      scratch_ = std::make_unique<DeviceMemory>(bytes);
      scratch_bytes_ = bytes;
    }
    return scratch_ != nullptr ? scratch_->data() : nullptr;
  }

  [[nodiscard]] kernels::Queue queue() { return {static_cast<kernels::cuda::Context*>(this)}; }
  [[nodiscard]] const cudaDeviceProp& properties() const { return properties_; }

 private:
  cudaDeviceProp properties_{};
  DeviceMemory faults_;
  std::unique_ptr<DeviceMemory> scratch_;
  std::size_t scratch_bytes_ = 0;
};

class Event {
 public:
  Event() { TESSERA_CUDA(cudaEventCreate(&event_)); }
  ~Event() { (void)cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  void record(cudaStream_t stream) { TESSERA_CUDA(cudaEventRecord(event_, stream)); }
  // Milliseconds from `begin` to this event; waits for this event.
  float since(const Event& begin) {
    TESSERA_CUDA(cudaEventSynchronize(event_));
    float milliseconds = 0;
    TESSERA_CUDA(cudaEventElapsedTime(&milliseconds, begin.event_, event_));
    return milliseconds;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

struct Options {
  std::string filter;     // a part of a row's name; empty: every row
  double seconds = 0.05;  // measuring time of a row
  double budget = 0;      // for all rows: later rows do not run; 0: no limit
  std::string json;
};

// Runs kernels and prints a line for each; the report gets each as a line of JSON, at once.
class Meter {
 public:
  explicit Meter(Options options) : options_(std::move(options)) {
    if (!options_.json.empty()) {
      report_.open(options_.json);
      TESSERA_CHECK(report_.good(), ErrorCode::runtime, "cannot write {}", options_.json);
    }
    measure_copies();
    for (const DType dtype : {bfloat16, float16, float32, float64}) measure_products(dtype);
  }

  BenchContext& context() { return context_; }
  // Called after the last row.
  void finish() {
    fmt::print("rows that no time was left for: {}\n", left_out_);
    write({{"measure", "rows left out"}, {"rows", left_out_}});
  }

  // A kernel that is limited by memory: `bytes` counts each tensor once.
  void memory(const std::string& name, DType dtype, double bytes,
              const std::function<void()>& run) {
    if (!wants(name)) return;
    const double seconds = seconds_of(run);
    report(name, dtype, seconds, bytes / seconds * 1e-9, "GB/s", copy_rate_ * 1e-9, "copies");
  }

  // A kernel that is limited by the matrix units for its type.
  void products(const std::string& name, DType dtype, double flops,
                const std::function<void()>& run) {
    if (!wants(name)) return;
    const double seconds = seconds_of(run);
    const auto rate = product_rates_.find(dtype);
    report(name, dtype, seconds, flops / seconds * 1e-12, "TFLOP/s",
           rate != product_rates_.end() ? rate->second * 1e-12 : 0, "cuBLASLt");
  }

 private:
  bool wants(const std::string& name) {
    if (name.find(options_.filter) == std::string::npos) return false;
    if (options_.budget <= 0 || since_the_start() < options_.budget) return true;
    ++left_out_;
    return false;
  }

  [[nodiscard]] double since_the_start() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

  void write(const nlohmann::json& row) {
    if (options_.json.empty()) return;
    report_ << row.dump() << std::endl;
    TESSERA_CHECK(report_.good(), ErrorCode::runtime, "cannot write {}", options_.json);
  }

  // The median of samples, each long enough for the resolution of the events.
  double seconds_of(const std::function<void()>& run) {
    constexpr int samples = 5;
    const auto time = [&](int repetitions) {
      begin_.record(context_.stream);
      for (int i = 0; i < repetitions; ++i) run();
      end_.record(context_.stream);
      return static_cast<double>(end_.since(begin_)) * 1e-3 / repetitions;
    };
    time(2);  // loads the code and raises the clock rates
    const double once = std::max(time(1), 1e-6);
    const int repetitions =
        static_cast<int>(std::clamp(options_.seconds / samples / once, 1.0, 10000.0));
    std::vector<double> times;
    for (int i = 0; i < samples; ++i) times.push_back(time(repetitions));
    std::sort(times.begin(), times.end());
    return times[samples / 2];
  }

  void measure_copies() {
    constexpr std::size_t bytes = std::size_t{1} << 30;
    const DeviceMemory from(bytes), to(bytes);
    copy_rate_ = 2.0 * bytes / seconds_of([&] {
                   TESSERA_CUDA(cudaMemcpyAsync(to.data(), from.data(), bytes,
                                                cudaMemcpyDeviceToDevice, context_.stream));
                 });
    fmt::print("{}: copies {:.0f} GB/s\n", context_.properties().name, copy_rate_ * 1e-9);
    write({{"measure", "copies"},
           {"device", context_.properties().name},
           {"compute_capability", context_.compute_capability},
           {"rate", copy_rate_ * 1e-9},
           {"unit", "GB/s"}});
  }

  // Square matrices large enough for the full rate.
  void measure_products(DType dtype) {
    const auto& library = kernels::cuda::cublas_lt_library();
    if (library.functions == nullptr) {
      if (dtype == bfloat16) fmt::print("no cuBLASLt to compare with: {}\n", library.problem);
      return;
    }
    const std::int64_t n = size_of(dtype) == 2 ? 8192 : 4096;
    const std::size_t bytes = static_cast<std::size_t>(n * n) * size_of(dtype);
    const DeviceMemory a(bytes), b(bytes), c(bytes);
    fill(a, n * n, dtype), fill(b, n * n, dtype);
    kernels::Matmul p{};
    p.a = a.data(), p.b = b.data(), p.c = c.data();
    p.m = p.n = p.k = p.lda = p.ldb = p.ldc = n;
    p.transpose_b = true;
    p.dtype = p.out_dtype = dtype;
    const double seconds = seconds_of(
        [&] { kernels::cuda::matmul_by(kernels::cuda::MatmulWay::cublas, p, context_, library); });
    const auto side = static_cast<double>(n);
    product_rates_[dtype] = 2 * side * side * side / seconds;
    fmt::print("{} {} {} x {} x {}: {:.1f} TFLOP/s\n", library.name, name_of(dtype), n, n, n,
               product_rates_[dtype] * 1e-12);
    write({{"measure", "products"},
           {"dtype", name_of(dtype)},
           {"side", n},
           {"rate", product_rates_[dtype] * 1e-12},
           {"unit", "TFLOP/s"},
           {"by", library.name}});
  }

  // Random bits switch as many transistors as training does; zeros would run at higher clocks.
  void fill(const DeviceMemory& memory, std::int64_t n, DType dtype) {
    kernels::RandomFill draw{};
    draw.out = memory.data();
    draw.n = n;
    draw.dtype = dtype;
    draw.key = {1, 2};
    draw.distribution = kernels::Distribution::normal;
    draw.b = 1;
    kernels::cuda::random_fill(draw, context_.queue());
  }

  void report(const std::string& name, DType dtype, double seconds, double rate, const char* unit,
              double reference, const char* reference_name) {
    nlohmann::json row{{"kernel", name},      {"dtype", std::string(name_of(dtype))},
                       {"us", seconds * 1e6}, {"rate", rate},
                       {"unit", unit},        {"of", reference_name}};
    std::string ratio = "-";
    row["ratio"] = nullptr;
    if (reference > 0) {
      row["ratio"] = rate / reference;
      ratio = fmt::format("{:.2f}", rate / reference);
    }
    fmt::print("{:<34} {:<8} {:>10.1f} us {:>8.1f} {:<7} {:>5} of {}\n", name, name_of(dtype),
               seconds * 1e6, rate, unit, ratio, reference_name);
    std::fflush(stdout);
    write(row);
  }

  Options options_;
  BenchContext context_;
  Event begin_, end_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::ofstream report_;
  int left_out_ = 0;
  double copy_rate_ = 0;                   // bytes a second, read and written
  std::map<DType, double> product_rates_;  // operations a second
};

// Normal draws of a floating type; whole numbers below `limit` of an integer type.
class Tensor {
 public:
  Tensor(Meter& meter, std::int64_t n, DType dtype)
      : memory_(static_cast<std::size_t>(n) * size_of(dtype)) {
    kernels::cuda::random_fill({.out = data(),
                                .n = n,
                                .first = 0,
                                .dtype = dtype,
                                .key = {1, 2},
                                .distribution = kernels::Distribution::normal,
                                .a = 0,
                                .b = 1},
                               meter.context().queue());
  }
  // Scattered ids, as in a text.
  static Tensor of_numbers(std::int64_t n, std::int64_t limit) {
    std::vector<std::int64_t> numbers(static_cast<std::size_t>(n));
    std::uint64_t state = 1;
    for (std::int64_t& number : numbers) {
      state = state * 6364136223846793005ull + 1442695040888963407ull;
      number = static_cast<std::int64_t>((state >> 33) % static_cast<std::uint64_t>(limit));
    }
    Tensor tensor(numbers.size() * sizeof(std::int64_t));
    TESSERA_CUDA(cudaMemcpy(tensor.data(), numbers.data(), numbers.size() * sizeof(std::int64_t),
                            cudaMemcpyHostToDevice));
    TESSERA_CUDA(cudaDeviceSynchronize());  // no other stream waits for the copy
    return tensor;
  }
  [[nodiscard]] void* data() const { return memory_.data(); }

 private:
  explicit Tensor(std::size_t bytes) : memory_(bytes) {}
  DeviceMemory memory_;
};

}  // namespace tessera::bench
