// Matrix products and attention of a GPT (384 wide, 6 heads of 64, 256 tokens, batch 8) and of a
// sentence encoder, compared with oneDNN's bare products of the same shapes.
#include <fmt/format.h>

#include <cmath>

#include "bench/harness/bare_products.h"
#include "bench/kernels/rows.h"

namespace tessera::bench {
namespace {

using namespace tessera::kernels;

constexpr std::int64_t batch = 8, heads = 6, length = 256, head_dim = 64, model = heads * head_dim;

double stored(std::int64_t numbers, DType dtype) {
  return static_cast<double>(numbers) * static_cast<double>(size_of(dtype));
}

struct Shape {
  const char* name;
  std::int64_t m, n, k;
  bool transpose_a, transpose_b, accumulate;
};

Matmul product_of(const Shape& s, DType dtype, Memory& memory) {
  return {.a = memory.random(s.m * s.k, dtype),
          .b = memory.random(s.k * s.n, dtype),
          .c = memory.zeros(s.m * s.n * 4),  // large enough for every type
          .m = s.m,
          .n = s.n,
          .k = s.k,
          .lda = s.transpose_a ? s.m : s.k,
          .ldb = s.transpose_b ? s.k : s.n,
          .ldc = s.n,
          .transpose_a = s.transpose_a,
          .transpose_b = s.transpose_b,
          .accumulate = s.accumulate,
          .dtype = dtype,
          .out_dtype = s.accumulate ? float32 : dtype,
          .stride_a = s.m * s.k,
          .stride_b = s.k * s.n,
          .stride_c = s.m * s.n};
}

Work matmul_work(const Shape& s, DType dtype, Memory& memory) {
  const Matmul own = product_of(s, dtype, memory);
  const Matmul bare = product_of(s, bare_dtype(dtype), memory);
  const double out = stored(s.m * s.n, own.out_dtype) * (s.accumulate ? 2 : 1);
  return {.run = [own] { cpu::matmul(own); },
          .bytes = stored(s.m * s.k + s.k * s.n, dtype) + out,
          .flops = 2.0 * static_cast<double>(s.m * s.n) * static_cast<double>(s.k),
          .products = dtype,
          .onednn = bare_product(bare).run};
}

// The bare products of whole heads, gathered into dense matrices, which makes them faster.
class HeadProducts {
 public:
  HeadProducts(DType wanted, Memory& memory) {
    const DType dtype = bare_dtype(wanted);
    const void* q = memory.random(count * length * head_dim, dtype);
    void* scores = memory.random(count * length * length, dtype);
    void* out = memory.random(count * length * head_dim, dtype);
    score = product(dtype, q, q, scores, {"", length, length, head_dim, false, true, false});
    value = product(dtype, scores, q, out, {"", length, head_dim, length, false, false, false});
    transposed = product(dtype, scores, q, out, {"", length, head_dim, length, true, false, false});
  }
  std::function<void()> score, value, transposed;

 private:
  static constexpr std::int64_t count = batch * heads;
  static std::function<void()> product(DType dtype, const void* a, const void* b, void* c,
                                       const Shape& s) {
    return bare_product({.a = a,
                         .b = b,
                         .c = c,
                         .m = s.m,
                         .n = s.n,
                         .k = s.k,
                         .lda = s.transpose_a ? s.m : s.k,
                         .ldb = s.transpose_b ? s.k : s.n,
                         .ldc = s.n,
                         .transpose_a = s.transpose_a,
                         .transpose_b = s.transpose_b,
                         .dtype = dtype,
                         .out_dtype = dtype,
                         .batch = count,
                         .stride_a = s.m * s.k,
                         .stride_b = s.k * s.n,
                         .stride_c = s.m * s.n})
        .run;
  }
};

// A row of attention: as many tokens as in other rows, in samples of another length.
struct AttentionRow {
  const char* name;
  float dropout = 0;
  std::int64_t positions = length;
  std::int64_t window = 0;
  bool biased = false;  // by one matrix for each head

  [[nodiscard]] std::int64_t samples() const { return batch * length / positions; }
  // The operations of one product of the scores that are not masked.
  [[nodiscard]] double flops() const {
    const auto rows = static_cast<double>(positions);
    const double seen =
        window == 0 ? rows * rows * 0.5
                    : static_cast<double>(window) * (rows - static_cast<double>(window) * 0.5);
    return 2.0 * static_cast<double>(samples() * heads * head_dim) * seen;
  }
  [[nodiscard]] double bias_bytes() const {
    return biased ? stored(heads * positions * positions, float32) : 0;
  }
};

struct AttentionMemory {
  AttentionShape shape;
  std::uint8_t *qkv, *gradient;
  void *out, *dout, *log_sum_exp, *bias_gradient;

