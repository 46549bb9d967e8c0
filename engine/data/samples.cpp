// Windows of a corpus in the order of an epoch.
#include "engine/data/samples.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "engine/data/permutation.h"

namespace tessera {
namespace {

constexpr std::uint64_t offset_purpose =
    0x6f6666736574;  // separates the offset's draw from the order's

}  // namespace

Samples::Samples(std::shared_ptr<const Corpus> corpus, const SampleOptions& options)
    : corpus_(std::move(corpus)), options_(options) {
  TESSERA_REQUIRE(corpus_ != nullptr, "Samples needs a corpus");
  TESSERA_REQUIRE(options.seq_len > 0, "Samples needs seq_len > 0, got {}", options.seq_len);
  windows_ = (corpus_->tokens() - 1) / options.seq_len;
  TESSERA_CHECK(windows_ > 0, ErrorCode::data,
                "data file {} has {} tokens, less than the {} of one sequence and its last target; "
                "use more text or a "
                "smaller model.seq_len",
                corpus_->path().string(), corpus_->tokens(), options.seq_len + 1);
}

std::int64_t Samples::position(std::int64_t sample) const {
  TESSERA_REQUIRE(sample >= 0, "a sample's number is not negative, got {}", sample);
  const std::int64_t epoch = sample / windows_;
  const std::int64_t index = sample % windows_;
  if (!options_.shuffle) return index * options_.seq_len;
  const auto epoch_key = static_cast<std::uint64_t>(epoch);
  const Permutation order(static_cast<std::uint64_t>(windows_), options_.seed, epoch_key);
  const auto slack =
      static_cast<std::uint64_t>(corpus_->tokens() - 1 - windows_ * options_.seq_len);
  const std::uint64_t offset = mix(mix(options_.seed, offset_purpose), epoch_key) % (slack + 1);
  return static_cast<std::int64_t>(offset + order(static_cast<std::uint64_t>(index)) *
                                                static_cast<std::uint64_t>(options_.seq_len));
}

Batch Samples::batch(std::int64_t first_sample, std::int64_t count) const {
  Batch batch;
  fill(first_sample, count, batch);
  return batch;
}

void Samples::fill(std::int64_t first_sample, std::int64_t count, Batch& batch) const {
  TESSERA_REQUIRE(count > 0, "a batch has at least one sequence, got {}", count);
  std::vector<std::int64_t> samples(static_cast<std::size_t>(count));
  std::iota(samples.begin(), samples.end(), first_sample);
  fill(samples, batch);
}

void Samples::fill(std::span<const std::int64_t> samples, Batch& batch) const {
  TESSERA_REQUIRE(!samples.empty(), "a batch has at least one sequence");
  const auto length = static_cast<std::size_t>(options_.seq_len);
  batch.count = static_cast<std::int64_t>(samples.size());
  batch.seq_len = options_.seq_len;
  batch.first_sample = samples.front();
  batch.inputs.resize(samples.size() * length);
  batch.targets.resize(batch.inputs.size());
  for (std::size_t row = 0; row < samples.size(); ++row) {
    const std::size_t begin = row * length;
    const std::int64_t first = position(samples[row]);
    corpus_->read(first, std::span(batch.inputs).subspan(begin, length));
    // Targets are the inputs shifted by one; only the last target is not among the inputs.
    std::copy_n(batch.inputs.begin() + static_cast<std::ptrdiff_t>(begin) + 1, length - 1,
                batch.targets.begin() + static_cast<std::ptrdiff_t>(begin));
    corpus_->read(first + options_.seq_len,
                  std::span(batch.targets).subspan(begin + length - 1, 1));
  }
}

}  // namespace tessera
