// Splits rows into chunks whose number depends only on the number of rows. The sums of the chunks,
// added in order, therefore never depend on the number of threads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>

namespace tessera::kernels::cpu {

struct RowChunks {
  std::int64_t rows;
  std::int64_t chunk_rows;
  std::int64_t count;

  // Chunks have 64 rows, or more if that gave over 64 chunks, so the partial sums stay small.
  explicit RowChunks(std::int64_t rows_in_all)
      : rows(rows_in_all),
        chunk_rows(std::max<std::int64_t>(64, (rows_in_all + 63) / 64)),
        count((rows_in_all + chunk_rows - 1) / chunk_rows) {}

  [[nodiscard]] std::int64_t first(std::int64_t chunk) const { return chunk * chunk_rows; }
  [[nodiscard]] std::int64_t last(std::int64_t chunk) const {
    return std::min(rows, (chunk + 1) * chunk_rows);
  }
};

// One zeroed row of sums for each chunk, padded so that whole vectors fit at its end.
template <class Sum>
class PartialSums {
 public:
  PartialSums(std::int64_t chunks, std::int64_t dim)
      : stride_((dim + 31) / 32 * 32),
        sums_(std::make_unique<Sum[]>(static_cast<std::size_t>(chunks * stride_))) {}

  [[nodiscard]] Sum* row(std::int64_t chunk) const { return sums_.get() + chunk * stride_; }
  [[nodiscard]] std::int64_t stride() const { return stride_; }

 private:
  std::int64_t stride_;
  std::unique_ptr<Sum[]> sums_;
};

}  // namespace tessera::kernels::cpu