  AttentionMemory(DType dtype, const AttentionRow& row, Memory& memory)
      : shape{.batch = row.samples(),
              .heads = heads,
              .key_heads = heads,
              .head_dim = head_dim,
              .query_length = row.positions,
              .key_length = row.positions,
              .q_stride = 3 * model,
              .k_stride = 3 * model,
              .v_stride = 3 * model,
              .out_stride = model,
              .scale = 0.125f,
              .causal = true,
              .key_mask = nullptr,
              .dropout = row.dropout,
              .key = {1, 2},
              .first_sample = 0,
              .dtype = dtype,
              .window = row.window,
              .bias = row.biased ? memory.random(heads * row.positions * row.positions, float32)
                                 : nullptr,
              .bias_head_stride = row.biased ? row.positions * row.positions : 0},
        qkv(static_cast<std::uint8_t*>(memory.random(batch * length * 3 * model, dtype))),
        gradient(static_cast<std::uint8_t*>(memory.random(batch * length * 3 * model, dtype))),
        out(memory.random(batch * length * model, dtype)),
        dout(memory.random(batch * length * model, dtype)),
        log_sum_exp(memory.random(batch * heads * length, float32)),
        bias_gradient(row.biased ? memory.zeros(heads * row.positions * row.positions * 4)
                                 : nullptr) {}

  [[nodiscard]] std::size_t part(std::size_t i) const {
    return i * static_cast<std::size_t>(model) * size_of(shape.dtype);
  }
  [[nodiscard]] AttentionForward forward() const {
    return {.shape = shape,
            .q = qkv + part(0),
            .k = qkv + part(1),
            .v = qkv + part(2),
            .out = out,
            .log_sum_exp = log_sum_exp};
  }
  [[nodiscard]] AttentionBackward backward() const {
    return {.shape = shape,
            .dout = dout,
            .q = qkv + part(0),
            .k = qkv + part(1),
            .v = qkv + part(2),
            .out = out,
            .log_sum_exp = log_sum_exp,
            .dq = gradient + part(0),
            .dk = gradient + part(1),
            .dv = gradient + part(2),
            .bias_gradient = bias_gradient};
  }
};

// Rows for each dtype: without and with dropout, and long samples without and with windows, whose
// times grow with the window. oneDNN's products of whole heads are halved.
constexpr AttentionRow attention_rows[] = {
    {.name = "causal"},
    {.name = "causal_dropout", .dropout = 0.1f},
    {.name = "causal_bias", .biased = true},
    {.name = "causal_2048", .positions = 2048},
    {.name = "window_256_of_2048", .positions = 2048, .window = 256},
    {.name = "window_64_of_2048", .positions = 2048, .window = 64}};
template <class Make>
void add_attention(Rows& to, const Make& make) {
  for (const DType dtype : {float32, bfloat16}) {
    for (const AttentionRow& row : attention_rows) {
      to.add(fmt::format("{}/{}", row.name, name_of(dtype)),
             [=](Memory& memory) { return make(memory, dtype, row); });
    }
  }
}

// 64 sequences of 4 to 28 tokens, the lengths of sentences.
struct Sentences {
  std::vector<std::int32_t> starts, lengths;
  std::int64_t rows = 0, longest = 0;
  double pairs = 0;  // tokens that see each other

  Sentences() {
    for (std::int32_t i = 0; i < 64; ++i) {
      starts.push_back(static_cast<std::int32_t>(rows));
      lengths.push_back(4 + i * 11 % 25);
      rows += lengths.back();
      longest = std::max<std::int64_t>(longest, lengths.back());
      pairs += static_cast<double>(lengths.back()) * lengths.back();
    }
  }
};

struct SentenceAttention {
  SequenceShape shape;
  void *q, *k, *v, *out, *log_sum_exp;

