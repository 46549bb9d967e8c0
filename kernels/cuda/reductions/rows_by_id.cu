// A stable radix sort of (id, row) pairs. A pass counts the digits of each tile of rows, turns the
// counts into places (digit by digit, tile by tile), and moves every pair to its place.
#include "kernels/cuda/reductions/rows_by_id.h"

#include <bit>

#include "kernels/cuda/device/fault.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/types.h"

namespace tessera::kernels::cuda {
namespace {

using SortWord = std::uint32_t;
constexpr int digit_bits = 8;
constexpr int digits = 1 << digit_bits;
constexpr std::int64_t tile_rows = 1024;
constexpr int sort_threads = 256;
constexpr int scan_threads = 512;

struct Digits {
  SortWord value[digits];
};

__device__ __forceinline__ SortWord digit_of(SortWord key, int shift) {
  return (key >> shift) & (digits - 1);
}

// keys[r] = the id of row r, or `entries` for one that is out of range, and numbers[r] = r. Bytes:
// read the ids, write 8 bytes per row.
__global__ void __launch_bounds__(sort_threads)
    number_rows_kernel(Indices ids, std::int64_t rows, std::int64_t entries, SortWord* keys,
                       SortWord* numbers, Fault* fault) {
  const auto step = static_cast<std::int64_t>(gridDim.x) * sort_threads;
  for (std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * sort_threads + threadIdx.x;
       row < rows; row += step) {
    std::int64_t id = ids[row];
    if (id < 0 || id >= entries) {
      report_fault(fault, Fault::embedding_id, row, id, entries);
      id = entries;
    }
    keys[row] = static_cast<SortWord>(id);
    numbers[row] = static_cast<SortWord>(row);
  }
}

// counts[digit, tile] = how often the digit occurs in the tile's keys. One block per tile. Bytes:
// read the keys.
__global__ void __launch_bounds__(sort_threads)
    count_digits_kernel(const SortWord* keys, std::int64_t rows, int shift, SortWord* counts) {
  auto& count = shared_memory<Digits>();
  for (int i = static_cast<int>(threadIdx.x); i < digits; i += sort_threads) count.value[i] = 0;
  __syncthreads();
  const std::int64_t begin = blockIdx.x * tile_rows;
  const std::int64_t end = begin + tile_rows < rows ? begin + tile_rows : rows;
  for (std::int64_t row = begin + threadIdx.x; row < end; row += sort_threads) {
    atomicAdd(&count.value[digit_of(keys[row], shift)], 1u);
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < digits; i += sort_threads) {
    counts[static_cast<std::int64_t>(i) * gridDim.x + blockIdx.x] = count.value[i];
  }
}

struct WarpTotals {
  SortWord value[scan_threads / warp_size];
};

// The sum of the values of the threads before the calling one. All of the block's threads call it.
__device__ __forceinline__ SortWord sum_before(SortWord value) {
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  const int warp = static_cast<int>(threadIdx.x) / warp_size;
  SortWord sum = value;
#pragma unroll
  for (int distance = 1; distance < warp_size; distance *= 2) {
    const SortWord before = __shfl_up_sync(whole_warp, sum, distance);
    if (lane >= distance) sum += before;
  }
  auto& totals = shared_memory<WarpTotals>();
  if (lane == warp_size - 1) totals.value[warp] = sum;
  __syncthreads();
  for (int w = 0; w < warp; ++w) sum += totals.value[w];
  return sum - value;
}

// Replaces each count by the sum of those before it. One block; a thread has neighbouring counts.
__global__ void __launch_bounds__(scan_threads)
    scan_counts_kernel(SortWord* counts, std::int64_t n) {
  const std::int64_t share = (n + scan_threads - 1) / scan_threads;
  const std::int64_t begin = threadIdx.x * share;
  const std::int64_t end = begin + share < n ? begin + share : n;
  SortWord sum = 0;
  for (std::int64_t i = begin; i < end; ++i) sum += counts[i];
  SortWord place = sum_before(sum);
  for (std::int64_t i = begin; i < end; ++i) {
    const SortWord count = counts[i];
    counts[i] = place;
    place += count;
  }
}

// Moves the tile's pairs to their places. One warp per tile, 32 rows at a time in ascending order,
// so rows of the same digit keep their order. Bytes: read and write 8 bytes per row.
__global__ void __launch_bounds__(warp_size)
    scatter_kernel(const SortWord* keys, const SortWord* numbers, std::int64_t rows, int shift,
                   const SortWord* places, SortWord* sorted_keys, SortWord* sorted_numbers) {
  auto& next = shared_memory<Digits>();
  const int lane = static_cast<int>(threadIdx.x);
  for (int i = lane; i < digits; i += warp_size) {
    next.value[i] = places[static_cast<std::int64_t>(i) * gridDim.x + blockIdx.x];
  }
  __syncwarp();
  const std::int64_t begin = blockIdx.x * tile_rows;
  const std::int64_t end = begin + tile_rows < rows ? begin + tile_rows : rows;
  for (std::int64_t first = begin; first < end; first += warp_size) {
    const std::int64_t row = first + lane;
    const bool exists = row < end;
    const SortWord key = exists ? keys[row] : 0;
    const SortWord digit = exists ? digit_of(key, shift) : digits;
    const unsigned same = __match_any_sync(whole_warp, digit);
    const int rank = __popc(same & ((1u << lane) - 1));
    SortWord place = 0;
    if (exists) place = next.value[digit] + static_cast<SortWord>(rank);
    __syncwarp();
    if (exists && rank == 0) next.value[digit] += static_cast<SortWord>(__popc(same));
    __syncwarp();
    if (exists) {
      sorted_keys[place] = key;
      sorted_numbers[place] = numbers[row];
    }
  }
}

// start[e] = the first place whose key is e or more. Bytes: write 4 bytes per entry.
__global__ void __launch_bounds__(sort_threads)
    find_starts_kernel(const SortWord* keys, std::int64_t rows, std::int64_t entries,
                       SortWord* start) {
  const auto step = static_cast<std::int64_t>(gridDim.x) * sort_threads;
  for (std::int64_t entry = static_cast<std::int64_t>(blockIdx.x) * sort_threads + threadIdx.x;
       entry <= entries; entry += step) {
    std::int64_t low = 0;
    std::int64_t high = rows;
    while (low < high) {
      const std::int64_t middle = (low + high) / 2;
      if (keys[middle] < static_cast<SortWord>(entry)) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    start[entry] = static_cast<SortWord>(low);
  }
}

}  // namespace

RowSorter::RowSorter(std::int64_t rows, std::int64_t entries)
    : rows_(rows), entries_(entries), tiles_((rows + tile_rows - 1) / tile_rows) {
  constexpr std::int64_t limit = std::int64_t{1} << 31;
  if (rows >= limit) misuse_of("embedding_backward", "2^31 rows or more; split the batch", rows);
  if (entries >= limit) misuse_of("embedding_backward", "2^31 entries or more", entries);
}

void RowSorter::add_arrays(ScratchArrays& scratch) {
  for (int side = 0; side < 2; ++side) {
    keys_[side] = scratch.add<SortWord>(rows_);
    numbers_[side] = scratch.add<SortWord>(rows_);
  }
  counts_ = scratch.add<SortWord>(digits * tiles_);
  start_ = scratch.add<SortWord>(entries_ + 1);
}

RowsById RowSorter::sort(Context& context, const ScratchArrays& scratch, const Indices& ids) const {
  constexpr std::size_t word = sizeof(SortWord);
  const std::size_t bytes = static_cast<std::size_t>(rows_) * word;
  const std::int64_t count = digits * tiles_;
  const std::size_t count_bytes = static_cast<std::size_t>(count) * word;
  const auto tiles = static_cast<unsigned>(tiles_);
  SortWord* counts = scratch[counts_];
  SortWord* start = scratch[start_];
  launch(
      context,
      {"rows_by_id number",
       {rows_, entries_},
       {reads(ids, rows_), writes(scratch[keys_[0]], bytes), writes(scratch[numbers_[0]], bytes)}},
      {blocks_for(rows_, sort_threads), sort_threads}, number_rows_kernel, ids, rows_, entries_,
      scratch[keys_[0]], scratch[numbers_[0]], context.fault);
  const int bits = std::bit_width(static_cast<std::uint64_t>(entries_));
  int side = 0;
  for (int shift = 0; shift < bits; shift += digit_bits, side = 1 - side) {
    const SortWord* keys = scratch[keys_[side]];
    const SortWord* numbers = scratch[numbers_[side]];
    SortWord* sorted_keys = scratch[keys_[1 - side]];
    SortWord* sorted_numbers = scratch[numbers_[1 - side]];
    launch(context,
           {"rows_by_id count", {rows_}, {reads(keys, bytes), writes(counts, count_bytes)}},
           {tiles, sort_threads}, count_digits_kernel, keys, rows_, shift, counts);
    launch(context, {"rows_by_id scan", {count}, {writes(counts, count_bytes)}}, {1, scan_threads},
           scan_counts_kernel, counts, count);
    launch(context,
           {"rows_by_id scatter",
            {rows_},
            {reads(keys, bytes), reads(numbers, bytes), reads(counts, count_bytes),
             writes(sorted_keys, bytes), writes(sorted_numbers, bytes)}},
           {tiles, warp_size}, scatter_kernel, keys, numbers, rows_, shift, counts, sorted_keys,
           sorted_numbers);
  }
  const SortWord* keys = scratch[keys_[side]];
  launch(context,
         {"rows_by_id starts",
          {rows_, entries_},
          {reads(keys, bytes), writes(start, static_cast<std::size_t>(entries_ + 1) * word)}},
         {blocks_for(entries_ + 1, sort_threads), sort_threads}, find_starts_kernel, keys, rows_,
         entries_, start);
  return {scratch[numbers_[side]], start};
}

}  // namespace tessera::kernels::cuda
