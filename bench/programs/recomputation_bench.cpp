// The cost and the saving of recomputation: the step of a GPT without it, with it (a layer at a
// time) and with attention's output kept, and one forward, in turns in one run, on one thread:
//   recomputation_bench [--rounds N] [--length TOKENS] [--json FILE]
// The GPT has 6 layers of width 384, 6 heads and byte vocabulary; a batch is 2,048 tokens. Times
// are processor time. `extra_forwards` is the additional time of a step, in forwards: at most one.
// `peak_mib` is the peak of the tensors' memory, `kept_mib` the memory between forward and
// backward.
#include <fmt/core.h>
#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/parallel.h"
#include "bench/harness/median.h"
#include "bench/programs/options.h"
#include "engine/device/memory.h"
#include "engine/random.h"
#include "models/registry/registry.h"
#include "tessera/tessera.h"

namespace {

using namespace tessera;

constexpr std::int64_t layers = 6, width = 384, heads = 6, tokens = 2048, vocabulary = 256;

double processor_seconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

// One way to train the model, measured step by step.
struct Way {
  std::string name;
  std::optional<RecomputeOptions> options;
  std::vector<double> seconds = {};
  std::size_t kept = 0, peak = 0;
};

class Bench {
 public:
  explicit Bench(std::int64_t length) : length_(length), batch_(tokens / length) {
    manual_seed(1);
    model_ = models::make_language_model({{"model_type", "gpt2"},
                                          {"n_layer", layers},
                                          {"n_head", heads},
                                          {"n_embd", width},
                                          {"n_positions", length},
                                          {"vocab_size", vocabulary},
                                          {"resid_pdrop", 0.0},
                                          {"embd_pdrop", 0.0},
                                          {"attn_pdrop", 0.0}});
    optimizer_.emplace(model_->parameters(), optim::AdamWOptions{.lr = 3e-4});
    std::vector<std::int32_t> ids(tokens);
    for (std::size_t i = 0; i < ids.size(); ++i)
      ids[i] = static_cast<std::int32_t>(i * 31 % vocabulary);
    inputs_ = Tensor::from(ids, {batch_, length});
  }

  void step(Way& way) {
    for (const auto& [name, module] : model_->named_modules()) {
      if (module->class_name() == model_->layer_class()) module->set_recompute(way.options);
    }
    const auto pool = MemoryPool::current();
    const std::size_t before = pool->stats().in_use;
    pool->reset_peak();
    const double begin = processor_seconds();
    begin_batch({0, 0, batch_});
    const Tensor loss = model_->loss(inputs_, inputs_);
    way.kept = pool->stats().in_use - before;
    loss.backward();
    way.peak = pool->stats().peak_in_use - before;
    optimizer_->step();
    optimizer_->zero_grad();
    way.seconds.push_back(processor_seconds() - begin);
  }

  double forward_seconds() {
    const double begin = processor_seconds();
    begin_batch({0, 0, batch_});
    const NoGradGuard no_grad;
    (void)model_->loss(inputs_, inputs_);
    return processor_seconds() - begin;
  }

 private:
  std::int64_t length_, batch_;
  std::unique_ptr<models::LanguageModel> model_;
  std::optional<optim::AdamW> optimizer_;
  Tensor inputs_;
};

nlohmann::json measure(std::int64_t length, int rounds) {
  Bench bench(length);
  std::vector<Way> ways{{"none", std::nullopt},
                        {"full", RecomputeOptions{}},
                        {"selective", RecomputeOptions{.keep = ops_worth_keeping}}};
  std::vector<double> forwards;
  for (int round = 0; round < rounds + 2; ++round) {
    if (round == 2) {  // the first ones allocate and choose kernels
      forwards.clear();
      for (Way& way : ways) way.seconds.clear();
    }
    forwards.push_back(bench.forward_seconds());
    for (Way& way : ways) bench.step(way);
  }
  const double plain = bench::median(ways[0].seconds), forward = bench::median(forwards);
  nlohmann::json rows = nlohmann::json::array();
  constexpr double mib = 1024.0 * 1024.0;
  for (const Way& way : ways) {
    const double seconds = bench::median(way.seconds);
    rows.push_back({{"recomputation", way.name},
                    {"step_ms", seconds * 1e3},
                    {"ratio", seconds / plain},
                    {"extra_forwards", (seconds - plain) / forward},
                    {"kept_mib", static_cast<double>(way.kept) / mib},
                    {"peak_mib", static_cast<double>(way.peak) / mib}});
  }
  return {{"length", length}, {"rounds", rounds}, {"forward_ms", forward * 1e3}, {"steps", rows}};
}

}  // namespace

int main(int argc, char** argv) {
  int rounds = 7;
  std::int64_t length = 256;
  std::string json_file;
  bench::read_options(argc, argv,
                      "The cost and the saving of recomputation in a training step of a GPT.",
                      {bench::number("--rounds", rounds, 1, "rounds, of which the median counts"),
                       bench::number<std::int64_t>(
                           "--length", length, 1, fmt::format("tokens of a sample, to {}", tokens)),
                       bench::text("--json", json_file, "a file for the results")});
  length = std::min<std::int64_t>(length, tokens);
  set_compute_threads(1);
  const nlohmann::json result = measure(length, rounds);
  fmt::print("forward {:.1f} ms\n", result["forward_ms"].get<double>());
  for (const auto& row : result["steps"]) {
    fmt::print(
        "{:10} step {:7.1f} ms, ratio {:.3f}, {:5.2f} forwards more, kept {:6.1f} MiB, peak "
        "{:6.1f} MiB\n",
        row["recomputation"].get<std::string>(), row["step_ms"].get<double>(),
        row["ratio"].get<double>(), row["extra_forwards"].get<double>(),
        row["kept_mib"].get<double>(), row["peak_mib"].get<double>());
  }
  if (!json_file.empty()) std::ofstream(json_file) << result.dump(2) << '\n';
  return 0;
}
