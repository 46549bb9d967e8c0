// The vectorised kernels' memory speed next to memcpy of the same bytes, one thread, shapes of a
// training step.
//
// A row names the kernel, its shape, GB/s of the bytes it must move (each tensor once), and the
// ratio to memcpy's GB/s over the same number of bytes, measured in turn with it so that both meet
// the same noise.
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "kernels/base/low_precision.h"
#include "kernels/base/parallel.h"
#include "kernels/registry.h"

namespace {

using namespace tessera;
using namespace tessera::kernels;

// The thread's processor time: other work on the machine takes its time away but does not count.
double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double seconds_of(const std::function<void()>& run) {
  const double start = thread_seconds();
  run();
  return thread_seconds() - start;
}

// A tensor of random numbers small enough for every function here.
class Buffer {
 public:
  Buffer(std::int64_t n, DType dtype) : bytes_(static_cast<std::size_t>(n) * size_of(dtype)) {
    std::mt19937 generator(1);
    std::normal_distribution<float> normal;
    for (std::int64_t i = 0; i < n; ++i) {
      const float value = normal(generator);
      const auto at = static_cast<std::size_t>(i);
      if (dtype == float32) {
        std::memcpy(bytes_.data() + at * 4, &value, 4);
      } else {
        const BFloat16 narrow = to_bfloat16(value);
        std::memcpy(bytes_.data() + at * 2, &narrow, 2);
      }
    }
  }
  [[nodiscard]] void* data() { return bytes_.data(); }

