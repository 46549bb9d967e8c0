// Attention problems for the tests of the GPU's kernels: shapes, inputs, and the formula in long
// double, with which results are compared.
// For fp32 and fp64 the allowed error (expect_within_bound) is based on the CPU's kernel. For
// 16-bit types it is based on the formula, rounded where the GPU's kernels round. Tensor cores take
// 16-bit operands, so the unnormalised probabilities of the forward, and the probabilities and
// score gradients of the backward, are rounded to the type there. The CPU's kernel rounds them or
// not, depending on type and processor.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "cuda/attention/attention_cases.h"
#include "cuda/kernel_testing.h"
#include "kernels/attention.h"

namespace tessera::testing {

struct AttentionResults {
  std::vector<double> out, log_sum_exp;
  std::vector<std::vector<double>> gradients;  // as AttentionProblem::inputs, then the bias's
};

class AttentionProblem {
 public:
  // The place of a tensor in `inputs` (and in the gradients).
  struct Tensor {
    std::size_t array;
    std::int64_t offset, stride;
  };

  AttentionProblem(const AttentionCase& sizes, bool causal, DType dtype)
      : sizes_(sizes), causal_(causal), dtype_(dtype) {
    const std::int64_t row = sizes.heads * sizes.head_dim,
                       key_row = sizes.key_heads * sizes.head_dim,
                       value_row = sizes.key_heads * sizes.value_size();
    if (sizes.packed) {
      const std::int64_t stride = row + 2 * key_row + sizes.padding;
      tensors_ = {Tensor{0, 0, stride}, Tensor{0, row, stride}, Tensor{0, row + key_row, stride}};
      add_input(sizes.queries * stride, sizes.deviation);
    } else {
      tensors_ = {Tensor{0, 0, row + sizes.padding}, Tensor{1, 0, key_row + 2 * sizes.padding},
                  Tensor{2, 0, value_row}};
      add_input(sizes.queries * q().stride, sizes.deviation);
      add_input(sizes.keys * k().stride, 1);
      add_input(sizes.keys * v().stride, 1);
    }
    out_stride_ = sizes.heads * sizes.value_size() + sizes.padding;
    dout = random_values(size(sizes.batch * sizes.queries * out_stride_), dtype, 4);
    if (sizes.mask) make_mask();
    if (sizes.document > 0) make_documents();
    make_bias();
  }

  [[nodiscard]] std::string text() const {
    return fmt::format("{}{} {}", sizes_.about, causal_ ? ", causal" : "", name_of(dtype_));
  }
  [[nodiscard]] const Tensor& q() const { return tensors_[0]; }
  [[nodiscard]] const Tensor& k() const { return tensors_[1]; }
  [[nodiscard]] const Tensor& v() const { return tensors_[2]; }
  [[nodiscard]] DType dtype() const { return dtype_; }
  [[nodiscard]] DType statistic() const { return dtype_ == float64 ? float64 : float32; }
  [[nodiscard]] std::size_t out_size() const { return dout.size(); }
  [[nodiscard]] std::size_t statistic_size() const {
    return size(sizes_.batch * sizes_.heads * sizes_.queries);
  }
  [[nodiscard]] bool rounds_operands() const {
    return size_of(dtype_) == 2 && sizes_.on_tensor_cores();
  }

  // The addresses of mask and document_starts, in device memory for device kernels.
  [[nodiscard]] kernels::AttentionShape shape(const void* key_mask, const void* starts = nullptr,
                                              const void* of_bias = nullptr) const {
    return {.batch = sizes_.batch,
            .heads = sizes_.heads,
            .key_heads = sizes_.key_heads,
            .head_dim = sizes_.head_dim,
            .query_length = sizes_.queries,
            .key_length = sizes_.keys,
            .q_stride = q().stride,
            .k_stride = k().stride,
            .v_stride = v().stride,
            .out_stride = out_stride_,
            .scale = 1.0f / std::sqrt(static_cast<float>(sizes_.head_dim)),
            .causal = causal_,
            .key_mask = mask.empty() ? nullptr : static_cast<const std::uint8_t*>(key_mask),
            .dropout = sizes_.dropout,
            .key = random_key,
            .first_sample = first_sample,
            .dtype = dtype_,
            .window = sizes_.window,
            .document_starts =
                document_starts.empty() ? nullptr : static_cast<const std::int32_t*>(starts),
            .soft_cap = sizes_.soft_cap,
            .value_dim = sizes_.value_dim,
            .bias = bias.empty() ? nullptr : of_bias,
            .bias_batch_stride =
                sizes_.bias_samples > 1 ? sizes_.bias_heads * sizes_.queries * sizes_.keys : 0,
            .bias_head_stride = sizes_.bias_heads > 1 ? sizes_.queries * sizes_.keys : 0};
  }

