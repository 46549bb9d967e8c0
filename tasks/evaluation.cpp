// Evaluations on all ranks: distributes samples, and returns results in the samples' order.
#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "comm/exchange_values.h"
#include "engine/autograd.h"
#include "engine/ops.h"
#include "tasks/evaluators.h"

namespace tessera::tasks {
namespace {

using comm::Tag;

// Columns of texts, one sample in each row. Deals the samples by falling length, rank after rank,
// so that all ranks have about the same work.
class Deal {
 public:
  Deal(const std::vector<const std::vector<std::string>*>& columns, const Context& context)
      : columns_(columns), context_(context) {
    std::vector<std::size_t> lengths(columns.front()->size(), 0);
    for (const auto* column : columns) {
      TESSERA_REQUIRE(column->size() == lengths.size(), "columns of {} and {} texts",
                      lengths.size(), column->size());
      for (std::size_t i = 0; i < lengths.size(); ++i) lengths[i] += (*column)[i].size();
    }
    order_ = longest_first(lengths);
    for (std::size_t i = rank(); i < order_.size(); i += ranks()) mine_.push_back(order_[i]);
    // With fewer samples than ranks, evaluates a sample so that the other ranks do not wait;
    // collect() ignores it.
    if (mine_.empty()) mine_.push_back(order_.front());
  }

  // This rank's samples.
  [[nodiscard]] const std::vector<std::size_t>& mine() const { return mine_; }
  // The most samples of a rank.
  [[nodiscard]] std::int64_t most() const {
    return static_cast<std::int64_t>((order_.size() + ranks() - 1) / ranks());
  }

  // Calls take(place, row) for every column of this rank's samples: place is the sample's in
  // mine(), times columns, plus the column.
  void encode(const Encode& encode, const EvaluationOptions& options,
              const std::function<void(std::size_t, std::span<const float>)>& take) const {
    std::vector<std::string_view> texts;
    for (const std::size_t sample : mine_) {
      for (const auto* column : columns_) texts.emplace_back((*column)[sample]);
    }
    const auto width = static_cast<std::int64_t>(columns_.size());
    encode_texts(texts, options.tokens, encode,
                 {.batch_size = options.batch_size,
                  .device = context_.device(),
                  .batches = batches_of(most() * width, options.batch_size)},
                 take);
  }

  // Takes `width` numbers for each of this rank's samples; returns those of all samples, in order.
  [[nodiscard]] std::vector<double> collect(const std::vector<double>& found,
                                            std::size_t width) const {
    const auto parts = comm::exchange_arrays(context_.communicator(), std::span(found),
                                             Tag{0, 0, comm::Phase::metrics});
    for (std::size_t rank = 0; rank < ranks(); ++rank) {
      const std::size_t samples = (order_.size() + ranks() - 1 - rank) / ranks();
      TESSERA_CHECK(parts[rank].size() == std::max<std::size_t>(samples, 1) * width,
                    ErrorCode::rank_failed,
                    "rank {} evaluated other samples; give every rank the same data", rank);
    }
    std::vector<double> all(order_.size() * width);
    for (std::size_t i = 0; i < order_.size(); ++i) {
      std::copy_n(&parts[i % ranks()][i / ranks() * width], width, &all[order_[i] * width]);
    }
    return all;
  }

 private:
  [[nodiscard]] std::size_t rank() const { return static_cast<std::size_t>(context_.rank()); }
  [[nodiscard]] std::size_t ranks() const {
    return static_cast<std::size_t>(context_.world_size());
  }

