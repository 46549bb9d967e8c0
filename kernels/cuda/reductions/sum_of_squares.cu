// Sums of squares that no partition of the data can change: fp64 sums of 32 elements in the CPU's
// order, added exactly. The exact part is integer arithmetic, so the order of its additions, and
// the number of blocks and threads, cannot change the result.
#include "kernels/cuda/device/arithmetic.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/registry.h"
#include "kernels/cuda/device/row.h"
#include "kernels/cuda/device/scratch.h"

namespace tessera::kernels::cuda {
namespace {

constexpr int square_threads = 128;
constexpr std::int64_t square_block = 32;  // elements that are summed in fp64
constexpr int square_columns = 8;          // column c sums elements c, c+8, c+16 and c+24

constexpr int mantissa_bits = 52;
constexpr unsigned largest_exponent = 0x7ff;  // of Inf and NaN
// The last mantissa bit of a number with exponent e (at least 1) is bit e + exponent_offset of the
// limbs: limb 0 begins at 2^-1088, and exponent 1 ends at 2^-1074.
constexpr unsigned exponent_offset = 1088 - 1074 - 1;
// This many numbers of 53 bits, shifted by up to 63, fit an integer of 128 bits.
constexpr int most_numbers = 1024;

template <class T>
__device__ __forceinline__ double square(T value, float scale) {
  const double scaled = product(to_compute(value), static_cast<Compute<T>>(scale));
  return product(scaled, scaled);
}

// The blocks of a warp's lanes on their way from memory, which neighbouring lanes read together, to
// the lane that sums them. Padded by a vector: no bank conflicts.
template <class T>
struct Staged {
  static constexpr int stride = square_block + Vector<T>::size;
  struct alignas(16) Warp {
    T value[warp_size * stride];
  };
  Warp warp[square_threads / warp_size];
};

// Copies elements [first, first + 32 * 32) of x, [n]; elements past the end are zeroes. All lanes
// call it with the same `first`.
template <class T>
__device__ __forceinline__ void stage(const T* x, std::int64_t first, std::int64_t n, int lane,
                                      typename Staged<T>::Warp& staged) {
  constexpr int width = Vector<T>::size;
  constexpr int vectors = square_block / width;
  // All loads before the first store, and without conditions between them: they are in flight
  // together.
  Vector<T> held[vectors];
  if (reinterpret_cast<std::uintptr_t>(x) % 16 == 0 && first + warp_size * square_block <= n) {
#pragma unroll
    for (int i = 0; i < vectors; ++i)
      held[i] = load_vector(x + first + (i * warp_size + lane) * width);
  } else {
#pragma unroll
    for (int i = 0; i < vectors; ++i) {
      held[i] = load_of_row(x, first + (i * warp_size + lane) * width, n, Compute<T>{0});
    }
  }
#pragma unroll
  for (int i = 0; i < vectors; ++i) {
    const int element = (i * warp_size + lane) * width;
    store_vector(staged.value + element / square_block * Staged<T>::stride + element % square_block,
                 held[i]);
  }
}

// The sum over a block of 32 elements.
template <class T>
__device__ __forceinline__ double sum_of_block(const T* block, float scale) {
  constexpr int width = Vector<T>::size;
  static_assert(square_columns % width == 0);
  double sums[square_columns];
#pragma unroll
  for (int c = 0; c < square_columns; c += width) {
    Vector<T> quarters[4];
#pragma unroll
    for (int quarter = 0; quarter < 4; ++quarter) {
      quarters[quarter] = load_vector(block + quarter * square_columns + c);
    }
#pragma unroll
    for (int k = 0; k < width; ++k) {
      sums[c + k] = (square(quarters[0].value[k], scale) + square(quarters[1].value[k], scale)) +
                    (square(quarters[2].value[k], scale) + square(quarters[3].value[k], scale));
    }
  }
#pragma unroll
  for (int half = square_columns / 2; half > 0; half /= 2) {
#pragma unroll
    for (int c = 0; c < half; ++c) sums[c] += sums[c + half];
  }
  return sums[0];
}

// A block's exact sum: limbs of 32 bits in 64, all of them non-negative.
struct SharedSum {
  unsigned long long limb[ExactSum::limbs];
  unsigned non_finite;
};

// Adds value * 2^position, counted from the last bit of limb 0.
__device__ __forceinline__ void add_integer(SharedSum& sum, std::uint64_t value,
                                            unsigned position) {
  constexpr std::uint64_t low_half = 0xffffffffu;
  const unsigned shift = position % 32;
  const std::uint64_t lower = (value & low_half) << shift;
  const std::uint64_t upper = ((value >> 32) << shift) + (lower >> 32);
  unsigned long long* limb = sum.limb + position / 32;
  atomicAdd(limb, static_cast<unsigned long long>(lower & low_half));
  atomicAdd(limb + 1, static_cast<unsigned long long>(upper & low_half));
  atomicAdd(limb + 2, static_cast<unsigned long long>(upper >> 32));
}

// Collects a thread's numbers before they are added to the block's. Those within 2^-31 to 2^32 of
// the first, in practice all, are added in one integer of 128 bits.
class Gatherer {
 public:
  __device__ explicit Gatherer(SharedSum& sum) : sum_(sum) {}