  // The formula. Results are rounded to `result`, operands of products to `operand`; float64 means
  // no rounding. The gradients are computed only on request.
  [[nodiscard]] AttentionResults formula(DType result, DType operand, bool gradients) const {
    AttentionResults r;
    r.out.assign(out_size(), untouched);
    r.log_sum_exp.resize(statistic_size());
    Sums sums;
    for (const auto& input : inputs) {
      if (!gradients) break;
      r.gradients.emplace_back(input.size(), untouched);
      sums.emplace_back(input.size(), 0.0L);
    }
    if (gradients && !bias.empty()) sums.emplace_back(bias.size(), 0.0L);
    for (std::int64_t b = 0; b < sizes_.batch; ++b) {
      for (std::int64_t h = 0; h < sizes_.heads; ++h) {
        for (std::int64_t i = 0; i < sizes_.queries; ++i) {
          add_query({b, h, i}, result, operand, r, sums);
        }
      }
    }
    if (!gradients) return r;
    finish(q(), sizes_.heads * sizes_.head_dim, sizes_.queries, result, sums, r);
    finish(k(), sizes_.key_heads * sizes_.head_dim, sizes_.keys, result, sums, r);
    finish(v(), sizes_.key_heads * sizes_.value_size(), sizes_.keys, result, sums, r);
    if (bias.empty()) return r;
    std::vector<double>& of_bias = r.gradients.emplace_back(bias.size());
    for (std::size_t i = 0; i < bias.size(); ++i) {
      of_bias[i] = static_cast<double>(sums.back()[i]);
    }
    return r;
  }

  // 0 for a dropped probability, else 1 / (1 - dropout).
  [[nodiscard]] long double kept(std::int64_t b, std::int64_t h, std::int64_t i,
                                 std::int64_t j) const {
    if (sizes_.dropout == 0) return 1;
    const std::int64_t element =
        (((first_sample + b) * sizes_.heads + h) * sizes_.queries + i) * sizes_.keys + j;
    const std::uint32_t draw =
        kernels::philox(random_key, static_cast<std::uint64_t>(element / 4))[size(element % 4)];
    const long double dropout = sizes_.dropout;
    return draw >= static_cast<std::uint32_t>(sizes_.dropout * 0x1p32) ? 1 / (1 - dropout) : 0;
  }

  static constexpr double untouched = 9;  // exact in every type; kernels must not change it
  static constexpr kernels::RandomKey random_key{.seed = 0x123456789abcdef, .stream = 5};
  static constexpr std::int64_t first_sample = 3;

  std::vector<std::vector<double>> inputs;
  std::vector<double> dout;
  std::vector<double> bias;
  std::vector<std::byte> mask;
  std::vector<std::byte> document_starts;  // int32

 private:
  using Row = std::vector<long double>;
  using Sums = std::vector<Row>;
  struct Query {
    std::int64_t sample, head, number;
  };

  static std::size_t size(std::int64_t count) { return static_cast<std::size_t>(count); }

  void add_input(std::int64_t elements, double deviation) {
    const auto seed = static_cast<unsigned>(inputs.size() + 1);
    inputs.push_back(random_values(size(sizes_.batch * elements), dtype_, seed, deviation));
  }

  // Every third key of the first sample is hidden, and its first third, so that causal rows see
  // nothing; in the last sample every key is hidden.
  void make_mask() {
    for (std::int64_t b = 0; b < sizes_.batch; ++b) {
      for (std::int64_t j = 0; j < sizes_.keys; ++j) {
        const bool seen = b + 1 < sizes_.batch && j >= sizes_.keys / 3 && j % 3 != 0;
        mask.push_back(std::byte{static_cast<unsigned char>(seen ? 1 : 0)});
      }
    }
  }

