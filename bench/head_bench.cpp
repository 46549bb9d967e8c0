// A language model's head and its loss, forward and backward, next to the bare products that whole
// logits would need, in turns in one run, one thread:
//   head_bench [--rounds N] [--dtype float32|bfloat16] [--rows N] [--vocabulary N] [--width N]
//              [--json FILE]
// `tiles` is linear_cross_entropy(), `whole` cross_entropy(linear()), which keeps the logits. The
// products are oneDNN's three (logits, and the gradients of both sides); where a processor has none
// of bfloat16, those of float32. Memory is the pool's peak above inputs and gradients.
#include <fmt/core.h>
#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/bare_products.h"
#include "engine/memory.h"
#include "engine/ops.h"
#include "kernels/base/parallel.h"

namespace {

using namespace tessera;
using kernels::Matmul;

struct Sizes {
  std::int64_t rows = 1024, vocabulary = 50304, width = 768;
};

double processor_seconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

template <class Body>
double seconds_of(const Body& body) {
  const double begin = processor_seconds();
  body();
  return processor_seconds() - begin;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

struct Inputs {
  Tensor x, weight, targets;

  Inputs(const Sizes& s, DType dtype)
      : x(Tensor::full({s.rows, s.width}, 0.01, dtype).set_requires_grad(true)),
        weight(Tensor::full({s.vocabulary, s.width}, 0.02, dtype).set_requires_grad(true)) {
    std::vector<std::int32_t> ids(static_cast<std::size_t>(s.rows));
    for (std::size_t i = 0; i < ids.size(); ++i) {
      ids[i] = static_cast<std::int32_t>(static_cast<std::int64_t>(i) * 31 % s.vocabulary);
    }
    targets = Tensor::from(ids, {s.rows});
  }
};

std::vector<std::function<void()>> bare_products_of(const Sizes& s, DType dtype,
                                                    std::vector<Tensor>& memory) {
  const auto product = [&](std::int64_t m, std::int64_t n, std::int64_t k, bool ta, bool tb) {
    const auto take = [&](std::int64_t elements) {
      memory.push_back(Tensor::zeros({elements}, dtype));
      return memory.back().data();
    };
    return bench::bare_product({.a = take(m * k),
                                .b = take(k * n),
                                .c = take(m * n),
                                .m = m,
                                .n = n,
                                .k = k,
                                .lda = ta ? m : k,
                                .ldb = tb ? k : n,
                                .ldc = n,
                                .transpose_a = ta,
                                .transpose_b = tb,
                                .dtype = dtype,
                                .out_dtype = dtype})
        .run;
  };
  return {product(s.rows, s.vocabulary, s.width, false, true),
          product(s.rows, s.width, s.vocabulary, false, false),
          product(s.vocabulary, s.width, s.rows, true, false)};
}

nlohmann::json measure(const Sizes& s, DType dtype, int rounds) {
  Inputs in(s, dtype);
  const DType products_dtype = bench::bare_dtype(dtype);
  std::vector<double> tiles, whole, bare;
  std::size_t tiles_peak = 0, whole_peak = 0;
  const auto& pool = MemoryPool::current();
  const auto timed = [&](std::vector<double>& times, std::size_t& peak, const auto& loss) {
    in.x.zero_grad();
    in.weight.zero_grad();
    pool->trim();
    const std::size_t before = pool->stats().in_use;
    pool->reset_peak();
    times.push_back(seconds_of([&] { loss().backward(); }));
    peak = pool->stats().peak_in_use - before;
  };
  for (int round = 0; round < rounds + 1; ++round) {
    if (round == 1) tiles = whole = bare = {};  // the first one allocates, gradients too
    timed(tiles, tiles_peak, [&] { return linear_cross_entropy(in.x, in.weight, in.targets); });
    timed(whole, whole_peak, [&] { return cross_entropy(linear(in.x, in.weight), in.targets); });
    std::vector<Tensor> memory;
    const auto products = bare_products_of(s, products_dtype, memory);
    bare.push_back(seconds_of([&] {
      for (const auto& product : products) product();
    }));
  }
  const auto mib = [](std::size_t bytes) { return static_cast<double>(bytes) / (1 << 20); };
  return {{"dtype", name_of(dtype)},           {"products_dtype", name_of(products_dtype)},
          {"tiles_ms", median(tiles) * 1e3},   {"whole_ms", median(whole) * 1e3},
          {"products_ms", median(bare) * 1e3}, {"tiles_peak_mib", mib(tiles_peak)},
          {"whole_peak_mib", mib(whole_peak)}};
}

}  // namespace

int main(int argc, char** argv) {
  int rounds = 5;
  Sizes sizes;
  std::string json_file, only;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string option = argv[i];
    if (option == "--rounds") rounds = std::max(1, std::atoi(argv[i + 1]));
    if (option == "--json") json_file = argv[i + 1];
    if (option == "--dtype") only = argv[i + 1];
    if (option == "--rows") sizes.rows = std::max(1, std::atoi(argv[i + 1]));
    if (option == "--vocabulary") sizes.vocabulary = std::max(1, std::atoi(argv[i + 1]));
    if (option == "--width") sizes.width = std::max(1, std::atoi(argv[i + 1]));
  }
  set_compute_threads(1);
  nlohmann::json results = nlohmann::json::array();
  for (const DType dtype : {float32, bfloat16}) {
    if (!only.empty() && only != name_of(dtype)) continue;
    const nlohmann::json r = measure(sizes, dtype, rounds);
    const auto number = [&](const char* key) { return r[key].get<double>(); };
    fmt::print(
        "{:9} tiles {:7.1f} ms, {:6.1f} MiB; whole {:7.1f} ms, {:6.1f} MiB; {} products "
        "{:7.1f} ms\n",
        name_of(dtype), number("tiles_ms"), number("tiles_peak_mib"), number("whole_ms"),
        number("whole_peak_mib"), r["products_dtype"].get<std::string>(), number("products_ms"));
    results.push_back(r);
  }
  if (!json_file.empty()) std::ofstream(json_file) << results.dump(2) << '\n';
  return 0;
}
