// Unary functions, casts, views and reductions.
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "engine/autograd.h"
#include "engine/device/launch.h"
#include "engine/op_checks.h"
#include "engine/ops.h"

namespace tessera {

namespace {

const char* name_of_unary(kernels::UnaryOp op) {
  using kernels::UnaryOp;
  switch (op) {
    case UnaryOp::negate:
      return "negate";
    case UnaryOp::relu:
      return "relu";
    case UnaryOp::gelu_erf:
    case UnaryOp::gelu_tanh:
      return "gelu";
    case UnaryOp::silu:
      return "silu";
    case UnaryOp::tanh:
      return "tanh";
    case UnaryOp::sigmoid:
      return "sigmoid";
    case UnaryOp::exp:
      return "exp";
    case UnaryOp::log:
      return "log";
    case UnaryOp::sqrt:
      return "sqrt";
    case UnaryOp::square:
      return "square";
  }
  misuse("unary: unknown operation {}", static_cast<int>(op));
}

}  // namespace

Tensor unary(kernels::UnaryOp op, const Tensor& x) {
  const char* const name = name_of_unary(op);
  ops::require_floating(name, x);
  Tensor out = Tensor::empty(x.shape(), x.dtype(), x.device());
  TESSERA_LAUNCH(x.device(), unary, {op, x.data(), out.data(), x.elements(), x.dtype()});
  autograd::record(
      {Op::unary, name}, {x}, {out},
      [op, saved = autograd::SavedValue(x)](std::vector<Tensor>& dout,
                                            autograd::GradientSink& sink) {
        const Tensor& in = saved.get();
        const auto [dx, accumulate] = sink.slot(0);
        TESSERA_LAUNCH(
            dx.device(), unary_backward,
            {op, dout[0].data(), in.data(), dx.raw_data(), in.elements(), in.dtype(), accumulate});
      },
      autograd::Reads::inputs);
  return out;
}

Tensor gelu(const Tensor& x, bool exact) {
  return unary(exact ? kernels::UnaryOp::gelu_erf : kernels::UnaryOp::gelu_tanh, x);
}

Tensor cast(const Tensor& x, DType dtype) {
  ops::require_defined("cast", x);
  if (x.dtype() == dtype) return x;
  Tensor out = Tensor::empty(x.shape(), dtype, x.device());
  TESSERA_LAUNCH(x.device(), cast,
                 {x.data(), out.data(), x.elements(), x.dtype(), dtype, 1.0f, false});
  if (!is_floating(dtype)) return out;
  autograd::record(
      Op::cast, {x}, {out},
      [](std::vector<Tensor>& dout, autograd::GradientSink& sink) {
        const auto [dx, accumulate] = sink.slot(0);
        TESSERA_LAUNCH(dx.device(), cast,
                       {dout[0].data(), dx.raw_data(), dx.elements(), dout[0].dtype(), dx.dtype(),
                        1.0f, accumulate});
      },
      autograd::Reads::nothing);
  return out;
}

Tensor reshape(const Tensor& x, const Shape& shape) {
  ops::require_defined("reshape", x);
  TESSERA_REQUIRE(shape.elements() == x.elements(), "reshape of {} into {}: {} elements are not {}",
                  x.shape().to_string(), shape.to_string(), x.elements(), shape.elements());
  Tensor out = Tensor::view_of(x.storage(), x.impl()->offset, shape, x.dtype());
  out.share_version(x);
  autograd::record(
      Op::reshape, {x}, {out},
      [](std::vector<Tensor>& dout, autograd::GradientSink& sink) { sink.add(0, dout[0]); },
      autograd::Reads::nothing);
  return out;
}

Tensor reshape(const Tensor& x, std::initializer_list<std::int64_t> sizes) {
  ops::require_defined("reshape", x);
  const auto open = std::find(sizes.begin(), sizes.end(), -1);
  if (open == sizes.end()) return reshape(x, Shape(sizes));
  std::vector<std::int64_t> known(sizes);
  std::int64_t& left = known[static_cast<std::size_t>(open - sizes.begin())];
  left = 1;
  TESSERA_REQUIRE(std::find(open + 1, sizes.end(), -1) == sizes.end(),
                  "reshape: one size may be -1; [{}] has two of them", fmt::join(sizes, ", "));
  const std::int64_t others = Shape(known).elements();
  TESSERA_REQUIRE(others > 0 && x.elements() % others == 0,
                  "reshape of {} into [{}]: {} elements do not divide over {}",
                  x.shape().to_string(), fmt::join(sizes, ", "), x.elements(), others);
  left = x.elements() / others;
  return reshape(x, Shape(known));
}

namespace {

// A tensor of `shape` filled with scalar * scale.
Tensor spread(const Tensor& scalar, double scale, const Shape& shape) {
  const Device device = scalar.device();
  if (device.type == DeviceType::cpu) {  // reading it is free
    return Tensor::full(shape, scalar.item() * scale, scalar.dtype(), device);
  }
  Tensor out = Tensor::full(shape, scale, scalar.dtype(), device);
  TESSERA_LAUNCH(device, binary,
                 {kernels::BinaryOp::multiply, out.data(), scalar.data(), out.data(),
                  out.elements(), 1, out.dtype()});
  return out;
}

Tensor scaled_sum(const char* name, const Tensor& x, double scale) {
  Tensor out = Tensor::empty({}, x.dtype(), x.device());
  TESSERA_LAUNCH(x.device(), sum_all, {x.data(), out.data(), x.elements(), x.dtype(), scale});
  autograd::record(
      {Op::sum, name}, {x}, {out},
      [shape = x.shape(), scale](std::vector<Tensor>& dout, autograd::GradientSink& sink) {
        sink.add(0, spread(dout[0], scale, shape));
      },
      autograd::Reads::nothing);
  return out;
}

}  // namespace

Tensor sum(const Tensor& x) {
  ops::require_floating("sum", x);
  return scaled_sum("sum", x, 1.0);
}

Tensor mean(const Tensor& x) {
  ops::require_floating("mean", x);
  TESSERA_REQUIRE(x.elements() > 0, "mean of an empty tensor");
  return scaled_sum("mean", x, 1.0 / static_cast<double>(x.elements()));
}

Tensor softmax(const Tensor& x) {
  ops::require_floating("softmax", x);
  TESSERA_REQUIRE(x.dimensions() > 0, "softmax of a scalar");
  const std::int64_t dim = x.size(-1);
  const std::int64_t rows = dim == 0 ? 0 : x.elements() / dim;
  Tensor out = Tensor::empty(x.shape(), x.dtype(), x.device());
  TESSERA_LAUNCH(x.device(), softmax_forward, {x.data(), out.data(), rows, dim, x.dtype()});
  autograd::record(
      Op::softmax, {x}, {out},
      [y = out.detach(), rows, dim](std::vector<Tensor>& dout, autograd::GradientSink& sink) {
        Tensor dx = Tensor::empty(y.shape(), y.dtype(), y.device());
        TESSERA_LAUNCH(y.device(), softmax_backward,
                       {dout[0].data(), y.data(), dx.raw_data(), rows, dim, y.dtype()});
        sink.add(0, dx);
      });
  return out;
}

}  // namespace tessera
