// Training throughput of GPT-2 on GPUs, and strategies next to each other on one GPU:
//   cuda_training_bench [--model 124M|350M|774M|1.5B|tiny] [--ranks N] [--strategy NAME|all]
//                       [--batch B] [--seq-len T] [--steps N] [--dtype bfloat16|float32]
//                       [--peak-tflops F] [--device cpu|cuda] [--json FILE]
// Ranks are threads that share the GPU. With several strategies, their last losses and gradient
// norms must be equal bit by bit: the program fails otherwise.
//
// tokens/s is the median over the steps after the first two. MFU counts 6 floating-point operations
// for a parameter and token and 12 * layers * width * length for attention's two products, forward
// and backward (PaLM's appendix B), next to --peak-tflops.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/backend.h"
#include "engine/memory.h"
#include "engine/random.h"
#include "kernels/base/error.h"
#include "models/registry.h"
#include "tessera/tessera.h"

namespace {

using namespace tessera;

struct Size {
  const char* name;
  std::int64_t layers, width, heads, vocabulary;
};
// GPT-2's four published sizes; the vocabulary is padded to a multiple of 64, as trainers do.
constexpr Size sizes[] = {{"124M", 12, 768, 12, 50304},
                          {"350M", 24, 1024, 16, 50304},
                          {"774M", 36, 1280, 20, 50304},
                          {"1.5B", 48, 1600, 25, 50304},
                          {"tiny", 2, 64, 2, 256}};

struct Options {
  Size size = sizes[0];
  int ranks = 1;
  std::vector<Strategy> strategies{Strategy::full_shard};
  std::int64_t batch = 8, length = 1024;
  int steps = 12;
  DType dtype = bfloat16;
  double peak_tflops = 989;  // an H100's or H200's dense bf16 products, by their data sheets
  Device device = Device::cuda();
  std::string json;
};

struct Result {
  std::string strategy;
  double loss = 0, norm = 0;
  double tokens_per_second = 0, mfu = 0, exposed_share = 0;
  std::size_t peak_bytes = 0;
};

void set(Options& options, const std::string& name, const std::string& value) {
  const auto number = [&] { return std::stoll(value); };
  if (name == "--model") {
    const auto found = std::find_if(std::begin(sizes), std::end(sizes),
                                    [&](const Size& size) { return value == size.name; });
    TESSERA_CHECK(found != std::end(sizes), ErrorCode::usage, "no model '{}'", value);
    options.size = *found;
  } else if (name == "--strategy") {
    options.strategies.clear();
    for (const StrategyRow& row : strategy_table) {
      if (value == "all" || value == row.name) options.strategies.push_back(row.strategy);
    }
    TESSERA_CHECK(!options.strategies.empty(), ErrorCode::usage, "no strategy '{}'", value);
  } else if (name == "--dtype") {
    TESSERA_CHECK(value == "bfloat16" || value == "float32", ErrorCode::usage,
                  "--dtype is bfloat16 or float32, got '{}'", value);
    options.dtype = value == "bfloat16" ? bfloat16 : float32;
  } else if (name == "--ranks") {
    options.ranks = static_cast<int>(number());
  } else if (name == "--batch") {
    options.batch = number();
  } else if (name == "--seq-len") {
    options.length = number();
  } else if (name == "--steps") {
    options.steps = static_cast<int>(number());
  } else if (name == "--peak-tflops") {
    options.peak_tflops = std::stod(value);
  } else if (name == "--device") {
    options.device = parse_device(value);
  } else if (name == "--json") {
    options.json = value;
  } else {
    fail(ErrorCode::usage, "unknown option '{}'", name);
  }
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; i += 2) {
    TESSERA_CHECK(i + 1 < argc, ErrorCode::usage, "{} needs a value", argv[i]);
    set(options, argv[i], argv[i + 1]);
  }
  TESSERA_CHECK(options.ranks > 0 && options.steps > 2 && options.batch > 0 && options.length > 0,
                ErrorCode::usage, "ranks, batch and length must be positive, steps more than 2");
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

// A rank's tokens of a step: the same for every strategy.
Tensor tokens_of(const Options& options, int rank, int step) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(options.batch * options.length));
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const auto number = (i + 1) * 2654435761u + static_cast<std::size_t>(step * 131 + rank * 977);
    ids[i] = static_cast<std::int32_t>(number % static_cast<std::size_t>(options.size.vocabulary));
  }
  return Tensor::from(ids, {options.batch, options.length}).to(options.device);
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

