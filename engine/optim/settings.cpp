// Lists of an optimizer's options.
#include "engine/optim/settings.h"

#include "base/error.h"

namespace tessera::optim {

Settings& Settings::require(bool holds, std::string_view rule) {
  if (!holds && list_.back().fault.empty()) list_.back().fault = rule;
  return *this;
}

Settings& Settings::not_negative(std::string_view name, double value) {
  return add(name, value)
      .require(std::isfinite(value) && value >= 0,
               "it must be a finite number that is not negative");
}

Settings& Settings::below_one(std::string_view name, double value) {
  return add(name, value).require(value >= 0 && value < 1, "it must be at least 0 and below 1");
}

Settings& Settings::function(std::string_view name, bool is_set) {
  return add(name, is_set ? "set" : "not set");
}

Settings& Settings::groups(const std::vector<ParameterGroup>& groups) {
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const std::string group = fmt::format("groups[{}].", i);
    add(group + "pattern", groups[i].pattern);
    not_negative(group + "lr_scale", groups[i].lr_scale);
    if (groups[i].weight_decay) {
      not_negative(group + "weight_decay", *groups[i].weight_decay);
    } else {
      add(group + "weight_decay", "not set");
    }
  }
  return *this;
}

void Settings::check() const {
  for (const Setting& setting : list_) {
    TESSERA_REQUIRE(setting.fault.empty(), "{}: {} is {}: {}", optimizer_, setting.name,
                    setting.value, setting.fault);
  }
}

}  // namespace tessera::optim
