// Pointwise functions as ops: broadcasting, the launch, and the tape.
#pragma once

#include <initializer_list>
#include <optional>
#include <span>
#include <vector>

#include "engine/tensor.h"
#include "kernels/pointwise.h"

namespace tessera::ops {

// A tensor, or a number.
struct PointwiseOperand {
  PointwiseOperand(const Tensor& operand) : tensor(operand) {}
  PointwiseOperand(double value) : number(value) {}
  Tensor tensor;
  double number = 0;
};

// The shape to which all of these broadcast; throws a logic_error that names them.
Shape broadcast_shape(const char* op, std::span<const Shape> shapes);
// The shape to which all tensors broadcast.
Shape broadcast_shape(const char* op, std::span<const PointwiseOperand> operands);
// Throws a logic_error unless the tensors have one dtype and one device.
void require_alike(const char* op, std::span<const PointwiseOperand> operands);

// Launches a function over `shape`, to which all operands broadcast. `dtype` is that of the
// operands.
Tensor pointwise(kernels::PointwiseOp op, const Shape& shape, DType dtype,
                 std::initializer_list<PointwiseOperand> operands);
Tensor pointwise(kernels::PointwiseOp op, const Shape& shape, DType dtype,
                 std::span<const PointwiseOperand> operands);

// The gradient of one operand: a function of the result's gradient and of the forward's operands
// with these numbers.
struct PointwiseGradient {
  kernels::PointwiseOp op;
  std::vector<int> operands;
};
// A differentiable function with broadcasting of floating operands: checks, launches and records.
// gradients[k] is that of operand k, if it is a tensor.
Tensor record_pointwise(const char* name, kernels::PointwiseOp op,
                        std::vector<PointwiseOperand> operands,
                        std::vector<PointwiseGradient> gradients);

// The four operations for any two shapes that broadcast (engine/ops/arithmetic.cpp has the frequent
// ones).
Tensor add_general(const Tensor& a, const Tensor& b);
Tensor subtract_general(const Tensor& a, const Tensor& b);
Tensor multiply_general(const Tensor& a, const Tensor& b);
Tensor divide_general(const Tensor& a, const Tensor& b);

}  // namespace tessera::ops