  void make_bias() {
    const std::int64_t rows = sizes_.bias_samples * sizes_.bias_heads * sizes_.queries;
    if (rows == 0) return;
    bias = random_values(size(rows * sizes_.keys), statistic(), 6);
    std::fill_n(bias.begin(), sizes_.keys, -std::numeric_limits<double>::infinity());
  }
  [[nodiscard]] std::size_t bias_element(const Query& at, std::int64_t j) const {
    const std::int64_t sample = sizes_.bias_samples > 1 ? at.sample : 0;
    const std::int64_t head = sizes_.bias_heads > 1 ? at.head : 0;
    return size(((sample * sizes_.bias_heads + head) * sizes_.queries + at.number) * sizes_.keys +
                j);
  }

  [[nodiscard]] std::int32_t document_start(std::int64_t b, std::int64_t j) const {
    const std::int64_t first = sizes_.document - b;
    return static_cast<std::int32_t>(j < first ? 0 : j - (j - first) % sizes_.document);
  }
  void make_documents() {
    for (std::int64_t b = 0; b < sizes_.batch; ++b) {
      for (std::int64_t j = 0; j < sizes_.keys; ++j) {
        const std::int32_t start = document_start(b, j);
        const auto* const bytes = reinterpret_cast<const std::byte*>(&start);
        document_starts.insert(document_starts.end(), bytes, bytes + sizeof(start));
      }
    }
  }

  static long double rounded(long double value, DType dtype) {
    if (dtype == float64) return value;
    const auto narrow = static_cast<float>(value);
    if (dtype == bfloat16) return to_float(to_bfloat16(narrow));
    if (dtype == float16) return to_float(to_float16(narrow));
    return narrow;
  }

  [[nodiscard]] std::int64_t start(const Tensor& tensor, std::int64_t length, std::int64_t b,
                                   std::int64_t row, std::int64_t head, std::int64_t width) const {
    return tensor.offset + (b * length + row) * tensor.stride + head * width;
  }
  [[nodiscard]] std::int64_t key_start(const Tensor& tensor, const Query& at, std::int64_t j,
                                       std::int64_t width) const {
    return start(tensor, sizes_.keys, at.sample, j, at.head / (sizes_.heads / sizes_.key_heads),
                 width);
  }

  [[nodiscard]] bool sees(const Query& at, std::int64_t j) const {
    const std::int64_t position = at.number + sizes_.keys - sizes_.queries;
    if (causal_ && j > position) return false;
    if (sizes_.window > 0 && j <= position - sizes_.window) return false;
    if (sizes_.document > 0 && j < document_start(at.sample, position)) return false;
    return mask.empty() || mask[size(at.sample * sizes_.keys + j)] != std::byte{0};
  }

  [[nodiscard]] long double dot(const std::vector<double>& x, std::int64_t x_at,
                                const std::vector<double>& y, std::int64_t y_at,
                                std::int64_t width) const {
    long double sum = 0;
    for (std::int64_t d = 0; d < width; ++d) {
      sum += static_cast<long double>(x[size(x_at + d)]) * y[size(y_at + d)];
    }
    return sum;
  }
  void add(Row& sums, std::int64_t at, long double factor, const std::vector<double>& x,
           std::int64_t x_at, std::int64_t width) const {
    for (std::int64_t d = 0; d < width; ++d) {
      sums[size(at + d)] += factor * x[size(x_at + d)];
    }
  }

  // e^(score - largest) for the row's keys, with the largest score and the sum.
  struct Softmax {
    Row weights;
    long double largest, sum;
  };
  [[nodiscard]] Softmax softmax(const Query& at, std::int64_t q_at) const {
    Softmax row{Row(size(sizes_.keys)), -std::numeric_limits<long double>::infinity(), 0};
    const long double scale = shape(nullptr).scale;
    for (std::int64_t j = 0; j < sizes_.keys; ++j) {
      if (!sees(at, j)) continue;
      row.weights[size(j)] = scale * dot(inputs[q().array], q_at, inputs[k().array],
                                         key_start(k(), at, j, sizes_.head_dim), sizes_.head_dim);
      if (sizes_.soft_cap > 0) {
        const long double cap = sizes_.soft_cap;
        row.weights[size(j)] = cap * std::tanh(row.weights[size(j)] / cap);
      }
      if (!bias.empty()) row.weights[size(j)] += bias[bias_element(at, j)];
      row.largest = std::max(row.largest, row.weights[size(j)]);
    }
    for (std::int64_t j = 0; j < sizes_.keys; ++j) {
      long double& weight = row.weights[size(j)];
      weight = sees(at, j) && std::isfinite(weight) ? std::exp(weight - row.largest) : 0;
      row.sum += weight;
    }
    return row;
  }

