// Shapes from the model itself; times from oneDNN's products, or on a GPU from its library.
#include "bench/harness/products.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <memory>

#include "base/error.h"
#include "base/parallel.h"
#include "bench/harness/bare_products.h"
#include "engine/device/backend.h"
#include "engine/device/queue.h"
#include "engine/nn/layers.h"
#include "engine/ops/products/quantized.h"
#include "engine/tensor.h"
#include "kernels/cpu/description.h"
#include "sharding/plan/plan.h"
#include "training/device.h"
#include "training/make_task.h"

namespace tessera::bench {
namespace {

std::int64_t first_of(const nlohmann::json& config, std::initializer_list<const char*> names,
                      std::int64_t otherwise) {
  for (const char* name : names) {
    if (config.contains(name) && config[name].is_number_integer()) return config[name];
  }
  return otherwise;
}

bool ends_with_any(const std::string& name, std::initializer_list<const char*> ends) {
  return std::any_of(ends.begin(), ends.end(),
                     [&](const char* end) { return name.ends_with(end); });
}

// An encoder's pooling and a classifier process each sentence once, not each token.
void take_matrices(nn::Module& module, bool language_model, ModelWork& work) {
  bool head = false;
  LinearShape table;
  for (const auto& [name, part] : module.named_modules()) {
    if (const auto* embedding = dynamic_cast<const nn::EmbeddingImpl*>(part)) {
      if (ends_with_any(name, {"wte", "embed_tokens"}))
        table = {embedding->weight().size(0), embedding->weight().size(1),
                 embedding->weight().requires_grad()};
    }
    const auto* linear = dynamic_cast<const nn::LinearImpl*>(part);
    if (linear == nullptr) continue;
    if (!language_model && name.find("layer.") == std::string::npos) continue;
    head = head || name.ends_with("lm_head");
    const bool out_in = linear->layout() == WeightLayout::out_in;
    const Shape& shape = linear->weight_shape();
    work.matrices.push_back(
        {shape[out_in ? 0 : 1], shape[out_in ? 1 : 0], linear->stored_weight().requires_grad()});
    if (!linear->has_lora()) continue;
    for (const nn::LoraFactor& factor : {linear->lora_a(), linear->lora_b()}) {
      work.matrices.push_back({factor->weight().size(0), factor->weight().size(1)});
    }
  }
  if (language_model && !head && table.out > 0) work.matrices.push_back(table);
}

// The memory and the call of one product.
struct TimedProduct {
  StepProduct product;
  std::vector<Tensor> memory;
  std::function<void()> run;
  std::vector<double> seconds = {};
};

kernels::Matmul arguments_of(const StepProduct& p, DType dtype, Device device,
                             std::vector<Tensor>& memory) {
  const auto take = [&](std::int64_t elements) {
    memory.push_back(Tensor::full({elements}, 0.5, dtype, device));
    return memory.back().data();
  };
  return {.a = take(p.m * p.k * p.batch),
          .b = take(p.k * p.n * p.batch),
          .c = take(p.m * p.n * p.batch),
          .m = p.m,
          .n = p.n,
          .k = p.k,
          .lda = p.transpose_a ? p.m : p.k,
          .ldb = p.transpose_b ? p.k : p.n,
          .ldc = p.n,
          .transpose_a = p.transpose_a,
          .transpose_b = p.transpose_b,
          .dtype = dtype,
          .out_dtype = dtype,
          .batch = p.batch,
          .stride_a = p.m * p.k,
          .stride_b = p.k * p.n,
          .stride_c = p.m * p.n};
}

double seconds_of(const TimedProduct& timed, Device device) {
  if (device.type == DeviceType::cpu) {
    const auto begin = std::chrono::steady_clock::now();
    timed.run();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }
  DeviceQueue& queue = current_queue(device);
  const PointHandle begin = queue.record_timed();
  timed.run();
  const PointHandle end = queue.record_timed();
  queue.synchronize();
  return end->seconds_since(*begin);
}

double flops_of(const StepProduct& p) {
  return 2.0 * static_cast<double>(p.m) * static_cast<double>(p.n) * static_cast<double>(p.k) *
         static_cast<double>(p.batch);
}

StepProduct product_from(const nlohmann::json& j) {
  return {j.at("m"),           j.at("n"),     j.at("k"),    j.at("transpose_a"),
          j.at("transpose_b"), j.at("batch"), j.at("calls")};
}

double median_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

int rank_number() {
  const char* text = std::getenv("RANK");
  return text != nullptr ? std::max(0, std::atoi(text)) : 0;
}

Device device_of_rank(const std::string& name) {
  if (name == "cpu") return Device::cpu();
  comm::World world;
  world.local_rank = rank_number();
  return training::choose_device("cuda", world);
}

std::vector<TimedProduct> prepare_products(const nlohmann::json& job, DType dtype, Device device) {
  std::vector<TimedProduct> all;
  for (const nlohmann::json& entry : job.at("products")) {
    TimedProduct timed{product_from(entry), {}, {}};
    const kernels::Matmul p = arguments_of(timed.product, dtype, device, timed.memory);
    if (device.type == DeviceType::cpu) {
      timed.run = bench::bare_product(p).run;
    } else {
      timed.run = [p, device] {
        backend_of(device.type).kernels().matmul(p, current_queue(device).native());
      };
    }
    all.push_back(std::move(timed));
  }
  return all;
}

double flops_per_token(const ModelWork& work) {
  double flops = 0;
  for (const LinearShape& matrix : work.matrices) {
    const double weights = static_cast<double>(matrix.out) * static_cast<double>(matrix.in);
    flops += (matrix.trained ? 6 : 4) * weights;
  }
  return flops;
}

double flops_per_sample(const ModelWork& work, double tokens) {
  const auto width = static_cast<double>(work.layers * work.heads * work.head_size);
  const double attention = 12.0 * width * tokens * tokens;
  return work.flops_per_token * tokens + (work.causal ? 0.5 : 1.0) * attention;
}

std::string formula_of(const ModelWork& work) {
  const bool all_trained = std::all_of(work.matrices.begin(), work.matrices.end(),
                                       [](const LinearShape& matrix) { return matrix.trained; });
  const std::string matrices_part =
      all_trained ? "6 x elements of the weight matrices (head included) x tokens"
                  : "(6 x elements of the trained weight matrices + 4 x of the frozen ones, head "
                    "included) x tokens";
  if (!work.tokens_per_sample) {
    return "(" + matrices_part +
           ", attention left out: sentences differ in length) x samples/s / (ranks x peak)";
  }
  return fmt::format(
      "({} + {} x layers x width of attention x tokens^2) x samples/s / (ranks x "
      "peak); nothing for recomputation",
      matrices_part, work.causal ? "6" : "12");
}

}  // namespace

std::vector<StepProduct> ModelWork::step_products(std::int64_t samples, double tokens,
                                                  std::int64_t batches) const {
  std::vector<StepProduct> all;
  const auto add = [&](StepProduct product) {
    const auto same = std::find_if(all.begin(), all.end(), [&](const StepProduct& p) {
      return p.m == product.m && p.n == product.n && p.k == product.k && p.batch == product.batch &&
             p.transpose_a == product.transpose_a && p.transpose_b == product.transpose_b;
    });
    product.calls *= static_cast<double>(batches);
    if (same == all.end()) {
      all.push_back(product);
    } else {
      same->calls += product.calls;
    }
  };
  const auto rows = std::max<std::int64_t>(1, static_cast<std::int64_t>(tokens));
  for (const auto& [out, in, trained] : matrices) {
    add({rows, out, in, false, true});
    add({rows, in, out, false, false});
    if (trained) add({out, in, rows, true, false});
  }
  if (!tokens_per_sample) return all;
  // Forward two, backward five: the scores are computed again.
  const std::int64_t many = samples * heads, n = *tokens_per_sample, size = head_size;
  const double calls = static_cast<double>(layers) * (causal ? 0.5 : 1.0);
  add({n, n, size, false, true, many, 3 * calls});
  add({n, size, n, false, false, many, 2 * calls});
  add({n, size, n, true, false, many, 2 * calls});
  return all;
}

ModelWork model_work(const training::Recipe& recipe) {
  ModelWork work;
  const nlohmann::json config = training::model_configuration(recipe);
  work.architecture = config.value("model_type", std::string("unknown"));
  const bool language_model = training::predicts_tokens(recipe);
  work.causal = language_model;
  if (language_model) work.tokens_per_sample = recipe.model.seq_len;
  work.layers = first_of(config, {"n_layer", "num_hidden_layers"}, 0);
  work.heads = first_of(config, {"n_head", "num_attention_heads"}, 0);
  const std::int64_t width = first_of(config, {"n_embd", "hidden_size"}, 0);
  work.head_size = first_of(config, {"head_dim"}, work.heads > 0 ? width / work.heads : 0);
  (void)plan({.ranks = 1}, [&](Planning& planning) {
    const std::unique_ptr<tasks::Task> task = training::make_task(recipe, true);
    take_matrices(task->module(), language_model, work);
    for (const nn::NamedParameter& parameter : task->module().named_parameters()) {
      work.parameters +=
          static_cast<std::uint64_t>(parameter_elements(parameter.shape, parameter.tensor.dtype()));
    }
    planning.end_step();
  });
  work.flops_per_token = flops_per_token(work);
  if (work.tokens_per_sample)
    work.flops_per_sample = flops_per_sample(work, static_cast<double>(*work.tokens_per_sample));
  work.formula = formula_of(work);
  return work;
}

nlohmann::json products_job(const std::vector<StepProduct>& products, const std::string& precision,
                            const std::string& device, double seconds) {
  nlohmann::json list = nlohmann::json::array();
  for (const StepProduct& p : products) {
    list.push_back({{"m", p.m},
                    {"n", p.n},
                    {"k", p.k},
                    {"transpose_a", p.transpose_a},
                    {"transpose_b", p.transpose_b},
                    {"batch", p.batch},
                    {"calls", p.calls}});
  }
  return {{"precision", precision}, {"device", device}, {"seconds", seconds}, {"products", list}};
}

void time_products(const std::string& file) {
  std::ifstream stream(file, std::ios::binary);
  const nlohmann::json job = nlohmann::json::parse(stream, nullptr, false);
  TESSERA_CHECK(job.is_object() && job.contains("products"), ErrorCode::usage,
                "--time-products {}: is not a list of products of tessera bench", file);
  (void)compute_threads();  // sets this thread's number from the environment
  const Device device = device_of_rank(job.at("device"));
  const DType wanted = job.at("precision") == "bf16" ? bfloat16 : float32;
  const bool cpu = device.type == DeviceType::cpu;
  const DType dtype = cpu ? bench::bare_dtype(wanted) : wanted;
  std::vector<TimedProduct> all = prepare_products(job, dtype, device);
  const auto begin = std::chrono::steady_clock::now();
  constexpr int least = 4;  // the first one chooses kernels and touches memory
  for (int turn = 0;; ++turn) {
    for (TimedProduct& timed : all) {
      const double seconds = seconds_of(timed, device);
      if (turn > 0) timed.seconds.push_back(seconds);
    }
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin;
    if (turn >= least && passed.count() >= job.at("seconds").get<double>()) break;
  }
  double step = 0, flops = 0, best = 0;
  for (const TimedProduct& timed : all) {
    const double seconds = median_of(timed.seconds), work = flops_of(timed.product);
    step += seconds * timed.product.calls;
    flops += work * timed.product.calls;
    best = std::max(best, work / seconds);
  }
  const kernels::cpu::Description description = kernels::cpu::describe();
  const nlohmann::json answer = {{"step_s", step},
                                 {"flops", flops},
                                 {"best_flops_per_s", best},
                                 {"dtype", std::string(name_of(dtype))},
                                 {"kernel", cpu ? "oneDNN " + description.onednn_version
                                                : backend_of(device.type).matrix_products()}};
  std::ofstream out(fmt::format("{}.{}", file, rank_number()), std::ios::binary);
  out << answer.dump();
  TESSERA_CHECK(out.flush().good(), ErrorCode::runtime, "{} cannot be written", file);
}

ProductTimes read_product_times(const std::string& file, int ranks) {
  ProductTimes times;
  for (int rank = 0; rank < ranks; ++rank) {
    const std::string name = fmt::format("{}.{}", file, rank);
    std::ifstream stream(name, std::ios::binary);
    const nlohmann::json answer = nlohmann::json::parse(stream, nullptr, false);
    TESSERA_CHECK(answer.is_object() && answer.contains("step_s"), ErrorCode::runtime,
                  "{}: missing; a rank that timed products wrote no answer", name);
    const double best = answer.at("best_flops_per_s");
    times.best_flops_per_s = rank == 0 ? best : std::min(times.best_flops_per_s, best);
    times.step_s = std::max(times.step_s, answer.at("step_s").get<double>());
    times.flops = answer.at("flops");
    times.kernel = answer.at("kernel");
    times.dtype = answer.at("dtype");
  }
  return times;
}

}  // namespace tessera::bench
