// Reads factors and multiplies them run by run.
#include "checkpoint/load/adapter_product.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "checkpoint/load/hugging_face.h"
#include "kernels/registry.h"

namespace tessera::checkpoint {
namespace {

constexpr std::int64_t slice_of_norms = 1 << 16;  // elements
constexpr double least_norm = 0x1p-126;           // a row of zeros is not divided by 0

std::vector<float> read_whole(const std::string& folder, const HuggingFaceFolder& opened,
                              const PeftTensor& wanted) {
  const StoredWeight& factor = opened.tensors.at(wanted.name);
  const TensorEntry* const entry = factor.entry;
  TESSERA_CHECK(entry->stored->dtype && is_floating(*entry->stored->dtype), ErrorCode::checkpoint,
                "{}: '{}' is stored as {}, which is not a floating dtype", folder, wanted.name,
                entry->stored->name);
  std::vector<std::byte> stored(static_cast<std::size_t>(entry->end - entry->begin));
  std::vector<float> values(static_cast<std::size_t>(element_count(wanted.shape, wanted.name)));
  factor.read(0, static_cast<std::int64_t>(values.size()), stored.data());
  kernels::cpu::cast({.in = stored.data(),
                      .out = reinterpret_cast<std::byte*>(values.data()),
                      .n = static_cast<std::int64_t>(values.size()),
                      .in_dtype = *entry->stored->dtype,
                      .out_dtype = float32});
  return values;
}

std::vector<float> transposed(const std::vector<float>& in, std::int64_t rows,
                              std::int64_t columns) {
  std::vector<float> out(in.size());
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t column = 0; column < columns; ++column) {
      out[static_cast<std::size_t>(column * rows + row)] =
          in[static_cast<std::size_t>(row * columns + column)];
    }
  }
  return out;
}

}  // namespace

AdapterProduct::AdapterProduct(const std::string& folder, const HuggingFaceFolder& opened,
                               const AdapterTensors& adapter)
    : rank_(adapter.rank), scaling_(adapter.scaling), in_out_(adapter.in_out) {
  const std::vector<float> a = read_whole(folder, opened, *adapter.a);
  const std::vector<float> b = read_whole(folder, opened, *adapter.b);
  const std::int64_t in = adapter.a->shape[1];
  const std::int64_t out = adapter.b->shape[0];
  left_ = in_out_ ? transposed(a, rank_, in) : b;
  right_ = in_out_ ? transposed(b, out, rank_) : a;
  rows_ = in_out_ ? in : out;
  columns_ = in_out_ ? out : in;
  if (adapter.magnitude) magnitude_ = read_whole(folder, opened, *adapter.magnitude);
}

template <class Visit>
void AdapterProduct::for_runs(std::int64_t first, std::int64_t count, const Visit& visit) const {
  for (std::int64_t done = 0; done < count;) {
    const std::int64_t row = (first + done) / columns_;
    const std::int64_t column = (first + done) % columns_;
    const std::int64_t run = std::min(columns_ - column, count - done);
    visit(row, column, run, done);
    done += run;
  }
}

void AdapterProduct::add(std::int64_t first, std::int64_t count, float* weights) const {
  std::vector<float> sums;
  for_runs(first, count,
           [&](std::int64_t row, std::int64_t column, std::int64_t run, std::int64_t done) {
             sums.assign(static_cast<std::size_t>(run), 0.0f);
             for (std::int64_t k = 0; k < rank_; ++k) {
               const float factor = left_[static_cast<std::size_t>(row * rank_ + k)];
               const float* const right = right_.data() + k * columns_ + column;
               for (std::int64_t i = 0; i < run; ++i) {
                 sums[static_cast<std::size_t>(i)] += factor * right[i];
               }
             }
             for (std::int64_t i = 0; i < run; ++i) {
               weights[done + i] += scaling_ * sums[static_cast<std::size_t>(i)];
             }
           });
}

void AdapterProduct::merge(std::int64_t first, std::int64_t count, float* weights) const {
  TESSERA_REQUIRE(!needs_norms(), "AdapterProduct::merge() before find_norms()");
  add(first, count, weights);
  if (factors_.empty()) return;
  for_runs(first, count,
           [&](std::int64_t row, std::int64_t column, std::int64_t run, std::int64_t done) {
             for (std::int64_t i = 0; i < run; ++i) {
               weights[done + i] *= factors_[static_cast<std::size_t>(in_out_ ? column + i : row)];
             }
           });
}

void AdapterProduct::find_norms(
    const std::function<void(std::int64_t first, std::int64_t count, float*)>& read) {
  std::vector<double> squares(magnitude_.size(), 0);
  const std::int64_t all = rows_ * columns_;
  std::vector<float> weights(static_cast<std::size_t>(std::min(all, slice_of_norms)));
  for (std::int64_t first = 0; first < all; first += slice_of_norms) {
    const std::int64_t count = std::min(slice_of_norms, all - first);
    read(first, count, weights.data());
    add(first, count, weights.data());
    for_runs(first, count,
             [&](std::int64_t row, std::int64_t column, std::int64_t run, std::int64_t done) {
               for (std::int64_t i = 0; i < run; ++i) {
                 const double value = weights[static_cast<std::size_t>(done + i)];
                 squares[static_cast<std::size_t>(in_out_ ? column + i : row)] += value * value;
               }
             });
  }
  factors_.resize(magnitude_.size());
  for (std::size_t i = 0; i < squares.size(); ++i) {
    const double norm = std::max(std::sqrt(squares[i]), least_norm);
    factors_[i] = static_cast<float>(static_cast<double>(magnitude_[i]) / norm);
  }
}

}  // namespace tessera::checkpoint