  std::vector<const std::vector<std::string>*> columns_;
  const Context& context_;
  std::vector<std::size_t> order_;
  std::vector<std::size_t> mine_;
};

void require_samples(const char* evaluation, std::size_t samples, std::size_t labels) {
  TESSERA_CHECK(samples > 0, ErrorCode::data, "{}: no samples to evaluate", evaluation);
  TESSERA_REQUIRE(samples == labels, "{}: {} samples with {} labels", evaluation, samples, labels);
}

std::vector<double> column_of(const std::vector<double>& all, std::size_t column,
                              std::size_t width) {
  std::vector<double> values;
  for (std::size_t i = column; i < all.size(); i += width) values.push_back(all[i]);
  return values;
}

// Rows of this rank's samples, by place.
std::vector<std::vector<float>> rows_of(const Deal& deal, std::size_t columns, const Encode& encode,
                                        const EvaluationOptions& options) {
  std::vector<std::vector<float>> rows(deal.mine().size() * columns);
  deal.encode(encode, options, [&](std::size_t place, std::span<const float> row) {
    rows[place].assign(row.begin(), row.end());
  });
  return rows;
}

Tensor batch_of(const std::vector<std::vector<float>>& rows, std::size_t first, std::size_t stride,
                std::size_t count, Device device) {
  std::vector<float> values;
  const std::size_t dimension = rows[first].size();
  for (std::size_t i = 0; i < count; ++i) {
    const std::vector<float>& row = rows[first + i * stride];
    values.insert(values.end(), row.begin(), row.end());
  }
  const DeviceGuard on_host(Device::cpu());
  return Tensor::from(values,
                      {static_cast<std::int64_t>(count), static_cast<std::int64_t>(dimension)})
      .to(device);
}

// The class with the largest output; among equals, the first.
std::int64_t largest(std::span<const double> outputs) {
  TESSERA_CHECK(
      std::none_of(outputs.begin(), outputs.end(), [](double x) { return std::isnan(x); }),
      ErrorCode::numeric, "accuracy: an output of the model is not a number");
  return std::max_element(outputs.begin(), outputs.end()) - outputs.begin();
}

// Sequences of a text: several full batches, and a shorter last one.
struct TextBatch {
  std::int64_t first, sequences, length;
};

std::vector<TextBatch> cut(std::int64_t targets, std::int64_t length, std::int64_t batch_size) {
  std::vector<TextBatch> batches;
  const std::int64_t whole = targets / length;
  for (std::int64_t i = 0; i < whole; i += batch_size) {
    batches.push_back({i * length, std::min(batch_size, whole - i), length});
  }
  if (targets % length > 0) batches.push_back({whole * length, 1, targets % length});
  return batches;
}

}  // namespace

Scores evaluate_similarity(const SentencePairs& pairs, const Encode& encode,
                           const EvaluationOptions& options, const Context& context) {
  require_samples("similarity", pairs.size(), pairs.labels.size());
  constexpr std::size_t kinds = std::size(all_similarities);
  const Deal deal({&pairs.first, &pairs.second}, context);
  const auto rows = rows_of(deal, 2, encode, options);
  std::vector<double> found;
  for (std::size_t i = 0; i < rows.size(); i += 2) {
    for (const Similarity kind : all_similarities) {
      found.push_back(similarity(kind, rows[i], rows[i + 1]));
    }
  }
  const std::vector<double> all = deal.collect(found, kinds);
  Scores scores;
  for (std::size_t kind = 0; kind < kinds; ++kind) {
    const std::vector<double> values = column_of(all, kind, kinds);
    const std::string name(name_of(all_similarities[kind]));
    scores.emplace_back("spearman_" + name, spearman(pairs.labels, values));
    scores.emplace_back("pearson_" + name, pearson(pairs.labels, values));
  }
  return scores;
}

Scores evaluate_classification(const SentencePairs& pairs, const Encode& encode,
                               const Classify& classify, const EvaluationOptions& options,
                               const Context& context) {
  require_samples("accuracy", pairs.size(), pairs.labels.size());
  const Deal deal({&pairs.first, &pairs.second}, context);
  const auto rows = rows_of(deal, 2, encode, options);
  const NoGradGuard no_grad;
  std::vector<double> found;
  const auto batch_size = static_cast<std::size_t>(options.batch_size);
  const std::size_t samples = rows.size() / 2;
  // Every rank calls the head equally often, because the head may be sharded.
  const auto most = static_cast<std::size_t>(deal.most());
  for (std::size_t first = 0; first < most; first += batch_size) {
    const bool own = first < samples;  // otherwise only so that the other ranks do not wait
    const std::size_t from = own ? first : 0;
    const std::size_t count = own ? std::min(batch_size, samples - first) : 1;
    const Tensor logits = classify(batch_of(rows, 2 * from, 2, count, context.device()),
                                   batch_of(rows, 2 * from + 1, 2, count, context.device()));
    const std::vector<double> outputs = logits.to_vector();
    const std::size_t classes = outputs.size() / count;
    for (std::size_t i = 0; own && i < count; ++i) {
      found.push_back(static_cast<double>(
          largest(std::span<const double>(outputs).subspan(i * classes, classes))));
    }
  }
  std::vector<std::int64_t> predicted, labels;
  for (const double value : deal.collect(found, 1)) {
    predicted.push_back(static_cast<std::int64_t>(value));
  }
  for (const double label : pairs.labels) labels.push_back(static_cast<std::int64_t>(label));
  return {{"accuracy", accuracy(predicted, labels)}, {"f1_macro", macro_f1(predicted, labels)}};
}

Scores evaluate_triplets(const SentenceTriplets& triplets, const Encode& encode,
                         const EvaluationOptions& options, const Context& context) {
  require_samples("triplet", triplets.size(), triplets.size());
  constexpr std::size_t kinds = std::size(all_similarities);
  const Deal deal({&triplets.anchors, &triplets.positives, &triplets.negatives}, context);
  const auto rows = rows_of(deal, 3, encode, options);
  std::vector<double> found;
  for (std::size_t i = 0; i < rows.size(); i += 3) {
    for (const Similarity kind : all_similarities) {
      const double positive = similarity(kind, rows[i], rows[i + 1]);
      const double negative = similarity(kind, rows[i], rows[i + 2]);
      const bool known = !std::isnan(positive) && !std::isnan(negative);
      found.push_back(!known ? std::nan("") : positive > negative ? 1 : 0);
    }
  }
  const std::vector<double> all = deal.collect(found, kinds);
  Scores scores;
  for (std::size_t kind = 0; kind < kinds; ++kind) {
    double right = 0;
    for (const double value : column_of(all, kind, kinds)) right += value;
    scores.emplace_back(std::string(name_of(all_similarities[kind])) + "_accuracy",
                        right / static_cast<double>(triplets.size()));
  }
  return scores;
}

Scores evaluate_perplexity(const TokenText& text, std::int64_t length, std::int64_t batch_size,
                           const TokenLoss& loss, const Context& context) {
  TESSERA_REQUIRE(length > 0 && batch_size > 0, "perplexity: {} sequences of {} tokens", batch_size,
                  length);
  TESSERA_CHECK(text.tokens >= 2, ErrorCode::data,
                "perplexity: a text of {} tokens; at least 2 are needed to predict one",
                text.tokens);
  const std::int64_t targets = text.tokens - 1;
  const std::vector<TextBatch> batches = cut(targets, length, batch_size);
  const auto ranks = static_cast<std::size_t>(context.world_size());
  const std::size_t rounds = (batches.size() + ranks - 1) / ranks;
  const NoGradGuard no_grad;
  std::vector<double> mine;
  std::vector<std::int32_t> tokens;
  for (std::size_t round = 0; round < rounds; ++round) {
    const std::size_t number = round * ranks + static_cast<std::size_t>(context.rank());
    // A rank without a batch of its own repeats the last one so that the others do not wait.
    const TextBatch& batch = batches[std::min(number, batches.size() - 1)];
    const auto count = static_cast<std::size_t>(batch.sequences * batch.length);
    tokens.resize(count + 1);
    text.read(batch.first, tokens);
    const Shape shape{batch.sequences, batch.length};
    const auto on_device = [&](std::span<const std::int32_t> ids) {
      const DeviceGuard on_host(Device::cpu());
      return Tensor::from(ids, shape).to(context.device());
    };
    const std::span<const std::int32_t> ids(tokens);
    const double value = loss(on_device(ids.first(count)), on_device(ids.subspan(1))).item();
    if (number < batches.size()) mine.push_back(value * static_cast<double>(count));
  }
  const auto parts = comm::exchange_arrays(context.communicator(), std::span(std::as_const(mine)),
                                           Tag{0, 0, comm::Phase::metrics});
  double total = 0;
  for (std::size_t number = 0; number < batches.size(); ++number) {
    const std::vector<double>& from = parts[number % ranks];
    const std::size_t place = number / ranks;
    TESSERA_CHECK(place < from.size(), ErrorCode::rank_failed,
                  "rank {} evaluated another text; give every rank the same data", number % ranks);
    total += from[place];
  }
  const double mean = total / static_cast<double>(targets);
  return {{"perplexity", std::exp(mean)}, {"loss", mean}, {"tokens", static_cast<double>(targets)}};
}

}  // namespace tessera::tasks