double flops_of_a_token(const Options& options, const ShardedModel& model) {
  double parameters = 0;
  for (const ShardedParameter& parameter : model.sharded_parameters()) {
    parameters += static_cast<double>(parameter.shape.elements());
  }
  return 6 * parameters +
         12.0 * static_cast<double>(options.size.layers * options.size.width * options.length);
}

Result train(const Options& options, Strategy strategy) {
  Result result{.strategy = std::string(name_of(strategy))};
  launch(
      options.ranks,
      [&](Context& context) {
        manual_seed(1);
        const auto model = make_model(options);
        ShardingOptions sharding{.strategy = strategy,
                                 .wrap = WrapPolicy::transformer({model->layer_class()})};
        if (options.dtype != float32) sharding.param_dtype = options.dtype;
        sharding.group_size = std::max(1, options.ranks / 2);
        ShardedModel sharded(*model, context, sharding);
        optim::AdamW optimizer(sharded.parameters(), {.lr = 3e-4});
        std::vector<double> seconds;
        double loss = 0, norm = 0;
        for (int step = 0; step < options.steps; ++step) {
          const Tensor ids = tokens_of(options, context.rank(), step);
          const auto begin = std::chrono::steady_clock::now();
          begin_batch(
              {static_cast<std::uint64_t>(step), context.rank() * options.batch, options.batch});
          const Tensor value = model->loss(ids, ids);
          value.backward();
          norm = sharded.clip_grad_norm(1.0);
          optimizer.step();
          optimizer.zero_grad();
          loss = context.mean(value.item());
          seconds.push_back(
              std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
        }
        if (!context.is_main()) return;
        seconds.erase(seconds.begin(), seconds.begin() + 2);  // they allocate and choose
        const double step = median(seconds);
        const auto tokens = static_cast<double>(options.ranks * options.batch * options.length);
        result.loss = loss;
        result.norm = norm;
        result.tokens_per_second = tokens / step;
        result.mfu = result.tokens_per_second * flops_of_a_token(options, sharded) /
                     (options.peak_tflops * 1e12);
        result.exposed_share = sharded.communication().exposed_seconds / (step * options.steps);
        result.peak_bytes = MemoryPool::current(options.device)->stats().peak_in_use +
                            sharded.communication().buffer_bytes;
      },
      options.device);
  return result;
}

int run(const Options& options) {
  require_device(options.device);
  nlohmann::json rows = nlohmann::json::array();
  bool equal = true;
  fmt::print("GPT-2 {} on {}, {} ranks x batch {} x {} tokens, {}\n", options.size.name,
             options.device.to_string(), options.ranks, options.batch, options.length,
             name_of(options.dtype));
  for (const Strategy strategy : options.strategies) {
    const Result result = train(options, strategy);
    fmt::print(
        "{:20} {:10.0f} tokens/s  MFU {:5.1f} %  peak {:7.2f} GiB  exposed {:4.1f} %  loss "
        "{:.9g}  norm {:.9g}\n",
        result.strategy, result.tokens_per_second, 100 * result.mfu,
        static_cast<double>(result.peak_bytes) / (1 << 30), 100 * result.exposed_share, result.loss,
        result.norm);
    rows.push_back({{"strategy", result.strategy},
                    {"model", options.size.name},
                    {"ranks", options.ranks},
                    {"batch", options.batch},
                    {"seq_len", options.length},
                    {"dtype", name_of(options.dtype)},
                    {"tokens_per_s", result.tokens_per_second},
                    {"mfu", result.mfu},
                    {"peak_bytes", result.peak_bytes},
                    {"exposed_share", result.exposed_share},
                    {"loss", result.loss},
                    {"grad_norm", result.norm}});
    equal = equal && rows[0]["loss"] == result.loss && rows[0]["grad_norm"] == result.norm;
  }
  if (!options.json.empty()) std::ofstream(options.json) << rows.dump(2) << '\n';
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
