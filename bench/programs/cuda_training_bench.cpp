// Training throughput of GPT-2 on GPUs, and strategies next to each other on one GPU:
//   cuda_training_bench [--model 124M|350M|774M|1.5B|tiny] [--ranks N] [--strategy NAME|all]
//                       [--batch B] [--accumulate N] [--seq-len T] [--steps N]
//                       [--dtype bfloat16|float32] [--peak-tflops F] [--device cpu|cuda]
//                       [--json FILE]
// Ranks are threads that share the GPU. With several strategies, their last losses and gradient
// norms must be equal bit by bit: the program fails otherwise. --accumulate: passes of B samples in
// a step, their gradients summed before one reduction. FILE gets each row as a line of JSON when it
// is known.
//
// tokens/s is the median over the steps after the first two. MFU, next to --peak-tflops, counts 6
// floating-point operations for a parameter and token, and for attention's two products, forward
// and backward, either 12 * layers * width * length a token (PaLM's appendix B), or half of that,
// because the causal half is all that is computed (llm.c's way).
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "bench/harness/median.h"
#include "bench/programs/options.h"
#include "engine/device/backend.h"
#include "engine/device/memory.h"
#include "engine/device/queue.h"
#include "engine/random.h"
#include "models/registry/registry.h"
#include "tessera/tessera.h"

namespace {

using namespace tessera;

struct Size {
  const char* name;
  std::int64_t layers, width, heads, vocabulary;
};
// The four published sizes of GPT-2; the vocabulary is padded to a multiple of 64, as usual.
constexpr Size sizes[] = {{"124M", 12, 768, 12, 50304},
                          {"350M", 24, 1024, 16, 50304},
                          {"774M", 36, 1280, 20, 50304},
                          {"1.5B", 48, 1600, 25, 50304},
                          {"tiny", 2, 64, 2, 256}};

struct Options {
  Size size = sizes[0];
  int ranks = 1;
  std::vector<Strategy> strategies{Strategy::full_shard};
  std::int64_t batch = 8, passes = 1, length = 1024;
  int steps = 12;
  DType dtype = bfloat16;
  double peak_tflops = 989;  // an H100's or H200's dense bf16 products, by their data sheets
  Device device = Device::cuda();
  std::string json;
};

struct Result {
  std::string strategy;
  double loss = 0, norm = 0;
  double seconds = 0;  // in a step
  double tokens_per_second = 0, mfu = 0, causal_mfu = 0, exposed_share = 0;
  std::size_t peak_bytes = 0;
  kernels::ProductCounts products{};
  kernels::AttentionCounts attention{};
};

bool set_strategies(Options& options, const std::string& name) {
  options.strategies.clear();
  for (const StrategyRow& row : strategy_table) {
    if (name == "all" || name == row.name) options.strategies.push_back(row.strategy);
  }
  return !options.strategies.empty();
}

bool set_model(Options& options, const std::string& name) {
  const auto* const found = std::find_if(std::begin(sizes), std::end(sizes),
                                         [&](const Size& size) { return name == size.name; });
  if (found != std::end(sizes)) options.size = *found;
  return found != std::end(sizes);
}

Options parse(int argc, char** argv) {
  Options options;
  bench::read_options(
      argc, argv, "Training throughput of GPT-2 on GPUs, of one strategy or several.",
      {{"--model", "124M, 350M, 774M, 1.5B or tiny (124M)",
        [&](const std::string& name) { return set_model(options, name); }},
       bench::number("--ranks", options.ranks, 1, "ranks, threads that share the GPU"),
       {"--strategy", "a sharding strategy or all (FULL_SHARD)",
        [&](const std::string& name) { return set_strategies(options, name); }},
       bench::number<std::int64_t>("--batch", options.batch, 1, "samples of a pass"),
       bench::number<std::int64_t>("--accumulate", options.passes, 1, "passes of a step"),
       bench::number<std::int64_t>("--seq-len", options.length, 1, "tokens of a sample"),
       bench::number("--steps", options.steps, 3, "steps, of which the first two do not count"),
       {"--dtype", "bfloat16 or float32 (bfloat16)",
        [&](const std::string& name) {
          options.dtype = name == "bfloat16" ? bfloat16 : float32;
          return name == "bfloat16" || name == "float32";
        }},
       bench::number("--peak-tflops", options.peak_tflops, 0.001, "the GPU's rate, for the MFU"),
       {"--device", "cuda or cpu (cuda)",
        [&](const std::string& name) {
          options.device = parse_device(name);
          return true;
        }},
       bench::text("--json", options.json, "a file that gets each row as a line of JSON")});
  return options;
}

std::unique_ptr<models::LanguageModel> make_model(const Options& options) {
  const DeviceGuard deferred(Device::meta());
  return models::make_language_model({{"model_type", "gpt2"},
                                      {"n_layer", options.size.layers},
                                      {"n_head", options.size.heads},
                                      {"n_embd", options.size.width},
                                      {"n_positions", options.length},
                                      {"vocab_size", options.size.vocabulary},
                                      {"resid_pdrop", 0.0},
                                      {"embd_pdrop", 0.0},
                                      {"attn_pdrop", 0.0}});
}

// A rank's tokens in one pass: the same for every strategy.
Tensor tokens_of(const Options& options, int rank, std::int64_t pass) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(options.batch * options.length));
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const auto number = (i + 1) * 2654435761u + static_cast<std::size_t>(pass * 131 + rank * 977);
    ids[i] = static_cast<std::int32_t>(number % static_cast<std::size_t>(options.size.vocabulary));
  }
  return Tensor::from(ids, {options.batch, options.length}).to(options.device);
}

