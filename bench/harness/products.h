// The matrix products that a training step cannot avoid: their shapes, their operations, and their
// time alone on this node. A row's MFU and its share of products are computed from them.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "training/recipe/recipe.h"

namespace tessera::bench {

// One product of the step, c[m,n] = op(a) op(b), `batch` times in one call.
struct StepProduct {
  std::int64_t m = 0, n = 0, k = 0;
  bool transpose_a = false, transpose_b = false;
  std::int64_t batch = 1;
  double calls = 1;  // in a step; 0.5 for half of a product, in causal attention
};

struct LinearShape {
  std::int64_t out = 0, in = 0;
  bool trained = true;  // a frozen matrix has no gradient to compute
};

// The numbers behind a row's MFU: operations of forward and backward without recomputation.
struct ModelFigures {
  std::string architecture;
  std::uint64_t parameters = 0;
  std::optional<std::int64_t> tokens_per_sample;  // absent: the length of the sentence
  std::optional<double> flops_per_sample;         // absent: samples differ in length
  double flops_per_token = 0;                     // of the matrices alone
  std::string formula;                            // for people
};

struct ModelWork : ModelFigures {
  std::vector<LinearShape> matrices;  // each multiplies every token: layers, and a head
  std::int64_t layers = 0, heads = 0, head_size = 0;
  bool causal = true;

  // The products of one rank's step.
  [[nodiscard]] std::vector<StepProduct> step_products(std::int64_t samples, double tokens,
                                                       std::int64_t batches) const;
};

// For the recipe's model, which is not allocated.
ModelWork model_work(const training::Recipe& recipe);

// The job for the ranks that time products, and the answer of each in FILE.<rank>.
nlohmann::json products_job(const std::vector<StepProduct>& products, const std::string& precision,
                            const std::string& device, double seconds);
struct ProductTimes {
  double step_s = 0;            // all products of a step
  double flops = 0;             // all of them
  double best_flops_per_s = 0;  // the fastest shape
  std::string kernel;           // "sgemm", and its library
  std::string dtype;            // the actual dtype of the products
};
// The answer of the slowest rank. Throws Error(runtime) if an answer is missing.
ProductTimes read_product_times(const std::string& file, int ranks);

// Times the products of the job in FILE, in turns, and writes FILE.<rank>.
void time_products(const std::string& file);

}  // namespace tessera::bench
