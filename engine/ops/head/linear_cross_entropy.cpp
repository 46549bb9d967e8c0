// cross_entropy(linear(x, weight), targets): checks, and the choice between the two ways.
#include "base/error.h"
#include "engine/op_checks.h"
#include "engine/ops.h"
#include "engine/ops/head/head.h"

namespace tessera {
namespace ops {

void HeadLoss::take_mean(const Head& h, const Tensor& targets) {
  mean = Tensor::empty({}, h.wide, h.device);
  inverse_count = Tensor::empty({}, float64, h.device);
  TESSERA_LAUNCH(h.device, mean_loss,
                 {of_rows.data(), targets.data(), targets.dtype(), mean.data(),
                  inverse_count.data_as<double>(), h.rows, h.ignore, h.wide});
}

void compute_logits(const Head& h, const Tensor& x, const Tensor& weight, const LogitsBlock& block,
                    const Tensor& logits) {
  TESSERA_LAUNCH(h.device, matmul,
                 {.a = Head::at(x, block.row, h.in),
                  .b = Head::at(weight, block.column, h.in),
                  .c = logits.raw_data(),
                  .m = block.rows,
                  .n = block.columns,
                  .k = h.in,
                  .lda = h.in,
                  .ldb = h.in,
                  .ldc = block.stride,
                  .transpose_b = true,
                  .dtype = h.dtype,
                  .out_dtype = h.wide});
}

void compute_losses(const Head& h, const LogitsBlock& block, const Tensor& logits,
                    const Tensor& targets, const HeadLoss& into, const Tensor& sum) {
  TESSERA_LAUNCH(h.device, cross_entropy_forward,
                 {.logits = logits.raw_data(),
                  .targets = Head::at(targets, block.row, 1),
                  .target_dtype = targets.dtype(),
                  .loss = Head::at(into.of_rows, block.row, 1),
                  .log_sum_exp = Head::at(into.log_sum_exp, block.row, 1),
                  .rows = block.rows,
                  .vocabulary = h.vocabulary,
                  .stride = block.stride,
                  .ignore = h.ignore,
                  .dtype = h.wide,
                  .first = block.column,
                  .columns = block.columns,
                  .sum = sum.defined() ? Head::at(sum, block.row, 1) : nullptr});
}

void compute_logit_gradients(const Head& h, const LogitsBlock& block, const Tensor& logits,
                             const Tensor& targets, const Tensor& log_sum_exp, const Tensor& dloss,
                             const Tensor& inverse_count, const Tensor& dlogits) {
  TESSERA_LAUNCH(h.device, cross_entropy_backward,
                 {.logits = logits.raw_data(),
                  .targets = Head::at(targets, block.row, 1),
                  .target_dtype = targets.dtype(),
                  .log_sum_exp = Head::at(log_sum_exp, block.row, 1),
                  .dloss = dloss.data(),
                  .inverse_count = inverse_count.data_as<double>(),
                  .dlogits = dlogits.raw_data(),
                  .rows = block.rows,
                  .vocabulary = h.vocabulary,
                  .stride = block.stride,
                  .ignore = h.ignore,
                  .dtype = h.wide,
                  .first = block.column,
                  .columns = block.columns,
                  .out_dtype = h.dtype});
}

namespace {

Head describe(const Tensor& x, const Tensor& weight, const Tensor& targets,
              const LinearCrossEntropyOptions& options) {
  TESSERA_REQUIRE(targets.dtype() == int32 || targets.dtype() == int64,
                  "linear_cross_entropy: targets of {}; int32 or int64 required",
                  name_of(targets.dtype()));
  TESSERA_REQUIRE(weight.dimensions() == 2 && x.dimensions() >= 1 && x.size(-1) > 0 &&
                      x.size(-1) == weight.size(1) && weight.size(0) > 0 &&
                      targets.elements() == x.elements() / x.size(-1),
                  "linear_cross_entropy: x of shape {}, weight of shape {}, targets of shape {}",
                  x.shape().to_string(), weight.shape().to_string(), targets.shape().to_string());
  TESSERA_REQUIRE(options.chunk_rows >= 0, "linear_cross_entropy: chunks of {} rows",
                  options.chunk_rows);
  require_same_device("linear_cross_entropy", x, weight, targets);
  return {.rows = targets.elements(),
          .in = weight.size(1),
          .vocabulary = weight.size(0),
          .ignore = options.ignore,
          .dtype = weight.dtype(),
          .wide = weight.dtype() == float64 ? float64 : float32,
          .device = x.device()};
}

}  // namespace
}  // namespace ops

Tensor linear_cross_entropy(const Tensor& input, const Tensor& weight, const Tensor& targets,
                            const LinearCrossEntropyOptions& options) {
  ops::require_defined("linear_cross_entropy", input, weight, targets);
  ops::require_floating("linear_cross_entropy", input, weight);
  const Tensor x = cast(input, weight.dtype());
  const ops::Head h = ops::describe(x, weight, targets, options);
  const bool on_gpu = x.device().stands_for() == DeviceType::cuda;
  return (on_gpu ? ops::head_in_rows : ops::head_in_tiles)(h, x, weight, targets,
                                                           options.chunk_rows);
}

}  // namespace tessera