// `attention`: operations per layer, element of its width and token of the sequence.
double flops_of_a_token(const Options& options, const ShardedModel& model, double attention) {
  double parameters = 0;
  for (const ShardedParameter& parameter : model.sharded_parameters()) {
    parameters += static_cast<double>(parameter.shape.elements());
  }
  return 6 * parameters +
         attention * static_cast<double>(options.size.layers * options.size.width * options.length);
}

ShardingOptions sharding_of(const Options& options, Strategy strategy, const std::string& layer) {
  ShardingOptions sharding{.strategy = strategy, .wrap = WrapPolicy::transformer({layer})};
  if (options.dtype != float32) sharding.param_dtype = options.dtype;
  sharding.group_size = std::max(1, options.ranks / 2);
  return sharding;
}

constexpr int warm_up_steps = 2;  // they allocate, load libraries and choose kernels

// A rank's measurements, without the warm-up steps: the seconds of every step, those exposed to
// collectives, the last loss and norm; and the products and attention calls of all steps.
struct Run {
  std::vector<double> seconds;
  double exposed_seconds = 0;
  double loss = 0, norm = 0;
  kernels::ProductCounts products;
  kernels::AttentionCounts attention;
};

// Forward and backward of one pass of a step; the loss is that of the last pass only.
double pass_over(const Options& options, models::LanguageModel& model, const Tensor& ids,
                 bool last) {
  Tensor loss = model.loss(ids, ids);
  if (options.passes > 1) loss = loss * (1.0 / static_cast<double>(options.passes));
  loss.backward();
  return last ? loss.item() * static_cast<double>(options.passes) : 0;
}

Run run_rank(const Options& options, Context& context, models::LanguageModel& model,
             ShardedModel& sharded) {
  optim::AdamW optimizer(sharded.parameters(), {.lr = 3e-4});
  Run run;
  double exposed_before = 0;
  for (int step = 0; step < options.steps; ++step) {
    if (step == warm_up_steps) exposed_before = sharded.communication().exposed_seconds;
    std::vector<Tensor> ids;
    for (std::int64_t pass = 0; pass < options.passes; ++pass) {
      ids.push_back(tokens_of(options, context.rank(), step * options.passes + pass));
    }
    const auto begin = std::chrono::steady_clock::now();
    for (std::size_t pass = 0; pass < ids.size(); ++pass) {
      const auto number = static_cast<std::uint64_t>(step) * ids.size() + pass;
      begin_batch({number, context.rank() * options.batch, options.batch});
      if (pass + 1 < ids.size()) {
        const auto scope = sharded.no_sync();
        pass_over(options, model, ids[pass], false);
      } else {
        run.loss = pass_over(options, model, ids[pass], true);
      }
    }
    run.norm = sharded.clip_grad_norm(1.0);
    optimizer.step();
    optimizer.zero_grad();
    run.loss = context.mean(run.loss);
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    if (step >= warm_up_steps) run.seconds.push_back(seconds);
  }
  run.exposed_seconds = sharded.communication().exposed_seconds - exposed_before;
  run.products = current_queue(options.device).products();
  run.attention = current_queue(options.device).attention();
  return run;
}

