// A whole training step, compared with the matrix products that it cannot avoid, in turns in one
// run, one thread:
//   train_step_bench [--rounds N] [--dtype float32|bfloat16] [--json FILE]
// The model is the GPT of 6 layers, 384 wide, 6 heads, 256 tokens, batch 8, byte vocabulary, tied
// head; AdamW, clipping. The products are oneDNN's: forward, data and weight gradient of every
// linear layer and the head, and half of attention's seven products (causal). If its
// bfloat16 products are no faster on the processor, float32 is used in both cases.
#include <fmt/core.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <time.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/parallel.h"
#include "bench/harness/bare_products.h"
#include "bench/harness/median.h"
#include "bench/programs/options.h"
#include "engine/device/memory.h"
#include "engine/device/memory_step.h"
#include "engine/random.h"
#include "models/registry/registry.h"
#include "tessera/tessera.h"

namespace {

using namespace tessera;
using kernels::Matmul;

constexpr std::int64_t layers = 6, width = 384, heads = 6, length = 256, batch = 8,
                       vocabulary = 256;
constexpr std::int64_t rows = batch * length;
// The first steps allocate and choose kernels; the memory of the fourth has its places.
constexpr int warmup = 4;

// The processor time of all threads of the process: other programs hardly affect it.
double processor_seconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

double wall_seconds() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

double page_faults() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_minflt);
}

struct Times {
  std::vector<double> wall, processor, faults;
  template <class Body>
  void take(const Body& body) {
    const double w = wall_seconds(), p = processor_seconds(), f = page_faults();
    body();
    faults.push_back(page_faults() - f);
    wall.push_back(wall_seconds() - w);
    processor.push_back(processor_seconds() - p);
  }
};

// The products of one step. Each has its own memory, as in the step.
class Products {
 public:
  explicit Products(DType dtype) : dtype_(dtype) {
    for (std::int64_t layer = 0; layer < layers; ++layer) {
      linear(3 * width, width);
      linear(width, width);
      linear(4 * width, width);
      linear(width, 4 * width);
      attention();
    }
    linear(vocabulary, width);
  }

  // The seconds that count: all of the linear layers, half of attention.
  void run(Times& linear_times, Times& attention_times) const {
    linear_times.take([&] {
      for (const auto& call : linear_) call();
    });
    attention_times.take([&] {
      for (const auto& call : attention_) call();
    });
  }
  [[nodiscard]] double flops() const { return flops_; }

 private:
  void* memory(std::int64_t elements) {
    tensors_.push_back(Tensor::zeros({elements}, dtype_));
    return tensors_.back().data();
  }
  Matmul product(std::int64_t m, std::int64_t n, std::int64_t k, bool ta, bool tb,
                 std::int64_t count) {
    flops_ +=
        2.0 * static_cast<double>(m * n) * static_cast<double>(k * count) * (count > 1 ? 0.5 : 1.0);
    return {.a = memory(m * k * count),
            .b = memory(k * n * count),
            .c = memory(m * n * count),
            .m = m,
            .n = n,
            .k = k,
            .lda = ta ? m : k,
            .ldb = tb ? k : n,
            .ldc = n,
            .transpose_a = ta,
            .transpose_b = tb,
            .dtype = dtype_,
            .out_dtype = dtype_,
            .batch = count,
            .stride_a = m * k,
            .stride_b = k * n,
            .stride_c = m * n};
  }
  void linear(std::int64_t out, std::int64_t in) {
    linear_.push_back(bench::bare_product(product(rows, out, in, false, true, 1)).run);
    linear_.push_back(bench::bare_product(product(rows, in, out, false, false, 1)).run);
    linear_.push_back(bench::bare_product(product(out, in, rows, true, false, 1)).run);
  }
  void attention() {
    const std::int64_t size = width / heads;
    const auto add = [&](std::int64_t m, std::int64_t n, std::int64_t k, bool ta, bool tb) {
      attention_.push_back(bench::bare_product(product(m, n, k, ta, tb, batch * heads)).run);
    };
    add(length, length, size, false, true);   // scores
    add(length, size, length, false, false);  // output
    add(length, length, size, false, true);   // scores again
    add(length, length, size, false, true);   // gradient of the probabilities
    add(length, size, length, true, false);   // of the values
    add(length, size, length, false, false);  // of the queries
    add(length, size, length, true, false);   // of the keys
  }

  DType dtype_;
  double flops_ = 0;
  std::vector<Tensor> tensors_;
  std::vector<std::function<void()>> linear_, attention_;
};

