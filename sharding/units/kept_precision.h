// Modules that compute in another dtype than ShardingOptions::param_dtype: modules in fp32, by
// class (keep_fp32), and ignored modules in their own dtype; with all modules below them.
#pragma once

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/nn/module.h"
#include "sharding/policy/ignored_modules.h"
#include "sharding/policy/module_tree.h"
#include "sharding/policy/options.h"

namespace tessera {

class KeptModules {
 public:
  // Error(configuration) for an unknown class, and when keep_fp32 has no effect. Ignored modules
  // are not kept.
  KeptModules(nn::Module& root, const ShardingOptions& options, const IgnoredModules& ignored = {});

  [[nodiscard]] bool contain(const nn::Module* module) const { return all_.contains(module); }
  // True when all modules that compute with the parameter are kept. Error(configuration) when only
  // some are.
  [[nodiscard]] bool contain(const OwnedParameter& parameter) const;
  // Those that lie in no other kept module.
  [[nodiscard]] const std::vector<nn::Module*>& outermost() const { return outermost_; }

 private:
  std::vector<nn::Module*> outermost_;
  std::set<const nn::Module*> all_;
};

// Casts the inputs and outputs of kept and ignored modules, for its lifetime.
class KeptPrecision {
 public:
  // `called`: the root is called through a handle, which ShardingOptions::output_dtype requires.
  KeptPrecision(nn::Module& root, const ShardingOptions& options,
                const IgnoredModules& ignored = {}, bool called = false);
  ~KeptPrecision();
  KeptPrecision(const KeptPrecision&) = delete;
  KeptPrecision& operator=(const KeptPrecision&) = delete;

 private:
  void choose_root(nn::Module& root, const ShardingOptions& options, bool called);
  void choose_ignored(const std::string& name, nn::Module& module, DType outside,
                      const std::map<const nn::Module*, std::string>& inside_fused);

  std::vector<std::pair<nn::Module*, nn::ModulePrecision>> modules_;
};

}  // namespace tessera
