// Element-wise arithmetic. If the second operand repeats over the rows of the first, the kernel
// `binary` computes it; the other broadcasts are pointwise functions.
#include "base/error.h"
#include "engine/autograd.h"
#include "engine/device/launch.h"
#include "engine/op_checks.h"
#include "engine/ops.h"
#include "engine/ops/pointwise.h"

namespace tessera {
namespace {

using kernels::BinaryOp;

// The broadcast of b over a: `outer` times `inner` elements, unless it is a general one.
struct Broadcast {
  std::int64_t outer = 1;
  std::int64_t inner = 1;
  bool general = false;
};

Broadcast broadcast(const char* op, const Tensor& a, const Tensor& b) {
  ops::require_floating(op, a, b);
  TESSERA_REQUIRE(a.dtype() == b.dtype(),
                  "{}: dtypes {} of shape {} and {} of shape {} differ; cast one of them with "
                  "cast(tensor, dtype)",
                  op, name_of(a.dtype()), a.shape().to_string(), name_of(b.dtype()),
                  b.shape().to_string());
  ops::require_same_device(op, a, b);
  if (b.elements() == 1 && b.dimensions() <= a.dimensions()) return {a.elements(), 1};
  const int skipped = a.dimensions() - b.dimensions();
  bool suffix = skipped >= 0;
  for (int i = 0; suffix && i < b.dimensions(); ++i) suffix = a.size(skipped + i) == b.size(i);
  if (!suffix) return {.general = true};
  return {b.elements() == 0 ? 0 : a.elements() / b.elements(), b.elements()};
}

Tensor launch(BinaryOp op, const Tensor& a, const Tensor& b, Broadcast shape) {
  Tensor out = Tensor::empty(a.shape(), a.dtype(), a.device());
  TESSERA_LAUNCH(a.device(), binary,
                 {op, a.data(), b.data(), out.data(), shape.outer, shape.inner, a.dtype()});
  return out;
}

// The backward of a sum reads no values.
Tensor launch_sum(BinaryOp op, const Tensor& a, const Tensor& b, Broadcast shape) {
  if (autograd::value_is_needed()) return launch(op, a, b, shape);
  return Tensor::empty(a.shape(), a.dtype(), a.device());
}

Tensor scaled(const Tensor& x, double scale) {
  Tensor out = Tensor::empty(x.shape(), x.dtype(), x.device());
  TESSERA_LAUNCH(x.device(), affine, {x.data(), out.data(), x.elements(), x.dtype(), scale, 0.0});
  return out;
}

// Sums a gradient of a's shape over the broadcast dimensions, to b's shape.
void reduce_to(autograd::GradientSink& sink, int input, const Tensor& gradient, Broadcast shape) {
  if (shape.outer == 1) {
    sink.add(input, gradient);
    return;
  }
  const auto [out, accumulate] = sink.slot(input);
  TESSERA_LAUNCH(
      out.device(), sum_rows,
      {gradient.data(), out.raw_data(), shape.outer, shape.inner, out.dtype(), accumulate});
}

}  // namespace

Tensor add(const Tensor& a, const Tensor& b) {
  const Broadcast shape = broadcast("add", a, b);
  if (shape.general) return ops::add_general(a, b);
  Tensor out = launch_sum(BinaryOp::add, a, b, shape);
  autograd::record(
      Op::add, {a, b}, {out},
      [shape](std::vector<Tensor>& dout, autograd::GradientSink& sink) {
        sink.add(0, dout[0]);
        if (sink.wants(1)) reduce_to(sink, 1, dout[0], shape);
      },
      autograd::Reads::nothing);
  return out;
}

Tensor subtract(const Tensor& a, const Tensor& b) {
  const Broadcast shape = broadcast("subtract", a, b);
  if (shape.general) return ops::subtract_general(a, b);
  Tensor out = launch_sum(BinaryOp::subtract, a, b, shape);
  autograd::record(
      Op::subtract, {a, b}, {out},
      [shape](std::vector<Tensor>& dout, autograd::GradientSink& sink) {
        sink.add(0, dout[0]);
        if (sink.wants(1)) reduce_to(sink, 1, scaled(dout[0], -1.0), shape);
      },
      autograd::Reads::nothing);
  return out;
}

Tensor multiply(const Tensor& a, const Tensor& b) {
  const Broadcast shape = broadcast("multiply", a, b);
  if (shape.general) return ops::multiply_general(a, b);
  Tensor out = launch(BinaryOp::multiply, a, b, shape);
  autograd::record(
      Op::multiply, {a, b}, {out},
      [saved_a = autograd::SavedValue(a), saved_b = autograd::SavedValue(b), shape](
          std::vector<Tensor>& dout, autograd::GradientSink& sink) {
        if (sink.wants(0)) sink.add(0, launch(BinaryOp::multiply, dout[0], saved_b.get(), shape));
        if (sink.wants(1)) {
          const Tensor& factor = saved_a.get();
          reduce_to(sink, 1, launch(BinaryOp::multiply, dout[0], factor, {1, factor.elements()}),
                    shape);
        }
      },
      autograd::Reads::inputs);
  return out;
}

Tensor divide(const Tensor& a, const Tensor& b) {
  const Broadcast shape = broadcast("divide", a, b);
  if (shape.general) return ops::divide_general(a, b);
  Tensor out = launch(BinaryOp::divide, a, b, shape);
  autograd::record(
      Op::divide, {a, b}, {out},
      [saved_a = autograd::SavedValue(a), saved_b = autograd::SavedValue(b), shape](
          std::vector<Tensor>& dout, autograd::GradientSink& sink) {
        const Tensor& divisor = saved_b.get();
        const Tensor da = launch(BinaryOp::divide, dout[0], divisor, shape);
        if (sink.wants(1)) {  // -dout * a / b^2
          const Tensor& dividend = saved_a.get();
          Tensor db = launch(BinaryOp::multiply, da, dividend, {1, dividend.elements()});
          db = scaled(launch(BinaryOp::divide, db, divisor, shape), -1.0);
          reduce_to(sink, 1, db, shape);
        }
        sink.add(0, da);
      },
      autograd::Reads::inputs);
  return out;
}

namespace {

// `name` is the function that the program called.
Tensor affine_as(const char* name, const Tensor& x, double scale, double shift) {
  ops::require_floating(name, x);
  Tensor out = Tensor::empty(x.shape(), x.dtype(), x.device());
  TESSERA_LAUNCH(x.device(), affine, {x.data(), out.data(), x.elements(), x.dtype(), scale, shift});
  autograd::record(
      {Op::affine, name}, {x}, {out},
      [scale](std::vector<Tensor>& dout, autograd::GradientSink& sink) {
        sink.add(0, scaled(dout[0], scale));
      },
      autograd::Reads::nothing);
  return out;
}

}  // namespace

Tensor affine(const Tensor& x, double scale, double shift) {
  return affine_as("affine", x, scale, shift);
}

// Adding -0 leaves every value unchanged, including zeros of either sign.
Tensor operator-(const Tensor& x) {
  return affine_as("negate", x, -1.0, -0.0);
}
Tensor operator+(const Tensor& x, double shift) {
  return affine_as("add", x, 1.0, shift);
}
Tensor operator-(const Tensor& x, double shift) {
  return affine_as("subtract", x, 1.0, -shift);
}
Tensor operator*(const Tensor& x, double scale) {
  return affine_as("multiply", x, scale, -0.0);
}
Tensor operator/(const Tensor& x, double divisor) {
  return affine_as("divide", x, 1.0 / divisor, -0.0);
}
Tensor operator+(double shift, const Tensor& x) {
  return x + shift;
}
Tensor operator-(double from, const Tensor& x) {
  return affine_as("subtract", x, -1.0, from);
}
Tensor operator*(double scale, const Tensor& x) {
  return x * scale;
}
Tensor operator/(double dividend, const Tensor& x) {
  ops::require_floating("divide", x);
  return divide(Tensor::full(x.shape(), dividend, x.dtype(), x.device()), x);
}

}  // namespace tessera
