// The mean of the losses whose target counts. One block is enough: there is one loss per row.
#include "kernels/cuda/device/block_reduce.h"
#include "kernels/cuda/device/indices.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/registry.h"
#include "kernels/cuda/device/types.h"

namespace tessera::kernels::cuda {
namespace {

constexpr int mean_threads = 512;

// mean = sum of the counted losses / their number, inverse_count = 1 / their number; both 0 if none
// counts. losses: [rows] of T, summed in fp64. Bytes: read losses and targets.
template <class T>
__global__ void __launch_bounds__(mean_threads)
    mean_loss_kernel(const T* losses, Indices targets, std::int64_t ignore, std::int64_t rows,
                     T* mean, double* inverse_count) {
  double sum = 0;
  long long counted = 0;
  for (std::int64_t row = threadIdx.x; row < rows; row += mean_threads) {
    if (targets[row] == ignore) continue;
    sum += static_cast<double>(losses[row]);
    ++counted;
  }
  sum = block_sum<mean_threads>(sum);
  counted = block_sum<mean_threads>(counted);
  if (threadIdx.x != 0) return;
  const double inverse = counted == 0 ? 0.0 : 1.0 / static_cast<double>(counted);
  *inverse_count = inverse;
  *mean = static_cast<T>(sum * inverse);
}

template <class T>
void run(const MeanLoss& a, const Indices& targets, Queue queue) {
  launch(context_of(queue),
         {"mean_loss",
          {a.rows},
          {reads(a.losses, a.rows * static_cast<std::int64_t>(sizeof(T))), reads(targets, a.rows),
           writes(a.mean, sizeof(T)), writes(a.inverse_count, sizeof(double))}},
         {1, mean_threads}, mean_loss_kernel<T>, static_cast<const T*>(a.losses), targets, a.ignore,
         a.rows, static_cast<T*>(a.mean), a.inverse_count);
}

}  // namespace

void mean_loss(const MeanLoss& a, Queue queue) {
  const Indices targets = indices_of(a.targets, a.target_dtype, "mean_loss");
  if (a.dtype == DType::float32) {
    run<float>(a, targets, queue);
  } else if (a.dtype == DType::float64) {
    run<double>(a, targets, queue);
  } else {
    unsupported("mean_loss", a.dtype);
  }
}

}  // namespace tessera::kernels::cuda
