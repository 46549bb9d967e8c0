// Modules that sharding leaves as they are, with all modules below them: ShardingOptions::
// ignored_modules and ignored_pattern.
#pragma once

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/nn/module.h"
#include "sharding/policy/module_tree.h"

namespace tessera {

class IgnoredModules {
 public:
  IgnoredModules() = default;  // none
  // Modules with these full names, and those whose full name as a whole matches a regular
  // expression (PCRE2's: engine/nn/name_pattern.h); empty: no pattern. Error(configuration) for a
  // name or pattern that matches no module, for a parameter that other modules use as well, and
  // when nothing is left to shard.
  IgnoredModules(nn::Module& root, const std::vector<std::string>& names,
                 const std::string& pattern);

  [[nodiscard]] bool contain(const nn::Module* module) const { return all_.contains(module); }
  [[nodiscard]] bool contain(const OwnedParameter& parameter) const {
    return contain(parameter.places.front());  // then all places are in them
  }
  // Those that lie in no other ignored module, by name.
  [[nodiscard]] const std::vector<std::pair<std::string, nn::Module*>>& outermost() const {
    return outermost_;
  }
  [[nodiscard]] const std::vector<OwnedParameter>& parameters() const { return parameters_; }

 private:
  void choose(nn::Module& root, const std::vector<std::string>& names, const std::string& pattern);

  std::vector<std::pair<std::string, nn::Module*>> outermost_;
  std::set<const nn::Module*> all_;
  std::vector<OwnedParameter> parameters_;
};

}  // namespace tessera
