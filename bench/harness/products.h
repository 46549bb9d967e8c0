// The matrix products that a training step cannot avoid: which they are, how many operations, and
// how long they take alone on this machine. What a row's MFU and its share of products are made of.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "training/recipe/recipe.h"

namespace tessera::cli {

// One product of the step, c[m,n] = op(a) op(b), `batch` of it in one call.
struct StepProduct {
  std::int64_t m = 0, n = 0, k = 0;
  bool transpose_a = false, transpose_b = false;
  std::int64_t batch = 1;
  double calls = 1;  // of a step; half of one is an attention that looks back only
};

struct LinearShape {
  std::int64_t out = 0, in = 0;
  bool trained = true;  // a frozen one has no gradient to compute
};

struct ModelWork {
  std::string architecture;
  std::int64_t parameters = 0;
  std::int64_t seq_len = 0;           // tokens of a sample; 0: as long as the sentences are
  std::vector<LinearShape> matrices;  // each multiplies every token: layers, and a head
  std::int64_t layers = 0, heads = 0, head_size = 0;
  bool causal = true;

  // Of forward and backward of one sample, without what recomputation does again.
  [[nodiscard]] double flops_per_token() const;   // of the matrices alone
  [[nodiscard]] double flops_per_sample() const;  // 0 where samples differ in length
  // How the figure is made, for people.
  [[nodiscard]] std::string formula() const;
  // Of a step of one rank.
  [[nodiscard]] std::vector<StepProduct> step_products(std::int64_t samples, double tokens,
                                                       std::int64_t batches) const;
};

// Of the recipe's model, which is not allocated for it.
ModelWork model_work(const Recipe& recipe);

// What the ranks that time products are asked for, and what each answers in FILE.<rank>.
nlohmann::json products_job(const std::vector<StepProduct>& products, const std::string& precision,
                            const std::string& device, double seconds);
struct ProductTimes {
  double step_s = 0;            // of all of a step's
  double flops = 0;             // of all of them
  double best_flops_per_s = 0;  // of the fastest shape
  std::string kernel;           // "sgemm", of which library
  std::string dtype;            // which the products really had
};
// The slowest rank's. Throws Error(runtime) when an answer is missing.
ProductTimes read_product_times(const std::string& file, int ranks);

// What such a rank does: times the products of the job in FILE, in turns, and writes FILE.<rank>.
void time_products(const std::string& file);

}  // namespace tessera::cli
