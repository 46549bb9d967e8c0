// Correlations, similarities and fractions: arithmetic in fp64, in the order of the samples.
#include "tasks/evaluators.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>

#include "base/error.h"

namespace tessera::tasks {
namespace {

double mean_of(std::span<const double> values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

}  // namespace

double pearson(std::span<const double> x, std::span<const double> y) {
  TESSERA_REQUIRE(x.size() == y.size(), "pearson of {} and {} values", x.size(), y.size());
  constexpr double undefined = std::numeric_limits<double>::quiet_NaN();
  if (x.size() < 2) return undefined;
  const double mean_x = mean_of(x), mean_y = mean_of(y);
  double xx = 0, yy = 0, xy = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double dx = x[i] - mean_x, dy = y[i] - mean_y;
    xx += dx * dx;
    yy += dy * dy;
    xy += dx * dy;
  }
  if (!(xx > 0) || !(yy > 0)) return undefined;
  return std::clamp(xy / (std::sqrt(xx) * std::sqrt(yy)), -1.0, 1.0);
}

std::vector<double> average_ranks(std::span<const double> values) {
  std::vector<std::size_t> order(values.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return values[a] < values[b]; });
  std::vector<double> ranks(values.size());
  for (std::size_t first = 0; first < order.size();) {
    std::size_t last = first;
    while (last + 1 < order.size() && values[order[last + 1]] == values[order[first]]) ++last;
    const double rank = 0.5 * static_cast<double>(first + last) + 1;
    for (std::size_t i = first; i <= last; ++i) ranks[order[i]] = rank;
    first = last + 1;
  }
  return ranks;
}

double spearman(std::span<const double> x, std::span<const double> y) {
  const auto is_nan = [](double value) { return std::isnan(value); };
  if (std::any_of(x.begin(), x.end(), is_nan) || std::any_of(y.begin(), y.end(), is_nan)) {
    return std::numeric_limits<double>::quiet_NaN();
  }
  return pearson(average_ranks(x), average_ranks(y));
}

std::string_view name_of(Similarity similarity) {
  switch (similarity) {
    case Similarity::cosine:
      return "cosine";
    case Similarity::dot:
      return "dot";
    case Similarity::euclidean:
      return "euclidean";
    case Similarity::manhattan:
      return "manhattan";
  }
  return "unknown";
}

double similarity(Similarity kind, std::span<const float> u, std::span<const float> v) {
  TESSERA_REQUIRE(u.size() == v.size(), "similarity of rows of {} and {} numbers", u.size(),
                  v.size());
  double uu = 0, vv = 0, uv = 0, squares = 0, distances = 0;
  for (std::size_t i = 0; i < u.size(); ++i) {
    const double a = u[i], b = v[i], difference = a - b;
    uu += a * a;
    vv += b * b;
    uv += a * b;
    squares += difference * difference;
    distances += std::abs(difference);
  }
  switch (kind) {
    case Similarity::cosine: {  // a norm below 1e-12 counts as 1e-12, so a zero row has similarity
                                // 0
      constexpr double least = 1e-12;
      return uv / (std::max(std::sqrt(uu), least) * std::max(std::sqrt(vv), least));
    }
    case Similarity::dot:
      return uv;
    case Similarity::euclidean:
      return -std::sqrt(squares);
    case Similarity::manhattan:
      return -distances;
  }
  return 0;
}

double accuracy(std::span<const std::int64_t> predicted, std::span<const std::int64_t> labels) {
  TESSERA_REQUIRE(predicted.size() == labels.size() && !labels.empty(),
                  "accuracy of {} predictions for {} labels", predicted.size(), labels.size());
  std::size_t right = 0;
  for (std::size_t i = 0; i < labels.size(); ++i) right += predicted[i] == labels[i] ? 1 : 0;
  return static_cast<double>(right) / static_cast<double>(labels.size());
}

double macro_f1(std::span<const std::int64_t> predicted, std::span<const std::int64_t> labels) {
  TESSERA_REQUIRE(predicted.size() == labels.size() && !labels.empty(),
                  "macro_f1 of {} predictions for {} labels", predicted.size(), labels.size());
  struct Count {
    double right = 0, wrong = 0;  // wrong: false positives and false negatives
  };
  std::map<std::int64_t, Count> classes;
  for (std::size_t i = 0; i < labels.size(); ++i) {
    if (predicted[i] == labels[i]) {
      ++classes[labels[i]].right;
    } else {
      ++classes[predicted[i]].wrong;
      ++classes[labels[i]].wrong;
    }
  }
  double total = 0;
  for (const auto& [label, count] : classes) {
    total += 2 * count.right / (2 * count.right + count.wrong);
  }
  return total / static_cast<double>(classes.size());
}

}  // namespace tessera::tasks
