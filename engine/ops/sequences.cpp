// Ops over sequences that follow each other in rows: attention, dropout and pooling.
#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "engine/autograd.h"
#include "engine/device/launch.h"
#include "engine/op_checks.h"
#include "engine/ops.h"
#include "engine/random.h"
#include "engine/recompute_region.h"

namespace tessera {
namespace {

DType statistics_of(DType dtype) {
  return dtype == float64 ? float64 : float32;
}

void check_sequences(const char* op, const Tensor& x, const Sequences& sequences) {
  ops::require_floating(op, x);
  TESSERA_REQUIRE(
      sequences.starts.defined() && sequences.lengths.defined() && sequences.slots.defined(),
      "{}: starts, lengths or slots of the sequences is an undefined tensor", op);
  TESSERA_REQUIRE(x.dimensions() == 2, "{}: x of shape {}; [rows, elements] required", op,
                  x.shape().to_string());
  ops::require_same_device(op, x, sequences.starts, sequences.lengths, sequences.slots);
  const std::int64_t count = sequences.count();
  TESSERA_REQUIRE(sequences.starts.elements() == count && sequences.slots.elements() == x.size(0) &&
                      sequences.starts.dtype() == int32 && sequences.lengths.dtype() == int32 &&
                      sequences.slots.dtype() == int32,
                  "{}: {} starts, {} lengths and {} slots for {} rows; int32 required", op,
                  sequences.starts.elements(), count, sequences.slots.elements(), x.size(0));
  TESSERA_REQUIRE(sequences.longest <= sequences.capacity,
                  "{}: sequences of up to {} rows with a capacity of {}", op, sequences.longest,
                  sequences.capacity);
}

struct Attention {
  Tensor q, k, v, bias;
  Sequences sequences;
  kernels::SequenceShape shape;