Result train(const Options& options, Strategy strategy) {
  Result result{.strategy = std::string(name_of(strategy))};
  launch(
      options.ranks,
      [&](Context& context) {
        manual_seed(1);
        const auto model = make_model(options);
        ShardedModel sharded(*model, context, sharding_of(options, strategy, model->layer_class()));
        Run run = run_rank(options, context, *model, sharded);
        if (!context.is_main()) return;
        result.loss = run.loss;
        result.norm = run.norm;
        result.seconds = bench::median(run.seconds);
        result.tokens_per_second =
            static_cast<double>(options.ranks * options.passes * options.batch * options.length) /
            result.seconds;
        const auto mfu = [&](double attention) {
          return result.tokens_per_second * flops_of_a_token(options, sharded, attention) /
                 (options.peak_tflops * 1e12);
        };
        result.mfu = mfu(12);
        result.causal_mfu = mfu(6);
        result.exposed_share =
            run.exposed_seconds / std::accumulate(run.seconds.begin(), run.seconds.end(), 0.0);
        result.products = run.products;
        result.attention = run.attention;
        result.peak_bytes = MemoryPool::current(options.device)->stats().peak_in_use +
                            sharded.communication().buffer_bytes;
      },
      options.device);
  return result;
}

nlohmann::json row_of(const Options& options, const Result& result) {
  const Backend& backend = backend_of(options.device.type);
  return {{"strategy", result.strategy},
          {"model", options.size.name},
          {"device", backend.describe().front().name},
          {"matrix_products", backend.matrix_products()},
          {"products_by_own_kernels", result.products.own},
          {"products_by_library", result.products.library},
          {"attention_by", backend.attention()},
          {"attention_by_own_kernels", result.attention.own},
          {"attention_by_library", result.attention.library},
          {"ranks", options.ranks},
          {"batch", options.batch},
          {"passes", options.passes},
          {"seq_len", options.length},
          {"dtype", name_of(options.dtype)},
          {"step_s", result.seconds},
          {"tokens_per_s", result.tokens_per_second},
          {"mfu_12lct", result.mfu},
          {"mfu_causal_6lct", result.causal_mfu},
          {"peak_tflops", options.peak_tflops},
          {"peak_bytes", result.peak_bytes},
          {"exposed_share", result.exposed_share},
          {"loss", result.loss},
          {"grad_norm", result.norm}};
}

void print(const Result& result) {
  fmt::print(
      "{:20} {:10.0f} tokens/s  MFU {:5.1f} % (12 LCT), {:5.1f} % (causal, 6 LCT)  peak {:7.2f} "
      "GiB  exposed {:4.1f} %  loss {:.9g}  norm {:.9g}\n",
      result.strategy, result.tokens_per_second, 100 * result.mfu, 100 * result.causal_mfu,
      static_cast<double>(result.peak_bytes) / (1 << 30), 100 * result.exposed_share, result.loss,
      result.norm);
  std::fflush(stdout);
}

int run(const Options& options) {
  require_device(options.device);
  std::ofstream report;
  if (!options.json.empty()) report.open(options.json);
  const Backend& backend = backend_of(options.device.type);
  fmt::print(
      "GPT-2 {} on {}, {} ranks x batch {} x {} tokens, {} passes a step, {}; products by {}; "
      "attention by {}\n",
      options.size.name, options.device.to_string(), options.ranks, options.batch, options.length,
      options.passes, name_of(options.dtype), backend.matrix_products(), backend.attention());
  std::optional<Result> first;
  bool equal = true;
  for (const Strategy strategy : options.strategies) {
    const Result result = train(options, strategy);
    print(result);
    if (!options.json.empty()) {
      report << row_of(options, result).dump() << std::endl;
      TESSERA_CHECK(report.good(), ErrorCode::runtime, "cannot write {}", options.json);
    }
    if (!first) first = result;
    equal = equal && first->loss == result.loss && first->norm == result.norm;
  }
  if (!equal) fmt::print(stderr, "the strategies' bits differ\n");
  return equal ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(parse(argc, argv));
  } catch (const std::exception& error) {
    std::cerr << "cuda_training_bench: " << error.what() << '\n';
    return 2;
  }
}
