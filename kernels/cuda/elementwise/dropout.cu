// Dropout with counter-based draws, optionally added to a residual. Masks and results have the CPU
// kernel's bits.
#include <cstdint>
#include <limits>

#include "kernels/cuda/device/arithmetic.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/map.h"
#include "kernels/cuda/device/philox.h"
#include "kernels/cuda/device/registry.h"

namespace tessera::kernels::cuda {
namespace {

// At least one block of words, and 16 bytes.
template <class T>
inline constexpr int dropout_width = std::max(philox_words, width_for<T>);

struct DropoutDraws {
  RandomKey key;
  std::int64_t first;
  std::uint32_t threshold;  // elements that draw less are dropped
};

// out[i] = x[i] * scale if element draws.first + i is kept, else 0; plus residual[i]; or out[i] +=
// that when accumulate. All [n] of T; residual may be null, out may be x. Reads n*sizeof(T) bytes
// each for x, the residual and an accumulated out, writes n*sizeof(T).
template <class T>
__global__ void dropout_kernel(Layout layout, DropoutDraws draws, const T* x, const T* residual,
                               T* out, Compute<T> scale, bool accumulate) {
  constexpr int width = dropout_width<T>;
  for_places<width>(layout, [&](const Place<width>& place) {
    Compute<T> values[width], terms[width];
    std::uint32_t words[width];
    place.load(x, values);
    draw_words(draws.key, draws.first, place, words);
#pragma unroll
    for (int k = 0; k < width; ++k) {
      values[k] = words[k] < draws.threshold ? Compute<T>(0) : product(values[k], scale);
    }
    if (residual != nullptr) {
      place.load(residual, terms);
#pragma unroll
      for (int k = 0; k < width; ++k) values[k] = values[k] + terms[k];
    }
    if (accumulate) {
      place.load(out, terms);
#pragma unroll
      for (int k = 0; k < width; ++k) values[k] = terms[k] + values[k];
    }
    place.store(out, values);
  });
}

}  // namespace

void dropout(const Dropout& a, Queue queue) {
  if (!(a.p >= 0.0f && a.p <= 1.0f)) {
    misuse_of("dropout", "the probability lies outside [0, 1]; in millionths it is",
              static_cast<std::int64_t>(a.p == a.p ? a.p * 1e6f : -1.0f));
  }
  if (a.first < 0) misuse_of("dropout", "the first element is negative", a.first);
  // As on the CPU: at p = 1 the draw that the largest threshold keeps is scaled by zero.
  constexpr auto largest = std::numeric_limits<std::uint32_t>::max();
  const auto threshold = a.p < 1.0f ? static_cast<std::uint32_t>(a.p * 0x1p32) : largest;
  const double factor = a.p < 1.0f ? 1.0 / (1.0 - static_cast<double>(a.p)) : 0.0;
  const DropoutDraws draws = {a.key, a.first, threshold};
  for_floating(a.dtype, "dropout", [&](auto tag) {
    using T = typename decltype(tag)::type;
    constexpr int width = dropout_width<T>;
    const auto bytes = a.n * sizeof(T);
    const Layout layout = layout_of_draws<width>(
        a.n, a.first, {{a.x, sizeof(T)}, {a.residual, sizeof(T)}, {a.out, sizeof(T)}});
    launch(context_of(queue),
           {"dropout",
            {a.n},
            {reads(a.x, bytes), reads(a.residual, bytes),
             reads(a.accumulate ? a.out : nullptr, bytes), writes(a.out, bytes)}},
           configuration_of<width>(layout), dropout_kernel<T>, layout, draws,
           static_cast<const T*>(a.x), static_cast<const T*>(a.residual), static_cast<T*>(a.out),
           static_cast<Compute<T>>(factor), a.accumulate);
  });
}

}  // namespace tessera::kernels::cuda