  // The shape with addresses, which are looked up at each use.
  [[nodiscard]] kernels::SequenceShape now() const {
    kernels::SequenceShape s = shape;
    s.starts = sequences.starts.data_as<std::int32_t>();
    s.lengths = sequences.lengths.data_as<std::int32_t>();
    s.relative_bias = bias.defined() ? bias.data() : nullptr;
    return s;
  }
};

Attention describe(const Tensor& q, const Tensor& k, const Tensor& v, const Sequences& sequences,
                   const SequenceAttentionOptions& options) {
  constexpr const char* op = "sequence_attention";
  ops::require_floating(op, q, k, v);
  check_sequences(op, q, sequences);
  TESSERA_REQUIRE(q.shape() == k.shape() && q.shape() == v.shape() && q.dtype() == k.dtype() &&
                      q.dtype() == v.dtype() && options.heads > 0 && q.size(1) % options.heads == 0,
                  "{}: q {}, k {}, v {} with {} heads", op, q.shape().to_string(),
                  k.shape().to_string(), v.shape().to_string(), options.heads);
  const Tensor& bias = options.relative_bias;
  ops::require_same_device(op, q, k, v, bias);
  TESSERA_REQUIRE(
      !bias.defined() ||
          (bias.dimensions() == 2 && bias.size(1) == options.heads && bias.size(0) % 2 == 1 &&
           (bias.size(0) + 1) / 2 >= sequences.longest && bias.dtype() == statistics_of(q.dtype())),
      "{}: relative_bias of {} {} for {} heads and sequences of up to {} rows of {}", op,
      name_of(bias.dtype()), bias.shape().to_string(), options.heads, sequences.longest,
      name_of(q.dtype()));
  kernels::SequenceShape shape{};
  shape.sequences = sequences.count();
  shape.rows = q.size(0);
  shape.longest = sequences.longest;
  shape.heads = options.heads;
  shape.head_dim = q.size(1) / options.heads;
  shape.scale = static_cast<float>(
      options.scale != 0 ? options.scale : 1.0 / std::sqrt(static_cast<double>(shape.head_dim)));
  shape.reach = bias.defined() ? (bias.size(0) + 1) / 2 : 0;
  shape.dropout = static_cast<float>(options.dropout);
  shape.capacity = sequences.capacity;
  if (options.window) {
    TESSERA_REQUIRE(*options.window >= 1, "{}: a window of {} for q {}; it is at least 1", op,
                    *options.window, q.shape().to_string());
    // A window that hides no key is none.
    if (*options.window < sequences.longest - 1) shape.window = *options.window;
  }
  shape.dtype = q.dtype();
  if (options.dropout > 0) {
    shape.key = next_dropout_key();
    shape.first_sequence = first_element_drawn(shape.sequences, shape.sequences);
  }
  return {q, k, v, bias, sequences, shape};
}

template <class Id>
void write_document_starts(const Tensor& ids, Tensor& starts) {
  const std::int64_t rows = ids.size(0), length = ids.size(1);
  for (std::int64_t row = 0; row < rows; ++row) {
    const Id* const from = ids.data_as<Id>() + row * length;
    auto* const to = reinterpret_cast<std::int32_t*>(starts.data()) + row * length;
    for (std::int64_t i = 0; i < length; ++i) {
      TESSERA_REQUIRE(i == 0 || from[i] >= from[i - 1],
                      "document_starts: ids of shape {} have document {} at position {} of row {} "
                      "after document {}; ids must not decrease along a row",
                      ids.shape().to_string(), from[i], i, row, from[i - 1]);
      to[i] = i > 0 && from[i] == from[i - 1] ? to[i - 1] : static_cast<std::int32_t>(i);
    }
  }
}

}  // namespace

Tensor document_starts(const Tensor& ids, Device device) {
  ops::require_defined("document_starts", ids);
  TESSERA_REQUIRE(
      ids.dimensions() == 2 && (ids.dtype() == int32 || ids.dtype() == int64) &&
          ids.device() == Device::cpu(),
      "document_starts: ids of {} {} on {}; int32 or int64 [batch, positions] on the CPU required",
      name_of(ids.dtype()), ids.shape().to_string(), ids.device().to_string());
  Tensor starts = Tensor::empty(ids.shape(), int32, Device::cpu());
  if (ids.dtype() == int32) {
    write_document_starts<std::int32_t>(ids, starts);
  } else {
    write_document_starts<std::int64_t>(ids, starts);
  }
  autograd::note_values("document_starts", {ids}, {starts});
  return starts.to(device);
}

Tensor sequence_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                          const Sequences& sequences, const SequenceAttentionOptions& options) {
  const Attention attention = describe(q, k, v, sequences, options);
  const Device device = q.device();
  Tensor out;
  Tensor log_sum_exp;
  autograd::compute_or_take(Op::sequence_attention, {&out, &log_sum_exp}, [&] {
    out = Tensor::empty(q.shape(), q.dtype(), device);
    log_sum_exp =
        Tensor::empty({attention.shape.heads, q.size(0)}, statistics_of(q.dtype()), device);
    TESSERA_LAUNCH(device, sequence_attention_forward,
                   {attention.now(), q.data(), k.data(), v.data(), out.data(), log_sum_exp.data()});
  });
  const std::vector<autograd::SavedValue> inputs{autograd::SavedValue(q), autograd::SavedValue(k),
                                                 autograd::SavedValue(v),
                                                 autograd::SavedValue(options.relative_bias)};
  autograd::record(Op::sequence_attention, {q, k, v, options.relative_bias}, {out},
                   [attention, inputs, saved = out.detach(), log_sum_exp](
                       std::vector<Tensor>& dout, autograd::GradientSink& sink) {
                     for (const autograd::SavedValue& input : inputs) (void)input.get();
                     const auto like = [](const Tensor& t) {
                       return Tensor::empty(t.shape(), t.dtype(), t.device());
                     };
                     const Tensor dq = like(saved), dk = like(saved), dv = like(saved);
                     const Tensor dbias = sink.wants(3) ? like(attention.bias) : Tensor{};
                     TESSERA_LAUNCH(saved.device(), sequence_attention_backward,
                                    {attention.now(), dout[0].data(), attention.q.data(),
                                     attention.k.data(), attention.v.data(), saved.data(),
                                     log_sum_exp.data(), dq.raw_data(), dk.raw_data(),
                                     dv.raw_data(), dbias.defined() ? dbias.raw_data() : nullptr});
                     sink.add(0, dq);
                     sink.add(1, dk);
                     sink.add(2, dv);
                     if (dbias.defined()) sink.add(3, dbias);
                   });
  return out;
}

