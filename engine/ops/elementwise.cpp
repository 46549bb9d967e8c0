// Unary functions, casts, views and reductions.
#include "engine/autograd.h"
#include "engine/launch.h"
#include "engine/ops.h"
#include "engine/ops/checks.h"
#include "engine/queue.h"
#include "kernels/base/error.h"

namespace tessera {

namespace {

Shape shape_of_joined(std::initializer_list<Tensor> parts) {
  const Tensor& first = *parts.begin();
  TESSERA_REQUIRE(first.dimensions() > 0, "concatenate of scalars: give them a dimension first");
  std::vector<std::int64_t> sizes(first.shape().sizes().begin(), first.shape().sizes().end());
  sizes[0] = 0;
  for (const Tensor& part : parts) {
    ops::require_same_device("concatenate", first, part);
    bool same = part.dtype() == first.dtype() && part.dimensions() == first.dimensions();
    for (int i = 1; same && i < first.dimensions(); ++i) same = part.size(i) == first.size(i);
    TESSERA_REQUIRE(same, "concatenate: {} {} and {} {} differ in more than their first dimension",
                    name_of(first.dtype()), first.shape().to_string(), name_of(part.dtype()),
                    part.shape().to_string());
    sizes[0] += part.size(0);
  }
  return Shape(sizes);
}

}  // namespace

Tensor unary(kernels::UnaryOp op, const Tensor& x) {
  Tensor out = Tensor::empty(x.shape(), x.dtype(), x.device());
  TESSERA_LAUNCH(x.device(), unary, {op, x.data(), out.data(), x.elements(), x.dtype()});
  autograd::record(
      Op::unary, {x}, {out},
      [op, x](std::vector<Tensor>& dout, autograd::GradientSink& sink) {
        const auto [dx, accumulate] = sink.slot(0);
        TESSERA_LAUNCH(
            dx.device(), unary_backward,
            {op, dout[0].data(), x.data(), dx.raw_data(), x.elements(), x.dtype(), accumulate});
      },
      autograd::Reads::inputs);
  return out;
}

Tensor gelu(const Tensor& x, bool exact) {
  return unary(exact ? kernels::UnaryOp::gelu_erf : kernels::UnaryOp::gelu_tanh, x);
}

Tensor cast(const Tensor& x, DType dtype) {
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
  TESSERA_REQUIRE(shape.elements() == x.elements(), "reshape of {} into {}", x.shape().to_string(),
                  shape.to_string());
  Tensor out = Tensor::view_of(x.storage(), x.impl()->offset, shape, x.dtype());
  autograd::record(
      Op::reshape, {x}, {out},
      [](std::vector<Tensor>& dout, autograd::GradientSink& sink) { sink.add(0, dout[0]); },
      autograd::Reads::nothing);
  return out;
}

Tensor concatenate(std::initializer_list<Tensor> parts) {
  TESSERA_REQUIRE(parts.size() > 0, "concatenate of no tensors");
  const Tensor& first = *parts.begin();
  const Shape joined = shape_of_joined(parts);
  Tensor out = Tensor::empty(joined, first.dtype(), first.device());
  if (!first.is_meta() && autograd::value_is_needed()) {
    std::byte* to = out.data();
    for (const Tensor& part : parts) {
      if (part.elements() > 0) current_queue(out.device()).copy(to, part.data(), part.bytes());
      to += part.bytes();
    }
  }
  std::vector<Shape> shapes;
  for (const Tensor& part : parts) shapes.push_back(part.shape());
  autograd::record(
      Op::concatenate, parts, {out},
      [shapes](std::vector<Tensor>& dout, autograd::GradientSink& sink) {
        std::size_t offset = dout[0].impl()->offset;
        for (std::size_t i = 0; i < shapes.size(); ++i) {
          const Tensor part =
              Tensor::view_of(dout[0].storage(), offset, shapes[i], dout[0].dtype());
          offset += part.bytes();
          sink.add(static_cast<int>(i), part);
        }
      },
      autograd::Reads::nothing);
  return out;
}

namespace {

// A tensor of `shape` that holds scalar * scale everywhere.
Tensor spread(const Tensor& scalar, double scale, const Shape& shape) {
  const Device device = scalar.device();
  if (device.type == DeviceType::cpu) {  // reading it costs nothing
    return Tensor::full(shape, scalar.item() * scale, scalar.dtype(), device);
  }
  Tensor out = Tensor::full(shape, scale, scalar.dtype(), device);
  TESSERA_LAUNCH(device, binary,
                 {kernels::BinaryOp::multiply, out.data(), scalar.data(), out.data(),
                  out.elements(), 1, out.dtype()});
  return out;
}

Tensor scaled_sum(const Tensor& x, double scale) {
  Tensor out = Tensor::empty({}, x.dtype(), x.device());
  TESSERA_LAUNCH(x.device(), sum_all, {x.data(), out.data(), x.elements(), x.dtype(), scale});
  autograd::record(
      Op::sum, {x}, {out},
      [shape = x.shape(), scale](std::vector<Tensor>& dout, autograd::GradientSink& sink) {
        sink.add(0, spread(dout[0], scale, shape));
      },
      autograd::Reads::nothing);
  return out;
}

}  // namespace

Tensor sum(const Tensor& x) {
  return scaled_sum(x, 1.0);
}

Tensor mean(const Tensor& x) {
  TESSERA_REQUIRE(x.elements() > 0, "mean of an empty tensor");
  return scaled_sum(x, 1.0 / static_cast<double>(x.elements()));
}

Tensor softmax(const Tensor& x) {
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
