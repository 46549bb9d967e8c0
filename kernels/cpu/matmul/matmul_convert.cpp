// Converts matrices between 16-bit storage and single precision, vectorised.
#include "kernels/cpu/matmul/matmul_convert.h"

#include "base/error.h"
#include "base/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/matmul/matmul_convert.cpp"
#include "kernels/cpu/simd/simd_targets.h"
// After simd_targets.h.
#include "hwy/foreach_target.h"
#include "kernels/cpu/simd/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels::HWY_NAMESPACE {
namespace {

template <class In, class Out>
void ConvertRows(const In* in, std::int64_t in_stride, Out* out, std::int64_t out_stride,
                 std::int64_t rows, std::int64_t columns) {
  for (std::int64_t r = 0; r < rows; ++r) {
    const In* const from = in + r * in_stride;
    Out* const to = out + r * out_stride;
    ForEach<float>(columns, [&](std::int64_t c, auto access)
                                HWY_ATTR { access.Store(access.Load(from + c), to + c); });
  }
}

}  // namespace

void WidenBFloat16(const void* in, std::int64_t in_stride, float* out, std::int64_t out_stride,
                   std::int64_t rows, std::int64_t columns) {
  ConvertRows(static_cast<const BFloat16*>(in), in_stride, out, out_stride, rows, columns);
}
void WidenFloat16(const void* in, std::int64_t in_stride, float* out, std::int64_t out_stride,
                  std::int64_t rows, std::int64_t columns) {
  ConvertRows(static_cast<const Float16*>(in), in_stride, out, out_stride, rows, columns);
}
void NarrowBFloat16(const float* in, std::int64_t in_stride, void* out, std::int64_t out_stride,
                    std::int64_t rows, std::int64_t columns) {
  ConvertRows(in, in_stride, static_cast<BFloat16*>(out), out_stride, rows, columns);
}
void NarrowFloat16(const float* in, std::int64_t in_stride, void* out, std::int64_t out_stride,
                   std::int64_t rows, std::int64_t columns) {
  ConvertRows(in, in_stride, static_cast<Float16*>(out), out_stride, rows, columns);
}

}  // namespace tessera::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::kernels {
namespace {
HWY_EXPORT(WidenBFloat16);
HWY_EXPORT(WidenFloat16);
HWY_EXPORT(NarrowBFloat16);
HWY_EXPORT(NarrowFloat16);
}  // namespace

namespace cpu {

void widen_matrix(const void* in, DType dtype, std::int64_t in_stride, float* out,
                  std::int64_t out_stride, std::int64_t rows, std::int64_t columns) {
  TESSERA_REQUIRE(dtype == bfloat16 || dtype == float16, "widen_matrix: {} is not a 16-bit type",
                  name_of(dtype));
  parallel_for(0, rows, 64, [&](std::int64_t first, std::int64_t last) {
    const auto* const from = static_cast<const std::uint16_t*>(in) + first * in_stride;
    float* const to = out + first * out_stride;
    if (dtype == bfloat16) {
      HWY_DYNAMIC_DISPATCH(WidenBFloat16)(from, in_stride, to, out_stride, last - first, columns);
    } else {
      HWY_DYNAMIC_DISPATCH(WidenFloat16)(from, in_stride, to, out_stride, last - first, columns);
    }
  });
}

void narrow_matrix(const float* in, std::int64_t in_stride, void* out, DType dtype,
                   std::int64_t out_stride, std::int64_t rows, std::int64_t columns) {
  TESSERA_REQUIRE(dtype == bfloat16 || dtype == float16, "narrow_matrix: {} is not a 16-bit type",
                  name_of(dtype));
  parallel_for(0, rows, 64, [&](std::int64_t first, std::int64_t last) {
    const float* const from = in + first * in_stride;
    auto* const to = static_cast<std::uint16_t*>(out) + first * out_stride;
    if (dtype == bfloat16) {
      HWY_DYNAMIC_DISPATCH(NarrowBFloat16)(from, in_stride, to, out_stride, last - first, columns);
    } else {
      HWY_DYNAMIC_DISPATCH(NarrowFloat16)(from, in_stride, to, out_stride, last - first, columns);
    }
  });
}

}  // namespace cpu
}  // namespace tessera::kernels
#endif  // HWY_ONCE
