// Every kernel of the GPU's table, on sizes larger than the caches, compared with the device's
// limits: the speed of copies in its memory, or of large products by cuBLASLt.
//   cuda_kernels_bench [--filter PART_OF_A_NAME] [--seconds PER_ROW] [--budget SECONDS]
//                      [--json FILE]
// A row names the kernel, its time, the bytes that it must move (each tensor once) or its
// operations per second, and the ratio to the device's rate. FILE gets each row as a line of JSON
// at once. The last line counts the rows that did not run because the budget was used up.
#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "bench/programs/cuda_meter.h"
#include "bench/programs/options.h"
#include "kernels/cuda/cudnn/attention_way.h"

namespace {

using namespace tessera;
using namespace tessera::bench;
using namespace tessera::kernels;

constexpr std::int64_t rows = 16384;
constexpr std::int64_t dim = 4096;
constexpr std::int64_t count = rows * dim;

double bytes_of(std::int64_t n, DType dtype) {
  return static_cast<double>(n) * static_cast<double>(size_of(dtype));
}

void bench_elementwise(Meter& meter, DType dtype) {
  const Tensor x(meter, count, dtype), y(meter, count, dtype), out(meter, count, dtype),
      bias(meter, dim, dtype);
  const Queue queue = meter.context().queue();
  const double tensor = bytes_of(count, dtype);
  meter.memory("fill", dtype, tensor, [&] { cuda::fill({out.data(), count, dtype, 1.5}, queue); });
  meter.memory("unary gelu_erf", dtype, 2 * tensor, [&] {
    cuda::unary({UnaryOp::gelu_erf, x.data(), out.data(), count, dtype}, queue);
  });
  meter.memory("unary_backward gelu_erf", dtype, 3 * tensor, [&] {
    cuda::unary_backward({UnaryOp::gelu_erf, y.data(), x.data(), out.data(), count, dtype}, queue);
  });
  meter.memory("binary add", dtype, 3 * tensor, [&] {
    cuda::binary({BinaryOp::add, x.data(), y.data(), out.data(), 1, count, dtype}, queue);
  });
  meter.memory("affine", dtype, 2 * tensor, [&] {
    cuda::affine({x.data(), out.data(), count, dtype, 2.0, 0.5}, queue);
  });
  meter.memory("bias_gelu tanh", dtype, 2 * tensor, [&] {
    cuda::bias_gelu({x.data(), bias.data(), out.data(), rows, dim, false, dtype}, queue);
  });
  meter.memory("bias_gelu_backward tanh", dtype, 3 * tensor, [&] {
    cuda::bias_gelu_backward(
        {y.data(), x.data(), bias.data(), out.data(), nullptr, rows, dim, false, dtype}, queue);
  });
  meter.memory("random_fill normal", dtype, tensor, [&] {
    cuda::random_fill(
        {out.data(), count, 0, dtype, RandomKey{1, 2}, Distribution::normal, 0.0, 1.0}, queue);
  });
  meter.memory("dropout", dtype, 2 * tensor, [&] {
    cuda::dropout({x.data(), nullptr, out.data(), count, 0, dtype, RandomKey{1, 2}, 0.1f}, queue);
  });
  const Tensor other(meter, count, dtype == float32 ? bfloat16 : float32);
  const DType other_dtype = dtype == float32 ? bfloat16 : float32;
  meter.memory(fmt::format("cast to {}", name_of(other_dtype)), dtype,
               tensor + bytes_of(count, other_dtype), [&] {
                 cuda::cast({x.data(), other.data(), count, dtype, other_dtype}, queue);
               });
}

void bench_reductions(Meter& meter, DType dtype) {
  const Tensor x(meter, count, dtype), sums(meter, dim, dtype);
  const DeviceMemory exact(sizeof(ExactSum));
  TESSERA_CUDA(cudaMemset(exact.data(), 0, sizeof(ExactSum)));
  TESSERA_CUDA(cudaDeviceSynchronize());
  const Queue queue = meter.context().queue();
  const double tensor = bytes_of(count, dtype);
  meter.memory("sum_rows", dtype, tensor, [&] {
    cuda::sum_rows({x.data(), sums.data(), rows, dim, dtype}, queue);
  });
  meter.memory("sum_all", dtype, tensor, [&] {
    cuda::sum_all({x.data(), sums.data(), count, dtype}, queue);
  });
  meter.memory("sum_of_squares", dtype, tensor, [&] {
    cuda::sum_of_squares({x.data(), count, dtype, 1.0f, static_cast<ExactSum*>(exact.data())},
                         queue);
  });
  constexpr int ranks = 4;
  const std::int64_t share = count / ranks;
  const Tensor reduced(meter, share, float32);
  std::vector<const void*> parts;
  for (int rank = 0; rank < ranks; ++rank) {
    parts.push_back(static_cast<const std::byte*>(x.data()) +
                    static_cast<std::size_t>(rank * share) * size_of(dtype));
  }
  meter.memory("reduce_ranks of 4", dtype, tensor + bytes_of(share, float32), [&] {
    cuda::reduce_ranks({parts.data(), ranks, ranks, reduced.data(), share, dtype, float32, 0.25f},
                       queue);
  });
}

void bench_normalization(Meter& meter, DType dtype, bool rms) {
  const Tensor x(meter, count, dtype), residual(meter, count, dtype), sum(meter, count, dtype),
      out(meter, count, dtype), gamma(meter, dim, dtype), beta(meter, dim, dtype),
      dgamma(meter, dim, dtype), dbeta(meter, dim, dtype), mean(meter, rows, float32),
      rstd(meter, rows, float32);
  const Queue queue = meter.context().queue();
  const double tensor = bytes_of(count, dtype);
  const std::string kind = rms ? " rms" : " layer";
  const void* const shift = rms ? nullptr : beta.data();
  meter.memory("norm_forward" + kind, dtype, 2 * tensor, [&] {
    cuda::norm_forward({x.data(), nullptr, gamma.data(), shift, nullptr, out.data(), mean.data(),
                        rstd.data(), rows, dim, 1e-5f, rms, dtype},
                       queue);
  });
  meter.memory("norm_forward + residual" + kind, dtype, 4 * tensor, [&] {
    cuda::norm_forward({x.data(), residual.data(), gamma.data(), shift, sum.data(), out.data(),
                        mean.data(), rstd.data(), rows, dim, 1e-5f, rms, dtype},
                       queue);
  });
  meter.memory("norm_backward" + kind, dtype, 4 * tensor, [&] {
    cuda::norm_backward(
        {out.data(), residual.data(), x.data(), gamma.data(), mean.data(), rstd.data(), sum.data(),
         dgamma.data(), rms ? nullptr : dbeta.data(), false, false, rows, dim, rms, dtype},
        queue);
  });
}

void bench_gated(Meter& meter, DType dtype) {
  const Tensor gate(meter, count, dtype), up(meter, count, dtype), out(meter, count, dtype),
      dgate(meter, count, dtype), dup(meter, count, dtype);
  const Queue queue = meter.context().queue();
  const double tensor = bytes_of(count, dtype);
  meter.memory("swiglu", dtype, 3 * tensor, [&] {
    cuda::swiglu({gate.data(), up.data(), out.data(), rows, dim, dim, dim, dtype}, queue);
  });
  meter.memory("swiglu_backward", dtype, 5 * tensor, [&] {
    cuda::swiglu_backward({out.data(), gate.data(), up.data(), dgate.data(), dup.data(), nullptr,
                           rows, dim, dim, dim, dtype},
                          queue);
  });
}

void bench_embedding(Meter& meter, DType dtype) {
  constexpr std::int64_t entries = 50304;
  const Tensor table(meter, entries * dim, dtype), out(meter, count, dtype);
  const Tensor ids = Tensor::of_numbers(rows, entries);
  const Queue queue = meter.context().queue();
  meter.memory("embedding_forward", dtype, 2 * bytes_of(count, dtype), [&] {
    cuda::embedding_forward(
        {ids.data(), int64, table.data(), out.data(), rows, entries, dim, dtype}, queue);
  });
  meter.memory("embedding_backward", dtype, bytes_of(count + entries * dim, dtype), [&] {
    cuda::embedding_backward(
        {ids.data(), int64, out.data(), table.data(), rows, entries, dim, dtype}, queue);
  });
  constexpr std::int64_t head_dim = 128, sequence = 2048;
  const Tensor cosine(meter, sequence * head_dim / 2, float32),
      sine(meter, sequence * head_dim / 2, float32);
  meter.memory("rotary", dtype, 2 * bytes_of(count, dtype), [&] {
    cuda::rotary({out.data(), out.data(), static_cast<const float*>(cosine.data()),
                  static_cast<const float*>(sine.data()), rows, sequence, dim / head_dim, head_dim,
                  0, dim, dim, false, dtype},
                 queue);
  });
}

void bench_losses(Meter& meter, DType dtype) {
  constexpr std::int64_t tokens = 4096, vocabulary = 50304, ignore = -100;
  const std::int64_t n = tokens * vocabulary;
  const Tensor logits(meter, n, dtype), dlogits(meter, n, dtype), losses(meter, tokens, float32),
      log_sum_exp(meter, tokens, float32), mean(meter, 1, float32);
  const Tensor targets = Tensor::of_numbers(tokens, vocabulary);
  const DeviceMemory inverse(sizeof(double));
  auto* const inverse_count = static_cast<double*>(inverse.data());
  const Queue queue = meter.context().queue();
  const double tensor = bytes_of(n, dtype);
  meter.memory("cross_entropy_forward", dtype, tensor, [&] {
    cuda::cross_entropy_forward({logits.data(), targets.data(), int64, losses.data(),
                                 log_sum_exp.data(), tokens, vocabulary, vocabulary, ignore, dtype},
                                queue);
  });
  constexpr std::int64_t many = std::int64_t{1} << 25;
  const Tensor many_losses(meter, many, float32);
  const Tensor many_targets = Tensor::of_numbers(many, vocabulary);
  meter.memory("mean_loss", float32, bytes_of(many, float32) + bytes_of(many, int64), [&] {
    cuda::mean_loss({many_losses.data(), many_targets.data(), int64, mean.data(), inverse_count,
                     many, ignore, float32},
                    queue);
  });
  meter.memory("cross_entropy_backward", dtype, 2 * tensor, [&] {
    cuda::cross_entropy_backward(
        {logits.data(), targets.data(), int64, log_sum_exp.data(), mean.data(), inverse_count,
         dlogits.data(), tokens, vocabulary, vocabulary, ignore, dtype},
        queue);
  });
  meter.memory("softmax_forward", dtype, 2 * tensor, [&] {
    cuda::softmax_forward({logits.data(), dlogits.data(), tokens, vocabulary, dtype}, queue);
  });
  meter.memory("softmax_backward", dtype, 3 * tensor, [&] {
    cuda::softmax_backward(
        {logits.data(), dlogits.data(), logits.data(), tokens, vocabulary, dtype}, queue);
  });
}

void bench_optimizers(Meter& meter) {
  const Tensor param(meter, count, float32), grad(meter, count, float32), m(meter, count, float32),
      v(meter, count, float32), copy(meter, count, bfloat16);
  const Queue queue = meter.context().queue();
  const double tensor = bytes_of(count, float32);
  meter.memory("adamw_step + bfloat16 copy", float32, 7.5 * tensor, [&] {
    cuda::adamw_step({param.data(), grad.data(), m.data(), v.data(), copy.data(), count, float32,
                      float32, bfloat16, 1e-4, 0.9, 0.95, 1e-8, 0.1, 0.1, 0.05, 1.0f},
                     queue);
  });
  meter.memory("lion_step", float32, 5 * tensor, [&] {
    cuda::lion_step({param.data(), grad.data(), m.data(), nullptr, count, float32, float32,
                     bfloat16, 1e-3, 0.9, 0.99, 0.1, 1.0f},
                    queue);
  });
  meter.memory("sgd_step momentum", float32, 5 * tensor, [&] {
    cuda::sgd_step({param.data(), grad.data(), m.data(), nullptr, count, float32, float32, bfloat16,
                    1e-3, 0.9, 0.0, 0.0, false, false, 1.0f},
                   queue);
  });
}

// out = a * b with our kernels and, if cuBLASLt is installed, with cuBLASLt on the same matrices.
void bench_product(Meter& meter, const std::string& what, DType dtype, Matmul p) {
  const Tensor a(meter, p.m * p.k, dtype), b(meter, p.k * p.n, dtype), c(meter, p.m * p.n, dtype);
  p.a = a.data(), p.b = b.data(), p.c = c.data();
  p.lda = p.transpose_a ? p.m : p.k;
  p.ldb = p.transpose_b ? p.k : p.n;
  p.ldc = p.n;
  p.dtype = p.out_dtype = dtype;
  const double flops =
      2.0 * static_cast<double>(p.m) * static_cast<double>(p.n) * static_cast<double>(p.k);
  const auto& library = cuda::cublas_lt_library();
  const auto run = [&](cuda::MatmulWay way) { cuda::matmul_by(way, p, meter.context(), library); };
  meter.products(fmt::format("matmul {} own", what), dtype, flops,
                 [&] { run(cuda::MatmulWay::own); });
  if (library.functions == nullptr) return;
  meter.products(fmt::format("matmul {} cuBLASLt", what), dtype, flops,
                 [&] { run(cuda::MatmulWay::cublas); });
}

Matmul forward_product(std::int64_t tokens, std::int64_t in, std::int64_t out) {
  Matmul p{};
  p.m = tokens, p.n = out, p.k = in;
  p.transpose_b = true;
  return p;
}

// The products of a square layer: forward, gradient of the input, gradient of the weight.
void bench_products(Meter& meter, DType dtype) {
  constexpr std::int64_t tokens = 8192, width = 4096;
  bench_product(meter, "forward", dtype, forward_product(tokens, width, width));
  Matmul input = forward_product(tokens, width, width);
  input.transpose_b = false;
  bench_product(meter, "input gradient", dtype, input);
  Matmul weight{};
  weight.m = weight.n = width, weight.k = tokens;
  weight.transpose_a = true;
  bench_product(meter, "weight gradient", dtype, weight);
}

// The forward products of GPT-2 1.5B, 8 sequences of 1024 tokens.
void bench_products_of_gpt2(Meter& meter) {
  constexpr std::int64_t tokens = 8192, width = 1600;
  struct Layer {
    const char* name;
    std::int64_t in, out;
  };
  for (const Layer& layer : {Layer{"qkv", width, 3 * width}, Layer{"projection", width, width},
                             Layer{"expand", width, 4 * width}, Layer{"contract", 4 * width, width},
                             Layer{"head", width, 50304}}) {
    bench_product(meter, fmt::format("gpt2-1.5B {}", layer.name), bfloat16,
                  forward_product(tokens, layer.in, layer.out));
  }
}

struct Heads {
  std::int64_t batch, heads, length, head_dim;
};
constexpr Heads shape_of_gpt2{.batch = 8, .heads = 25, .length = 1024, .head_dim = 64};

void bench_attention(Meter& meter, DType dtype, const Heads& s) {
  const std::int64_t width = s.heads * s.head_dim, n = s.batch * s.length * width;
  const Tensor q(meter, n, dtype), k(meter, n, dtype), v(meter, n, dtype), out(meter, n, dtype),
      dout(meter, n, dtype), dq(meter, n, dtype), dk(meter, n, dtype), dv(meter, n, dtype),
      log_sum_exp(meter, s.batch * s.heads * s.length, float32);
  const AttentionShape shape{.batch = s.batch,
                             .heads = s.heads,
                             .key_heads = s.heads,
                             .head_dim = s.head_dim,
                             .query_length = s.length,
                             .key_length = s.length,
                             .q_stride = width,
                             .k_stride = width,
                             .v_stride = width,
                             .out_stride = width,
                             .scale = 1 / std::sqrt(static_cast<float>(s.head_dim)),
                             .causal = true,
                             .key_mask = nullptr,
                             .dropout = 0.0f,
                             .key = {1, 2},
                             .first_sample = 0,
                             .dtype = dtype};
  const std::string size =
      fmt::format("{} x {} heads of {}, {} tokens,", s.batch, s.heads, s.head_dim, s.length);
  // One product of the causal half; two in the forward, five in the backward.
  const double product = static_cast<double>(s.batch * s.heads * s.head_dim) *
                         static_cast<double>(s.length) * static_cast<double>(s.length);
  const auto& library = cuda::cudnn_library();
  for (const auto& [way, name] :
       {std::pair{cuda::AttentionWay::own, "own"}, {cuda::AttentionWay::cudnn, "cuDNN"}}) {
    if (way == cuda::AttentionWay::cudnn &&
        (library.functions == nullptr || size_of(dtype) != 2 || s.head_dim > 128)) {
      continue;
    }
    meter.products(fmt::format("attention_forward {} {}", size, name), dtype, 2 * product, [&] {
      cuda::attention_forward_by(
          way, {shape, q.data(), k.data(), v.data(), out.data(), log_sum_exp.data()},
          meter.context(), library);
    });
    meter.products(fmt::format("attention_backward {} {}", size, name), dtype, 5 * product, [&] {
      cuda::attention_backward_by(way,
                                  {shape, dout.data(), q.data(), k.data(), v.data(), out.data(),
                                   log_sum_exp.data(), dq.data(), dk.data(), dv.data()},
                                  meter.context(), library);
    });
  }
}

Options options_from(int argc, char** argv) {
  Options options;
  read_options(argc, argv, "Every kernel of the GPU, compared with the limits of the device.",
               {text("--filter", options.filter, "a part of a row's name"),
                number("--seconds", options.seconds, 1e-6, "seconds of measuring, for a row"),
                number("--budget", options.budget, 0.0, "seconds of all rows; 0: no limit"),
                text("--json", options.json, "a file that gets each row as a line of JSON")});
  return options;
}

// The most important rows come first, because the budget may end before the last row.
void run_all(const Options& options) {
  Meter meter(options);
  bench_products_of_gpt2(meter);
  bench_attention(meter, bfloat16, shape_of_gpt2);
  bench_attention(meter, bfloat16, {.batch = 32, .heads = 12, .length = 1024, .head_dim = 64});
  for (const DType dtype : {bfloat16, float32}) {
    bench_elementwise(meter, dtype);
    bench_reductions(meter, dtype);
    for (const bool rms : {false, true}) bench_normalization(meter, dtype, rms);
    bench_gated(meter, dtype);
    bench_embedding(meter, dtype);
    bench_losses(meter, dtype);
  }
  bench_optimizers(meter);
  for (const DType dtype : {bfloat16, float16, float32, float64}) bench_products(meter, dtype);
  for (const DType dtype : {bfloat16, float16, float32}) {
    bench_attention(meter, dtype, {.batch = 4, .heads = 32, .length = 2048, .head_dim = 128});
  }
  TESSERA_CUDA(cudaDeviceSynchronize());
  meter.finish();
}

}  // namespace

int main(int argc, char** argv) {
  try {
    run_all(options_from(argc, argv));
    return 0;
  } catch (const tessera::Error& error) {
    fmt::print(stderr, "cuda_kernels_bench: {}\n", error.what());
    return static_cast<int>(error.code());
  }
}
