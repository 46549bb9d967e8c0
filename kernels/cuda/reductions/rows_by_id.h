// Sorts the rows of a batch by their ids, on the device and in a deterministic order.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/context.h"
#include "kernels/cuda/device/indices.h"
#include "kernels/cuda/device/scratch.h"

namespace tessera::kernels::cuda {

// Row numbers grouped by id, ascending inside a group. Rows of id e are rows[start[e]] up to
// rows[start[e + 1]]. Device memory.
struct RowsById {
  const std::uint32_t* rows;   // [rows]
  const std::uint32_t* start;  // [entries + 1]
};

// A stable radix sort, eight bits of the ids per pass. Throws std::logic_error for 2^31 or more
// rows or entries.
class RowSorter {
 public:
  RowSorter(std::int64_t rows, std::int64_t entries);
  // Adds the arrays of a sort. Take `scratch` between this and sort(); it holds the result.
  void add_arrays(ScratchArrays& scratch);
  // ids: [rows]. An id outside [0, entries) is reported as Fault::embedding_id; its row is in no
  // group.
  RowsById sort(Context& context, const ScratchArrays& scratch, const Indices& ids) const;

 private:
  using Words = ScratchArrays::Array<std::uint32_t>;
  std::int64_t rows_, entries_, tiles_;
  Words keys_[2] = {}, numbers_[2] = {}, counts_ = {}, start_ = {};
};

}  // namespace tessera::kernels::cuda
