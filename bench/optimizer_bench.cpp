// Bandwidth of the kernels that only stream memory (optimizer steps, the sum over ranks, sums of
// squares, dropout, random fills) on one thread, next to memcpy in the same rounds. Arguments:
// elements [rounds].
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>
#include <string>
#include <vector>

#include "kernels/base/low_precision.h"
#include "kernels/base/parallel.h"
#include "kernels/registry.h"

namespace {

using namespace tessera;
using namespace tessera::kernels;

struct Case {
  std::string name;
  double bytes;  // read and written
  std::function<void()> run;
  std::vector<double> seconds;
};

double processor_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

struct Buffers {
  std::vector<float> param, m, v, out;
  std::vector<BFloat16> half;
  std::vector<std::vector<float>> ranks;
  std::vector<std::vector<BFloat16>> half_ranks;
  std::vector<const void*> pointers, half_pointers;
  ExactSum sum;

  explicit Buffers(std::size_t n) : param(n, 1.0f), m(n), v(n), out(n), half(n, to_bfloat16(1.0f)) {
    for (int r = 0; r < 8; ++r) {
      ranks.emplace_back(n, 0.001f * static_cast<float>(r + 1));
      half_ranks.emplace_back(n, to_bfloat16(0.01f));
      pointers.push_back(ranks.back().data());
      half_pointers.push_back(half_ranks.back().data());
    }
  }
};

AdamWStep adamw(Buffers& b, bool copy) {
  return {.param = b.param.data(),
          .grad = b.ranks[0].data(),
          .m = b.m.data(),
          .v = b.v.data(),
          .copy = copy ? b.half.data() : nullptr,
          .n = static_cast<std::int64_t>(b.param.size()),
          .dtype = float32,
          .grad_dtype = float32,
          .copy_dtype = bfloat16,
          .lr = 1e-4,
          .beta1 = 0.9,
          .beta2 = 0.95,
          .eps = 1e-8,
          .weight_decay = 0.1,
          .correction1 = 0.1,
          .correction2 = 0.05,
          .grad_scale = 1.0f};
}

std::vector<Case> cases(Buffers& b) {
  const auto n = static_cast<std::int64_t>(b.param.size());
  const auto size = static_cast<double>(n);
  std::vector<Case> list;
  const auto add = [&](std::string name, double bytes_per_element, std::function<void()> run) {
    list.push_back({std::move(name), bytes_per_element * size, std::move(run), {}});
  };
  add("memcpy", 8,
      [&b] { std::memcpy(b.out.data(), b.ranks[0].data(), b.out.size() * sizeof(float)); });
  add("adamw fp32", 28, [&b] { cpu::adamw_step(adamw(b, false)); });
  add("adamw fp32, bf16 copy", 30, [&b] { cpu::adamw_step(adamw(b, true)); });
  add("sgd momentum fp32", 20, [&b, n] {
    cpu::sgd_step({.param = b.param.data(),
                   .grad = b.ranks[0].data(),
                   .momentum_buffer = b.m.data(),
                   .copy = nullptr,
                   .n = n,
                   .dtype = float32,
                   .grad_dtype = float32,
                   .copy_dtype = float32,
                   .lr = 1e-4,
                   .momentum = 0.9,
                   .dampening = 0,
                   .weight_decay = 0.01,
                   .nesterov = false,
                   .first_step = false,
                   .grad_scale = 1.0f});
  });
  for (const int ranks : {1, 2, 3, 4, 5, 8}) {
    add(fmt::format("reduce_ranks {} x fp32", ranks), 4 * (ranks + 1), [&b, n, ranks] {
      cpu::reduce_ranks({.in = b.pointers.data(),
                         .ranks = ranks,
                         .group = ranks,
                         .out = b.out.data(),
                         .n = n,
                         .in_dtype = float32,
                         .out_dtype = float32});
    });
  }
  for (const int ranks : {2, 8}) {
    add(fmt::format("reduce_ranks {} x bf16 -> fp32", ranks), 2 * ranks + 4, [&b, n, ranks] {
      cpu::reduce_ranks({.in = b.half_pointers.data(),
                         .ranks = ranks,
                         .group = ranks,
                         .out = b.out.data(),
                         .n = n,
                         .in_dtype = bfloat16,
                         .out_dtype = float32});
    });
  }
  add("reduce_ranks 2 x fp32, accumulate", 16, [&b, n] {
    cpu::reduce_ranks({.in = b.pointers.data(),
                       .ranks = 2,
                       .group = 2,
                       .out = b.out.data(),
                       .n = n,
                       .in_dtype = float32,
                       .out_dtype = float32,
                       .accumulate = true});
  });
  add("sum_of_squares fp32", 4, [&b, n] {
    cpu::sum_of_squares(
        {.x = b.ranks[0].data(), .n = n, .dtype = float32, .scale = 1.0f, .sum = &b.sum});
  });
  add("sum_of_squares bf16", 2, [&b, n] {
    cpu::sum_of_squares(
        {.x = b.half.data(), .n = n, .dtype = bfloat16, .scale = 1.0f, .sum = &b.sum});
  });
  add("dropout fp32", 8, [&b, n] {
    cpu::dropout({.x = b.ranks[0].data(),
                  .residual = nullptr,
                  .out = b.out.data(),
                  .n = n,
                  .first = 0,
                  .dtype = float32,
                  .key = {.seed = 1, .stream = 2},
                  .p = 0.1f});
  });
  add("dropout bf16", 4, [&b, n] {
    cpu::dropout({.x = b.half_ranks[0].data(),
                  .residual = nullptr,
                  .out = b.half.data(),
                  .n = n,
                  .first = 0,
                  .dtype = bfloat16,
                  .key = {.seed = 1, .stream = 2},
                  .p = 0.1f});
  });
  for (const Distribution distribution : {Distribution::uniform, Distribution::normal}) {
    const char* name = distribution == Distribution::uniform ? "uniform" : "normal";
    add(fmt::format("random_fill {} fp32", name), 4, [&b, n, distribution] {
      cpu::random_fill({.out = b.out.data(),
                        .n = n,
                        .first = 0,
                        .dtype = float32,
                        .key = {.seed = 1, .stream = 2},
                        .distribution = distribution,
                        .a = 0,
                        .b = 1});
    });
  }
  return list;
}

}  // namespace