  SentenceAttention(const Sentences& of, DType dtype, Memory& memory)
      : shape{.starts = of.starts.data(),
              .lengths = of.lengths.data(),
              .sequences = static_cast<std::int64_t>(of.starts.size()),
              .rows = of.rows,
              .longest = of.longest,
              .heads = heads,
              .head_dim = head_dim,
              .scale = 0.125f,
              .relative_bias = nullptr,
              .reach = of.longest,
              .dropout = 0,
              .key = {1, 2},
              .first_sequence = 0,
              .capacity = of.longest,
              .dtype = dtype},
        q(memory.random(of.rows * model, dtype)),
        k(memory.random(of.rows * model, dtype)),
        v(memory.random(of.rows * model, dtype)),
        out(memory.random(of.rows * model, dtype)),
        log_sum_exp(memory.random(heads * of.rows, float32)) {}
  [[nodiscard]] double bytes(int tensors) const {
    return tensors * stored(shape.rows * model, shape.dtype);
  }
};

}  // namespace

void rows_of_matmul(Rows& to) {
  constexpr std::int64_t rows = batch * length;
  const std::pair<const char*, std::pair<std::int64_t, std::int64_t>> matrices[] = {
      {"qkv", {1152, 384}},
      {"projection", {384, 384}},
      {"mlp_up", {1536, 384}},
      {"mlp_down", {384, 1536}},
      {"head", {256, 384}}};
  for (const DType dtype : {float32, bfloat16}) {
    for (const auto& layer : matrices) {
      const std::int64_t out = layer.second.first, in = layer.second.second;
      const Shape shapes[] = {{"forward", rows, out, in, false, true, false},
                              {"data", rows, in, out, false, false, false},
                              {"weight", out, in, rows, true, false, true}};
      for (const Shape& shape : shapes) {
        to.add(fmt::format("{}/{}/{}", layer.first, shape.name, name_of(dtype)),
               [shape, dtype](Memory& memory) { return matmul_work(shape, dtype, memory); });
      }
    }
  }
}

void rows_of_gemv(Rows& to) {
  constexpr std::int64_t n = 3072, k = 768;
  for (const DType dtype : {float32, bfloat16}) {
    for (const std::int64_t rows : {1, 4}) {
      to.add(fmt::format("{}/{}", rows, name_of(dtype)), [=](Memory& memory) {
        const Gemv product{.x = memory.random(rows * k, dtype),
                           .w = memory.random(n * k, dtype),
                           .bias = memory.random(n, dtype),
                           .out = memory.random(rows * n, dtype),
                           .rows = rows,
                           .n = n,
                           .k = k,
                           .transposed = true,
                           .dtype = dtype};
        return Work{[=] { cpu::gemv(product); }, stored(n * k, dtype)};
      });
    }
  }
}

void rows_of_attention_forward(Rows& to) {
  add_attention(to, [](Memory& memory, DType dtype, const AttentionRow& row) {
    const AttentionForward call = AttentionMemory(dtype, row, memory).forward();
    Work work{.run = [=] { cpu::attention_forward(call); },
              .bytes = 4 * stored(batch * length * model, dtype) + row.bias_bytes(),
              .flops = 2 * row.flops(),
              .products = dtype};
    if (row.positions != length) return work;
    const auto& bare = memory.keep(HeadProducts(dtype, memory));
    work.onednn = [&bare] { bare.score(), bare.value(); };
    work.onednn_share = 0.5;
    return work;
  });
}

void rows_of_attention_backward(Rows& to) {
  add_attention(to, [](Memory& memory, DType dtype, const AttentionRow& row) {
    const AttentionMemory attention(dtype, row, memory);
    cpu::attention_forward(attention.forward());
    const AttentionBackward call = attention.backward();
    const bool biased = row.biased;
    Work work{.run = [=] { cpu::attention_backward(call); },
              .bytes = 8 * stored(batch * length * model, dtype) + 3 * row.bias_bytes(),
              .flops = (biased ? 7 : 5) * row.flops(),
              .products = dtype};
    if (row.positions != length) return work;
    const auto& bare = memory.keep(HeadProducts(dtype, memory));
    work.onednn = [&bare, biased] {
      bare.score(), bare.score(), bare.value(), bare.transposed(), bare.transposed();
      if (biased) bare.score(), bare.score();
    };
    work.onednn_share = 0.5;
    return work;
  });
}

void rows_of_sequence_attention_forward(Rows& to) {
  for (const DType dtype : {float32, bfloat16}) {
    to.add(std::string(name_of(dtype)), [dtype](Memory& memory) {
      const auto& sentences = memory.keep(Sentences());
      const SentenceAttention of(sentences, dtype, memory);
      const SequenceAttentionForward call{of.shape, of.q, of.k, of.v, of.out, of.log_sum_exp};
      return Work{.run = [=] { cpu::sequence_attention_forward(call); },
                  .bytes = of.bytes(4),
                  .flops = 2 * 2.0 * sentences.pairs * model,
                  .products = dtype};
    });
  }
}

void rows_of_sequence_attention_backward(Rows& to) {
  for (const DType dtype : {float32, bfloat16}) {
    to.add(std::string(name_of(dtype)), [dtype](Memory& memory) {
      const auto& sentences = memory.keep(Sentences());
      const SentenceAttention of(sentences, dtype, memory);
      cpu::sequence_attention_forward({of.shape, of.q, of.k, of.v, of.out, of.log_sum_exp});
      const std::int64_t count = sentences.rows * model;
      const SequenceAttentionBackward call{.shape = of.shape,
                                           .dout = memory.random(count, dtype),
                                           .q = of.q,
                                           .k = of.k,
                                           .v = of.v,
                                           .out = of.out,
                                           .log_sum_exp = of.log_sum_exp,
                                           .dq = memory.random(count, dtype),
                                           .dk = memory.random(count, dtype),
                                           .dv = memory.random(count, dtype),
                                           .relative_bias_gradient = nullptr};
      return Work{.run = [=] { cpu::sequence_attention_backward(call); },
                  .bytes = of.bytes(8),
                  .flops = 5 * 2.0 * sentences.pairs * model,
                  .products = dtype};
    });
  }
}

}  // namespace tessera::bench
