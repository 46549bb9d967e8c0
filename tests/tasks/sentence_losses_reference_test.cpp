// Compares the losses with those of Sentence Transformers (recorded by
// tests/judges/sentence_losses.py): values, gradients of embeddings and of the head, on one rank
// and on several.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/ops.h"
#include "tasks/sentence_losses.h"

namespace tessera::tasks {
namespace {

constexpr std::int64_t reference_batch = 8, reference_dimension = 6, reference_classes = 3;
using Reals = std::vector<double>;

nlohmann::json reference() {
  const char* const source = std::getenv("TESSERA_SOURCE_DIR");
  if (source == nullptr) throw std::runtime_error("set TESSERA_SOURCE_DIR, as CTest does");
  std::ifstream file(std::string(source) + "/tests/tasks/fixtures/sentence_losses.json");
  return nlohmann::json::parse(file);
}

// The same numbers as in sentence_losses.py.
Tensor numbers(unsigned seed, const Shape& shape, DType dtype) {
  Reals values;
  for (std::int64_t i = 0; i < shape.elements(); ++i) {
    values.push_back(std::sin(12.9898 * static_cast<double>(i + 1) + 78.233 * seed));
  }
  return cast(Tensor::from(values, shape), dtype).clone();
}

Tensor leaf_of(const Tensor& values) {
  Tensor leaf = values.clone();
  leaf.set_requires_grad(true);
  return leaf;
}

// This rank's rows.
Tensor part(const Tensor& rows, const Context& context) {
  const std::int64_t count = rows.size(0) / context.world_size();
  Shape shape = rows.shape();
  shape[0] = count;
  const std::size_t bytes = rows.bytes() / static_cast<std::size_t>(context.world_size());
  return Tensor::view_of(rows.storage(), bytes * static_cast<std::size_t>(context.rank()), shape,
                         rows.dtype())
      .clone();
}

// The ranks' gradients: each rank has those of its own embeddings, those of a head are summed; both
// are means.
void expect_rows(const Tensor& leaf, const nlohmann::json& expected, const Context& context,
                 double tolerance) {
  const Reals found = leaf.grad().to_vector();
  const auto first = found.size() * static_cast<std::size_t>(context.rank());
  for (std::size_t i = 0; i < found.size(); ++i) {
    EXPECT_NEAR(found[i] / context.world_size(), expected[first + i].get<double>(), tolerance);
  }
}
void expect_sum(const Tensor& leaf, const nlohmann::json& expected, const Context& context,
                double tolerance) {
  const Reals found = leaf.grad().to_vector();
  for (std::size_t i = 0; i < found.size(); ++i) {
    EXPECT_NEAR(context.mean(found[i]), expected[i].get<double>(), tolerance);
  }
}

struct ReferenceCase {
  int world;
  DType dtype;
  double tolerance;
};
// Sentence Transformers computes labels in fp32.
constexpr ReferenceCase reference_cases[] = {{1, float64, 2e-7},
                                             {2, float64, 2e-7},
                                             {4, float64, 2e-7},
                                             {1, float32, 1e-5},
                                             {2, float32, 1e-5}};

TEST(SentenceLossesReference, CosineSimilarityLoss) {
  const nlohmann::json expected = reference()["cosine_similarity"];
  for (const ReferenceCase& c : reference_cases) {
    launch(c.world, [&](Context& context) {
      const Tensor u =
          leaf_of(part(numbers(1, {reference_batch, reference_dimension}, c.dtype), context));
      const Tensor v =
          leaf_of(part(numbers(2, {reference_batch, reference_dimension}, c.dtype), context));
      const Tensor loss =
          cosine_similarity_loss(u, v, part(numbers(3, {reference_batch}, c.dtype), context));
      EXPECT_NEAR(context.mean(loss.item()), expected["loss"].get<double>(), c.tolerance);
      loss.backward();
      expect_rows(u, expected["gradients"]["u"], context, c.tolerance);
      expect_rows(v, expected["gradients"]["v"], context, c.tolerance);
    });
  }
}

TEST(SentenceLossesReference, SoftmaxLoss) {
  const nlohmann::json expected = reference()["softmax"];
  for (const ReferenceCase& c : reference_cases) {
    launch(c.world, [&](Context& context) {
      const nn::ParameterDTypeGuard dtype_of_head(c.dtype == float64 ? float64 : float32);
      const nn::Linear head = make_softmax_head(reference_dimension, reference_classes);
      Tensor weight = head->weight(), bias = head->bias();
      weight.copy_from(numbers(4, {reference_classes, 3 * reference_dimension}, c.dtype));
      bias.copy_from(numbers(5, {reference_classes}, c.dtype));
      const Tensor u =
          leaf_of(part(numbers(1, {reference_batch, reference_dimension}, c.dtype), context));
      const Tensor v =
          leaf_of(part(numbers(2, {reference_batch, reference_dimension}, c.dtype), context));
      std::vector<std::int64_t> labels;
      for (std::int64_t i = 0; i < reference_batch; ++i)
        labels.push_back(i * i % reference_classes);
      const Tensor loss =
          softmax_loss(u, v, part(Tensor::from(labels, {reference_batch}), context), head);
      EXPECT_NEAR(context.mean(loss.item()), expected["loss"].get<double>(), c.tolerance);
      loss.backward();
      expect_rows(u, expected["gradients"]["u"], context, c.tolerance);
      expect_rows(v, expected["gradients"]["v"], context, c.tolerance);
      expect_sum(weight, expected["gradients"]["weight"], context, c.tolerance);
      expect_sum(bias, expected["gradients"]["bias"], context, c.tolerance);
    });
  }
}

TEST(SentenceLossesReference, MultipleNegativesRankingLoss) {
  const nlohmann::json expected = reference()["multiple_negatives_ranking"];
  for (const ReferenceCase& c : reference_cases) {
    launch(c.world, [&](Context& context) {
      const Tensor u =
          leaf_of(part(numbers(1, {reference_batch, reference_dimension}, c.dtype), context));
      const Tensor v =
          leaf_of(part(numbers(2, {reference_batch, reference_dimension}, c.dtype), context));
      const Tensor loss = multiple_negatives_ranking_loss(u, v, context);
      EXPECT_NEAR(context.mean(loss.item()), expected["loss"].get<double>(), 10 * c.tolerance);
      loss.backward();
      expect_rows(u, expected["gradients"]["u"], context, c.tolerance);
      expect_rows(v, expected["gradients"]["v"], context, c.tolerance);
    });
  }
}

TEST(SentenceLossesReference, MarginMseLoss) {
  const nlohmann::json expected = reference()["margin_mse"];
  const Shape shape{reference_batch, reference_dimension};
  for (const ReferenceCase& c : reference_cases) {
    launch(c.world, [&](Context& context) {
      const Tensor query = leaf_of(part(numbers(1, shape, c.dtype), context));
      const Tensor positive = leaf_of(part(numbers(2, shape, c.dtype), context));
      const Tensor negative = leaf_of(part(numbers(4, shape, c.dtype), context));
      const Tensor margins = part(numbers(3, {reference_batch}, c.dtype), context);
      const Tensor loss = margin_mse_loss(query, positive, negative, margins);
      EXPECT_NEAR(context.mean(loss.item()), expected["loss"].get<double>(), c.tolerance);
      loss.backward();
      expect_rows(query, expected["gradients"]["query"], context, c.tolerance);
      expect_rows(positive, expected["gradients"]["positive"], context, c.tolerance);
      expect_rows(negative, expected["gradients"]["negative"], context, c.tolerance);
    });
  }
}

TEST(SentenceLossesReference, MseLoss) {
  const nlohmann::json expected = reference()["mse"];
  for (const ReferenceCase& c : reference_cases) {
    launch(c.world, [&](Context& context) {
      const Tensor u =
          leaf_of(part(numbers(1, {reference_batch, reference_dimension}, c.dtype), context));
      const Tensor loss =
          mse_loss(u, part(numbers(2, {reference_batch, reference_dimension}, c.dtype), context));
      EXPECT_NEAR(context.mean(loss.item()), expected["loss"].get<double>(), c.tolerance);
      loss.backward();
      expect_rows(u, expected["gradients"]["u"], context, c.tolerance);
    });
  }
}

}  // namespace
}  // namespace tessera::tasks
