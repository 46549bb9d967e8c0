// LayerNorm and RMSNorm, alone and fused with the residual addition before them.
#include "base/error.h"
#include "engine/autograd.h"
#include "engine/device/launch.h"
#include "engine/module_call.h"
#include "engine/op_checks.h"
#include "engine/ops.h"
#include "engine/tensor_ops.h"

namespace tessera {
namespace {

std::byte* address(const Tensor& tensor) {
  return tensor.defined() ? tensor.raw_data() : nullptr;
}

struct Norm {
  Tensor sum;  // undefined without residual
  Tensor out;
};

// The inputs with which a norm computes its output again.
struct NormAgain {
  autograd::SavedValue input, gamma, beta;
  Tensor mean, rstd;
  double eps;
  bool rms;

  [[nodiscard]] Tensor operator()() const {
    const Tensor& x = input.get();
    Tensor out = Tensor::empty(x.shape(), x.dtype(), x.device());
    // Overwrites the statistics with the same values.
    TESSERA_LAUNCH(x.device(), norm_forward,
                   {x.data(), nullptr, address(gamma.get()), address(beta.get()), nullptr,
                    out.data(), address(mean), rstd.raw_data(), rstd.elements(), x.size(-1),
                    static_cast<float>(eps), rms, x.dtype()});
    return out;
  }
};

// Computing a norm's output again costs one pass over memory; keeping it costs as much memory as
// its input. Backwards that need the output therefore compute it again from the input, which the
// norm keeps anyway. Inside the norm's module call, gamma and beta are still present. An output
// that outlives the call may be needed when they are sharded, so then they are copied.
void offer_recompute(const Tensor& out, NormAgain norm) {
  auto again = std::make_shared<NormAgain>(std::move(norm));
  if (const auto& call = current_module_call()) {
    call->before_leaving.emplace_back([again, output = std::weak_ptr(out.impl())] {
      if (output.expired()) return;
      for (autograd::SavedValue* parameter : {&again->gamma, &again->beta}) {
        if (parameter->get().defined()) *parameter = autograd::SavedValue(parameter->get().clone());
      }
    });
  }
  out.impl()->recompute =
      std::make_shared<const std::function<Tensor()>>([again] { return (*again)(); });
}

Norm norm(const Tensor& x, const Tensor& residual, const Tensor& gamma, const Tensor& beta,
          double eps, bool rms) {
  const char* name = rms ? (residual.defined() ? "add_rms_norm" : "rms_norm")
                         : (residual.defined() ? "add_layer_norm" : "layer_norm");
  ops::require_floating(name, x);
  TESSERA_REQUIRE(x.dimensions() > 0, "{} of a scalar", name);
  const std::int64_t dim = x.size(-1);
  const std::int64_t rows = dim == 0 ? 0 : x.elements() / dim;
  for (const Tensor& parameter : {gamma, beta}) {
    TESSERA_REQUIRE(
        !parameter.defined() || (parameter.elements() == dim && parameter.dtype() == x.dtype()),
        "{}: parameter of {} {} for x of {} {}", name, name_of(parameter.dtype()),
        parameter.shape().to_string(), name_of(x.dtype()), x.shape().to_string());
  }
  TESSERA_REQUIRE(
      !residual.defined() || (residual.shape() == x.shape() && residual.dtype() == x.dtype()),
      "{}: residual of shape {} for x of shape {}", name, residual.shape().to_string(),
      x.shape().to_string());
  ops::require_same_device(name, x, residual, gamma, beta);
  const DType statistics = x.dtype() == float64 ? float64 : float32;
  const Device device = x.device();
  Norm result{residual.defined() ? Tensor::empty(x.shape(), x.dtype(), device) : Tensor{},
              Tensor::empty(x.shape(), x.dtype(), device)};
  const Tensor mean = rms ? Tensor{} : Tensor::empty({rows}, statistics, device);
  const Tensor rstd = Tensor::empty({rows}, statistics, device);
  TESSERA_LAUNCH(device, norm_forward,
                 {x.data(), address(residual), address(gamma), address(beta), address(result.sum),
                  result.out.data(), address(mean), rstd.raw_data(), rows, dim,
                  static_cast<float>(eps), rms, x.dtype()});
  // The saved input is the rounded sum if there is a residual. detach() prevents the node from
  // owning its own output.
  const Tensor input = residual.defined() ? result.sum.detach() : x;
  const auto backward = [device, mean, rstd, rows, dim, rms, saved = autograd::SavedValue(input),
                         saved_gamma = autograd::SavedValue(gamma)](
                            const Tensor& dsum, const Tensor& dout, autograd::GradientSink& sink,
                            int gamma_input) {
    const Tensor& in = saved.get();
    Tensor dx = Tensor::empty(in.shape(), in.dtype(), device);
    autograd::GradientSink::Slot dgamma;
    autograd::GradientSink::Slot dbeta;
    if (sink.wants(gamma_input)) dgamma = sink.slot(gamma_input);
    if (!rms && sink.wants(gamma_input + 1)) dbeta = sink.slot(gamma_input + 1);
    TESSERA_LAUNCH(
        device, norm_backward,
        {dout.data(), address(dsum), in.data(), address(saved_gamma.get()), address(mean),
         rstd.data(), dx.data(), address(dgamma.tensor), address(dbeta.tensor), dgamma.accumulate,
         dbeta.accumulate, rows, dim, rms, in.dtype()});
    return dx;
  };
  if (autograd::needs_graph({x, residual, gamma, beta})) {
    offer_recompute(result.out, {autograd::SavedValue(input.detach()), autograd::SavedValue(gamma),
                                 autograd::SavedValue(beta), mean, rstd, eps, rms});
  }
  if (residual.defined()) {
    autograd::record({Op::add_norm, name}, {x, residual, gamma, beta}, {result.sum, result.out},
                     [=](std::vector<Tensor>& dout, autograd::GradientSink& sink) {
                       // Only the sum was used: its gradient passes through.
                       const Tensor dx =
                           dout[1].defined() ? backward(dout[0], dout[1], sink, 2) : dout[0];
                       sink.add(0, dx);
                       sink.add(1, dx);
                     });
  } else {
    autograd::record({Op::norm, name}, {x, gamma, beta}, {result.out},
                     [=](std::vector<Tensor>& dout, autograd::GradientSink& sink) {
                       sink.add(0, backward({}, dout[0], sink, 1));
                     });
  }
  return result;
}

}  // namespace

Tensor layer_norm(const Tensor& x, const Tensor& gamma, const Tensor& beta, double eps) {
  return norm(x, {}, gamma, beta, eps, false).out;
}

Tensor rms_norm(const Tensor& x, const Tensor& gamma, double eps) {
  return norm(x, {}, gamma, {}, eps, true).out;
}

std::pair<Tensor, Tensor> add_layer_norm(const Tensor& x, const Tensor& residual,
                                         const Tensor& gamma, const Tensor& beta, double eps) {
  ops::require_floating("add_layer_norm", x, residual);
  Norm result = norm(x, residual, gamma, beta, eps, false);
  return {result.sum, result.out};
}

std::pair<Tensor, Tensor> add_rms_norm(const Tensor& x, const Tensor& residual, const Tensor& gamma,
                                       double eps) {
  ops::require_floating("add_rms_norm", x, residual);
  Norm result = norm(x, residual, gamma, {}, eps, true);
  return {result.sum, result.out};
}

Tensor group_norm(const Tensor& x, std::int64_t groups, const Tensor& gamma, const Tensor& beta,
                  double eps) {
  ops::require_floating("group_norm", x);
  ops::require_same_device("group_norm", x, gamma, beta);
  TESSERA_REQUIRE(x.dimensions() >= 2 && groups > 0 && x.size(1) % groups == 0 && x.elements() > 0,
                  "group_norm: x of shape {} in {} groups; [samples, channels, ..] is needed, with "
                  "channels that the groups divide, and elements",
                  x.shape().to_string(), groups);
  // 16-bit numbers are rounded once, after all of it.
  const DType wide = x.dtype() == float64 ? float64 : float32;
  const std::int64_t channels = x.size(1);
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(x.dimensions() - 1), 1);
  sizes[0] = channels;
  const auto of_channels = [&](const char* what, const Tensor& values) {
    TESSERA_REQUIRE(values.shape() == Shape{channels} && is_floating(values.dtype()),
                    "group_norm: {} of {} {} for {} channels", what, name_of(values.dtype()),
                    values.shape().to_string(), channels);
    return reshape(cast(values, wide), Shape(sizes));
  };
  const std::int64_t together = x.elements() / (x.size(0) * groups);
  const Tensor rows = reshape(cast(x, wide), Shape{x.size(0), groups, together});
  Tensor y = reshape(layer_norm(rows, {}, {}, eps), x.shape());
  if (gamma.defined()) y = y * of_channels("gamma", gamma);
  if (beta.defined()) y = y + of_channels("beta", beta);
  return cast(y, gamma.defined() ? gamma.dtype() : x.dtype());
}

}  // namespace tessera
