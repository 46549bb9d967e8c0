#include "engine/optim/matrices/newton_schulz.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "engine/device/launch.h"
#include "engine/device/queue.h"

namespace tessera::optim {

NewtonSchulz::NewtonSchulz(const Options& options, std::int64_t side, DType dtype, Device device)
    : options_(options),
      dtype_(dtype),
      device_(device),
      square_(Tensor::empty({side * side}, dtype, device)),
      polynomial_(Tensor::empty({side * side}, dtype, device)),
      sum_(Tensor::empty({sizeof(kernels::ExactSum)}, DType::uint8, device)) {}

void NewtonSchulz::operator()(Tensor& x, Tensor& y, std::int64_t rows, std::int64_t columns) {
  const std::int64_t elements = rows * columns;
  const std::int64_t side = std::min(rows, columns);
  const auto [c0, c1, c2] = options_.coefficients;
  scale(x, y, elements, 1 / std::max(norm_of(x, elements), options_.eps));
  std::swap(x, y);
  for (int step = 0; step < options_.steps; ++step) {
    multiply_by_itself(x, rows, columns);
    scale(square_, polynomial_, side * side, c1);
    TESSERA_LAUNCH(device_, matmul,
                   {.a = square_.data(),
                    .b = square_.data(),
                    .c = polynomial_.data(),
                    .m = side,
                    .n = side,
                    .k = side,
                    .lda = side,
                    .ldb = side,
                    .ldc = side,
                    .accumulate = true,
                    .alpha = static_cast<float>(c2),
                    .dtype = dtype_,
                    .out_dtype = dtype_});
    scale(x, y, elements, c0);
    add_product(x, y, rows, columns);
    std::swap(x, y);
  }
}

double NewtonSchulz::norm_of(const Tensor& x, std::int64_t elements) const {
  DeviceQueue& queue = current_queue(device_);
  queue.zero(sum_.raw_data(), sizeof(kernels::ExactSum));
  TESSERA_LAUNCH(
      device_, sum_of_squares,
      {x.data(), elements, dtype_, 1.0f, reinterpret_cast<kernels::ExactSum*>(sum_.raw_data())});
  kernels::ExactSum sum;
  queue.copy_to_host(&sum, sum_.data(), sizeof sum);
  return std::sqrt(sum.value());
}

void NewtonSchulz::scale(const Tensor& from, const Tensor& to, std::int64_t elements,
                         double factor) const {
  TESSERA_LAUNCH(device_, affine, {from.data(), to.raw_data(), elements, dtype_, factor, 0.0});
}

// square = x x^T, or x^T x.
void NewtonSchulz::multiply_by_itself(const Tensor& x, std::int64_t rows,
                                      std::int64_t columns) const {
  const bool wide = rows <= columns;
  const std::int64_t side = std::min(rows, columns);
  TESSERA_LAUNCH(device_, matmul,
                 {.a = x.data(),
                  .b = x.data(),
                  .c = square_.raw_data(),
                  .m = side,
                  .n = side,
                  .k = std::max(rows, columns),
                  .lda = columns,
                  .ldb = columns,
                  .ldc = side,
                  .transpose_a = !wide,
                  .transpose_b = wide,
                  .dtype = dtype_,
                  .out_dtype = dtype_});
}

// y += polynomial x, or x polynomial.
void NewtonSchulz::add_product(const Tensor& x, const Tensor& y, std::int64_t rows,
                               std::int64_t columns) const {
  const bool wide = rows <= columns;
  const std::int64_t side = std::min(rows, columns);
  TESSERA_LAUNCH(device_, matmul,
                 {.a = wide ? polynomial_.data() : x.data(),
                  .b = wide ? x.data() : polynomial_.data(),
                  .c = y.raw_data(),
                  .m = rows,
                  .n = columns,
                  .k = side,
                  .lda = wide ? side : columns,
                  .ldb = wide ? columns : side,
                  .ldc = columns,
                  .accumulate = true,
                  .dtype = dtype_,
                  .out_dtype = dtype_});
}

}  // namespace tessera::optim
