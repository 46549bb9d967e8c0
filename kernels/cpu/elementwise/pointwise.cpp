// PointwiseOp in pieces that stay in the cache: each operand is converted to the compute type where
// it is not already adjacent in that type, the function runs over the piece, and the result is
// converted once.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/elementwise/pointwise.cpp"
#include "kernels/cpu/simd/simd_targets.h"
//
#include "hwy/foreach_target.h"
//
#include <algorithm>

#include "base/low_precision.h"
#include "base/parallel.h"
#include "kernels/cpu/elementwise/pointwise_functions-inl.h"
#include "kernels/cpu/simd/dispatch.h"
#include "kernels/cpu/simd/simd-inl.h"
#include "kernels/registry.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels::HWY_NAMESPACE {
namespace {

constexpr std::int64_t kPiece = 1024;  // elements

using Shape4 = StridedShape<most_operands>;

// to[i] = from[i * stride] in the compute type C.
template <class C, class T>
void Widen(const T* from, std::int64_t stride, std::int64_t n, C* to) {
  if constexpr (std::is_same_v<T, BFloat16> || std::is_same_v<T, Float16>) {
    if (stride == 1) {
      ForEach<T>(n, [&](std::int64_t i, auto access)
                        HWY_ATTR { access.Store(access.Load(from + i), to + i); });
      return;
    }
    if (stride == 0) return static_cast<void>(std::fill_n(to, n, static_cast<C>(to_float(*from))));
    for (std::int64_t i = 0; i < n; ++i) to[i] = static_cast<C>(to_float(from[i * stride]));
  } else {
    if (stride == 0) return static_cast<void>(std::fill_n(to, n, static_cast<C>(*from)));
    for (std::int64_t i = 0; i < n; ++i) to[i] = static_cast<C>(from[i * stride]);
  }
}

template <class C>
void WidenAny(DType dtype, const void* base, std::int64_t offset, std::int64_t stride,
              std::int64_t n, C* to) {
  const auto widen = [&](auto tag) {
    using T = typename decltype(tag)::type;
    constexpr bool narrow = std::is_same_v<T, BFloat16> || std::is_same_v<T, Float16>;
    // Numbers of 16 bits are computed in fp32 only.
    if constexpr (!narrow || std::is_same_v<C, float>) {
      Widen(static_cast<const T*>(base) + offset, stride, n, to);
    }
  };
  switch (dtype) {
    case DType::float32:
      return widen(cpu::TypeTag<float>{});
    case DType::float64:
      return widen(cpu::TypeTag<double>{});
    case DType::bfloat16:
      return widen(cpu::TypeTag<BFloat16>{});
    case DType::float16:
      return widen(cpu::TypeTag<Float16>{});
    case DType::int32:
      return widen(cpu::TypeTag<std::int32_t>{});
    case DType::int64:
      return widen(cpu::TypeTag<std::int64_t>{});
    case DType::uint8:
    case DType::boolean:
      return widen(cpu::TypeTag<std::uint8_t>{});
  }
}

// Writes to[i] = from[i], rounded once.
template <class C>
void NarrowAny(DType dtype, const C* from, std::int64_t n, void* out, std::int64_t first) {
  const auto narrow = [&](auto tag) {
    using T = typename decltype(tag)::type;
    T* to = static_cast<T*>(out) + first;
    if constexpr (std::is_same_v<T, BFloat16> || std::is_same_v<T, Float16>) {
      if constexpr (std::is_same_v<C, float>) {
        ForEach<T>(n, [&](std::int64_t i, auto access)
                          HWY_ATTR { access.Store(access.Load(from + i), to + i); });
      }
    } else {
      for (std::int64_t i = 0; i < n; ++i) to[i] = static_cast<T>(from[i]);
    }
  };
  switch (dtype) {
    case DType::float32:
      return narrow(cpu::TypeTag<float>{});
    case DType::float64:
      return narrow(cpu::TypeTag<double>{});
    case DType::bfloat16:
      return narrow(cpu::TypeTag<BFloat16>{});
    case DType::float16:
      return narrow(cpu::TypeTag<Float16>{});
    case DType::int32:
      return narrow(cpu::TypeTag<std::int32_t>{});
    case DType::int64:
      return narrow(cpu::TypeTag<std::int64_t>{});
    case DType::uint8:
    case DType::boolean:
      return narrow(cpu::TypeTag<std::uint8_t>{});
  }
}

template <PointwiseOp op, class C>
void Apply(const C* const (&in)[most_operands], C* out, std::int64_t n) {
  constexpr int operands = operands_of(op);
  if constexpr (std::is_same_v<C, std::int64_t>) {
    for (std::int64_t i = 0; i < n; ++i) {
      out[i] = FunctionOfIntegers<op>(in[0][i], operands > 1 ? in[1][i] : 0,
                                      operands > 2 ? in[2][i] : 0);
    }
  } else {
    ForEach<C>(n, [&](std::int64_t i, auto access) HWY_ATTR {
      if constexpr (operands == 1) {
        access.Store(FunctionOfOne<op>(access.Load(in[0] + i)), out + i);
      } else if constexpr (operands == 2) {
        access.Store(FunctionOfTwo<op>(access.Load(in[0] + i), access.Load(in[1] + i)), out + i);
      } else if constexpr (operands == 3) {
        access.Store(FunctionOfThree<op>(access.Load(in[0] + i), access.Load(in[1] + i),
                                         access.Load(in[2] + i)),
                     out + i);
      } else {
        access.Store(FunctionOfFour<op>(access.Load(in[0] + i), access.Load(in[1] + i),
                                        access.Load(in[2] + i), access.Load(in[3] + i)),
                     out + i);
      }
    });
  }
}

// The values of one operand, piece by piece.
template <class C>
class Operand {
 public:
  Operand(const Pointwise& a, const Shape4& shape, int number)
      : memory_(a.in[number]), dtype_(dtype_of_operand(a, number)), shape_(shape), number_(number) {
    const std::int64_t stride = shape.strides[number][0];
    if (memory_ == nullptr) {
      std::fill_n(piece_, kPiece, static_cast<C>(a.number[number]));
    } else {
      adjacent_ = shape.dimensions == 1 && stride == 1 && dtype_ == dtype_of<C>;
    }
  }
  // Elements [first, first + n) in row-major order.
  const C* values(std::int64_t first, std::int64_t n) {
    if (memory_ == nullptr) return piece_;
    if (adjacent_) return static_cast<const C*>(memory_) + first;
    const int inner = shape_.dimensions - 1;
    const std::int64_t size = shape_.sizes[inner];
    const std::int64_t stride = shape_.strides[number_][inner];
    StridedWalk<most_operands> walk(shape_, inner, first / size);
    std::int64_t column = first % size;
    for (std::int64_t done = 0; done < n;) {
      const std::int64_t run = std::min(n - done, size - column);
      WidenAny(dtype_, memory_, walk.offset(number_) + column * stride, stride, run, piece_ + done);
      done += run;
      column = 0;
      if (done < n) walk.next();
    }
    return piece_;
  }

