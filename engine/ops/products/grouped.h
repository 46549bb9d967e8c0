// Rows in groups, and products in which each group of rows has a weight of its own: the experts of
// a mixture.
//
//   const RowGroups groups = group_rows(experts_of_tokens, 8);          // ids [tokens, k]
//   const Tensor rows = dispatch_rows(x, groups);                       // [tokens * k, in]
//   const Tensor y = combine_rows(grouped_linear(rows, weights, groups), groups);  // [tokens, out]
//
// No row is dropped, and a group may be empty. Shapes depend on the number of ids, never on their
// values, so that memory can be planned. Sums have a fixed order.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/ops.h"
#include "engine/tensor.h"

namespace tessera {

// The rows that ids [.., k] send to groups. Each id is one row, and a source is one of the .. : it
// sends k rows. The rows are ordered by group, and by their place in the ids inside a group.
struct RowGroups {
  Tensor places;   // int32 [rows]: the place in the ids of each row
  Tensor sources;  // int32 [rows]: the source of each row, places / k
  std::int64_t source_count = 0;
  // On the host: group g has the rows from starts[g] up to starts[g + 1].
  std::vector<std::int64_t> starts;

  [[nodiscard]] std::int64_t count() const {
    return starts.empty() ? 0 : static_cast<std::int64_t>(starts.size()) - 1;
  }
  [[nodiscard]] std::int64_t rows() const { return starts.empty() ? 0 : starts.back(); }
  [[nodiscard]] std::int64_t rows_of(std::int64_t group) const {
    const auto at = static_cast<std::size_t>(group);
    return starts[at + 1] - starts[at];
  }
};

// ids [.., k], int32 or int64, from 0 up to `groups` - 1: an id outside is an Error(data) with its
// position. The host reads the ids, so it waits for a GPU here. On devices without values (meta,
// planned) all groups have the same number of rows, or one more. Not differentiable.
RowGroups group_rows(const Tensor& ids, std::int64_t groups);

// The row of each row's source: x [source_count, dim] to [rows, dim]. Backwards of grouped products
// copy the rows again instead of keeping them.
Tensor dispatch_rows(const Tensor& x, const RowGroups& groups);
// The sum of each source's rows, by ascending group: [rows, dim] to [source_count, dim]. It is
// rounded once.
Tensor combine_rows(const Tensor& rows, const RowGroups& groups);

// Row r of x [rows, in] times the transposed weight of its group: [rows, out]. One weight [out, in]
// for each group, of one shape and dtype. x may have any floating dtype and is cast to the
// weights'. The gradient of a weight whose group is empty is 0.
Tensor grouped_linear(const Tensor& x, std::span<const Tensor> weights, const RowGroups& groups);
// The same with the weights of all groups in one tensor, [groups, in, out] or, with out_in,
// [groups, out, in], and their biases in another, [groups, out], or undefined. Gradients are
// written to their places in that tensor: no group has a copy.
Tensor grouped_linear(const Tensor& x, const Tensor& weights, const Tensor& biases,
                      const RowGroups& groups, WeightLayout layout);
// grouped_linear(silu(gate) * up, weights, groups). Saves only gate and up.
Tensor grouped_swiglu_linear(const Tensor& gate, const Tensor& up, std::span<const Tensor> weights,
                             const RowGroups& groups);

}  // namespace tessera
