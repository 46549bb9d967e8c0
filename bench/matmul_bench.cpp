// Matrix products and attention of a GPT (6 layers, 384 wide, 6 heads of 64, 256 tokens, batch 8,
// byte vocabulary), one thread, next to raw oneDNN calls of the same shapes in the same run:
//   matmul_bench [threads]
// In bfloat16 oneDNN multiplies twice: with its operands where they lie, and with one packed as its
// fastest kernel wants it. A processor for which it has no bfloat16 products does those of float32.
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
#include "kernels/cpu/description.h"
#include "kernels/cpu/matmul_amx.h"
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

// The medians of calls timed in turns, so that a change of the machine's speed meets all of them.
std::vector<double> measure(const std::vector<std::function<void()>>& calls) {
  double once = 0;
  for (const auto& call : calls) {
    call();
    once = std::max(once, seconds_of(call, 1));
  }
  const int repeats = std::max(1, static_cast<int>(0.01 / once));
  std::vector<std::vector<double>> times(calls.size());
  for (int round = 0; round < 11; ++round) {
    for (std::size_t i = 0; i < calls.size(); ++i) {
      times[i].push_back(seconds_of(calls[i], repeats));
    }
  }
  std::vector<double> medians;
  for (auto& of_call : times) {
    std::sort(of_call.begin(), of_call.end());
    medians.push_back(of_call[of_call.size() / 2]);
  }
  return medians;
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
  const auto product_of = [&](DType type, const void* a, const void* b, void* c) {
    return Matmul{.a = a,
                  .b = b,
                  .c = c,
                  .m = m,
                  .n = n,
                  .k = k,
                  .lda = transpose_a ? m : k,
                  .ldb = transpose_b ? k : n,
                  .ldc = n,
                  .transpose_a = transpose_a,
                  .transpose_b = transpose_b,
                  .accumulate = accumulate,
                  .dtype = type,
                  .out_dtype = accumulate ? float32 : type,
                  .batch = 1,
                  .stride_a = m * k,
                  .stride_b = k * n,
                  .stride_c = m * n};
  };
  const DType bare_type = bench::bare_dtype(dtype);
  const auto a = random_values(dtype, m * k), b = random_values(dtype, k * n);
  const auto bare_a = random_values(bare_type, m * k), bare_b = random_values(bare_type, k * n);
  auto c = random_values(float32, m * n);  // large enough for every type
  const Matmul ours = product_of(dtype, a.data(), b.data(), c.data());
  const Matmul bare = product_of(bare_type, bare_a.data(), bare_b.data(), c.data());
  const auto in_place = bench::bare_product(bare);
  const auto packed = bench::bare_product(bare, bench::BareLayout::packed);
  std::vector<std::function<void()>> calls{[&] { cpu::matmul(ours); }, in_place.run};
  if (bare_type == bfloat16) calls.push_back(packed.run);
  const std::vector<double> t = measure(calls);
  const double flops =
      2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  fmt::print(
      "{:9} {:16} {:5}x{:5}x{:5} {}{}{} {:8.0f} us {:6.0f} GFLOP/s | bare {:8.0f} us {:6.0f} ({}) "
      "| {:.2f}",
      name_of(dtype), what, m, n, k, transpose_a ? 'T' : 'N', transpose_b ? 'T' : 'N',
      accumulate ? '+' : ' ', t[0] * 1e6, flops / t[0] / 1e9, t[1] * 1e6, flops / t[1] / 1e9,
      in_place.kernel, t[0] / t[1]);
  if (bare_type == bfloat16) {
    fmt::print(" | packed {:8.0f} us {:6.0f} ({}) | {:.2f}", t[2] * 1e6, flops / t[2] / 1e9,
               packed.kernel, t[0] / t[2]);
  }
  fmt::print("\n");
  total.ours += t[0] * times;
  total.bare += t[1] * times;
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
  const DType bare_type = bench::bare_dtype(dtype);
  const auto q = random_values(bare_type, batch * heads * length * dim);
  auto head_out = q;
  auto scores = random_values(bare_type, batch * heads * length * length);
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
             .dtype = bare_type,
             .out_dtype = bare_type,
             .batch = batch * heads,
             .stride_a = m * k,
             .stride_b = k * n,
             .stride_c = m * n};
    return bench::bare_product(p).run;
  };
  const auto score = product(q.data(), q.data(), scores.data(), length, length, dim, false, true);
  const auto value =
      product(scores.data(), q.data(), head_out.data(), length, dim, length, false, false);
  const auto transposed =
      product(scores.data(), q.data(), head_out.data(), length, dim, length, true, false);
  const auto f = measure({forward, [&] { score(), value(); }});
  const auto b =
      measure({backward, [&] { score(), score(), value(), transposed(), transposed(); }});
  const double flops = 2.0 * batch * heads * length * length * dim * 0.5;
  const auto print = [&](const char* what, const std::vector<double>& t, int products) {
    fmt::print(
        "{:9} attention {:8} dropout {:.1f} {:8.0f} us {:6.0f} GFLOP/s | half of {} bare products "
        "{:8.0f} us | {:.2f}\n",
        name_of(dtype), what, dropout, t[0] * 1e6, flops * products / t[0] / 1e9, products,
        t[1] * 0.5e6, t[0] / (t[1] * 0.5));
  };
  print("forward", f, 2);
  print("backward", b, 5);
  total.ours += 6 * (f[0] + b[0]);
  total.bare += 6 * 0.5 * (f[1] + b[1]);
  total.flops += 6 * flops * 7;
}

}  // namespace

int main(int argc, char** argv) {
  set_compute_threads(argc > 1 ? std::atoi(argv[1]) : 1);
  const cpu::Description machine = cpu::describe();
  fmt::print("oneDNN {} with {}; bfloat16 by {}\n\n", machine.onednn_version, machine.onednn_isa,
             cpu::has_amx_products() ? "the library's own AMX kernel"
             : machine.bf16_products ? "oneDNN"
                                     : "widening to float32");
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
