// Embedding, dropout and softmax cross-entropy.
#include "base/error.h"
#include "engine/autograd.h"
#include "engine/device/launch.h"
#include "engine/op_checks.h"
#include "engine/ops.h"
#include "engine/random.h"

namespace tessera {
namespace {

void check_ids(const char* op, const Tensor& ids) {
  TESSERA_REQUIRE(ids.dtype() == int32 || ids.dtype() == int64,
                  "{}: ids of {}; int32 or int64 required", op, name_of(ids.dtype()));
}

}  // namespace

Tensor embedding(const Tensor& ids, const Tensor& table) {
  ops::require_defined("embedding", ids, table);
  check_ids("embedding", ids);
  TESSERA_REQUIRE(table.dimensions() == 2 && ids.dimensions() < Shape::max_dimensions,
                  "embedding: table of shape {}, ids of shape {}", table.shape().to_string(),
                  ids.shape().to_string());
  TESSERA_REQUIRE(is_floating(table.dtype()), "embedding: a table of {}; a floating dtype required",
                  name_of(table.dtype()));
  ops::require_same_device("embedding", ids, table);
  const std::int64_t entries = table.size(0);
  const std::int64_t dim = table.size(1);
  std::vector<std::int64_t> sizes(ids.shape().sizes().begin(), ids.shape().sizes().end());
  sizes.push_back(dim);
  Tensor out = Tensor::empty(Shape(sizes), table.dtype(), table.device());
  TESSERA_LAUNCH(table.device(), embedding_forward,
                 {ids.data(), ids.dtype(), table.data(), out.data(), ids.elements(), entries, dim,
                  table.dtype()});
  autograd::record(Op::embedding, {table}, {out},
                   [saved = autograd::SavedValue(ids), entries, dim](std::vector<Tensor>& dout,
                                                                     autograd::GradientSink& sink) {
                     const Tensor& at = saved.get();
                     const auto [dtable, accumulate] = sink.wide_slot(0);
                     // Casts the rows, not the table, to the other's dtype.
                     const Tensor rows = cast(dout[0], dtable.dtype());
                     TESSERA_LAUNCH(dtable.device(), embedding_backward,
                                    {at.data(), at.dtype(), rows.data(), dtable.raw_data(),
                                     at.elements(), entries, dim, dtable.dtype(), accumulate});
                   });
  return out;
}

Tensor dropout(const Tensor& x, double p) {
  ops::require_floating("dropout", x);
  TESSERA_REQUIRE(p >= 0 && p < 1, "dropout: probability {} is not in [0, 1)", p);
  if (p == 0) return x;
  TESSERA_REQUIRE(x.dimensions() > 0, "dropout of a scalar");
  // Rows of the batch may have been merged with other dimensions, so elements are counted per
  // sample.
  const std::int64_t first = first_element_drawn(x.elements(), x.size(0));
  const auto key = next_dropout_key();
  const auto run = [=, p = static_cast<float>(p)](const Tensor& in, const Tensor& out) {
    TESSERA_LAUNCH(
        in.device(), dropout,
        {in.data(), nullptr, out.raw_data(), in.elements(), first, in.dtype(), key, p, false});
  };
  Tensor out = Tensor::empty(x.shape(), x.dtype(), x.device());
  if (autograd::value_is_needed()) run(x, out);
  autograd::record(
      Op::dropout, {x}, {out},
      [run](std::vector<Tensor>& dout, autograd::GradientSink& sink) {
        Tensor dx = Tensor::empty(dout[0].shape(), dout[0].dtype(), dout[0].device());
        run(dout[0], dx);
        sink.add(0, dx);
      },
      autograd::Reads::nothing);
  return out;
}

Tensor cross_entropy(const Tensor& logits, const Tensor& targets, std::int64_t ignore) {
  ops::require_defined("cross_entropy", logits, targets);
  ops::require_floating("cross_entropy", logits);
  check_ids("cross_entropy", targets);
  TESSERA_REQUIRE(logits.dimensions() > 0 && logits.size(-1) > 0 &&
                      targets.elements() == logits.elements() / logits.size(-1),
                  "cross_entropy: logits of shape {}, targets of shape {}",
                  logits.shape().to_string(), targets.shape().to_string());
  ops::require_same_device("cross_entropy", logits, targets);
  const std::int64_t vocabulary = logits.size(-1);
  const std::int64_t rows = targets.elements();
  const DType dtype = logits.dtype() == float64 ? float64 : float32;
  const Device device = logits.device();
  Tensor losses = Tensor::empty({rows}, dtype, device);
  Tensor log_sum_exp = Tensor::empty({rows}, dtype, device);
  TESSERA_LAUNCH(device, cross_entropy_forward,
                 {logits.data(), targets.data(), targets.dtype(), losses.data(), log_sum_exp.data(),
                  rows, vocabulary, vocabulary, ignore, logits.dtype()});
  Tensor loss = Tensor::empty({}, dtype, device);
  Tensor inverse_count = Tensor::empty({}, float64, device);
  TESSERA_LAUNCH(device, mean_loss,
                 {losses.data(), targets.data(), targets.dtype(), loss.data(),
                  inverse_count.data_as<double>(), rows, ignore, dtype});
  autograd::record(
      Op::cross_entropy, {logits}, {loss},
      // The gradient overwrites the logits if no other tensor shares them.
      [saved_logits = autograd::SavedValue(logits.detach()), weak = std::weak_ptr(logits.impl()),
       saved_targets = autograd::SavedValue(targets), log_sum_exp, inverse_count, rows, vocabulary,
       ignore](std::vector<Tensor>& dout, autograd::GradientSink& sink) {
        const Tensor& saved = saved_logits.get();
        const Tensor& wanted = saved_targets.get();
        const bool in_place =
            weak.expired() && saved.storage().use_count() == 1 && !autograd::keeps_graph();
        Tensor dlogits =
            in_place ? saved : Tensor::empty(saved.shape(), saved.dtype(), saved.device());
        TESSERA_LAUNCH(saved.device(), cross_entropy_backward,
                       {saved.data(), wanted.data(), wanted.dtype(), log_sum_exp.data(),
                        dout[0].data(), inverse_count.data_as<double>(), dlogits.data(), rows,
                        vocabulary, vocabulary, ignore, saved.dtype()});
        sink.add(0, dlogits);
      });
  return loss;
}

}  // namespace tessera
