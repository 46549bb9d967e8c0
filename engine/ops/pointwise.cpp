// Pointwise functions with NumPy's broadcasting.
#include "engine/ops/pointwise.h"

#include <algorithm>

#include "base/error.h"
#include "engine/autograd.h"
#include "engine/device/launch.h"
#include "engine/op_checks.h"
#include "engine/ops/strided.h"
#include "engine/tensor_ops.h"

namespace tessera {

using kernels::PointwiseOp;

namespace ops {
namespace {

std::string shapes_of(std::span<const Shape> shapes) {
  std::string text;
  for (const Shape& shape : shapes) {
    if (!text.empty()) text += " and ";
    text += shape.to_string();
  }
  return text;
}

}  // namespace

Shape broadcast_shape(const char* op, std::span<const Shape> shapes) {
  int dimensions = 0;
  for (const Shape& shape : shapes) dimensions = std::max(dimensions, shape.dimensions());
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(dimensions), 1);
  for (const Shape& shape : shapes) {
    const int skipped = dimensions - shape.dimensions();
    for (int i = 0; i < shape.dimensions(); ++i) {
      std::int64_t& size = sizes[static_cast<std::size_t>(skipped) + static_cast<std::size_t>(i)];
      TESSERA_REQUIRE(shape[i] == size || shape[i] == 1 || size == 1,
                      "{}: shapes {} do not broadcast; aligned at their ends, sizes must be equal "
                      "or 1",
                      op, shapes_of(shapes));
      if (shape[i] != 1) size = shape[i];
    }
  }
  return Shape(sizes);
}

Shape broadcast_shape(const char* op, std::span<const PointwiseOperand> operands) {
  std::vector<Shape> shapes;
  for (const PointwiseOperand& operand : operands) {
    if (operand.tensor.defined()) shapes.push_back(operand.tensor.shape());
  }
  return broadcast_shape(op, shapes);
}

void require_alike(const char* op, std::span<const PointwiseOperand> operands) {
  const Tensor* first = nullptr;
  for (const PointwiseOperand& operand : operands) {
    if (!operand.tensor.defined()) continue;
    if (first == nullptr) first = &operand.tensor;
    TESSERA_REQUIRE(operand.tensor.dtype() == first->dtype(),
                    "{}: dtypes {} of shape {} and {} of shape {} differ; cast one of them with "
                    "cast(tensor, dtype)",
                    op, name_of(first->dtype()), first->shape().to_string(),
                    name_of(operand.tensor.dtype()), operand.tensor.shape().to_string());
    require_same_device(op, *first, operand.tensor);
  }
}

Tensor pointwise(PointwiseOp op, const Shape& shape, DType dtype,
                 std::span<const PointwiseOperand> operands) {
  kernels::Pointwise call{.op = op, .out = nullptr, .shape = {}, .dtype = dtype};
  call.shape.dimensions = shape.dimensions();
  for (int i = 0; i < shape.dimensions(); ++i) call.shape.sizes[i] = shape[i];
  Device device = default_device();
  for (std::size_t k = 0; k < operands.size(); ++k) {
    const Tensor& tensor = operands[k].tensor;
    call.number[k] = operands[k].number;
    if (!tensor.defined()) continue;
    if (k == 0 || !tensor.is_meta()) device = tensor.device();
    const auto strides = strides_of(tensor.shape());
    const int skipped = shape.dimensions() - tensor.dimensions();
    for (int i = 0; i < tensor.dimensions(); ++i) {
      call.shape.strides[k][skipped + i] =
          tensor.size(i) == 1 ? 0 : strides[static_cast<std::size_t>(i)];
    }
  }
  for (const PointwiseOperand& operand : operands) {
    if (operand.tensor.defined() && operand.tensor.is_meta()) device = operand.tensor.device();
  }
  Tensor out = Tensor::empty(shape, kernels::dtype_of_result(call), device);
  if (device.is_meta()) return out;
  for (std::size_t k = 0; k < operands.size(); ++k) {
    const Tensor& tensor = operands[k].tensor;
    if (tensor.defined()) call.in[k] = tensor.data();
    if (k == 0 && tensor.defined()) call.condition = tensor.dtype();
  }
  call.out = out.raw_data();
  TESSERA_LAUNCH(device, pointwise, call);
  return out;
}

Tensor pointwise(PointwiseOp op, const Shape& shape, DType dtype,
                 std::initializer_list<PointwiseOperand> operands) {
  return pointwise(op, shape, dtype,
                   std::span<const PointwiseOperand>(operands.begin(), operands.size()));
}

namespace {

// An operand as the tape keeps it.
struct SavedOperand {
  autograd::SavedValue value;
  double number = 0;
  bool is_tensor = false;