  void add_query(const Query& at, DType result, DType operand, AttentionResults& r,
                 Sums& sums) const {
    const std::int64_t dim = sizes_.head_dim, value_dim = sizes_.value_size();
    const std::int64_t q_at = start(q(), sizes_.queries, at.sample, at.number, at.head, dim);
    const std::int64_t out_at =
        start({0, 0, out_stride_}, sizes_.queries, at.sample, at.number, at.head, value_dim);
    const Softmax row = softmax(at, q_at);
    r.log_sum_exp[size((at.sample * sizes_.heads + at.head) * sizes_.queries + at.number)] =
        static_cast<double>(row.largest + std::log(row.sum));
    Row out(size(value_dim));
    const auto keep = [&](std::int64_t j) { return kept(at.sample, at.head, at.number, j); };
    for (std::int64_t j = 0; j < sizes_.keys; ++j) {
      if (!sees(at, j)) continue;
      const long double weight = keep(j) == 0 ? 0 : rounded(row.weights[size(j)], operand);
      add(out, 0, weight, inputs[v().array], key_start(v(), at, j, value_dim), value_dim);
    }
    const long double kept_scale = 1 / (1 - static_cast<long double>(sizes_.dropout));
    for (std::int64_t d = 0; d < value_dim; ++d) {
      const long double mean = row.sum == 0 ? 0 : out[size(d)] * kept_scale / row.sum;
      r.out[size(out_at + d)] = static_cast<double>(rounded(mean, result));
    }
    if (row.sum == 0 || sums.empty()) return;
    const long double scale = shape(nullptr).scale;
    const long double delta = dot(r.out, out_at, dout, out_at, value_dim);
    for (std::int64_t j = 0; j < sizes_.keys; ++j) {
      if (!sees(at, j)) continue;
      const std::int64_t k_at = key_start(k(), at, j, dim), v_at = key_start(v(), at, j, value_dim);
      const long double p = row.weights[size(j)] / row.sum;
      add(sums[v().array], v_at, rounded(p * keep(j), operand), dout, out_at, value_dim);
      const long double dp = dot(dout, out_at, inputs[v().array], v_at, value_dim) * keep(j);
      long double slope = 1;  // of the cap
      if (sizes_.soft_cap > 0) {
        const long double added = bias.empty() ? 0 : bias[bias_element(at, j)];
        const long double ratio =
            (std::log(row.weights[size(j)]) + row.largest - added) / sizes_.soft_cap;
        slope = p == 0 ? 0 : 1 - ratio * ratio;
      }
      const long double ds = scale * rounded(p * (dp - delta) * slope, operand);
      add(sums[k().array], k_at, ds, inputs[q().array], q_at, dim);
      add(sums[q().array], q_at, ds, inputs[k().array], k_at, dim);
      if (!bias.empty()) sums.back()[bias_element(at, j)] += p * (dp - delta);
    }
  }

  void finish(const Tensor& tensor, std::int64_t columns, std::int64_t length, DType result,
              const Sums& sums, AttentionResults& r) const {
    for (std::int64_t row = 0; row < sizes_.batch * length; ++row) {
      for (std::int64_t d = 0; d < columns; ++d) {
        const std::size_t at = size(tensor.offset + row * tensor.stride + d);
        r.gradients[tensor.array][at] =
            static_cast<double>(rounded(sums[tensor.array][at], result));
      }
    }
  }

  AttentionCase sizes_;
  bool causal_;
  DType dtype_;
  std::vector<Tensor> tensors_;  // q, k, v
  std::int64_t out_stride_ = 0;
};

}  // namespace tessera::testing
