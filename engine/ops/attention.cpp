// Attention over separate or packed projections, and rotary positions.
#include <cmath>

#include "base/error.h"
#include "engine/autograd.h"
#include "engine/device/launch.h"
#include "engine/op_checks.h"
#include "engine/ops.h"
#include "engine/ops/attention_variants.h"
#include "engine/random.h"

namespace tessera {
namespace {

// The memory of q, k and v: three tensors, or one tensor with element offsets.
struct Projections {
  Tensor q, k, v;
  std::int64_t k_offset = 0, v_offset = 0;  // elements

  [[nodiscard]] std::byte* at(const Tensor& t, std::int64_t offset) const {
    return t.raw_data() + static_cast<std::size_t>(offset) * size_of(t.dtype());
  }
  [[nodiscard]] std::byte* q_data() const { return q.raw_data(); }
  [[nodiscard]] std::byte* k_data() const { return at(k, k_offset); }
  [[nodiscard]] std::byte* v_data() const { return at(v, v_offset); }
};

kernels::AttentionShape attention_shape(const AttentionOptions& options, std::int64_t batch,
                                        std::int64_t query_length, std::int64_t key_length,
                                        std::int64_t head_dim, std::int64_t value_dim,
                                        DType dtype) {
  kernels::AttentionShape shape{};
  shape.batch = batch;
  shape.heads = options.heads;
  shape.key_heads = options.key_heads == 0 ? options.heads : options.key_heads;
  shape.head_dim = head_dim;
  shape.query_length = query_length;
  shape.key_length = key_length;
  shape.value_dim = value_dim;
  shape.out_stride = options.heads * value_dim;
  shape.scale = static_cast<float>(
      options.scale != 0 ? options.scale : 1.0 / std::sqrt(static_cast<double>(head_dim)));
  shape.causal = options.causal;
  ops::set_variants(shape, options);
  shape.dropout = static_cast<float>(options.dropout);
  if (shape.dropout > 0) {
    shape.key = next_dropout_key();
    shape.first_sample = first_element_drawn(batch, batch);
  }
  shape.dtype = dtype;
  return shape;
}

void check_heads(const AttentionOptions& options) {
  const std::int64_t key_heads = options.key_heads == 0 ? options.heads : options.key_heads;
  TESSERA_REQUIRE(options.heads > 0 && key_heads > 0 && options.heads % key_heads == 0,
                  "attention: {} query heads cannot share {} key heads", options.heads, key_heads);
}

void check_mask(const Tensor& q, const AttentionOptions& options, std::int64_t batch,
                std::int64_t key_length) {
  if (!options.key_mask.defined()) return;
  ops::require_same_device("attention", q, options.key_mask);
  TESSERA_REQUIRE(options.key_mask.shape() == (Shape{batch, key_length}) &&
                      size_of(options.key_mask.dtype()) == 1,
                  "attention: key_mask of {} {} for [{}, {}] keys",
                  name_of(options.key_mask.dtype()), options.key_mask.shape().to_string(), batch,
                  key_length);
}

// The tensors beside q, k and v that a call may have; any may be undefined.
struct Masks {
  Tensor keys;
  Tensor document_starts;
  Tensor bias;  // in the dtype of the statistics

  // The shape with addresses, which are looked up at each use.
  [[nodiscard]] kernels::AttentionShape in(kernels::AttentionShape shape) const {
    if (keys.defined()) shape.key_mask = reinterpret_cast<const std::uint8_t*>(keys.data());
    if (document_starts.defined()) shape.document_starts = document_starts.data_as<std::int32_t>();
    if (bias.defined()) shape.bias = bias.data();
    return shape;
  }
};

struct SavedMasks {
  explicit SavedMasks(const Masks& masks)
      : keys(masks.keys), document_starts(masks.document_starts), bias(masks.bias) {}
  [[nodiscard]] Masks get() const { return {keys.get(), document_starts.get(), bias.get()}; }