  [[nodiscard]] PointwiseOperand get() const {
    if (is_tensor) return value.get();
    return number;
  }
};

// The operands that some gradient reads; the others are kept as numbers that nothing reads.
std::vector<SavedOperand> saved_operands(const std::vector<PointwiseOperand>& operands,
                                         const std::vector<PointwiseGradient>& gradients) {
  std::vector<SavedOperand> saved;
  for (std::size_t k = 0; k < operands.size(); ++k) {
    const bool read =
        std::any_of(gradients.begin(), gradients.end(), [&](const PointwiseGradient& gradient) {
          return std::find(gradient.operands.begin(), gradient.operands.end(),
                           static_cast<int>(k)) != gradient.operands.end();
        });
    const Tensor& tensor = operands[k].tensor;
    const bool keep = read && tensor.defined();
    saved.push_back(
        {keep ? autograd::SavedValue(tensor) : autograd::SavedValue(), operands[k].number, keep});
  }
  return saved;
}

}  // namespace

Tensor record_pointwise(const char* name, PointwiseOp op, std::vector<PointwiseOperand> operands,
                        std::vector<PointwiseGradient> gradients) {
  require_alike(name, operands);
  const Shape shape = broadcast_shape(name, operands);
  std::vector<Tensor> inputs;
  std::vector<Shape> shapes;
  for (const PointwiseOperand& operand : operands) {
    if (!operand.tensor.defined()) continue;
    inputs.push_back(operand.tensor);
    shapes.push_back(operand.tensor.shape());
  }
  Tensor out = pointwise(op, shape, inputs.front().dtype(), operands);
  auto saved = saved_operands(operands, gradients);
  // Tensors come first among the operands, so that an operand's number is its input's.
  autograd::record(
      {Op::pointwise, name}, inputs, std::span<const Tensor>(&out, 1),
      [saved = std::move(saved), gradients = std::move(gradients), shapes](
          std::vector<Tensor>& dout, autograd::GradientSink& sink) {
        for (std::size_t k = 0; k < shapes.size(); ++k) {
          if (!sink.wants(static_cast<int>(k))) continue;
          std::vector<PointwiseOperand> read{dout[0]};
          for (const int operand : gradients[k].operands)
            read.push_back(saved[static_cast<std::size_t>(operand)].get());
          const Tensor gradient =
              pointwise(gradients[k].op, dout[0].shape(), dout[0].dtype(), read);
          sink.add(static_cast<int>(k), sum_to(gradient, shapes[k]));
        }
      },
      autograd::Reads::inputs);
  return out;
}

namespace {

// A sum or a difference: nothing is read in backward.
Tensor add_with_sign(const char* name, PointwiseOp op, Op entry, const Tensor& a, const Tensor& b,
                     double sign) {
  const PointwiseOperand operands[] = {a, b};
  Tensor out = pointwise(op, broadcast_shape(name, operands), a.dtype(), operands);
  autograd::record(
      {entry, name}, {a, b}, {out},
      [first = a.shape(), second = b.shape(), sign](std::vector<Tensor>& dout,
                                                    autograd::GradientSink& sink) {
        if (sink.wants(0)) sink.add(0, sum_to(dout[0], first));
        if (!sink.wants(1)) return;
        const Tensor db = sum_to(dout[0], second);
        sink.add(1, sign < 0 ? affine(db, sign, -0.0) : db);
      },
      autograd::Reads::nothing);
  return out;
}

}  // namespace

Tensor add_general(const Tensor& a, const Tensor& b) {
  return add_with_sign("add", PointwiseOp::add, Op::add, a, b, 1);
}
Tensor subtract_general(const Tensor& a, const Tensor& b) {
  return add_with_sign("subtract", PointwiseOp::subtract, Op::subtract, a, b, -1);
}
Tensor multiply_general(const Tensor& a, const Tensor& b) {
  return record_pointwise("multiply", PointwiseOp::multiply, {a, b},
                          {{PointwiseOp::multiply, {1}}, {PointwiseOp::multiply, {0}}});
}
Tensor divide_general(const Tensor& a, const Tensor& b) {
  return record_pointwise("divide", PointwiseOp::divide, {a, b},
                          {{PointwiseOp::divide, {1}}, {PointwiseOp::divisor_gradient, {0, 1}}});
}

}  // namespace ops