Tensor sequence_dropout(const Tensor& x, double p, const Sequences& sequences) {
  ops::require_floating("sequence_dropout", x);
  TESSERA_REQUIRE(p >= 0 && p < 1, "sequence_dropout: probability {} is not in [0, 1)", p);
  if (p == 0) return x;
  check_sequences("sequence_dropout", x, sequences);
  const std::int64_t first =
      first_element_drawn(sequences.count(), sequences.count()) * sequences.capacity;
  const auto key = next_dropout_key();
  const auto run = [=, slots = sequences.slots, p = static_cast<float>(p)](const Tensor& in,
                                                                           const Tensor& out) {
    TESSERA_LAUNCH(in.device(), sequence_dropout,
                   {in.data(), out.raw_data(), slots.data_as<std::int32_t>(), in.size(0),
                    in.size(1), first, key, p, in.dtype()});
  };
  Tensor out = Tensor::empty(x.shape(), x.dtype(), x.device());
  if (autograd::value_is_needed()) run(x, out);
  autograd::record(
      Op::sequence_dropout, {x}, {out},
      [run](std::vector<Tensor>& dout, autograd::GradientSink& sink) {
        Tensor dx = Tensor::empty(dout[0].shape(), dout[0].dtype(), dout[0].device());
        run(dout[0], dx);
        sink.add(0, dx);
      },
      autograd::Reads::nothing);
  return out;
}

Tensor pool_sequences(const Tensor& x, const Sequences& sequences,
                      const std::vector<PoolingMode>& modes) {
  check_sequences("pool_sequences", x, sequences);
  TESSERA_REQUIRE(!modes.empty(), "pool_sequences: no mode");
  const std::int64_t rows = x.size(0), dim = x.size(1), count = sequences.count();
  const std::int64_t stride = dim * static_cast<std::int64_t>(modes.size());
  const DType dtype = statistics_of(x.dtype());
  Tensor out = Tensor::empty({count, stride}, dtype, x.device());
  // The columns of mode i.
  const auto part = [=](const Tensor& of_out, std::size_t i) {
    return of_out.raw_data() +
           static_cast<std::int64_t>(i) * dim * static_cast<std::int64_t>(size_of(dtype));
  };
  const Tensor starts = sequences.starts, lengths = sequences.lengths;
  for (std::size_t i = 0; i < modes.size(); ++i) {
    TESSERA_LAUNCH(x.device(), pool_forward,
                   {x.data(), starts.data_as<std::int32_t>(), lengths.data_as<std::int32_t>(),
                    part(out, i), count, rows, dim, stride, modes[i], x.dtype()});
  }
  const bool reads_x = std::find(modes.begin(), modes.end(), PoolingMode::max) != modes.end();
  const autograd::SavedTensor saved(reads_x ? x : Tensor{});
  autograd::record(
      Op::pool_sequences, {x}, {out},
      [=, shape = x.shape(), x_dtype = x.dtype()](std::vector<Tensor>& dout,
                                                  autograd::GradientSink& sink) {
        const Tensor values = saved.get();
        Tensor dx = Tensor::empty(shape, x_dtype, dout[0].device());
        for (std::size_t i = 0; i < modes.size(); ++i) {
          TESSERA_LAUNCH(dx.device(), pool_backward,
                         {part(dout[0], i), values.defined() ? values.data() : nullptr,
                          starts.data_as<std::int32_t>(), lengths.data_as<std::int32_t>(),
                          dx.data(), count, rows, dim, stride, modes[i], x_dtype, i > 0});
        }
        sink.add(0, dx);
      },
      autograd::Reads::inputs);
  return out;
}

Tensor normalize_rows(const Tensor& x, double eps) {
  ops::require_floating("normalize_rows", x);
  TESSERA_REQUIRE(x.dimensions() > 0 && eps > 0, "normalize_rows: x of shape {}, eps {}",
                  x.shape().to_string(), eps);
  const std::int64_t dim = x.size(-1);
  const std::int64_t rows = dim == 0 ? 0 : x.elements() / dim;
  const DType dtype = x.dtype();
  Tensor out = Tensor::empty(x.shape(), dtype, x.device());
  const Tensor norms = Tensor::empty({rows}, statistics_of(dtype), x.device());
  TESSERA_LAUNCH(x.device(), normalize_rows,
                 {x.data(), out.data(), norms.raw_data(), rows, dim, eps, dtype});
  autograd::record(
      Op::normalize_rows, {x}, {out},
      [norms, rows, dim, eps, dtype, saved = autograd::SavedValue(x)](
          std::vector<Tensor>& dout, autograd::GradientSink& sink) {
        const Tensor& in = saved.get();
        Tensor dx = Tensor::empty(in.shape(), dtype, in.device());
        TESSERA_LAUNCH(in.device(), normalize_rows_backward,
                       {dout[0].data(), in.data(), norms.data(), dx.data(), rows, dim, eps, dtype});
        sink.add(0, dx);
      });
  return out;
}

}  // namespace tessera
