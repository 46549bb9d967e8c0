// The product of an adapter's factors, for adding it to the weight of its layer.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/load/peft.h"

namespace tessera::checkpoint {

// The tensors of one layer's adapter in the file: A is [rank, in], B [out, rank], and DoRA's
// magnitude [out].
struct AdapterTensors {
  std::optional<PeftTensor> a, b, magnitude;
  bool in_out = false;  // the weight is stored as [in, out]
  std::int64_t rank = 0;
  float scaling = 0;
};

// Elements are those of the weight as it is stored, row-major. Computes in fp32.
class AdapterProduct {
 public:
  // Reads the tensors. Error(checkpoint) for one that is not floating.
  AdapterProduct(const std::string& folder, const HuggingFaceFolder& opened,
                 const AdapterTensors& adapter);

  // Adds scaling * B A to `count` elements from `first`. With DoRA it then multiplies by the
  // magnitude over the norm, which find_norms() must have found.
  void merge(std::int64_t first, std::int64_t count, float* weights) const;

  [[nodiscard]] bool needs_norms() const { return !magnitude_.empty() && factors_.empty(); }
  // `read` gives elements of the weight. All are read once, in order.
  void find_norms(const std::function<void(std::int64_t first, std::int64_t count, float*)>& read);

 private:
  // Calls visit(row, column, count, offset) for each row's run of columns.
  template <class Visit>
  void for_runs(std::int64_t first, std::int64_t count, const Visit& visit) const;
  void add(std::int64_t first, std::int64_t count, float* weights) const;

  std::vector<float> left_, right_;  // [rows, rank], [rank, columns]
  std::vector<float> magnitude_;     // [out]; empty without DoRA
  std::vector<float> factors_;       // the magnitude over the norm
  std::int64_t rows_ = 0, columns_ = 0, rank_ = 0;
  float scaling_ = 0;
  bool in_out_ = false;
};

}  // namespace tessera::checkpoint