Tensor minimum(const Tensor& x, const Tensor& y) {
  ops::require_floating("minimum", x, y);
  return ops::record_pointwise(
      "minimum", PointwiseOp::minimum, {x, y},
      {{PointwiseOp::minimum_gradient, {0, 1}}, {PointwiseOp::minimum_gradient, {1, 0}}});
}
Tensor maximum(const Tensor& x, const Tensor& y) {
  ops::require_floating("maximum", x, y);
  return ops::record_pointwise(
      "maximum", PointwiseOp::maximum, {x, y},
      {{PointwiseOp::maximum_gradient, {0, 1}}, {PointwiseOp::maximum_gradient, {1, 0}}});
}
Tensor pow(const Tensor& x, const Tensor& y) {
  ops::require_floating("pow", x, y);
  return ops::record_pointwise(
      "pow", PointwiseOp::power, {x, y},
      {{PointwiseOp::power_gradient, {0, 1}}, {PointwiseOp::power_exponent_gradient, {0, 1}}});
}
Tensor pow(const Tensor& x, double exponent) {
  ops::require_floating("pow", x);
  return ops::record_pointwise("pow", PointwiseOp::power, {x, exponent},
                               {{PointwiseOp::power_gradient, {0, 1}}});
}

namespace {

Tensor function_of_one(const char* name, const Tensor& x, PointwiseOp op, PointwiseOp gradient) {
  ops::require_floating(name, x);
  return ops::record_pointwise(name, op, {x}, {{gradient, {0}}});
}

}  // namespace

Tensor abs(const Tensor& x) {
  return function_of_one("abs", x, PointwiseOp::absolute, PointwiseOp::absolute_gradient);
}
Tensor reciprocal(const Tensor& x) {
  return function_of_one("reciprocal", x, PointwiseOp::reciprocal,
                         PointwiseOp::reciprocal_gradient);
}
Tensor rsqrt(const Tensor& x) {
  return function_of_one("rsqrt", x, PointwiseOp::reciprocal_sqrt,
                         PointwiseOp::reciprocal_sqrt_gradient);
}
Tensor sin(const Tensor& x) {
  return function_of_one("sin", x, PointwiseOp::sine, PointwiseOp::sine_gradient);
}
Tensor cos(const Tensor& x) {
  return function_of_one("cos", x, PointwiseOp::cosine, PointwiseOp::cosine_gradient);
}
Tensor softplus(const Tensor& x, double beta, double threshold) {
  ops::require_floating("softplus", x);
  TESSERA_REQUIRE(beta > 0, "softplus: beta is {}; it must be positive", beta);
  return ops::record_pointwise("softplus", PointwiseOp::softplus, {x, beta, threshold},
                               {{PointwiseOp::softplus_gradient, {0, 1, 2}}});
}
Tensor clamp(const Tensor& x, double low, double high) {
  ops::require_floating("clamp", x);
  return ops::record_pointwise("clamp", PointwiseOp::clamp, {x, low, high},
                               {{PointwiseOp::clamp_gradient, {0, 1, 2}}});
}
Tensor sign(const Tensor& x) {
  ops::require_floating("sign", x);
  return ops::pointwise(PointwiseOp::sign, x.shape(), x.dtype(), {x});
}

}  // namespace tessera
