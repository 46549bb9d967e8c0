// Dropout of rows that are numbered individually. Masks and results have the CPU kernel's bits.
#include "kernels/cuda/attention/attention_tiles.h"
#include "kernels/cuda/device/arithmetic.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/registry.h"
#include "kernels/cuda/device/types.h"

namespace tessera::kernels::cuda {
namespace {

constexpr int row_dropout_threads = 256;

// A thread processes four elements of a row, which draw words of one block or of two. Bytes: read x
// and slots, write out.
template <class T>
__global__ void __launch_bounds__(row_dropout_threads)
    sequence_dropout_kernel(SequenceDropout a, std::uint32_t threshold, Compute<T> scale) {
  const std::int64_t groups = (a.dim + philox_words - 1) / philox_words;
  const std::int64_t count = a.rows * groups;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * row_dropout_threads;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * row_dropout_threads + threadIdx.x;
       i < count; i += step) {
    const std::int64_t row = i / groups, first = i % groups * philox_words;
    const std::int64_t drawn = (a.first + a.slots[row]) * a.dim + first;
    const std::uint32_t kept =
        kept_bits<philox_words>(a.key, static_cast<std::uint64_t>(drawn), threshold);
    for (int k = 0; k < philox_words && first + k < a.dim; ++k) {
      const std::int64_t at = row * a.dim + first + k;
      const Compute<T> x = to_compute(static_cast<const T*>(a.x)[at]);
      const bool keep = (kept >> k & 1u) != 0;
      static_cast<T*>(a.out)[at] = from_compute<T>(keep ? product(x, scale) : Compute<T>{0});
    }
  }
}

}  // namespace

void sequence_dropout(const SequenceDropout& a, Queue queue) {
  if (!(a.p >= 0.0f && a.p < 1.0f)) {
    misuse_of("sequence_dropout", "the probability is not in [0, 1); in millionths it is",
              static_cast<std::int64_t>(a.p == a.p ? a.p * 1e6f : -1.0f));
  }
  if (a.first < 0) misuse_of("sequence_dropout", "the first slot is negative", a.first);
  const auto threshold = static_cast<std::uint32_t>(a.p * 0x1p32);
  const double scale = 1.0 / (1.0 - static_cast<double>(a.p));
  for_floating(a.dtype, "sequence_dropout", [&](auto tag) {
    using T = typename decltype(tag)::type;
    const std::int64_t bytes = a.rows * a.dim * static_cast<std::int64_t>(sizeof(T));
    const std::int64_t groups = (a.dim + philox_words - 1) / philox_words;
    launch(context_of(queue),
           {"sequence_dropout",
            {a.rows, a.dim},
            {reads(a.x, bytes),
             reads(a.slots, a.rows * static_cast<std::int64_t>(sizeof(std::int32_t))),
             writes(a.out, bytes)}},
           {blocks_for(a.rows * groups, row_dropout_threads), row_dropout_threads},
           sequence_dropout_kernel<T>, a, threshold, static_cast<Compute<T>>(scale));
  });
}

}  // namespace tessera::kernels::cuda
