// An optimizer's options as text, with what is wrong with them: trainers check them and compare
// those of the ranks.
#pragma once

#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "engine/optim/optimizer.h"

namespace tessera::optim {

struct Setting {
  std::string name;  // of the option: "beta1"
  std::string value;
  std::string fault;  // empty: the value is allowed
};

// Each options struct of an optimizer has a function settings_of() that lists its members here.
class Settings {
 public:
  // `optimizer` is the name of its class.
  explicit Settings(std::string_view optimizer) : optimizer_(optimizer) {}

  template <class Value>
  Settings& add(std::string_view name, Value value) {
    if constexpr (std::is_floating_point_v<Value>) {
      if (std::isnan(value)) value = std::fabs(value);  // the sign bit of a NaN has no meaning
    }
    list_.push_back({std::string(name), fmt::format("{}", value), {}});
    return *this;
  }
  // The last one is allowed if the condition holds, else `rule` says what it has to be.
  Settings& require(bool holds, std::string_view rule);
  Settings& not_negative(std::string_view name, double value);
  Settings& below_one(std::string_view name, double value);  // and at least 0
  // Functions cannot be compared.
  Settings& function(std::string_view name, bool is_set);
  Settings& groups(const std::vector<ParameterGroup>& groups);

  [[nodiscard]] const std::string& optimizer() const { return optimizer_; }
  [[nodiscard]] const std::vector<Setting>& list() const { return list_; }
  // For constructors: a fault is a caller's mistake.
  void check() const;

 private:
  std::string optimizer_;
  std::vector<Setting> list_;
};

Settings settings_of(const AdamWOptions& options);
Settings settings_of(const LionOptions& options);
Settings settings_of(const SgdOptions& options);

}  // namespace tessera::optim