nlohmann::json measure(DType dtype, int rounds) {
  manual_seed(1);
  const auto model = models::make_language_model({{"model_type", "gpt2"},
                                                  {"n_layer", layers},
                                                  {"n_head", heads},
                                                  {"n_embd", width},
                                                  {"n_positions", length},
                                                  {"vocab_size", vocabulary},
                                                  {"resid_pdrop", 0.0},
                                                  {"embd_pdrop", 0.0},
                                                  {"attn_pdrop", 0.0}});
  nlohmann::json result;
  launch(1, [&](Context& context) {
    set_compute_threads(1);
    ShardingOptions options{.strategy = Strategy::full_shard,
                            .wrap = WrapPolicy::transformer({model->layer_class()})};
    if (dtype != float32) options.param_dtype = dtype;
    ShardedModel sharded(*model, context, options);
    optim::AdamW optimizer(sharded.parameters(), {.lr = 3e-4});
    std::vector<std::int32_t> ids(rows);
    for (std::size_t i = 0; i < ids.size(); ++i)
      ids[i] = static_cast<std::int32_t>(i * 31 % vocabulary);
    const Tensor inputs = Tensor::from(ids, {batch, length});
    const DType products_dtype = bench::bare_dtype(dtype);
    const Products products(products_dtype);
    Times step, linear, attention;
    for (int round = 0; round < rounds + warmup; ++round) {
      if (round == warmup) step = linear = attention = {};
      step.take([&] {
        const MemoryStep memory(context.device());
        begin_batch({static_cast<std::uint64_t>(round), 0, batch});
        model->loss(inputs, inputs).backward();
        sharded.clip_grad_norm(1.0);
        optimizer.step();
        optimizer.zero_grad();
      });
      products.run(linear, attention);
    }
    const auto both = [&](auto part) {
      const double floor = bench::median(part(linear)) + 0.5 * bench::median(part(attention));
      return nlohmann::json{{"step_ms", bench::median(part(step)) * 1e3},
                            {"products_ms", floor * 1e3},
                            {"attention_products_ms", 0.5e3 * bench::median(part(attention))},
                            {"ratio", bench::median(part(step)) / floor},
                            {"products_gflops", products.flops() / floor / 1e9}};
    };
    result = {{"dtype", name_of(dtype)},
              {"products_dtype", name_of(products_dtype)},
              {"page_faults", bench::median(step.faults)},
              {"wall", both([](const Times& t) { return t.wall; })},
              {"processor", both([](const Times& t) { return t.processor; })}};
  });
  return result;
}

// The cost or gain of bfloat16: if a processor has no instructions for it, the products use float32
// and the steps should take the same time.
void print_step_ratio(const nlohmann::json& of, const nlohmann::json& to) {
  fmt::print("a {} step takes {:.2f} of a {} step\n", of["dtype"].get<std::string>(),
             of["processor"]["step_ms"].get<double>() / to["processor"]["step_ms"].get<double>(),
             to["dtype"].get<std::string>());
}

}  // namespace

int main(int argc, char** argv) {
  int rounds = 9;
  std::string json_file, only;
  bench::read_options(
      argc, argv,
      "A training step of a GPT, compared with the matrix products that it cannot avoid.",
      {bench::number("--rounds", rounds, 1, "rounds, of which the median counts"),
       {"--dtype", "float32 or bfloat16; without it both",
        [&only](const std::string& name) {
          only = name;
          return name == name_of(float32) || name == name_of(bfloat16);
        }},
       bench::text("--json", json_file, "a file for the results")});
  set_compute_threads(1);
  nlohmann::json results = nlohmann::json::array();
  for (const DType dtype : {float32, bfloat16}) {
    if (!only.empty() && only != name_of(dtype)) continue;
    const nlohmann::json result = measure(dtype, rounds);
    for (const char* clock : {"wall", "processor"}) {
      const auto& r = result[clock];
      fmt::print(
          "{:9} {:9} step {:7.1f} ms, {} products {:7.1f} ms ({:5.0f} GFLOP/s), ratio {:.2f}\n",
          name_of(dtype), clock, r["step_ms"].get<double>(),
          result["products_dtype"].get<std::string>(), r["products_ms"].get<double>(),
          r["products_gflops"].get<double>(), r["ratio"].get<double>());
    }
    fmt::print("{:9} page faults a step {:.0f}\n", name_of(dtype),
               result["page_faults"].get<double>());
    results.push_back(result);
  }
  if (results.size() == 2) print_step_ratio(results[1], results[0]);
  if (!json_file.empty()) std::ofstream(json_file) << results.dump(2) << '\n';
  return 0;
}
