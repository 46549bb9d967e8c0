// The range of a number in a configuration or a recipe.
#pragma once

#include <optional>
#include <string>

namespace tessera::models {

struct Range {
  std::optional<double> low;
  std::optional<double> high;
  bool low_excluded = false;
  bool high_excluded = false;

  [[nodiscard]] std::string text() const;  // "at least 0 and below 1", or empty
  [[nodiscard]] bool holds(double value) const;
};

inline Range at_least(double low) {
  return {low, {}, false, false};
}
inline Range above(double low) {
  return {low, {}, true, false};
}
inline Range between(double low, double high) {  // both included
  return {low, high, false, false};
}
inline Range from_up_to(double low, double high) {  // [low, high)
  return {low, high, false, true};
}

// Sizes of a model, far above those of real ones. A configuration may be anybody's, and objects of
// a layer take memory before the first tensor does.
inline Range layer_count() {
  return between(1, 10'000);
}
inline Range width_of(double least = 1) {
  return between(least, 1 << 20);
}

}  // namespace tessera::models
