// Rows of tensors by the numbers of their samples.
#include "trainer/tensor_task.h"

#include <utility>
#include <vector>

#include "base/error.h"
#include "engine/data/permutation.h"

namespace tessera::tasks {
namespace {

struct Rows final : Prepared {
  std::vector<std::int64_t> rows;
};

class TensorTask final : public Task {
 public:
  TensorTask(nn::Module& module, data::TensorDataset samples, TensorLoss loss,
             const TensorTaskOptions& options)
      : module_(module), samples_(std::move(samples)), loss_(std::move(loss)), options_(options) {
    TESSERA_REQUIRE(loss_ != nullptr,
                    "make_tensor_task: the loss is an empty function; give it one that takes the "
                    "inputs and the targets of a batch");
    data::check_samples(samples_);
  }

  [[nodiscard]] nn::Module& module() override { return module_; }
  [[nodiscard]] std::vector<std::int64_t> samples_per_epoch() const override { return {count()}; }

  [[nodiscard]] std::unique_ptr<Prepared> prepare(
      std::size_t /*data_set*/, std::span<const std::int64_t> samples) const override {
    auto batch = rows_of(samples.size());
    for (std::size_t i = 0; i < samples.size(); ++i) batch->rows[i] = row_of(samples[i]);
    return batch;
  }
  [[nodiscard]] std::unique_ptr<Prepared> blank(std::int64_t samples) const override {
    return rows_of(static_cast<std::size_t>(samples));
  }
  [[nodiscard]] Tensor loss(const Prepared& batch, const Context& context) override {
    const std::vector<std::int64_t>& rows = dynamic_cast<const Rows&>(batch).rows;
    return loss_(data::take_rows(samples_.inputs, rows, context.device()),
                 data::take_rows(samples_.targets, rows, context.device()));
  }

  void remember_data(Scalars& scalars) const override {
    scalars.set("samples", count()).set("seed", options_.seed).set("shuffle", options_.shuffle);
  }
  void check_data(const Scalars& scalars, const std::string& folder) const override {
    for (const char* name : {"samples", "seed", "shuffle"}) {
      TESSERA_CHECK(
          scalars.contains(name), ErrorCode::data,
          "{}: the step has no '{}', so it is not of a run of make_tensor_task; go on with "
          "the task that saved it, or begin a new run with checkpoint.resume: never",
          folder, name);
    }
    const auto saved = scalars.get<std::int64_t>("samples");
    const auto seed = scalars.get<std::uint64_t>("seed");
    const auto shuffle = scalars.get<bool>("shuffle");
    TESSERA_CHECK(
        saved == count() && seed == options_.seed && shuffle == options_.shuffle, ErrorCode::data,
        "{}: the run there has {} samples, seed {} and shuffle {}, and this one has {} "
        "samples, seed {} and shuffle {}, so the data order would be another; give it the "
        "same, or begin a new run with checkpoint.resume: never",
        folder, saved, seed, shuffle, count(), options_.seed, options_.shuffle);
  }

 private:
  [[nodiscard]] std::int64_t count() const { return samples_.inputs.size(0); }
  [[nodiscard]] std::int64_t row_of(std::int64_t sample) const {
    const auto all = static_cast<std::uint64_t>(count());
    const auto number = static_cast<std::uint64_t>(sample);
    if (!options_.shuffle) return static_cast<std::int64_t>(number % all);
    const Permutation order(all, options_.seed, number / all);
    return static_cast<std::int64_t>(order(number % all));
  }
  static std::unique_ptr<Rows> rows_of(std::size_t samples) {
    auto batch = std::make_unique<Rows>();
    batch->rows.resize(samples);
    batch->samples = batch->tokens = static_cast<std::int64_t>(samples);
    return batch;
  }

  nn::Module& module_;
  data::TensorDataset samples_;
  TensorLoss loss_;
  TensorTaskOptions options_;
};

}  // namespace

std::unique_ptr<Task> make_tensor_task(nn::Module& module, data::TensorDataset samples,
                                       TensorLoss loss, const TensorTaskOptions& options) {
  return std::make_unique<TensorTask>(module, std::move(samples), std::move(loss), options);
}

}  // namespace tessera::tasks