 private:
  std::vector<char> bytes_;
};

void report(const std::string& name, DType dtype, std::int64_t rows, std::int64_t dim, double bytes,
            const std::function<void()>& run) {
  const auto half = static_cast<std::size_t>(bytes / 2);  // memcpy reads and writes
  std::vector<char> source(half, 1), target(half, 2);
  double kernel = 1e9, copy = 1e9;
  for (int repeat = 0; repeat < 25; ++repeat) {
    kernel = std::min(kernel, seconds_of(run));
    copy = std::min(copy, seconds_of([&] { std::memcpy(target.data(), source.data(), half); }));
  }
  fmt::print("{:<28} {:<9} {:>5}x{:<6} {:>8.3f} ms {:>7.1f} GB/s {:>7.2f} of memcpy ({:.1f})\n",
             name, name_of(dtype), rows, dim, kernel * 1e3, bytes / kernel * 1e-9, copy / kernel,
             bytes / copy * 1e-9);
}

void bench_elementwise(DType dtype, std::int64_t rows, std::int64_t dim) {
  const std::int64_t n = rows * dim;
  const double tensor = static_cast<double>(n) * static_cast<double>(size_of(dtype));
  Buffer x(n, dtype), dout(n, dtype), out(n, dtype), bias(dim, dtype), sums(dim, dtype);
  const auto row = [&](const std::string& name, double tensors, const std::function<void()>& run) {
    report(name, dtype, rows, dim, tensors * tensor, run);
  };
  row("fill", 1, [&] { cpu::fill({out.data(), n, dtype, 1.5}); });
  row("affine", 2, [&] { cpu::affine({x.data(), out.data(), n, dtype, 2.0, 1.0}); });
  row("binary add", 3, [&] {
    cpu::binary({BinaryOp::add, x.data(), dout.data(), out.data(), 1, n, dtype});
  });
  row("binary add, row repeated", 2, [&] {
    cpu::binary({BinaryOp::add, x.data(), bias.data(), out.data(), rows, dim, dtype});
  });
  row("unary relu", 2, [&] { cpu::unary({UnaryOp::relu, x.data(), out.data(), n, dtype}); });
  row("unary exp", 2, [&] { cpu::unary({UnaryOp::exp, x.data(), out.data(), n, dtype}); });
  row("unary tanh", 2, [&] { cpu::unary({UnaryOp::tanh, x.data(), out.data(), n, dtype}); });
  row("unary_backward silu", 3, [&] {
    cpu::unary_backward({UnaryOp::silu, dout.data(), x.data(), out.data(), n, dtype});
  });
  for (const bool exact : {false, true}) {
    const std::string form = exact ? "erf" : "tanh";
    row("bias_gelu " + form, 2, [&] {
      cpu::bias_gelu({x.data(), bias.data(), out.data(), rows, dim, exact, dtype});
    });
    row("bias_gelu_backward " + form, 3, [&] {
      cpu::bias_gelu_backward(
          {dout.data(), x.data(), bias.data(), out.data(), nullptr, rows, dim, exact, dtype});
    });
  }
  row("swiglu", 3, [&] {
    cpu::swiglu({x.data(), dout.data(), out.data(), rows, dim, dim, dim, dtype});
  });
  row("sum_rows", 1, [&] { cpu::sum_rows({x.data(), sums.data(), rows, dim, dtype}); });
  row("sum_all", 1, [&] { cpu::sum_all({x.data(), sums.data(), n, dtype}); });
}

void bench_cast(DType in_dtype, DType out_dtype, std::int64_t n) {
  Buffer in(n, in_dtype), out(n, out_dtype);
  const double bytes =
      static_cast<double>(n) * static_cast<double>(size_of(in_dtype) + size_of(out_dtype));
  report(fmt::format("cast to {}", name_of(out_dtype)), in_dtype, 1, n, bytes, [&] {
    cpu::cast({in.data(), out.data(), n, in_dtype, out_dtype});
  });
}

void bench_normalization(DType dtype, std::int64_t rows, std::int64_t dim, bool rms) {
  const std::int64_t n = rows * dim;
  const double tensor = static_cast<double>(n) * static_cast<double>(size_of(dtype));
  Buffer x(n, dtype), residual(n, dtype), sum(n, dtype), out(n, dtype), gamma(dim, dtype);
  Buffer dgamma(dim, dtype), dbeta(dim, dtype), mean(rows, float32), rstd(rows, float32);
  void* beta = rms ? nullptr : gamma.data();
  const std::string kind = rms ? "rms" : "layer";
  report(kind + "_norm", dtype, rows, dim, 2 * tensor, [&] {
    cpu::norm_forward({x.data(), nullptr, gamma.data(), beta, nullptr, out.data(), mean.data(),
                       rstd.data(), rows, dim, 1e-5f, rms, dtype});
  });
  report(kind + "_norm + residual", dtype, rows, dim, 4 * tensor, [&] {
    cpu::norm_forward({x.data(), residual.data(), gamma.data(), beta, sum.data(), out.data(),
                       mean.data(), rstd.data(), rows, dim, 1e-5f, rms, dtype});
  });
  report(kind + "_norm_backward", dtype, rows, dim, 4 * tensor, [&] {
    cpu::norm_backward({out.data(), residual.data(), x.data(), gamma.data(), mean.data(),
                        rstd.data(), sum.data(), dgamma.data(), rms ? nullptr : dbeta.data(), false,
                        false, rows, dim, rms, dtype});
  });
}

void bench_cross_entropy(DType dtype, std::int64_t rows, std::int64_t vocabulary) {
  const std::int64_t n = rows * vocabulary;
  const double tensor = static_cast<double>(n) * static_cast<double>(size_of(dtype));
  Buffer logits(n, dtype), dlogits(n, dtype), loss(rows, float32), lse(rows, float32);
  const std::vector<std::int64_t> targets(static_cast<std::size_t>(rows), 7);
  report("cross_entropy", dtype, rows, vocabulary, tensor, [&] {
    cpu::cross_entropy_forward({logits.data(), targets.data(), int64, loss.data(), lse.data(), rows,
                                vocabulary, vocabulary, -100, dtype});
  });
  const float dloss = 1.0f;
  const double inverse_count = 1.0;
  report("cross_entropy_backward", dtype, rows, vocabulary, 2 * tensor, [&] {
    cpu::cross_entropy_backward({logits.data(), targets.data(), int64, lse.data(), &dloss,
                                 &inverse_count, dlogits.data(), rows, vocabulary, vocabulary, -100,
                                 dtype});
  });
  report("softmax", dtype, rows, vocabulary, 2 * tensor, [&] {
    cpu::softmax_forward({logits.data(), dlogits.data(), rows, vocabulary, dtype});
  });
}

}  // namespace

int main() {
  set_compute_threads(1);
  for (const DType dtype : {float32, bfloat16}) {
    bench_elementwise(dtype, 2048, 1536);
    for (const std::int64_t dim : {384, 1152}) {
      for (const bool rms : {false, true}) bench_normalization(dtype, 2048, dim, rms);
    }
    bench_cross_entropy(dtype, 256, 30522);
  }
  constexpr std::int64_t n = 2048 * 1536;
  bench_cast(float32, bfloat16, n);
  bench_cast(bfloat16, float32, n);
  bench_cast(float32, float16, n);
  bench_cast(float16, float32, n);
  return 0;
}
