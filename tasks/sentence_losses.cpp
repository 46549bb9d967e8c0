// Losses of sentence encoders, composed of the engine's ops.
#include "tasks/sentence_losses.h"

#include <vector>

#include "base/error.h"
#include "engine/ops.h"

namespace tessera::tasks {
namespace {

// torch clamps norms to at least these.
constexpr double least_norm_of_cosine = 1e-8;
constexpr double least_norm_of_normalize = 1e-12;

void require_embeddings(const char* loss, const Tensor& u, const Tensor& v) {
  TESSERA_REQUIRE(u.dimensions() == 2 && u.shape() == v.shape() && is_floating(u.dtype()) &&
                      is_floating(v.dtype()) && u.elements() > 0,
                  "{}: embeddings of {} {} and {} {}; both are [batch, dimension]", loss,
                  name_of(u.dtype()), u.shape().to_string(), name_of(v.dtype()),
                  v.shape().to_string());
}

// Losses are computed in fp32, or fp64 for an fp64 encoder.
Tensor widened(const Tensor& x) {
  return x.dtype() == float64 ? x : cast(x, float32);
}

// [batch, dimension] -> [batch]
Tensor sum_of_rows(const Tensor& x) {
  const Tensor ones = Tensor::full({1, x.size(1)}, 1.0, x.dtype(), x.device());
  return reshape(linear(x, ones), {x.size(0)});
}

Tensor mean_square(const Tensor& x, const Tensor& target) {
  return mean(square(x - cast(target.detach(), x.dtype())));
}

Tensor row_numbers(const std::vector<std::int32_t>& numbers, Device device) {
  const DeviceGuard on_host(Device::cpu());
  return Tensor::from(numbers, {static_cast<std::int64_t>(numbers.size())}).to(device);
}

// (u, v, |u - v|) [batch, 3 * dimension]: concatenates the rows of the three.
Tensor pair_features(const Tensor& u, const Tensor& v) {
  const Tensor difference = u - v;
  const Tensor rows = concatenate({u, v, relu(difference) + relu(difference * -1.0)});
  const auto batch = static_cast<std::int32_t>(u.size(0));
  std::vector<std::int32_t> order;
  for (std::int32_t i = 0; i < batch; ++i) {
    for (std::int32_t part = 0; part < 3; ++part) order.push_back(part * batch + i);
  }
  return reshape(embedding(row_numbers(order, u.device()), rows), {u.size(0), 3 * u.size(1)});
}

}  // namespace

Tensor cosine_similarity(const Tensor& u, const Tensor& v) {
  require_embeddings("cosine_similarity", u, v);
  return sum_of_rows(normalize_rows(widened(u), least_norm_of_cosine) *
                     normalize_rows(widened(v), least_norm_of_cosine));
}

Tensor cosine_similarity_loss(const Tensor& u, const Tensor& v, const Tensor& labels) {
  const Tensor cosine = cosine_similarity(u, v);
  TESSERA_REQUIRE(labels.elements() == u.size(0) && is_floating(labels.dtype()),
                  "cosine_similarity_loss: labels of {} {} for {} pairs; one number a pair",
                  name_of(labels.dtype()), labels.shape().to_string(), u.size(0));
  return mean_square(cosine, reshape(labels, {u.size(0)}));
}

nn::Linear make_softmax_head(std::int64_t dimension, std::int64_t labels) {
  return nn::Linear(3 * dimension, labels);
}

Tensor softmax_loss(const Tensor& u, const Tensor& v, const Tensor& labels,
                    const nn::Linear& head) {
  require_embeddings("softmax_loss", u, v);
  TESSERA_REQUIRE(labels.elements() == u.size(0),
                  "softmax_loss: labels of shape {} for {} pairs; one class a pair",
                  labels.shape().to_string(), u.size(0));
  return cross_entropy(widened(softmax_logits(u, v, head)), reshape(labels, {u.size(0)}));
}

Tensor softmax_logits(const Tensor& u, const Tensor& v, const nn::Linear& head) {
  require_embeddings("softmax_logits", u, v);
  return head(pair_features(widened(u), widened(v)));
}

Tensor multiple_negatives_ranking_loss(const Tensor& anchors, const Tensor& positives,
                                       const Context& context, double scale) {
  require_embeddings("multiple_negatives_ranking_loss", anchors, positives);
  const Tensor candidates =
      context.all_gather(normalize_rows(widened(positives), least_norm_of_normalize));
  const Tensor cosines =
      linear(normalize_rows(widened(anchors), least_norm_of_normalize), candidates);
  std::vector<std::int32_t> own;
  const auto batch = static_cast<std::int32_t>(anchors.size(0));
  for (std::int32_t i = 0; i < batch; ++i) own.push_back(context.rank() * batch + i);
  return cross_entropy(cosines * scale, row_numbers(own, anchors.device()));
}

Tensor mse_loss(const Tensor& u, const Tensor& targets) {
  require_embeddings("mse_loss", u, targets);
  return mean_square(widened(u), targets);
}

Tensor dot_margins(const Tensor& queries, const Tensor& positives, const Tensor& negatives) {
  require_embeddings("dot_margins", queries, positives);
  require_embeddings("dot_margins", queries, negatives);
  return sum_of_rows(widened(queries) * (widened(positives) - widened(negatives)));
}

Tensor margin_mse_loss(const Tensor& queries, const Tensor& positives, const Tensor& negatives,
                       const Tensor& margins) {
  const Tensor own = dot_margins(queries, positives, negatives);
  TESSERA_REQUIRE(margins.elements() == own.size(0) && is_floating(margins.dtype()),
                  "margin_mse_loss: margins of {} {} for {} queries; one number a query",
                  name_of(margins.dtype()), margins.shape().to_string(), own.size(0));
  return mean_square(own, reshape(margins, {own.size(0)}));
}

}  // namespace tessera::tasks
