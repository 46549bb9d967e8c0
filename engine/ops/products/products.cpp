// Matrix products with broadcast batches and transposed operands, and einsum over them.
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>

#include "base/error.h"
#include "engine/autograd.h"
#include "engine/device/launch.h"
#include "engine/op_checks.h"
#include "engine/ops/pointwise.h"
#include "engine/ops/strided.h"
#include "engine/tensor_ops.h"

namespace tessera {
namespace {

// One factor: matrices as stored, read as they are or transposed.
struct Factor {
  const Tensor& matrices;
  bool transposed;
};

// c[i] (+)= op(a[i]) op(b[i]) for `batch` products of [m,k] and [k,n]; a factor of one matrix
// belongs to all.
struct ProductShape {
  std::int64_t batch, m, n, k;
};
void multiply_batches(const ProductShape& s, const Factor& a, const Factor& b, const Tensor& out,
                      bool accumulate) {
  const auto stride = [&s](const Factor& factor, std::int64_t matrix) {
    return factor.matrices.elements() == matrix && s.batch > 1 ? 0 : matrix;
  };
  TESSERA_LAUNCH(out.device(), matmul,
                 {.a = a.matrices.data(),
                  .b = b.matrices.data(),
                  .c = out.raw_data(),
                  .m = s.m,
                  .n = s.n,
                  .k = s.k,
                  .lda = a.transposed ? s.m : s.k,
                  .ldb = b.transposed ? s.k : s.n,
                  .ldc = s.n,
                  .transpose_a = a.transposed,
                  .transpose_b = b.transposed,
                  .accumulate = accumulate,
                  .dtype = out.dtype(),
                  .out_dtype = out.dtype(),
                  .batch = s.batch,
                  .stride_a = stride(a, s.m * s.k),
                  .stride_b = stride(b, s.k * s.n),
                  .stride_c = s.m * s.n});
}

// The gradient of a factor: op(a) = g op(b)^T, or its transpose if a is stored transposed; by all
// batches, or their sum.
void give_gradient(autograd::GradientSink& sink, int input, const ProductShape& s,
                   const Factor& left, const Factor& right, bool summed, const Shape& shape) {
  if (!summed || s.batch == 1) {
    const auto slot = sink.slot(input);
    multiply_batches(s, left, right, slot.tensor, slot.accumulate);
    return;
  }
  const Tensor& like = left.matrices;
  const Tensor each = Tensor::empty({s.batch, s.m, s.n}, like.dtype(), like.device());
  multiply_batches(s, left, right, each, false);
  const Tensor sum = ops::sum_to(each, Shape{1, s.m, s.n});
  sink.add(input, Tensor::view_of(sum.storage(), sum.impl()->offset, shape, sum.dtype()));
}

void check_factors(const Tensor& a, const Tensor& b, const Transposes& transposes) {
  const std::string shapes = fmt::format("matmul of {}{} and {}{}", a.shape().to_string(),
                                         transposes.a ? " transposed" : "", b.shape().to_string(),
                                         transposes.b ? " transposed" : "");
  TESSERA_REQUIRE(a.dimensions() > 0 && b.dimensions() > 0,
                  "{}: a number is not a matrix; use multiply()", shapes);
  const std::int64_t columns = a.size(transposes.a && a.dimensions() > 1 ? -2 : -1);
  const std::int64_t rows = b.dimensions() == 1 ? b.size(0) : b.size(transposes.b ? -1 : -2);
  TESSERA_REQUIRE(columns == rows,
                  "{}: the first has {} columns and the second {} rows, which must be equal; "
                  "for a weight of shape [outputs, inputs] use linear()",
                  shapes, columns, rows);
  for (int i = -3; a.dimensions() >= -i && b.dimensions() >= -i; --i) {
    TESSERA_REQUIRE(
        a.size(i) == b.size(i) || a.size(i) == 1 || b.size(i) == 1,
        "{}: batches of {} and {} matrices; sizes before the last two must be equal or 1", shapes,
        a.size(i), b.size(i));
  }
  TESSERA_REQUIRE(a.dtype() == b.dtype(), "{}: dtypes {} and {} differ; cast one of them", shapes,
                  name_of(a.dtype()), name_of(b.dtype()));
  ops::require_same_device("matmul", a, b);
}

Shape batch_of(const Shape& shape) {
  return Shape(shape.sizes().first(static_cast<std::size_t>(shape.dimensions() - 2)));
}

Shape with_matrix(const Shape& batch, std::int64_t rows, std::int64_t columns) {
  std::vector<std::int64_t> sizes(batch.sizes().begin(), batch.sizes().end());
  sizes.push_back(rows);
  sizes.push_back(columns);
  return Shape(sizes);
}

// Both have at least two dimensions, and as many matrices as the other, or one.
Tensor multiply_matrices(const Tensor& a, const Tensor& b, const Transposes& transposed,
                         const Shape& batch_shape) {
  const bool ta = transposed.a, tb = transposed.b;
  ProductShape s{batch_shape.elements(), a.size(ta ? -1 : -2), b.size(tb ? -2 : -1),
                 a.size(ta ? -2 : -1)};
  const Shape shape = with_matrix(batch_shape, s.m, s.n);
  const bool one_a = batch_of(a.shape()).elements() == 1,
             one_b = batch_of(b.shape()).elements() == 1;
  // One right factor for all rows of the left one is one product.
  if (one_b && !ta) {
    s.m *= s.batch;
    s.batch = 1;
  }
  Tensor out;
  autograd::compute_or_take(Op::matmul, {&out}, [&] {
    out = Tensor::empty(shape, a.dtype(), a.device());
    if (autograd::value_is_needed()) multiply_batches(s, {a, ta}, {b, tb}, out, false);
  });
  autograd::record(
      Op::matmul, {a, b}, {out},
      [=, left = autograd::SavedValue(a), right = autograd::SavedValue(b), a_shape = a.shape(),
       b_shape = b.shape()](std::vector<Tensor>& dout, autograd::GradientSink& sink) {
        const Factor g{dout[0], false}, g_transposed{dout[0], true};
        if (sink.wants(0)) {
          const Factor other{right.get(), ta ? tb : !tb};
          if (ta) {
            give_gradient(sink, 0, {s.batch, s.k, s.m, s.n}, other, g_transposed, one_a, a_shape);
          } else {
            give_gradient(sink, 0, {s.batch, s.m, s.k, s.n}, g, other, one_a, a_shape);
          }
        }
        if (sink.wants(1)) {
          const Factor other{left.get(), tb ? ta : !ta};
          if (tb) {
            give_gradient(sink, 1, {s.batch, s.n, s.k, s.m}, g_transposed, other, one_b, b_shape);
          } else {
            give_gradient(sink, 1, {s.batch, s.k, s.n, s.m}, other, g, one_b, b_shape);
          }
        }
      },
      autograd::Reads::inputs);
  return out;
}

}  // namespace

Tensor matmul(const Tensor& a, const Tensor& b, const Transposes& transposes) {
  ops::require_floating("matmul", a, b);
  check_factors(a, b, transposes);
  const bool row = a.dimensions() == 1, column = b.dimensions() == 1;
  Tensor left = row ? reshape(a, Shape{1, a.size(0)}) : a;
  Tensor right = column ? reshape(b, Shape{b.size(0), 1}) : b;
  const Transposes as_stored{!row && transposes.a, !column && transposes.b};
  const Shape left_batch = batch_of(left.shape()), right_batch = batch_of(right.shape());
  // Batches that repeat in some dimensions only are written out; one matrix for all is not.
  const Shape batches[] = {left_batch, right_batch};
  const Shape batch = ops::broadcast_shape("matmul", batches);
  const auto whole = [&batch](const Tensor& x, const Shape& own) {
    if (own == batch || own.elements() == 1) return x;
    return expand(x, with_matrix(batch, x.size(-2), x.size(-1)));
  };
  left = whole(left, left_batch);
  right = whole(right, right_batch);
  Tensor out = multiply_matrices(left, right, as_stored, batch);
  if (!row && !column) return out;
  Shape shape = out.shape();
  if (column) shape = ops::without(shape, shape.dimensions() - 1);
  if (row) shape = ops::without(shape, shape.dimensions() - (column ? 1 : 2));
  return reshape(out, shape);
}

Tensor matmul(const Tensor& a, const Tensor& b) {
  return matmul(a, b, {});
}

namespace {

// The letters of an equation.
struct Equation {
  std::vector<std::string> operands;
  std::string result;
};

Equation parse_equation(const std::string& text, std::size_t operands) {
  Equation equation;
  std::string letters = text;
  letters.erase(std::remove(letters.begin(), letters.end(), ' '), letters.end());
  const std::size_t arrow = letters.find("->");
  std::string left = letters.substr(0, arrow);
  for (std::size_t comma = left.find(','); comma != std::string::npos; comma = left.find(',')) {
    equation.operands.push_back(left.substr(0, comma));
    left.erase(0, comma + 1);
  }
  equation.operands.push_back(left);
  TESSERA_REQUIRE(equation.operands.size() == operands && (operands == 1 || operands == 2),
                  "einsum: \"{}\" has {} operands and {} are given; one or two", text,
                  equation.operands.size(), operands);
  std::string all;
  for (const std::string& operand : equation.operands) all += operand;
  if (arrow == std::string::npos) {
    std::string sorted = all;
    std::sort(sorted.begin(), sorted.end());
    for (const char letter : sorted) {
      if (std::count(sorted.begin(), sorted.end(), letter) == 1) equation.result += letter;
    }
  } else {
    equation.result = letters.substr(arrow + 2);
  }
  const auto check = [&text](const std::string& operand) {
    for (const char letter : operand) {
      const bool known = (letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z');
      TESSERA_REQUIRE(
          known && std::count(operand.begin(), operand.end(), letter) == 1,
          "einsum: \"{}\" has '{}' in \"{}\"; each dimension is one letter, which occurs once",
          text, letter, operand);
    }
  };
  for (const std::string& operand : equation.operands) check(operand);
  check(equation.result);
  for (const char letter : equation.result) {
    TESSERA_REQUIRE(all.find(letter) != std::string::npos,
                    "einsum: the result of \"{}\" has '{}', which no operand has", text, letter);
  }
  return equation;
}

bool has(const std::string& letters, char letter) {
  return letters.find(letter) != std::string::npos;
}

// x with its dimensions in the order of `wanted`, which are the same letters.
Tensor in_order(const Tensor& x, const std::string& letters, const std::string& wanted) {
  if (letters == wanted) return x;
  std::vector<int> order;
  for (const char letter : wanted) order.push_back(static_cast<int>(letters.find(letter)));
  return permute(x, order);
}

// Sums the dimensions that neither the result nor the other operand has; `letters` loses them.
Tensor sum_alone(const Tensor& x, std::string& letters, const std::string& wanted) {
  std::vector<int> alone;
  std::string rest;
  for (std::size_t i = 0; i < letters.size(); ++i) {
    if (has(wanted, letters[i])) {
      rest += letters[i];
    } else {
      alone.push_back(static_cast<int>(i));
    }
  }
  if (alone.empty()) return x;
  letters = rest;
  return sum(x, Dimensions(alone));
}

}  // namespace

Tensor einsum(const char* text, std::initializer_list<Tensor> operands) {
  for (const Tensor& operand : operands) ops::require_floating("einsum", operand);
  Equation equation = parse_equation(text, operands.size());
  std::vector<std::int64_t> size_of_letter(128, -1);
  for (std::size_t k = 0; k < operands.size(); ++k) {
    const Tensor& operand = operands.begin()[k];
    const std::string& letters = equation.operands[k];
    TESSERA_REQUIRE(static_cast<int>(letters.size()) == operand.dimensions(),
                    "einsum: \"{}\" of \"{}\" names {} dimensions of a tensor of shape {}", letters,
                    text, letters.size(), operand.shape().to_string());
    for (std::size_t i = 0; i < letters.size(); ++i) {
      std::int64_t& size = size_of_letter[static_cast<std::size_t>(letters[i])];
      const std::int64_t own = operand.size(static_cast<int>(i));
      TESSERA_REQUIRE(size == -1 || size == own, "einsum: '{}' of \"{}\" has sizes {} and {}",
                      letters[i], text, size, own);
      size = own;
    }
  }
  std::string& first = equation.operands[0];
  if (operands.size() == 1) {
    const Tensor x = sum_alone(operands.begin()[0], first, equation.result);
    return in_order(x, first, equation.result);
  }
  std::string& second = equation.operands[1];
  const Tensor a = sum_alone(operands.begin()[0], first, second + equation.result);
  const Tensor b = sum_alone(operands.begin()[1], second, first + equation.result);
  // Letters of both and of the result are batches; of both alone, the sums; of one, rows or
  // columns.
  std::string batch, rows, columns, sums;
  for (const char letter : first) {
    if (!has(second, letter)) {
      rows += letter;
    } else if (has(equation.result, letter)) {
      batch += letter;
    } else {
      sums += letter;
    }
  }
  for (const char letter : second) {
    if (!has(first, letter)) columns += letter;
  }
  const auto product_of = [&](const std::string& letters) {
    std::int64_t product = 1;
    for (const char letter : letters) product *= size_of_letter[static_cast<std::size_t>(letter)];
    return product;
  };
  const std::int64_t b_n = product_of(batch), m = product_of(rows), k = product_of(sums),
                     n = product_of(columns);
  const Tensor left = reshape(in_order(a, first, batch + rows + sums), Shape{b_n, m, k});
  const Tensor right = reshape(in_order(b, second, batch + columns + sums), Shape{b_n, n, k});
  const std::string letters = batch + rows + columns;
  std::vector<std::int64_t> sizes;
  for (const char letter : letters)
    sizes.push_back(size_of_letter[static_cast<std::size_t>(letter)]);
  return in_order(reshape(matmul(left, right, {.b = true}), Shape(sizes)), letters,
                  equation.result);
}

}  // namespace tessera