  __device__ __forceinline__ void add(double value) {
    const auto bits = static_cast<std::uint64_t>(__double_as_longlong(value));
    const auto exponent = static_cast<unsigned>(bits >> mantissa_bits) & largest_exponent;
    std::uint64_t mantissa = bits & ((std::uint64_t{1} << mantissa_bits) - 1);
    if (exponent == largest_exponent) {
      atomicOr(&sum_.non_finite, 1u);
      return;
    }
    if (exponent != 0) mantissa |= std::uint64_t{1} << mantissa_bits;
    if (mantissa == 0) return;
    const unsigned position = (exponent != 0 ? exponent : 1) + exponent_offset;
    if (count_ == most_numbers) flush();
    if (count_ == 0) base_ = position - (position - exponent_offset < 31 ? 0 : 31);
    const unsigned shift = position - base_;
    if (shift > 63) return add_integer(sum_, mantissa, position);
    const std::uint64_t lower = mantissa << shift;
    lower_ += lower;
    upper_ += (mantissa >> 1 >> (63 - shift)) + (lower_ < lower ? 1 : 0);
    ++count_;
  }
  __device__ __forceinline__ void flush() {
    if (count_ == 0) return;
    add_integer(sum_, lower_, base_);
    if (upper_ != 0) add_integer(sum_, upper_, base_ + 64);
    lower_ = upper_ = 0;
    count_ = 0;
  }

 private:
  SharedSum& sum_;
  std::uint64_t lower_ = 0;
  std::uint64_t upper_ = 0;
  unsigned base_ = 0;
  int count_ = 0;
};

// Brings all limbs except the last below 2^32.
template <class Limb>
__device__ __forceinline__ void normalize(Limb* limb) {
  std::uint64_t carry = 0;
  for (int i = 0; i < ExactSum::limbs - 1; ++i) {
    carry += static_cast<std::uint64_t>(limb[i]);
    limb[i] = static_cast<Limb>(carry & 0xffffffffu);
    carry >>= 32;
  }
  limb[ExactSum::limbs - 1] += static_cast<Limb>(carry);
}

// Adds the squares of x, [n] of T, to the limbs; non_finite[b] tells whether block b found an Inf
// or NaN. Bytes: read x.
template <class T>
__global__ void __launch_bounds__(square_threads, 4)
    sum_of_squares_kernel(const T* x, std::int64_t n, float scale, std::int64_t* limbs,
                          unsigned* non_finite) {
  auto& sum = shared_memory<SharedSum>();
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < ExactSum::limbs) sum.limb[thread] = 0;
  if (thread == 0) sum.non_finite = 0;
  __syncthreads();
  Gatherer gatherer(sum);
  const int lane = thread % warp_size;
  auto& staged = shared_memory<Staged<T>>().warp[thread / warp_size];
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * square_threads * square_block;
  std::int64_t first =
      (static_cast<std::int64_t>(blockIdx.x) * square_threads + thread - lane) * square_block;
  for (; first < n; first += step) {
    stage(x, first, n, lane, staged);
    __syncwarp();
    gatherer.add(sum_of_block(staged.value + lane * Staged<T>::stride, scale));
    __syncwarp();
  }
  gatherer.flush();
  __syncthreads();
  // Limits the growth of the limbs in global memory to less than 2^32 per block.
  if (thread == 0) {
    normalize(sum.limb);
    non_finite[blockIdx.x] = sum.non_finite;
  }
  __syncthreads();
  static_assert(ExactSum::limbs <= square_threads);
  if (thread < ExactSum::limbs && sum.limb[thread] != 0) {
    atomicAdd(reinterpret_cast<unsigned long long*>(limbs) + thread, sum.limb[thread]);
  }
}

// Normalises the sum.
__global__ void finish_sum_kernel(ExactSum* sum, const unsigned* non_finite, int blocks) {
  unsigned any = 0;
  for (int i = static_cast<int>(threadIdx.x); i < blocks; i += warp_size) any |= non_finite[i];
  any = __ballot_sync(whole_warp, any != 0);
  if (threadIdx.x != 0) return;
  if (any != 0) sum->non_finite = true;
  normalize(sum->limb.data());
}

template <class T>
void run(const SumOfSquares& a, Context& context) {
  constexpr int blocks_of_a_multiprocessor = 8;
  const unsigned blocks = blocks_for(a.n, square_threads * square_block,
                                     context.multiprocessors * blocks_of_a_multiprocessor);
  const std::size_t flag_bytes = blocks * sizeof(unsigned);
  auto* non_finite = static_cast<unsigned*>(context.scratch(flag_bytes));
  launch(context,
         {"sum_of_squares",
          {a.n},
          {reads(a.x, a.n * static_cast<std::int64_t>(sizeof(T))), writes(a.sum, sizeof(ExactSum)),
           writes(non_finite, flag_bytes)}},
         {blocks, square_threads}, sum_of_squares_kernel<T>, static_cast<const T*>(a.x), a.n,
         a.scale, a.sum->limb.data(), non_finite);
  launch(context,
         {"sum_of_squares finish",
          {blocks},
          {reads(non_finite, flag_bytes), writes(a.sum, sizeof(ExactSum))}},
         {1, warp_size}, finish_sum_kernel, a.sum, non_finite, static_cast<int>(blocks));
}

}  // namespace

void sum_of_squares(const SumOfSquares& a, Queue queue) {
  if (a.sum == nullptr) misuse_of("sum_of_squares", "no accumulator was given", a.n);
  for_floating(a.dtype, "sum_of_squares",
               [&](auto tag) { run<typename decltype(tag)::type>(a, context_of(queue)); });
}

}  // namespace tessera::kernels::cuda
