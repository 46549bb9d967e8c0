// Modules that sharding leaves as they are, with what lies below them: ShardingOptions::
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
  // Modules of these full names, and those whose full name matches the whole of a regular
  // expression (PCRE2's: engine/nn/name_pattern.h); empty: none. Error(configuration) for what
  // means no module, for a parameter that others use as well, and where nothing is left to shard.
  IgnoredModules(nn::Module& root, const std::vector<std::string>& names,
                 const std::string& pattern);

  [[nodiscard]] bool contain(const nn::Module* module) const { return all_.contains(module); }
  [[nodiscard]] bool contain(const OwnedParameter& parameter) const {
    return contain(parameter.places.front());  // and so all of them
  }
  // Those that lie in no other one, by name.
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
