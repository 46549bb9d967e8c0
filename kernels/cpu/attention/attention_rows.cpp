// Attention's scaling of the rows of a tile, and the products of rows, vectorised.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attention/attention_rows.cpp"
#include "kernels/cpu/simd/simd_targets.h"
//
#include "hwy/foreach_target.h"
//
#include "kernels/cpu/attention/attention_tiles.h"
#include "kernels/cpu/simd/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels::HWY_NAMESPACE {
namespace {

template <class C>
void ScaleRowsOf(C* values, const C* factor, std::int64_t rows, std::int64_t columns) {
  for (std::int64_t r = 0; r < rows; ++r) {
    C* const row = values + r * columns;
    const auto by = hn::Set(Tag<C>(), factor[r]);
    ForEach<C>(columns, [&](std::int64_t i, auto access)
                            HWY_ATTR { access.Store(hn::Mul(access.Load(row + i), by), row + i); });
  }
}

template <class T>
void RowProductsOf(const T* out, std::int64_t out_stride, const T* gradient,
                   std::int64_t gradient_stride, Compute<T>* delta, std::int64_t rows,
                   std::int64_t columns) {
  for (std::int64_t r = 0; r < rows; ++r) {
    const T* const x = out + r * out_stride;
    const T* const y = gradient + r * gradient_stride;
    auto total = hn::Zero(Tag<T>());
    ForEach<T>(columns, [&](std::int64_t i, auto access) HWY_ATTR {
      total = hn::MulAdd(access.Load(x + i), access.Load(y + i), total);
    });
    delta[r] = LaneSum(total);
  }
}

void ScaleRows(DType operand, void* values, const void* factor, std::int64_t rows,
               std::int64_t columns) {
  if (operand == DType::float64) {
    ScaleRowsOf(static_cast<double*>(values), static_cast<const double*>(factor), rows, columns);
  } else {
    ScaleRowsOf(static_cast<float*>(values), static_cast<const float*>(factor), rows, columns);
  }
}

void RowProducts(DType dtype, const void* out, std::int64_t out_stride, const void* gradient,
                 std::int64_t gradient_stride, void* delta, std::int64_t rows,
                 std::int64_t columns) {
  const auto run = [&]<class T>(const T* typed_out) {
    RowProductsOf<T>(typed_out, out_stride, static_cast<const T*>(gradient), gradient_stride,
                     static_cast<Compute<T>*>(delta), rows, columns);
  };
  switch (dtype) {
    case DType::bfloat16:
      return run(static_cast<const BFloat16*>(out));
    case DType::float16:
      return run(static_cast<const Float16*>(out));
    case DType::float64:
      return run(static_cast<const double*>(out));
    default:
      return run(static_cast<const float*>(out));
  }
}

}  // namespace
}  // namespace tessera::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::kernels {
namespace {
HWY_EXPORT(ScaleRows);
HWY_EXPORT(RowProducts);
}  // namespace

void cpu::scale_rows(DType operand, void* values, const void* factor, std::int64_t rows,
                     std::int64_t columns) {
  HWY_DYNAMIC_DISPATCH(ScaleRows)(operand, values, factor, rows, columns);
}

void cpu::row_products(DType dtype, const void* out, std::int64_t out_stride, const void* gradient,
                       std::int64_t gradient_stride, void* delta, std::int64_t rows,
                       std::int64_t columns) {
  HWY_DYNAMIC_DISPATCH(RowProducts)
  (dtype, out, out_stride, gradient, gradient_stride, delta, rows, columns);
}

}  // namespace tessera::kernels
#endif  // HWY_ONCE
