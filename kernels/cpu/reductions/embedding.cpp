// Table look-up, and its backward as sums over the rows of each id in ascending order.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/reductions/embedding.cpp"
#include "kernels/cpu/simd/simd_targets.h"
//
#include "hwy/foreach_target.h"
//
#include "kernels/cpu/simd/simd-inl.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "base/parallel.h"
#include "kernels/cpu/simd/dispatch.h"
#include "kernels/registry.h"

#ifndef TESSERA_KERNELS_CPU_EMBEDDING_ONCE_
#define TESSERA_KERNELS_CPU_EMBEDDING_ONCE_
namespace tessera::kernels {
namespace {

// Row numbers grouped by id, ascending inside a group. Rows of id e are rows[start[e]] up to
// rows[start[e + 1]].
struct RowsOfIds {
  std::vector<std::int64_t> start;
  std::vector<std::int64_t> rows;
};

}  // namespace
}  // namespace tessera::kernels
#endif

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels::HWY_NAMESPACE {
namespace {

constexpr int kVectors = 4;

// Sums kVectors neighbouring vectors (or one partial vector) of the given rows and writes them.
template <int kCount, class T, class Access>
HWY_INLINE void SumColumns(const EmbeddingBackward& a, const std::int64_t* rows,
                           const std::int64_t* end, std::int64_t column, T* out, Access access) {
  const T* dout = static_cast<const T*>(a.dout) + column;
  const auto lanes = static_cast<std::int64_t>(LaneCount<T>());
  Vec<T> sums[kCount];
  for (int k = 0; k < kCount; ++k) sums[k] = hn::Zero(Tag<T>());
  for (; rows != end; ++rows) {
    const T* row = dout + *rows * a.dim;
    for (int k = 0; k < kCount; ++k) sums[k] = hn::Add(sums[k], access.Load(row + k * lanes));
  }
  for (int k = 0; k < kCount; ++k) {
    T* to = out + column + k * lanes;
    access.Store(a.accumulate ? hn::Add(access.Load(to), sums[k]) : sums[k], to);
  }
}

template <class T>
HWY_NOINLINE void BackwardTyped(const EmbeddingBackward& a, const RowsOfIds& order,
                                std::int64_t first_column, std::int64_t last_column) {
  const auto lanes = static_cast<std::int64_t>(LaneCount<T>());
  for (std::int64_t id = 0; id < a.entries; ++id) {
    T* out = static_cast<T*>(a.dtable) + id * a.dim;
    const std::int64_t* rows = order.rows.data() + order.start[id];
    const std::int64_t* end = order.rows.data() + order.start[id + 1];
    if (rows == end) {
      if (!a.accumulate) {
        std::memset(out + first_column, 0,
                    static_cast<std::size_t>(last_column - first_column) * sizeof(T));
      }
      continue;
    }
    std::int64_t column = first_column;
    for (; column + kVectors * lanes <= last_column; column += kVectors * lanes) {
      SumColumns<kVectors>(a, rows, end, column, out, WholeVector{});
    }
    for (; column + lanes <= last_column; column += lanes) {
      SumColumns<1>(a, rows, end, column, out, WholeVector{});
    }
    if (column < last_column) {
      const PartialVector rest{static_cast<std::size_t>(last_column - column)};
      SumColumns<1>(a, rows, end, column, out, rest);
    }
  }
}

void BackwardColumns(const EmbeddingBackward& a, const RowsOfIds& order, std::int64_t first,
                     std::int64_t last) {
  cpu::for_floating(a.dtype, "embedding_backward", [&](auto tag) {
    BackwardTyped<typename decltype(tag)::type>(a, order, first, last);
  });
}

}  // namespace
}  // namespace tessera::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::kernels {
namespace {

HWY_EXPORT(BackwardColumns);

// Calls use(ids) with the typed pointer.
template <class Use>
void with_ids(const char* kernel, const void* ids, DType dtype, Use&& use) {
  if (dtype == DType::int32) {
    use(static_cast<const std::int32_t*>(ids));
  } else {
    TESSERA_REQUIRE(dtype == DType::int64, "{}: ids of {}; they are int32 or int64", kernel,
                    name_of(dtype));
    use(static_cast<const std::int64_t*>(ids));
  }
}

// Checks before anything is written, so that a bad batch changes nothing.
template <class Id>
void check_ids(const char* kernel, const Id* ids, std::int64_t rows, std::int64_t entries) {
  for (std::int64_t r = 0; r < rows; ++r) {
    TESSERA_CHECK(
        ids[r] >= 0 && ids[r] < entries, ErrorCode::data,
        "{}: id {} at position {} is outside the table of {} entries; check the tokenizer "
        "and the model's vocabulary size",
        kernel, ids[r], r, entries);
  }
}

// A counting sort: O(rows + entries).
template <class Id>
RowsOfIds sort_by_id(const Id* ids, std::int64_t rows, std::int64_t entries) {
  RowsOfIds order;
  order.start.assign(static_cast<std::size_t>(entries) + 1, 0);
  order.rows.resize(static_cast<std::size_t>(rows));
  for (std::int64_t r = 0; r < rows; ++r) ++order.start[static_cast<std::size_t>(ids[r])];
  std::int64_t before = 0;
  for (std::int64_t& start : order.start) {
    before += start;
    start = before;  // the group's end; the descending pass below moves it to the beginning
  }
  for (std::int64_t r = rows; r-- > 0;) {
    order.rows[static_cast<std::size_t>(--order.start[static_cast<std::size_t>(ids[r])])] = r;
  }
  return order;
}

}  // namespace

void cpu::embedding_forward(const EmbeddingForward& a, Queue) {
  with_ids("embedding", a.ids, a.id_dtype, [&](const auto* ids) {
    check_ids("embedding", ids, a.rows, a.entries);
    const std::int64_t row_bytes = a.dim * static_cast<std::int64_t>(size_of(a.dtype));
    const auto* table = static_cast<const std::byte*>(a.table);
    auto* out = static_cast<std::byte*>(a.out);
    if (row_bytes == 0) return;
    const std::int64_t grain = std::max<std::int64_t>(1, (1 << 16) / row_bytes);
    parallel_for(0, a.rows, grain, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t r = first; r < last; ++r) {
        std::memcpy(out + r * row_bytes, table + ids[r] * row_bytes,
                    static_cast<std::size_t>(row_bytes));
      }
    });
  });
}

void cpu::embedding_backward(const EmbeddingBackward& a, Queue) {
  TESSERA_REQUIRE(is_floating(a.dtype), "embedding_backward: {} is not a floating type",
                  name_of(a.dtype));
  with_ids("embedding_backward", a.ids, a.id_dtype, [&](const auto* ids) {
    check_ids("embedding_backward", ids, a.rows, a.entries);
    const RowsOfIds order = sort_by_id(ids, a.rows, a.entries);
    // Threads split the columns of every id, so a token that fills half of a batch slows all
    // threads equally.
    constexpr std::int64_t kColumns = 64;
    parallel_for(0, a.dim, kColumns, [&](std::int64_t first, std::int64_t last) {
      HWY_DYNAMIC_DISPATCH(BackwardColumns)(a, order, first, last);
    });
  });
}

}  // namespace tessera::kernels
#endif  // HWY_ONCE