  autograd::SavedValue keys, document_starts, bias;
};

// Writes the bias's strides into `shape`.
Masks masks_of(const char* op, const Tensor& q, const AttentionOptions& options,
               kernels::AttentionShape& shape) {
  return {options.key_mask, options.document_starts, ops::prepare_bias(op, q, options, shape)};
}

struct Forward {
  Tensor out;
  Tensor log_sum_exp;
};

Forward compute(const Projections& p, const kernels::AttentionShape& shape, const Masks& masks) {
  const Device device = p.q.device();
  Forward result{
      Tensor::empty({shape.batch, shape.query_length, shape.out_stride}, shape.dtype, device),
      Tensor::empty({shape.batch, shape.heads, shape.query_length},
                    shape.dtype == float64 ? float64 : float32, device)};
  kernels::AttentionForward arguments{shape, nullptr, nullptr, nullptr, nullptr, nullptr};
  if (!device.is_meta()) {
    arguments = {masks.in(shape), p.q_data(),        p.k_data(),
                 p.v_data(),      result.out.data(), result.log_sum_exp.data()};
  }
  TESSERA_LAUNCH(device, attention_forward, arguments);
  return result;
}

Forward forward(Op op, const Projections& p, const kernels::AttentionShape& shape,
                const Masks& masks) {
  Forward result;
  autograd::compute_or_take(op, {&result.out, &result.log_sum_exp},
                            [&] { result = compute(p, shape, masks); });
  return result;
}

Tensor like(const Tensor& t) {
  return Tensor::empty(t.shape(), t.dtype(), t.device());
}

// `dresults` are the gradients of the output and of log_sum_exp; one may be undefined. So may
// `bias_gradient`.
void backward(const Projections& p, const kernels::AttentionShape& shape, const Masks& masks,
              const Forward& saved, const std::vector<Tensor>& dresults,
              const Projections& gradients, const Tensor& bias_gradient) {
  if (saved.out.is_meta()) return;
  Tensor dout = dresults[0];
  if (!dout) dout = Tensor::zeros(saved.out.shape(), shape.dtype, saved.out.device());
  kernels::AttentionBackward arguments{masks.in(shape),
                                       dout.data(),
                                       p.q_data(),
                                       p.k_data(),
                                       p.v_data(),
                                       saved.out.data(),
                                       saved.log_sum_exp.data(),
                                       gradients.q_data(),
                                       gradients.k_data(),
                                       gradients.v_data(),
                                       dresults[1] ? dresults[1].data() : nullptr,
                                       bias_gradient ? bias_gradient.raw_data() : nullptr};
  TESSERA_LAUNCH(dout.device(), attention_backward, arguments);
}

// attention() without sinks.
Forward separate_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                           const AttentionOptions& options) {
  ops::require_floating("attention", q, k, v);
  check_heads(options);
  const std::int64_t key_heads = options.key_heads == 0 ? options.heads : options.key_heads;
  TESSERA_REQUIRE(
      q.dimensions() == 3 && k.dimensions() == 3 && v.dimensions() == 3 && q.size(0) == k.size(0) &&
          k.size(0) == v.size(0) && k.size(1) == v.size(1) && q.size(2) % options.heads == 0 &&
          q.size(2) / options.heads * key_heads == k.size(2) && v.size(2) % key_heads == 0 &&
          v.size(2) > 0 && q.dtype() == k.dtype() && q.dtype() == v.dtype(),
      "attention: q {} {}, k {} {}, v {} {} with {} heads and {} key heads; of one dtype, q is "
      "[batch, queries, heads * D], k [batch, keys, key heads * D], v [batch, keys, key heads * "
      "Dv]",
      name_of(q.dtype()), q.shape().to_string(), name_of(k.dtype()), k.shape().to_string(),
      name_of(v.dtype()), v.shape().to_string(), options.heads, key_heads);
  ops::require_same_device("attention", q, k, v);
  check_mask(q, options, q.size(0), k.size(1));
  ops::check_sinks("attention", q, options);
  ops::check_variants("attention", q, options, q.size(1), k.size(1));
  auto shape = attention_shape(options, q.size(0), q.size(1), k.size(1), q.size(2) / options.heads,
                               v.size(2) / key_heads, q.dtype());
  shape.q_stride = q.size(2);
  shape.k_stride = k.size(2);
  shape.v_stride = v.size(2);
  const Masks masks = masks_of("attention", q, options, shape);
  Forward result = forward(Op::attention, {q, k, v}, shape, masks);
  const Forward saved{result.out.detach(), result.log_sum_exp.detach()};
  autograd::record(
      Op::attention, {q, k, v, masks.bias}, {result.out, result.log_sum_exp},
      [shape, saved, saved_masks = SavedMasks(masks), saved_q = autograd::SavedValue(q),
       saved_k = autograd::SavedValue(k),
       saved_v = autograd::SavedValue(v)](std::vector<Tensor>& dout, autograd::GradientSink& sink) {
        const Projections from{saved_q.get(), saved_k.get(), saved_v.get()};
        const Masks with = saved_masks.get();
        const Projections gradients{like(from.q), like(from.k), like(from.v)};
        const Tensor bias_gradient = sink.wants(3) ? like(with.bias) : Tensor();
        backward(from, shape, with, saved, dout, gradients, bias_gradient);
        sink.add(0, gradients.q);
        sink.add(1, gradients.k);
        sink.add(2, gradients.v);
        if (bias_gradient) sink.add(3, bias_gradient);
      });
  return result;
}

// packed_attention() without sinks.
Forward joint_attention(const Tensor& qkv, const AttentionOptions& options) {
  ops::require_floating("packed_attention", qkv);
  check_heads(options);
  const std::int64_t key_heads = options.key_heads == 0 ? options.heads : options.key_heads;
  TESSERA_REQUIRE(qkv.dimensions() == 3 && qkv.size(2) % (options.heads + 2 * key_heads) == 0,
                  "packed_attention: qkv of shape {} with {} heads and {} key heads",
                  qkv.shape().to_string(), options.heads, key_heads);
  check_mask(qkv, options, qkv.size(0), qkv.size(1));
  ops::check_sinks("packed_attention", qkv, options);
  ops::check_variants("packed_attention", qkv, options, qkv.size(1), qkv.size(1));
  const std::int64_t head_dim = qkv.size(2) / (options.heads + 2 * key_heads);
  auto shape = attention_shape(options, qkv.size(0), qkv.size(1), qkv.size(1), head_dim, head_dim,
                               qkv.dtype());
  shape.q_stride = shape.k_stride = shape.v_stride = qkv.size(2);
  const std::int64_t k_offset = options.heads * head_dim;
  const std::int64_t v_offset = k_offset + key_heads * head_dim;
  const Projections inputs{qkv, qkv, qkv, k_offset, v_offset};
  const Masks masks = masks_of("packed_attention", qkv, options, shape);
  Forward result = forward(Op::packed_attention, inputs, shape, masks);
  const Forward saved{result.out.detach(), result.log_sum_exp.detach()};
  autograd::record(Op::packed_attention, {qkv, masks.bias}, {result.out, result.log_sum_exp},
                   [shape, saved, k_offset, v_offset, saved_masks = SavedMasks(masks),
                    saved_qkv = autograd::SavedValue(qkv)](std::vector<Tensor>& dout,
                                                           autograd::GradientSink& sink) {
                     const Tensor& from = saved_qkv.get();
                     const Masks with = saved_masks.get();
                     const Tensor dqkv = like(from);
                     const Tensor bias_gradient = sink.wants(1) ? like(with.bias) : Tensor();
                     backward({from, from, from, k_offset, v_offset}, shape, with, saved, dout,
                              {dqkv, dqkv, dqkv, k_offset, v_offset}, bias_gradient);
                     sink.add(0, dqkv);
                     if (bias_gradient) sink.add(1, bias_gradient);
                   });
  return result;
}

}  // namespace

Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v,
                 const AttentionOptions& options) {
  const Forward result = separate_attention(q, k, v, options);
  return ops::with_sinks(result.out, result.log_sum_exp, options);
}

