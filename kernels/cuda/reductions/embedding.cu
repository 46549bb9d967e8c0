// Table look-up, and its backward as sums over the rows of each id in ascending order.
#include "kernels/cuda/device/fault.h"
#include "kernels/cuda/device/indices.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/registry.h"
#include "kernels/cuda/device/row_share.h"
#include "kernels/cuda/reductions/rows_by_id.h"

namespace tessera::kernels::cuda {
namespace {

constexpr int copy_warps = 8;
constexpr int row_sum_threads = 128;

// out[r] = table[ids[r]], rows of `units` Units (16 bytes, or one element). A warp copies a row. An
// id out of range is reported and gives zeroes. Bytes: read the rows of the table, write out.
template <class Unit>
__global__ void __launch_bounds__(warp_size* copy_warps)
    embedding_forward_kernel(Indices ids, const Unit* table, Unit* out, std::int64_t rows,
                             std::int64_t entries, std::int64_t units, Fault* fault) {
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  const int warp = static_cast<int>(threadIdx.x) / warp_size;
  const auto step = static_cast<std::int64_t>(gridDim.x) * copy_warps;
  for (std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * copy_warps + warp; row < rows;
       row += step) {
    const std::int64_t id = ids[row];
    const bool exists = id >= 0 && id < entries;
    if (!exists && lane == 0) report_fault(fault, Fault::embedding_id, row, id, entries);
    const Unit* from = table + (exists ? id : 0) * units;
    Unit* to = out + row * units;
    for (std::int64_t i = lane; i < units; i += warp_size) to[i] = exists ? from[i] : Unit{};
  }
}

template <class Unit>
void copy_rows(const EmbeddingForward& a, const Indices& ids, Context& context) {
  const std::int64_t row_bytes = a.dim * static_cast<std::int64_t>(size_of(a.dtype));
  const std::int64_t units = row_bytes / static_cast<std::int64_t>(sizeof(Unit));
  launch(context,
         {"embedding_forward",
          {a.rows, a.entries, a.dim},
          {reads(ids, a.rows), reads(a.table, a.entries * row_bytes),
           writes(a.out, a.rows * row_bytes)}},
         {blocks_for(a.rows, copy_warps), warp_size * copy_warps}, embedding_forward_kernel<Unit>,
         ids, static_cast<const Unit*>(a.table), static_cast<Unit*>(a.out), a.rows, a.entries,
         units, context.fault);
}

// dtable[id] (+)= the sum over the id's rows of dout[row], one after the other, rounded once. A
// block processes up to row_sum_threads groups of columns of an id. Bytes: read dout, write dtable
// (and read the rows of the ids to accumulate).
template <class T>
__global__ void __launch_bounds__(row_sum_threads)
    embedding_backward_kernel(GroupAccess<T> access, RowsById order, const T* dout, T* dtable,
                              bool accumulate) {
  using C = Compute<T>;
  constexpr int width = Vector<T>::size;
  const std::int64_t id = blockIdx.x;
  const std::int64_t first =
      (static_cast<std::int64_t>(blockIdx.y) * row_sum_threads + threadIdx.x) * width;
  if (first >= access.n) return;
  const std::int64_t begin = order.start[id];
  const std::int64_t end = order.start[id + 1];
  if (begin == end && accumulate) return;
  C sums[width] = {};
#pragma unroll 4
  for (std::int64_t i = begin; i < end; ++i) {
    const Vector<T> gradients = access.load(dout + order.rows[i] * access.n, first);
#pragma unroll
    for (int k = 0; k < width; ++k) sums[k] += to_compute(gradients.value[k]);
  }
  T* out = dtable + id * access.n;
  Vector<T> result = accumulate ? access.load(out, first) : Vector<T>{};
#pragma unroll
  for (int k = 0; k < width; ++k) {
    result.value[k] = from_compute<T>(accumulate ? to_compute(result.value[k]) + sums[k] : sums[k]);
  }
  access.store(out, first, result);
}

template <class T>
void sum_rows_of_ids(const EmbeddingBackward& a, const RowsById& order, Context& context) {
  constexpr std::int64_t block_columns = row_sum_threads * Vector<T>::size;
  const dim3 grid{static_cast<unsigned>(a.entries),
                  static_cast<unsigned>((a.dim + block_columns - 1) / block_columns)};
  const std::int64_t row_bytes = a.dim * static_cast<std::int64_t>(sizeof(T));
  launch(context,
         {"embedding_backward",
          {a.rows, a.entries, a.dim},
          {reads(order.rows, a.rows * 4), reads(order.start, (a.entries + 1) * 4),
           reads(a.dout, a.rows * row_bytes), writes(a.dtable, a.entries * row_bytes)}},
         {grid, row_sum_threads}, embedding_backward_kernel<T>,
         group_access<T>(a.dim, a.dout, a.dtable), order, static_cast<const T*>(a.dout),
         static_cast<T*>(a.dtable), a.accumulate);
}

}  // namespace

void embedding_forward(const EmbeddingForward& a, Queue queue) {
  const Indices ids = indices_of(a.ids, a.id_dtype, "embedding_forward");
  Context& context = context_of(queue);
  const std::size_t element = size_of(a.dtype);
  if (aligned_for_vectors(a.table, a.out) && a.dim * static_cast<std::int64_t>(element) % 16 == 0) {
    return copy_rows<Vector<std::uint64_t>>(a, ids, context);
  }
  switch (element) {
    case 8:
      return copy_rows<std::uint64_t>(a, ids, context);
    case 4:
      return copy_rows<std::uint32_t>(a, ids, context);
    case 2:
      return copy_rows<std::uint16_t>(a, ids, context);
    default:
      return copy_rows<std::uint8_t>(a, ids, context);
  }
}

void embedding_backward(const EmbeddingBackward& a, Queue queue) {
  const Indices ids = indices_of(a.ids, a.id_dtype, "embedding_backward");
  Context& context = context_of(queue);
  RowSorter sorter(a.rows, a.entries);
  ScratchArrays scratch;
  sorter.add_arrays(scratch);
  scratch.take(context);
  const RowsById order = sorter.sort(context, scratch, ids);
  for_floating(a.dtype, "embedding_backward",
               [&](auto tag) { sum_rows_of_ids<typename decltype(tag)::type>(a, order, context); });
}

}  // namespace tessera::kernels::cuda