 private:
  const void* memory_;
  DType dtype_;
  const Shape4& shape_;
  int number_;
  bool adjacent_ = false;
  HWY_ALIGN C piece_[kPiece];
};

template <PointwiseOp op, class C>
void Pieces(const Pointwise& a, const Shape4& shape, std::int64_t first, std::int64_t last) {
  const std::int64_t n = shape.elements();
  const DType result = dtype_of_result(a);
  const bool direct = result == dtype_of<C>;
  Operand<C> operands[4] = {{a, shape, 0}, {a, shape, 1}, {a, shape, 2}, {a, shape, 3}};
  HWY_ALIGN C piece[kPiece];
  for (std::int64_t i = first; i < last; ++i) {
    const std::int64_t begin = i * kPiece;
    const std::int64_t count = std::min(kPiece, n - begin);
    const C* in[most_operands] = {};
    for (int k = 0; k < operands_of(op); ++k) in[k] = operands[k].values(begin, count);
    C* const out = direct ? static_cast<C*>(a.out) + begin : piece;
    Apply<op, C>(in, out, count);
    if (!direct) NarrowAny(result, piece, count, a.out, begin);
  }
}

template <class C>
void PointwiseOf(const Pointwise& a) {
  const Shape4 shape = merged(a.shape);
  const std::int64_t pieces = (shape.elements() + kPiece - 1) / kPiece;
  for_pointwise_op(a.op, [&](auto op) {
    constexpr PointwiseOp value = decltype(op)::value;
    if constexpr (!std::is_same_v<C, std::int64_t> || kind_of(value) != PointwiseKind::arithmetic) {
      parallel_for(
          0, pieces, cpu::parallel_grain / kPiece,
          [&](std::int64_t first, std::int64_t last) { Pieces<value, C>(a, shape, first, last); });
    }
  });
}

void PointwiseVectors(const Pointwise& a) {
  if (!is_floating(a.dtype)) return PointwiseOf<std::int64_t>(a);
  if (a.dtype == DType::float64) return PointwiseOf<double>(a);
  return PointwiseOf<float>(a);
}

}  // namespace
}  // namespace tessera::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::kernels {
HWY_EXPORT(PointwiseVectors);

void cpu::pointwise(const Pointwise& a, Queue) {
  TESSERA_REQUIRE(a.op <= PointwiseOp::logical_not, "pointwise: unknown operation {}",
                  static_cast<int>(a.op));
  TESSERA_REQUIRE(kind_of(a.op) != PointwiseKind::arithmetic || is_floating(a.dtype),
                  "pointwise: {} is not a floating dtype; cast the tensor first", name_of(a.dtype));
  if (a.shape.elements() > 0) HWY_DYNAMIC_DISPATCH(PointwiseVectors)(a);
}

}  // namespace tessera::kernels
#endif
