// The head and its loss in chunks of whole rows of the logits, for a GPU: three products, all
// large.
//
// The forward computes a chunk of logits, the rows' losses, and at once the gradients of the sum of
// the losses: those of x, and those of the weight, summed over the chunks in fp32. The backward
// only multiplies them by the factor that it gets. So no chunk of logits is computed twice.
// Measured on an H200 with GPT-2 124M and 32,768 rows, tiles that fit the L2 cache took 30 ms:
// their products are too small for 132 multiprocessors, and there are four of each.
//
// Memory: a chunk of logits in fp32 with its gradient in the weight's dtype, and from forward to
// backward both gradients in fp32. Bits depend on the chunk.
#include "engine/ops.h"
#include "engine/ops/head/head.h"
#include "engine/ops/pointwise.h"

namespace tessera::ops {
namespace {

// The logits of a chunk: its products then occupy a large GPU for several waves.
constexpr std::int64_t chunk_bytes = std::int64_t{1} << 30;
constexpr std::int64_t chunk_multiple = 256;

// The rows of a chunk: as requested, or as many as fit; whole multiples, because a part of a tile
// takes the time of a tile.
std::int64_t rows_of_chunk(const Head& h, std::int64_t requested) {
  if (requested > 0) return requested;
  const std::int64_t row_bytes =
      aligned_stride(h.vocabulary) * static_cast<std::int64_t>(size_of(h.wide));
  return std::max<std::int64_t>(1, chunk_bytes / row_bytes / chunk_multiple) * chunk_multiple;
}

// The factor of the gradients of the sum of the losses: a power of two. A probability of a large
// vocabulary is below the normal numbers of float16, which end at 2^-14; its products are fp32.
double scale_of_sums(const Head& h) {
  return h.dtype == float16 ? 1024 : 1;
}

// The gradients of the sum of the losses, times scale_of_sums(); undefined if not wanted.
struct SumGradients {
  Tensor dx, dweight;  // of the inputs' shapes, wide
};

// The two products of a chunk's gradient of the logits.
void add_products(const Head& h, const LogitsBlock& block, const Tensor& dlogits, const Tensor& x,
                  const Tensor& weight, const SumGradients& into) {
  if (into.dx.defined()) {
    TESSERA_LAUNCH(h.device, matmul,
                   {.a = dlogits.data(),
                    .b = weight.data(),
                    .c = Head::at(into.dx, block.row, h.in),
                    .m = block.rows,
                    .n = h.in,
                    .k = h.vocabulary,
                    .lda = block.stride,
                    .ldb = h.in,
                    .ldc = h.in,
                    .dtype = h.dtype,
                    .out_dtype = h.wide});
  }
  if (into.dweight.defined()) {
    TESSERA_LAUNCH(h.device, matmul,
                   {.a = dlogits.data(),
                    .b = Head::at(x, block.row, h.in),
                    .c = into.dweight.raw_data(),
                    .m = h.vocabulary,
                    .n = h.in,
                    .k = block.rows,
                    .lda = block.stride,
                    .ldb = h.in,
                    .ldc = h.in,
                    .transpose_a = true,
                    .accumulate = block.row > 0,
                    .dtype = h.dtype,
                    .out_dtype = h.wide});
  }
}

HeadLoss losses_and_gradients(const Head& h, std::int64_t chunk, const Tensor& x,
                              const Tensor& weight, const Tensor& targets,
                              const SumGradients& into) {
  HeadLoss result(h);
  const bool with_gradients = into.dx.defined() || into.dweight.defined();
  const Shape shape{std::min(chunk, h.rows), aligned_stride(h.vocabulary)};
  const Tensor logits = Tensor::empty(shape, h.wide, h.device);
  const Tensor dlogits =
      with_gradients && h.dtype != h.wide ? Tensor::empty(shape, h.dtype, h.device) : logits;
  const Tensor one = Tensor::full({}, 1, h.wide, h.device);
  const Tensor scale = Tensor::full({}, scale_of_sums(h), float64, h.device);
  for_chunks(h.rows, chunk, [&](std::int64_t row, std::int64_t rows) {
    const LogitsBlock block{row, rows, 0, h.vocabulary, aligned_stride(h.vocabulary)};
    compute_logits(h, x, weight, block, logits);
    compute_losses(h, block, logits, targets, result);
    if (!with_gradients) return;
    compute_logit_gradients(h, block, logits, targets, result.log_sum_exp, one, scale, dlogits);
    add_products(h, block, dlogits, x, weight, into);
  });
  result.take_mean(h, targets);
  return result;
}

// slot (+)= gradient * factor, [] of the gradient's dtype. `gradient` is used up unless the graph
// is kept.
void write_scaled(const Tensor& gradient, const Tensor& factor,
                  const autograd::GradientSink::Slot& slot) {
  const Device device = gradient.device();
  const bool direct = !slot.accumulate && slot.tensor.dtype() == gradient.dtype();
  const Tensor scaled = direct ? slot.tensor
                        : autograd::keeps_graph()
                            ? Tensor::empty(gradient.shape(), gradient.dtype(), device)
                            : gradient;
  kernels::Pointwise multiply{
      .op = kernels::PointwiseOp::multiply, .out = nullptr, .shape = {}, .dtype = gradient.dtype()};
  multiply.shape.dimensions = 1;
  multiply.shape.sizes[0] = gradient.elements();
  multiply.shape.strides[0][0] = 1;
  multiply.shape.strides[1][0] = 0;
  if (!device.is_meta()) {
    multiply.in[0] = gradient.data();
    multiply.in[1] = factor.data();
    multiply.out = scaled.raw_data();
    TESSERA_LAUNCH(device, pointwise, multiply);
  }
  if (direct) return;
  TESSERA_LAUNCH(device, cast,
                 {scaled.data(), slot.tensor.raw_data(), gradient.elements(), gradient.dtype(),
                  slot.tensor.dtype(), 1.0f, slot.accumulate});
}

void scaled_gradients(const Head& h, const SumGradients& sums, const Tensor& inverse_count,
                      const Tensor& dloss, autograd::GradientSink& sink) {
  const NoGradGuard no_graph;
  const Tensor factor = dloss * cast(inverse_count, h.wide) * (1 / scale_of_sums(h));
  if (sums.dx.defined() && sink.wants(0)) write_scaled(sums.dx, factor, sink.slot(0));
  if (sums.dweight.defined() && sink.wants(1))
    write_scaled(sums.dweight, factor, sink.wide_slot(1));
}

}  // namespace

Tensor head_in_rows(const Head& h, const Tensor& x, const Tensor& weight, const Tensor& targets,
                    std::int64_t chunk_rows) {
  const auto sums_of = [&](const Tensor& input) {
    return autograd::needs_graph({input}) ? Tensor::empty(input.shape(), h.wide, h.device)
                                          : Tensor();
  };
  const SumGradients sums{sums_of(x), sums_of(weight)};
  const HeadLoss loss =
      losses_and_gradients(h, rows_of_chunk(h, chunk_rows), x, weight, targets, sums);
  autograd::record(Op::linear_cross_entropy, {x, weight}, {loss.mean},
                   [h, sums, inverse_count = loss.inverse_count](std::vector<Tensor>& dout,
                                                                 autograd::GradientSink& sink) {
                     scaled_gradients(h, sums, inverse_count, dout[0], sink);
                   });
  return loss.mean;
}

}  // namespace tessera::ops
