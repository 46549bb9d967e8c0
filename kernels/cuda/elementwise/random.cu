// Fills tensors with uniform and normal draws. As on the CPU, everything uses additions,
// multiplications, divisions and square roots of doubles in one order, without fusing, so both
// devices draw the same bits.
#include <bit>
#include <cstdint>

#include "kernels/cuda/device/arithmetic.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/map.h"
#include "kernels/cuda/device/philox.h"
#include "kernels/cuda/device/registry.h"

namespace tessera::kernels::cuda {
namespace {

// coefficients[0] + x*(coefficients[1] + x*(...)).
template <int terms>
__device__ __forceinline__ double polynomial(double x, const double (&coefficients)[terms]) {
  double value = coefficients[terms - 1];
#pragma unroll
  for (int i = terms - 2; i >= 0; --i) value = product(value, x) + coefficients[i];
  return value;
}

// log(x * 2^-32) for x in [1, 2^32]: x = 2^k * m with m in [sqrt(1/2), sqrt(2)), and the series of
// log(m) = 2*atanh((m-1)/(m+1)). The first omitted term is below 2^-50 of the sum.
__device__ __forceinline__ double log_of_fraction(double x) {
  constexpr double series[] = {2.0,      2.0 / 3,  2.0 / 5,  2.0 / 7, 2.0 / 9,
                               2.0 / 11, 2.0 / 13, 2.0 / 15, 2.0 / 17};
  constexpr double log_2 = 0.69314718055994530942;
  constexpr std::uint64_t root_of_half = 0x3fe6a09e667f3bcd;
  constexpr std::uint64_t one = 0x3ff0000000000000;
  const std::uint64_t shifted = std::bit_cast<std::uint64_t>(x) + (one - root_of_half);
  const std::uint64_t fraction = shifted & ((std::uint64_t{1} << 52) - 1);
  const auto m = std::bit_cast<double>(fraction + root_of_half);
  const double s = (m - 1.0) / (m + 1.0);
  const double log_m = product(s, polynomial(product(s, s), series));
  const double k = static_cast<double>(shifted >> 52) - (1023.0 + 32.0);
  return product(k, log_2) + log_m;
}

// Cosine and sine of the angle turn/2^32 of a full circle. The quarter is split off exactly.
struct CosSin {
  double cosine, sine;
};
__device__ __forceinline__ CosSin cos_sin_of_turn(std::uint32_t turn) {
  constexpr double sine_series[] = {
      1.0,           -1.0 / 6,         1.0 / 120,          -1.0 / 5040,
      1.0 / 362880., -1.0 / 39916800., 1.0 / 6227020800.0, -1.0 / 1307674368000.0};
  constexpr double cosine_series[] = {1.0,
                                      -0.5,
                                      1.0 / 24,
                                      -1.0 / 720,
                                      1.0 / 40320.,
                                      -1.0 / 3628800.,
                                      1.0 / 479001600.0,
                                      -1.0 / 87178291200.0,
                                      1.0 / 20922789888000.0};
  constexpr double radians = 6.28318530717958647693 * 0x1p-32;
  const std::uint64_t quarter = (std::uint64_t{turn} + (std::uint64_t{1} << 29)) >> 30;
  const double rest = static_cast<double>(turn) - product(static_cast<double>(quarter), 0x1p30);
  const double angle = product(rest, radians);  // within +- pi/4
  const double square = product(angle, angle);
  const double sine = product(angle, polynomial(square, sine_series));
  const double cosine = polynomial(square, cosine_series);
  // Quarters 0..3: (c, s), (-s, c), (-c, -s), (s, -c).
  const bool swap = (quarter & 1) != 0;
  const double across = swap ? sine : cosine;
  const double up = swap ? cosine : sine;
  return {((quarter + 1) & 2) != 0 ? -across : across, (quarter & 2) != 0 ? -up : up};
}

// Box-Muller: two words become two independent draws of mean 0 and deviation 1.
__device__ __forceinline__ void normal_pair(std::uint32_t word0, std::uint32_t word1, double& draw0,
                                            double& draw1) {
  const double radius =
      square_root(product(-2.0, log_of_fraction(static_cast<double>(word0) + 1.0)));
  const CosSin direction = cos_sin_of_turn(word1);
  draw0 = product(radius, direction.cosine);
  draw1 = product(radius, direction.sine);
}

// out[i] = draw of element first + i: a + (b-a)*u, or a + b*normal. out: [n] of T. Writes
// n*sizeof(T) bytes. A thread makes one block of words and its four draws.
template <class T>
__global__ void random_fill_kernel(Layout layout, RandomKey key, std::int64_t first, T* out,
                                   Distribution distribution, double a, double b) {
  constexpr int width = philox_words;
  for_places<width>(layout, [&](const Place<width>& place) {
    std::uint32_t words[width];
    double values[width];
    draw_words(key, first, place, words);
    if (distribution == Distribution::uniform) {
#pragma unroll
      for (int k = 0; k < width; ++k) {
        values[k] = a + product(b - a, static_cast<double>(words[k] >> 8) * 0x1p-24);
      }
    } else {
#pragma unroll
      for (int k = 0; k < width; k += 2) {
        normal_pair(words[k], words[k + 1], values[k], values[k + 1]);
      }
#pragma unroll
      for (int k = 0; k < width; ++k) values[k] = a + product(b, values[k]);
    }
    place.store(out, values);
  });
}

}  // namespace

void random_fill(const RandomFill& a, Queue queue) {
  if (a.first < 0) misuse_of("random_fill", "the first element is negative", a.first);
  for_floating(a.dtype, "random_fill", [&](auto tag) {
    using T = typename decltype(tag)::type;
    constexpr int width = philox_words;
    const Layout layout = layout_of_draws<width>(a.n, a.first, {{a.out, sizeof(T)}});
    launch(context_of(queue), {"random_fill", {a.n}, {writes(a.out, a.n * sizeof(T))}},
           configuration_of<width>(layout), random_fill_kernel<T>, layout, a.key, a.first,
           static_cast<T*>(a.out), a.distribution, a.a, a.b);
  });
}

}  // namespace tessera::kernels::cuda