int main(int argc, char** argv) {
  const std::int64_t n = argc > 1 ? std::atoll(argv[1]) : std::int64_t{1} << 22;
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 15;
  if (n < 1 || rounds < 1) {
    fmt::print(stderr, "usage: optimizer_bench [elements >= 1] [rounds >= 1]\n");
    return 2;
  }
  set_compute_threads(1);
  Buffers buffers(static_cast<std::size_t>(n));
  std::vector<Case> list = cases(buffers);
  // Small sizes repeat inside a measurement, so that the clock's own cost does not show.
  const std::int64_t repeats = std::max<std::int64_t>(1, (1 << 20) / n);
  for (int round = 0; round <= rounds; ++round) {
    for (Case& c : list) {
      const double start = processor_seconds();
      for (std::int64_t i = 0; i < repeats; ++i) c.run();
      const double elapsed = processor_seconds() - start;
      if (round > 0) c.seconds.push_back(elapsed / static_cast<double>(repeats));
    }
  }
  const double memcpy_rate = list[0].bytes / median(list[0].seconds);
  fmt::print("{} elements, median of {} rounds, one thread\n", n, rounds);
  fmt::print("{:<36}{:>10}{:>12}{:>10}\n", "kernel", "GB/s", "ns/element", "/memcpy");
  for (const Case& c : list) {
    const double seconds = median(c.seconds);
    fmt::print("{:<36}{:>10.2f}{:>12.3f}{:>10.2f}\n", c.name, c.bytes / seconds / 1e9,
               seconds * 1e9 / static_cast<double>(n), c.bytes / seconds / memcpy_rate);
  }
  return 0;
}