AttentionParts attention_parts(const Tensor& q, const Tensor& k, const Tensor& v,
                               const AttentionOptions& options) {
  TESSERA_REQUIRE(!options.sinks.defined(),
                  "attention_parts: a sink belongs to all keys; add it after the parts are joined");
  Forward result = separate_attention(q, k, v, options);
  return {result.out, result.log_sum_exp};
}

Tensor packed_attention(const Tensor& qkv, const AttentionOptions& options) {
  const Forward result = joint_attention(qkv, options);
  return ops::with_sinks(result.out, result.log_sum_exp, options);
}

Tensor rotary(const Tensor& x, std::int64_t heads, const Tensor& cosine, const Tensor& sine,
              std::int64_t first_position) {
  ops::require_floating("rotary", x, cosine, sine);
  TESSERA_REQUIRE(x.dimensions() == 3 && heads > 0 && x.size(2) % (2 * heads) == 0,
                  "rotary: x of shape {} with {} heads", x.shape().to_string(), heads);
  const std::int64_t head_dim = x.size(2) / heads;
  TESSERA_REQUIRE(cosine.shape() == sine.shape() && cosine.dimensions() == 2 &&
                      cosine.size(1) == head_dim / 2 &&
                      cosine.size(0) >= first_position + x.size(1) && cosine.dtype() == float32 &&
                      sine.dtype() == float32,
                  "rotary: tables of shape {} for positions {} to {} of head size {}",
                  cosine.shape().to_string(), first_position, first_position + x.size(1), head_dim);
  ops::require_same_device("rotary", x, cosine, sine);
  const auto rotate = [=](const Tensor& in, const Tensor& out, bool inverse) {
    TESSERA_LAUNCH(in.device(), rotary,
                   {in.data(), out.raw_data(), cosine.data_as<float>(), sine.data_as<float>(),
                    in.size(0) * in.size(1), in.size(1), heads, head_dim, first_position,
                    in.size(2), in.size(2), inverse, in.dtype()});
  };
  Tensor out = Tensor::empty(x.shape(), x.dtype(), x.device());
  rotate(x, out, false);
  autograd::record(
      Op::rotary, {x}, {out},
      [=](std::vector<Tensor>& dout, autograd::GradientSink& sink) {
        Tensor dx = Tensor::empty(dout[0].shape(), dout[0].dtype(), dout[0].device());
        rotate(dout[0], dx, true);
        sink.add(0, dx);
      },
      autograd::Reads::nothing);
  return out;
}

}  // namespace tessera
