// Counts the work of each kernel of the table. A kernel without a count fails to link.
#include "engine/planned/kernel_work.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/eight_bit.h"

namespace tessera {
namespace {

using kernels::AttentionShape;
using kernels::SequenceShape;

constexpr std::array<std::string_view, kernel_count> kernel_names = {
#define TESSERA_KERNEL_NAME(name, Arguments) #name,
    TESSERA_KERNELS(TESSERA_KERNEL_NAME)
#undef TESSERA_KERNEL_NAME
        "own_op"};

double real(std::int64_t count) {
  return static_cast<double>(count);
}
double bytes_in(std::int64_t count, DType dtype) {
  return real(count) * static_cast<double>(size_of(dtype));
}
double if_given(const void* operand, double bytes) {
  return operand == nullptr ? 0.0 : bytes;
}
std::int64_t bytes_of_sums(DType dtype) {
  return dtype == DType::float64 ? 8 : 4;
}

KernelWork memory_work(KernelId kernel, DType dtype, double bytes) {
  KernelWork work;
  work.kernel = kernel;
  work.dtype = dtype;
  work.bytes = bytes;
  return work;
}

// The work of `passes` over `rows` x `dim` elements.
KernelWork rows_of(KernelId kernel, DType dtype, std::int64_t rows, std::int64_t dim, int passes) {
  return memory_work(kernel, dtype, passes * bytes_in(rows * dim, dtype));
}

// The elements of an operand, without those that a stride of 0 repeats.
template <int operands>
std::int64_t distinct_elements(const kernels::StridedShape<operands>& shape, int operand) {
  std::int64_t elements = 1;
  for (int i = 0; i < shape.dimensions; ++i) {
    if (shape.strides[operand][i] != 0 || shape.sizes[i] == 0) elements *= shape.sizes[i];
  }
  return elements;
}

KernelWork product_work(KernelId kernel, DType dtype, std::int64_t m, std::int64_t n,
                        std::int64_t k, std::int64_t batch) {
  KernelWork work = memory_work(kernel, dtype, 0);
  work.m = m;
  work.n = n;
  work.k = k;
  work.batch = batch;
  work.operations = 2.0 * real(m) * real(n) * real(k) * real(batch);
  return work;
}

// The scores of a head that its window lets through. Where documents begin is on the device, so
// this counts as if there was one.
double seen_scores(const AttentionShape& shape) {
  const double queries = real(shape.query_length), keys = real(shape.key_length);
  if (!shape.causal) return queries * keys;
  const double before = keys - queries;  // keys before the first query
  const double seen = queries * before + queries * (queries + 1) / 2;
  if (shape.window == 0) return seen;
  // Query t has before + t + 1 - window keys that it does not see, if that is positive.
  const double last = std::max(0.0, keys - real(shape.window));
  const double hidden_before_first = std::max(0.0, before - real(shape.window));
  return seen - (last * (last + 1) - hidden_before_first * (hidden_before_first + 1)) / 2;
}

// The products for each score that is not masked: of rows of queries or keys, and of values.
struct ScoreProducts {
  int of_keys, of_values;
};
double operations_of(const AttentionShape& shape, const ScoreProducts& products) {
  return 2.0 * seen_scores(shape) * real(shape.batch * shape.heads) *
         (products.of_keys * real(shape.head_dim) + products.of_values * real(value_dim_of(shape)));
}

// The work over all heads. `tensors` is how often q, k, v and out are read or written, with their
// gradients; `biases` is that of the bias.
KernelWork attention_work(KernelId kernel, const AttentionShape& shape,
                          const ScoreProducts& products, int tensors, int biases) {
  KernelWork work = memory_work(kernel, shape.dtype, 0);
  work.m = shape.query_length;
  work.n = shape.key_length;
  work.k = shape.head_dim;
  work.batch = shape.batch * shape.heads;
  const std::int64_t value_dim = value_dim_of(shape);
  work.operations = operations_of(shape, products);
  const std::int64_t query_elements = shape.batch * shape.query_length * shape.heads;
  const std::int64_t key_elements = shape.batch * shape.key_length * shape.key_heads;
  work.bytes = tensors * bytes_in((query_elements + key_elements) * (shape.head_dim + value_dim),
                                  shape.dtype);
  if (shape.bias != nullptr) {
    const std::int64_t elements =
        bias_samples(shape) * bias_heads(shape) * shape.query_length * shape.key_length;
    work.bytes += biases * real(elements) * static_cast<double>(bytes_of_sums(shape.dtype));
  }
  return work;
}

// Assumes that every sequence has the mean length: the lengths are on the device.
KernelWork sequence_work(KernelId kernel, const SequenceShape& shape, int products, int tensors) {
  KernelWork work = memory_work(kernel, shape.dtype, 0);
  const std::int64_t length =
      std::max<std::int64_t>(1, shape.rows / std::max<std::int64_t>(1, shape.sequences));
  const std::int64_t seen = shape.window == 0 ? length : std::min(length, 2 * shape.window + 1);
  work.m = length;
  work.n = seen;
  work.k = shape.head_dim;
  work.batch = shape.sequences * shape.heads;
  work.operations =
      2.0 * products * real(shape.rows) * real(seen) * real(shape.head_dim) * real(shape.heads);
  work.bytes = 2.0 * tensors * bytes_in(shape.rows * shape.heads * shape.head_dim, shape.dtype);
  return work;
}

}  // namespace

std::string_view name_of(KernelId kernel) {
  return kernel_names.at(static_cast<std::size_t>(kernel));
}

std::optional<KernelId> kernel_named(std::string_view name) {
  const auto* const found = std::find(kernel_names.begin(), kernel_names.end(), name);
  if (found == kernel_names.end()) return std::nullopt;
  return static_cast<KernelId>(found - kernel_names.begin());
}

KernelNature nature_of(KernelId kernel) {
  switch (kernel) {
    case KernelId::matmul:
      return KernelNature::product;
    case KernelId::attention_forward:
    case KernelId::attention_backward:
    case KernelId::sequence_attention_forward:
    case KernelId::sequence_attention_backward:
      return KernelNature::attention;
    case KernelId::own_op:
      return KernelNature::own;
    default:
      return KernelNature::memory;
  }
}

KernelWork work_of(const kernels::Matmul& call) {
  KernelWork work = product_work(KernelId::matmul, call.dtype, call.m, call.n, call.k, call.batch);
  work.bytes =
      real(call.batch) * (bytes_in(call.m * call.k + call.k * call.n, call.dtype) +
                          bytes_in(call.m * call.n, call.out_dtype) * (call.accumulate ? 2 : 1));
  return work;
}
KernelWork work_of(const kernels::Gemv& call) {
  KernelWork work = product_work(KernelId::gemv, call.dtype, call.rows, call.n, call.k, 1);
  work.bytes = bytes_in(call.n * call.k, call.dtype);
  return work;
}

KernelWork work_of(const kernels::Dequantize& call) {
  const std::int64_t elements = call.row_count * call.column_count;
  const double code = call.format == QuantizedFormat::nf4 ? 0.5 : 1.0;
  return memory_work(KernelId::dequantize, call.dtype,
                     bytes_in(elements, call.dtype) + code * real(elements));
}
KernelWork work_of(const kernels::Fill& call) {
  return memory_work(KernelId::fill, call.dtype, bytes_in(call.n, call.dtype));
}
KernelWork work_of(const kernels::Cast& call) {
  const int writes = call.accumulate ? 2 : 1;
  return memory_work(KernelId::cast, call.in_dtype,
                     bytes_in(call.n, call.in_dtype) + writes * bytes_in(call.n, call.out_dtype));
}
KernelWork work_of(const kernels::Unary& call) {
  return rows_of(KernelId::unary, call.dtype, call.n, 1, 2);
}
KernelWork work_of(const kernels::UnaryBackward& call) {
  return rows_of(KernelId::unary_backward, call.dtype, call.n, 1, call.accumulate ? 4 : 3);
}
KernelWork work_of(const kernels::Binary& call) {
  return memory_work(KernelId::binary, call.dtype,
                     2 * bytes_in(call.outer * call.inner, call.dtype) +
                         (call.outer == 1 ? bytes_in(call.inner, call.dtype) : 0.0));
}
KernelWork work_of(const kernels::Affine& call) {
  return rows_of(KernelId::affine, call.dtype, call.n, 1, 2);
}
KernelWork work_of(const kernels::SumRows& call) {
  return rows_of(KernelId::sum_rows, call.dtype, call.rows, call.inner, 1);
}
KernelWork work_of(const kernels::SumAll& call) {
  return rows_of(KernelId::sum_all, call.dtype, call.n, 1, 1);
}
KernelWork work_of(const kernels::SumOfSquares& call) {
  return rows_of(KernelId::sum_of_squares, call.dtype, call.n, 1, 1);
}
KernelWork work_of(const kernels::ReduceRanks& call) {
  return memory_work(KernelId::reduce_ranks, call.in_dtype,
                     call.ranks * bytes_in(call.n, call.in_dtype) +
                         (call.accumulate ? 2 : 1) * bytes_in(call.n, call.out_dtype));
}
KernelWork work_of(const kernels::Wire& call) {
  const auto wire = static_cast<double>(wire_bytes(call.format, call.n));
  const double in = call.step == kernels::WireStep::decode ? wire : bytes_in(call.n, call.in_dtype);
  const double out =
      call.step == kernels::WireStep::encode ? wire : bytes_in(call.n, call.out_dtype);
  return memory_work(KernelId::wire, call.in_dtype, in + out);
}
KernelWork work_of(const kernels::NormForward& call) {
  return rows_of(KernelId::norm_forward, call.dtype, call.rows, call.dim,
                 call.residual == nullptr ? 2 : 4);
}
KernelWork work_of(const kernels::NormBackward& call) {
  return rows_of(KernelId::norm_backward, call.dtype, call.rows, call.dim,
                 call.dresidual == nullptr ? 3 : 4);
}
KernelWork work_of(const kernels::BiasGelu& call) {
  return rows_of(KernelId::bias_gelu, call.dtype, call.rows, call.dim, 2);
}
KernelWork work_of(const kernels::BiasGeluBackward& call) {
  return rows_of(KernelId::bias_gelu_backward, call.dtype, call.rows, call.dim,
                 call.out == nullptr ? 3 : 4);
}
KernelWork work_of(const kernels::SwiGlu& call) {
  return rows_of(KernelId::swiglu, call.dtype, call.rows, call.dim, 3);
}
KernelWork work_of(const kernels::SwiGluBackward& call) {
  return rows_of(KernelId::swiglu_backward, call.dtype, call.rows, call.dim,
                 call.out == nullptr ? 5 : 6);
}
KernelWork work_of(const kernels::EmbeddingForward& call) {
  return rows_of(KernelId::embedding_forward, call.dtype, call.rows, call.dim, 2);
}
KernelWork work_of(const kernels::EmbeddingBackward& call) {
  return memory_work(
      KernelId::embedding_backward, call.dtype,
      bytes_in(call.rows * call.dim, call.dtype) +
          bytes_in((call.accumulate ? call.rows : call.entries) * call.dim, call.dtype));
}
KernelWork work_of(const kernels::Rotary& call) {
  return rows_of(KernelId::rotary, call.dtype, call.rows, call.heads * call.head_dim, 2);
}
KernelWork work_of(const kernels::RandomFill& call) {
  return rows_of(KernelId::random_fill, call.dtype, call.n, 1, 1);
}
KernelWork work_of(const kernels::Dropout& call) {
  return memory_work(KernelId::dropout, call.dtype,
                     (call.accumulate ? 3 : 2) * bytes_in(call.n, call.dtype) +
                         if_given(call.residual, bytes_in(call.n, call.dtype)));
}
KernelWork work_of(const kernels::AttentionForward& call) {
  return attention_work(KernelId::attention_forward, call.shape, {1, 1}, 1, 1);
}
// It computes the scores again, and for the gradient of the bias once more, with the gradients of
// the probabilities.
KernelWork work_of(const kernels::AttentionBackward& call) {
  const int biased = call.bias_gradient != nullptr ? 1 : 0;
  KernelWork work = attention_work(KernelId::attention_backward, call.shape,
                                   {3 + biased, 2 + biased}, 2, biased != 0 ? 3 : 1);
  work.recomputed = operations_of(call.shape, {1 + biased, biased});
  return work;
}
KernelWork work_of(const kernels::SequenceAttentionForward& call) {
  return sequence_work(KernelId::sequence_attention_forward, call.shape, 2, 2);
}
KernelWork work_of(const kernels::SequenceAttentionBackward& call) {
  KernelWork work = sequence_work(KernelId::sequence_attention_backward, call.shape, 5, 4);
  work.recomputed = work.operations / 5;
  return work;
}
KernelWork work_of(const kernels::SequenceDropout& call) {
  return rows_of(KernelId::sequence_dropout, call.dtype, call.rows, call.dim, 2);
}
KernelWork work_of(const kernels::PoolForward& call) {
  return rows_of(KernelId::pool_forward, call.dtype, call.rows, call.dim, 1);
}
KernelWork work_of(const kernels::PoolBackward& call) {
  return rows_of(KernelId::pool_backward, call.dtype, call.rows, call.dim, call.accumulate ? 2 : 1);
}
KernelWork work_of(const kernels::NormalizeRows& call) {
  return rows_of(KernelId::normalize_rows, call.dtype, call.rows, call.dim, 2);
}
KernelWork work_of(const kernels::NormalizeRowsBackward& call) {
  return rows_of(KernelId::normalize_rows_backward, call.dtype, call.rows, call.dim, 3);
}
KernelWork work_of(const kernels::CrossEntropyForward& call) {
  return rows_of(KernelId::cross_entropy_forward, call.dtype, call.rows, call.columns, 1);
}
KernelWork work_of(const kernels::MeanLoss& call) {
  return memory_work(KernelId::mean_loss, call.dtype,
                     real(call.rows) * static_cast<double>(bytes_of_sums(call.dtype)));
}
KernelWork work_of(const kernels::CrossEntropyBackward& call) {
  return memory_work(KernelId::cross_entropy_backward, call.dtype,
                     bytes_in(call.rows * call.columns, call.dtype) +
                         bytes_in(call.rows * call.columns, call.out_dtype));
}
KernelWork work_of(const kernels::SoftmaxForward& call) {
  return rows_of(KernelId::softmax_forward, call.dtype, call.rows, call.dim, 2);
}
KernelWork work_of(const kernels::SoftmaxBackward& call) {
  return rows_of(KernelId::softmax_backward, call.dtype, call.rows, call.dim, 3);
}
KernelWork work_of(const kernels::StridedCopy& call) {
  const std::int64_t n = call.shape.elements();
  return memory_work(
      KernelId::strided_copy, call.dtype,
      bytes_in(distinct_elements(call.shape, 0), call.dtype) + bytes_in(n, call.dtype));
}
KernelWork work_of(const kernels::Pointwise& call) {
  double bytes = bytes_in(call.shape.elements(), dtype_of_result(call));
  for (int k = 0; k < operands_of(call.op); ++k) {
    bytes +=
        if_given(call.in[k], bytes_in(distinct_elements(call.shape, k), dtype_of_operand(call, k)));
  }
  return memory_work(KernelId::pointwise, call.dtype, bytes);
}
KernelWork work_of(const kernels::Reduce& call) {
  return rows_of(KernelId::reduce, call.dtype, call.outer * call.reduced, call.inner, 1);
}
KernelWork work_of(const kernels::CumulativeSum& call) {
  return rows_of(KernelId::cumulative_sum, call.dtype, call.outer * call.length, call.inner, 2);
}
KernelWork work_of(const kernels::Gather& call) {
  const std::int64_t n = call.at.outer * call.at.length * call.at.inner;
  return memory_work(KernelId::gather, call.dtype,
                     2 * bytes_in(n, call.dtype) + bytes_in(call.at.count(), call.at.dtype));
}
KernelWork work_of(const kernels::ScatterAdd& call) {
  const std::int64_t n = call.at.outer * call.at.length * call.at.inner;
  return memory_work(KernelId::scatter_add, call.dtype,
                     3 * bytes_in(n, call.dtype) + bytes_in(call.at.count(), call.at.dtype));
}
KernelWork work_of(const kernels::SortOrder& call) {
  // A comparison sort passes over keys and positions once for each doubling of a row.
  const double passes = std::ceil(std::log2(std::max(2.0, real(call.length))));
  return memory_work(KernelId::sort_order, call.dtype,
                     bytes_in(call.rows * call.length, call.dtype) +
                         passes * 2 * bytes_in(call.rows * call.length, DType::int64));
}
KernelWork work_of(const kernels::Unfold& call) {
  return memory_work(KernelId::unfold, call.dtype,
                     bytes_in(call.shape.elements() + call.shape.columns(), call.dtype));
}
KernelWork work_of(const kernels::Fold& call) {
  return memory_work(
      KernelId::fold, call.dtype,
      bytes_in((call.accumulate ? 2 : 1) * call.shape.elements() + call.shape.columns(),
               call.dtype));
}
KernelWork work_of(const kernels::AdamWStep& call) {
  return memory_work(KernelId::adamw_step, call.dtype,
                     6 * bytes_in(call.n, call.dtype) + bytes_in(call.n, call.grad_dtype) +
                         if_given(call.copy, bytes_in(call.n, call.copy_dtype)));
}
KernelWork work_of(const kernels::AdamW8BitStep& call) {
  const std::int64_t scales = (call.n + eight_bit_block - 1) / eight_bit_block;
  return memory_work(KernelId::adamw_8bit_step, DType::float32,
                     2 * bytes_in(call.n, DType::float32) + 4 * bytes_in(call.n, DType::uint8) +
                         4 * bytes_in(scales, DType::float32) + bytes_in(call.n, call.grad_dtype));
}
KernelWork work_of(const kernels::AdamWRoundedStep& call) {
  return memory_work(KernelId::adamw_rounded_step, DType::float32,
                     2 * bytes_in(call.n, DType::float32) + 4 * bytes_in(call.n, DType::bfloat16) +
                         bytes_in(call.n, call.grad_dtype));
}
KernelWork work_of(const kernels::ScheduleFreeStep& call) {
  return memory_work(KernelId::schedule_free_step, call.dtype,
                     8 * bytes_in(call.n, call.dtype) + bytes_in(call.n, call.grad_dtype));
}
KernelWork work_of(const kernels::ScheduleFreePoint& call) {
  return memory_work(KernelId::schedule_free_point, call.dtype, 3 * bytes_in(call.n, call.dtype));
}
KernelWork work_of(const kernels::ExactLimbs& call) {
  return memory_work(KernelId::exact_limbs, DType::float64,
                     2 * bytes_in(call.n * kernels::ExactSum::limbs, DType::float64));
}
KernelWork work_of(const kernels::ExactTotals& call) {
  return memory_work(KernelId::exact_totals, DType::float64,
                     bytes_in(call.n * (kernels::ExactSum::limbs + 1), DType::float64));
}
KernelWork work_of(const kernels::FactorSums& call) {
  return memory_work(KernelId::factor_sums, call.dtype, bytes_in(call.n, call.dtype));
}
KernelWork work_of(const kernels::FactorUpdate& call) {
  const std::int64_t rows = call.matrices * call.rows, columns = call.matrices * call.columns;
  return memory_work(
      KernelId::factor_update, call.dtype,
      2 * bytes_in(rows + columns, DType::float64) + bytes_in(3 * rows + 2 * columns, call.dtype));
}
KernelWork work_of(const kernels::AdafactorStep& call) {
  const double element = bytes_in(call.n, call.dtype);
  const bool is_vector = call.row_factors == nullptr;
  return memory_work(KernelId::adafactor_step, call.dtype,
                     bytes_in(call.n, call.grad_dtype) + if_given(call.direction, element) +
                         if_given(call.param, 2 * element) +
                         (is_vector ? (call.weight > 0 ? 2 : 1) * element : 0.0));
}
KernelWork work_of(const kernels::LionStep& call) {
  return memory_work(KernelId::lion_step, call.dtype,
                     4 * bytes_in(call.n, call.dtype) + bytes_in(call.n, call.grad_dtype) +
                         if_given(call.copy, bytes_in(call.n, call.copy_dtype)));
}
KernelWork work_of(const kernels::SgdStep& call) {
  return memory_work(KernelId::sgd_step, call.dtype,
                     2 * bytes_in(call.n, call.dtype) + bytes_in(call.n, call.grad_dtype) +
                         if_given(call.momentum_buffer, 2 * bytes_in(call.n, call.dtype)) +
                         if_given(call.copy, bytes_in(call.n, call.copy_dtype)));
}

}  // namespace tessera
