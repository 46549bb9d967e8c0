// Adds up the chunks' partial column sums, compiled once per instruction set.
#if defined(TESSERA_KERNELS_CPU_COLUMN_SUMS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_KERNELS_CPU_COLUMN_SUMS_INL_H_
#undef TESSERA_KERNELS_CPU_COLUMN_SUMS_INL_H_
#else
#define TESSERA_KERNELS_CPU_COLUMN_SUMS_INL_H_
#endif

#include "base/parallel.h"
#include "kernels/cpu/simd/column_sums.h"
#include "kernels/cpu/simd/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels::HWY_NAMESPACE {

// out[i] (+)= the chunks' sums[i], in the chunks' order, rounded once.
template <class T>
void CombineChunks(const cpu::PartialSums<Compute<T>>& sums, std::int64_t chunks, T* out,
                   std::int64_t dim, bool accumulate) {
  constexpr std::int64_t grain = 1024;  // a multiple of every vector's lanes
  parallel_for(0, dim, grain, [&](std::int64_t first, std::int64_t last) HWY_ATTR {
    ForEach<T>(last - first, [&](std::int64_t i, auto access) HWY_ATTR {
      const Tag<T> d;
      auto sum = hn::Zero(d);
      for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
        sum = hn::Add(sum, hn::LoadU(d, sums.row(chunk) + first + i));
      }
      T* where = out + first + i;
      if (accumulate) sum = hn::Add(access.Load(where), sum);
      access.Store(sum, where);
    });
  });
}

}  // namespace tessera::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
