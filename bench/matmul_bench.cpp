// Matrix products and attention of a GPT (6 layers, 384 wide, 6 heads of 64, 256 tokens, batch 8,
// byte vocabulary), one thread, next to raw oneDNN calls of the same shapes in the same run:
//   matmul_bench [threads]
#include <fmt/core.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "bench/bare_products.h"
#include "kernels/base/low_precision.h"
#include "kernels/base/parallel.h"
#include "kernels/registry.h"

namespace {

using namespace tessera;
using namespace tessera::kernels;

// One thread's own processor time, which other programs on the machine disturb little; with more
// threads the time that passes.
double now() {
  if (compute_threads() > 1) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

double seconds_of(const std::function<void()>& call, int repeats) {
  const double start = now();
  for (int i = 0; i < repeats; ++i) call();
  return (now() - start) / repeats;
}

// The medians of two calls timed in turns, so that a change of the machine's speed meets both.
struct Pair {
  double ours, bare;
};
Pair measure(const std::function<void()>& ours, const std::function<void()>& bare) {
  ours(), bare();
  const double once = std::max(seconds_of(ours, 1), seconds_of(bare, 1));
  const int repeats = std::max(1, static_cast<int>(0.01 / once));
  std::vector<double> a, b;
  for (int round = 0; round < 11; ++round) {
    a.push_back(seconds_of(ours, repeats));
    b.push_back(seconds_of(bare, repeats));
  }
  std::sort(a.begin(), a.end());
  std::sort(b.begin(), b.end());
  return {a[a.size() / 2], b[b.size() / 2]};
}

std::vector<std::uint8_t> random_values(DType dtype, std::int64_t count) {
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(count) * size_of(dtype));
  cpu::random_fill({.out = bytes.data(),
                    .n = count,
                    .first = 0,
                    .dtype = dtype,
                    .key = {1, 2},
                    .distribution = Distribution::normal,
                    .a = 0,
                    .b = 1});
  return bytes;
}

struct Total {
  double ours = 0, bare = 0, flops = 0;
};

void report_product(const char* what, DType dtype, std::int64_t m, std::int64_t n, std::int64_t k,
                    bool transpose_a, bool transpose_b, bool accumulate, int times, Total& total) {
  const DType out_dtype = accumulate ? float32 : dtype;
  const auto a = random_values(dtype, m * k), b = random_values(dtype, k * n);
  auto c = random_values(out_dtype, m * n);
  const Matmul p{.a = a.data(),
                 .b = b.data(),
                 .c = c.data(),
                 .m = m,
                 .n = n,
                 .k = k,
                 .lda = transpose_a ? m : k,
                 .ldb = transpose_b ? k : n,
                 .ldc = n,
                 .transpose_a = transpose_a,
                 .transpose_b = transpose_b,
                 .accumulate = accumulate,
                 .dtype = dtype,
                 .out_dtype = out_dtype,
                 .batch = 1,
                 .stride_a = m * k,
                 .stride_b = k * n,
                 .stride_c = m * n};
  const Pair t = measure([&] { cpu::matmul(p); }, bench::bare_product(p));
  const double flops =
      2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  fmt::print(
      "{:9} {:16} {:5}x{:5}x{:5} {}{}{} {:8.0f} us {:6.0f} GFLOP/s | bare {:8.0f} us {:6.0f} | "
      "{:.2f}\n",
      name_of(dtype), what, m, n, k, transpose_a ? 'T' : 'N', transpose_b ? 'T' : 'N',
      accumulate ? '+' : ' ', t.ours * 1e6, flops / t.ours / 1e9, t.bare * 1e6,
      flops / t.bare / 1e9, t.ours / t.bare);
  total.ours += t.ours * times;
  total.bare += t.bare * times;
  total.flops += flops * times;
}

void report_linear(const char* name, DType dtype, std::int64_t out, std::int64_t in, int times,
                   Total& total) {
  constexpr std::int64_t rows = 8 * 256;
  const std::string text(name);
  report_product((text + " forward").c_str(), dtype, rows, out, in, false, true, false, times,
                 total);
  report_product((text + " data").c_str(), dtype, rows, in, out, false, false, false, times, total);
  report_product((text + " weight").c_str(), dtype, out, in, rows, true, false, true, times, total);
}

// Attention forward and backward, next to its seven products for whole heads, of which causality
// leaves half.
void report_attention(DType dtype, float dropout, Total& total) {
  constexpr std::int64_t batch = 8, heads = 6, length = 256, dim = 64, width = heads * dim;
  const auto qkv = random_values(dtype, batch * length * 3 * width);
  const auto dout = random_values(dtype, batch * length * width);
  auto out = dout;
  auto dqkv = qkv;
  std::vector<float> log_sum_exp(batch * heads * length);
  const auto part = [&](auto& buffer, std::size_t i) {
    return buffer.data() + i * width * size_of(dtype);
  };
  const AttentionShape shape{.batch = batch,
                             .heads = heads,
                             .key_heads = heads,
                             .head_dim = dim,
                             .query_length = length,
                             .key_length = length,
                             .q_stride = 3 * width,
                             .k_stride = 3 * width,
                             .v_stride = 3 * width,
                             .out_stride = width,
                             .scale = 0.125f,
                             .causal = true,
                             .key_mask = nullptr,
                             .dropout = dropout,
                             .key = {1, 2},
                             .first_sample = 0,
                             .dtype = dtype};
  const auto forward = [&] {
    cpu::attention_forward({.shape = shape,
                            .q = part(qkv, 0),
                            .k = part(qkv, 1),
                            .v = part(qkv, 2),
                            .out = out.data(),
                            .log_sum_exp = log_sum_exp.data()});
  };
  const auto backward = [&] {
    cpu::attention_backward({.shape = shape,
                             .dout = dout.data(),
                             .q = part(qkv, 0),
                             .k = part(qkv, 1),
                             .v = part(qkv, 2),
                             .out = out.data(),
                             .log_sum_exp = log_sum_exp.data(),
                             .dq = part(dqkv, 0),
                             .dk = part(dqkv, 1),
                             .dv = part(dqkv, 2)});
  };
  // Heads gathered into dense matrices, which favours the bare products.
  const auto q = random_values(dtype, batch * heads * length * dim);
  auto head_out = q;
  auto scores = random_values(dtype, batch * heads * length * length);
  const auto product = [&](const void* a, const void* b, void* c, std::int64_t m, std::int64_t n,
                           std::int64_t k, bool ta, bool tb) {
    Matmul p{.a = a,
             .b = b,
             .c = c,
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
             .batch = batch * heads,
             .stride_a = m * k,
             .stride_b = k * n,
             .stride_c = m * n};
    return bench::bare_product(p);
  };
  const auto score = product(q.data(), q.data(), scores.data(), length, length, dim, false, true);
  const auto value =
      product(scores.data(), q.data(), head_out.data(), length, dim, length, false, false);
  const auto transposed =
      product(scores.data(), q.data(), head_out.data(), length, dim, length, true, false);
  const Pair f = measure(forward, [&] { score(), value(); });
  const Pair b = measure(backward, [&] { score(), score(), value(), transposed(), transposed(); });
  const double flops = 2.0 * batch * heads * length * length * dim * 0.5;
  const auto print = [&](const char* what, const Pair& t, int products) {
    fmt::print(
        "{:9} attention {:8} dropout {:.1f} {:8.0f} us {:6.0f} GFLOP/s | half of {} bare products "
        "{:8.0f} us | {:.2f}\n",
        name_of(dtype), what, dropout, t.ours * 1e6, flops * products / t.ours / 1e9, products,
        t.bare * 0.5e6, t.ours / (t.bare * 0.5));
  };
  print("forward", f, 2);
  print("backward", b, 5);
  total.ours += 6 * (f.ours + b.ours);
  total.bare += 6 * 0.5 * (f.bare + b.bare);
  total.flops += 6 * flops * 7;
}

}  // namespace

int main(int argc, char** argv) {
  set_compute_threads(argc > 1 ? std::atoi(argv[1]) : 1);
  for (const DType dtype : {float32, bfloat16}) {
    Total total;
    report_linear("qkv", dtype, 1152, 384, 6, total);
    report_linear("projection", dtype, 384, 384, 6, total);
    report_linear("mlp up", dtype, 1536, 384, 6, total);
    report_linear("mlp down", dtype, 384, 1536, 6, total);
    report_linear("head", dtype, 256, 384, 1, total);
    Total unused;
    report_attention(dtype, 0.1f, unused);
    report_attention(dtype, 0.0f, total);
    fmt::print(
        "{:9} products and attention of a step: {:.1f} ms ({:.0f} GFLOP/s); bare oneDNN {:.1f} ms "
        "({:.0f}); ratio {:.2f}\n\n",
        name_of(dtype), total.ours * 1e3, total.flops / total.ours / 1e9, total.bare * 1e3,
        total.flops / total.bare / 1e9, total.ours / total.bare);
  }
  return 0;
}
