// Row gathering and per-epoch shuffling.
#include "engine/data/tensor_loader.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "engine/random.h"

namespace tessera::data {
namespace {

constexpr std::uint64_t shuffle_stream = std::uint64_t{1} << 62;

}  // namespace

void check_samples(const TensorDataset& samples) {
  for (const auto& [name, tensor] :
       {std::pair("inputs", samples.inputs), std::pair("targets", samples.targets)}) {
    TESSERA_REQUIRE(tensor.defined(), "a data set whose {} are an undefined tensor", name);
    TESSERA_REQUIRE(tensor.dimensions() > 0,
                    "a data set whose {} are a single number; their first dimension counts the "
                    "samples",
                    name);
    TESSERA_REQUIRE(tensor.device() == Device::cpu(),
                    "a data set on {}; keep it on the CPU, batches are moved to the default device",
                    tensor.device().to_string());
  }
  TESSERA_REQUIRE(samples.inputs.size(0) == samples.targets.size(0),
                  "a data set whose inputs have {} samples and whose targets have {}; sample i is "
                  "row i of both",
                  samples.inputs.size(0), samples.targets.size(0));
  TESSERA_CHECK(samples.inputs.size(0) > 0, ErrorCode::data, "the data set is empty");
}

Tensor take_rows(const Tensor& source, const std::vector<std::int64_t>& rows, Device device) {
  Shape shape = source.shape();
  shape[0] = static_cast<std::int64_t>(rows.size());
  Tensor out = Tensor::empty(shape, source.dtype(), Device::cpu());
  const std::size_t row_bytes = source.bytes() / static_cast<std::size_t>(source.size(0));
  for (std::size_t i = 0; i < rows.size(); ++i) {
    std::memcpy(out.data() + i * row_bytes,
                source.data() + static_cast<std::size_t>(rows[i]) * row_bytes, row_bytes);
  }
  return out.to(device);
}

TensorLoader::TensorLoader(TensorDataset dataset, const TensorLoaderOptions& options)
    : dataset_(std::move(dataset)), options_(options) {
  check_samples(dataset_);
  TESSERA_CHECK(options.batch_size > 0, ErrorCode::configuration, "batch_size {} must be positive",
                options.batch_size);
}

TensorLoader TensorLoader::for_rank(int rank, int world_size) const {
  TensorLoader copy = *this;
  copy.rank_ = rank;
  copy.world_size_ = world_size;
  return copy;
}

std::int64_t TensorLoader::steps_per_epoch() const {
  const std::int64_t global = options_.batch_size * world_size_;
  const std::int64_t samples = dataset_.inputs.size(0);
  return options_.drop_last ? samples / global : (samples + global - 1) / global;
}

std::int64_t TensorLoader::Epochs::take(Rank rank) {
  const std::lock_guard lock(mutex_);
  return next_[rank]++;
}

void TensorLoader::Epochs::set_next(Rank rank, std::int64_t epoch) {
  TESSERA_REQUIRE(epoch >= 0, "an epoch cannot be negative: {}", epoch);
  const std::lock_guard lock(mutex_);
  next_[rank] = epoch;
}

TensorLoader::Iterator TensorLoader::begin() {
  epoch_ = epochs_->take({rank_, world_size_});
  if (options_.shuffle) {
    order_.resize(static_cast<std::size_t>(dataset_.inputs.size(0)));
    std::iota(order_.begin(), order_.end(), 0);
    const kernels::RandomKey key{options_.seed,
                                 shuffle_stream + static_cast<std::uint64_t>(epoch_)};
    for (std::size_t i = order_.size(); i > 1; --i) {  // Fisher-Yates
      const auto words = kernels::philox(key, i);
      const std::uint64_t draw = (static_cast<std::uint64_t>(words[0]) << 32) | words[1];
      std::swap(order_[i - 1], order_[draw % i]);
    }
  }
  return {this, 0};
}

std::int64_t TensorLoader::sample(std::int64_t position) const {
  const std::int64_t wrapped = position % dataset_.inputs.size(0);
  return order_.empty() ? wrapped : order_[static_cast<std::size_t>(wrapped)];
}

std::pair<Tensor, Tensor> TensorLoader::batch(std::int64_t step) {
  const std::int64_t first = (step * world_size_ + rank_) * options_.batch_size;
  std::vector<std::int64_t> rows;
  for (std::int64_t i = 0; i < options_.batch_size; ++i) rows.push_back(sample(first + i));
  real_samples_ = std::clamp<std::int64_t>(dataset_.inputs.size(0) - first, 0, options_.batch_size);
  const std::int64_t passed = epoch_ * steps_per_epoch() + step;
  begin_batch({static_cast<std::uint64_t>(passed),
               (passed * world_size_ + rank_) * options_.batch_size, options_.batch_size});
  return {take_rows(dataset_.inputs, rows, default_device()),
          take_rows(dataset_.targets, rows, default_device())};
}

}  // namespace tessera::data
