// Times calls and their bounds in turns.
#include "bench/kernels/rows.h"

#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "base/low_precision.h"
#include "bench/harness/bare_products.h"
#include "engine/tensor.h"

namespace tessera::bench {
namespace {

// A call shorter than this is repeated, so that the clock's own cost does not show.
constexpr double shortest_seconds = 2e-4;

int repeats_of(const std::function<void()>& run) {
  run();
  const double once = std::max(1e-8, processor_seconds_of(run));
  return std::clamp(static_cast<int>(shortest_seconds / once), 1, 10000);
}

double timed(const std::function<void()>& run, int repeats) {
  return processor_seconds_of([&] {
           for (int i = 0; i < repeats; ++i) run();
         }) /
         repeats;
}

// memcpy that reads one half of the bytes and writes the other half.
class Copy {
 public:
  explicit Copy(double bytes)
      : source_(static_cast<std::size_t>(bytes / 2), 1), target_(source_.size(), 2) {}
  void run() {
    std::memcpy(target_.data(), source_.data(), source_.size());
    benchmark::DoNotOptimize(target_.data());
    benchmark::ClobberMemory();
  }

 private:
  std::vector<char> source_, target_;
};

// A square product large enough for the library's best rate, in its faster layout.
class SquareProduct {
 public:
  explicit SquareProduct(DType wanted) {
    const DType dtype = bare_dtype(wanted);
    const kernels::Matmul product{.a = memory_.random(size * size, dtype),
                                  .b = memory_.random(size * size, dtype),
                                  .c = memory_.random(size * size, float32),
                                  .m = size,
                                  .n = size,
                                  .k = size,
                                  .lda = size,
                                  .ldb = size,
                                  .ldc = size,
                                  .transpose_b = true,
                                  .dtype = dtype,
                                  .out_dtype = dtype,
                                  .stride_a = size * size,
                                  .stride_b = size * size,
                                  .stride_c = size * size};
    run_ = bare_product(product).run;
    if (dtype == float32) return;
    const auto packed = bare_product(product, BareLayout::packed).run;
    if (timed(packed, repeats_of(packed)) < timed(run_, repeats_of(run_))) run_ = packed;
  }
  [[nodiscard]] const std::function<void()>& run() const { return run_; }
  static constexpr double flops = 2.0 * 768 * 768 * 768;

 private:
  static constexpr std::int64_t size = 768;
  Memory memory_;
  std::function<void()> run_;
};

void measure(benchmark::State& state, const MakeWork& make) {
  Memory memory;
  const Work work = make(memory);
  Copy copy(work.bytes);
  std::unique_ptr<SquareProduct> square;
  if (work.flops > 0) square = std::make_unique<SquareProduct>(work.products);
  const std::function<void()> copies = [&] { copy.run(); };
  const int repeats = repeats_of(work.run), copy_repeats = repeats_of(copies);
  const int bare_repeats = work.onednn ? repeats_of(work.onednn) : 0;
  if (square) square->run()();
  std::vector<double> own, moved, multiplied, bare;
  for (auto unused : state) {
    static_cast<void>(unused);
    own.push_back(timed(work.run, repeats));
    moved.push_back(timed(copies, copy_repeats));
    if (square) multiplied.push_back(timed(square->run(), 1));
    if (work.onednn) bare.push_back(timed(work.onednn, bare_repeats));
    state.SetIterationTime(own.back());
  }
  const double seconds = median(own);
  const double bytes_bound = median(moved);
  const double operations_bound =
      square ? work.flops / SquareProduct::flops * median(multiplied) : 0;
  state.counters["bytes_per_second"] = work.bytes / seconds;
  if (work.flops > 0) state.counters["flops_per_second"] = work.flops / seconds;
  state.counters["of_bound"] = std::max(bytes_bound, operations_bound) / seconds;
  if (work.onednn) state.counters["of_onednn"] = work.onednn_share * median(bare) / seconds;
  if (work.peak_bytes) state.counters["peak_bytes"] = work.peak_bytes();
  state.SetLabel(operations_bound > bytes_bound ? "bound by operations" : "bound by bytes");
}

}  // namespace

double processor_seconds_of(const std::function<void()>& run) {
  const auto now = [] {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  };
  const double start = now();
  run();
  return now() - start;
}

void* Memory::random(std::int64_t count, DType dtype) {
  void* place = zeros(count * static_cast<std::int64_t>(size_of(dtype)));
  kernels::cpu::random_fill({.out = place,
                             .n = count,
                             .first = 0,
                             .dtype = dtype,
                             .key = {1, kept_.size()},
                             .distribution = kernels::Distribution::normal,
                             .a = 0,
                             .b = 1});
  return place;
}

void* Memory::zeros(std::int64_t bytes) {
  // Aligned as the engine's tensors are.
  return keep(Tensor::zeros({bytes}, uint8)).data();
}

std::int32_t* Memory::ids(std::int64_t count, std::int64_t end) {
  auto& ids = keep(std::vector<std::int32_t>(static_cast<std::size_t>(count)));
  std::mt19937 generator(1);
  for (auto& id : ids) {
    id = static_cast<std::int32_t>(generator() % static_cast<std::uint32_t>(end));
  }
  return ids.data();
}

void Rows::add(const std::string& variant, const MakeWork& make) {
  add(variant, make, rounds_);
}

void Rows::add_long(const std::string& variant, const MakeWork& make) {
  add(variant, make, std::max(1, rounds_ / 3));
}

void Rows::add(const std::string& variant, const MakeWork& make, int rounds) {
  ++added_;
  benchmark::RegisterBenchmark((kernel_ + "/" + variant).c_str(),
                               [make](benchmark::State& state) { measure(state, make); })
      ->Iterations(rounds)
      ->UseManualTime();
}

void report(benchmark::State& state, double bytes, const std::vector<Measured>& rounds) {
  if (rounds.empty()) return;
  std::vector<double> own, bound;
  for (const Measured& round : rounds) {
    own.push_back(round.seconds);
    bound.push_back(round.bound);
  }
  state.counters["bytes_per_second"] = bytes / median(own);
  state.counters["of_bound"] = median(bound) / median(own);
}

std::function<void()> bare_linear(std::int64_t rows, std::int64_t in, std::int64_t out,
                                  DType wanted, bool trained, Memory& memory) {
  const DType dtype = bare_dtype(wanted);
  const auto product = [&](std::int64_t m, std::int64_t n, std::int64_t k, bool ta, bool tb) {
    return bare_product({.a = memory.random(m * k, dtype),
                         .b = memory.random(k * n, dtype),
                         .c = memory.random(m * n, dtype),
                         .m = m,
                         .n = n,
                         .k = k,
                         .lda = ta ? m : k,
                         .ldb = tb ? k : n,
                         .ldc = n,
                         .transpose_a = ta,
                         .transpose_b = tb,
                         .dtype = dtype,
                         .out_dtype = dtype,
                         .stride_a = m * k,
                         .stride_b = k * n,
                         .stride_c = m * n})
        .run;
  };
  const auto forward = product(rows, out, in, false, true);
  if (!trained) return forward;
  const auto data = product(rows, in, out, false, false);
  const auto weight = product(out, in, rows, true, false);
  return [=] { forward(), data(), weight(); };
}

}  // namespace tessera::bench
