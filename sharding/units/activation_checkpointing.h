// Which modules keep only their inputs for backward and run again there (engine/recompute.h).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/activation_offload.h"
#include "engine/nn/module.h"
#include "sharding/policy/options.h"
#include "sharding/policy/wrap_policy.h"

namespace tessera {

// The units except the root, or the modules of the named classes; of nested modules the outermost,
// so that nothing runs a third time; of these every n-th, including the first. Error(configuration)
// for a class that is not in the tree, for a class whose modules are not called (a list; parts of a
// fused operation), and when there is nothing to choose.
std::vector<UnitModule> choose_recomputed(nn::Module& root, const std::vector<UnitModule>& units,
                                          const ShardingOptions& options);

// Makes modules recompute for its lifetime. Skips modules that their user has already set up for
// it.
class RecomputedModules {
 public:
  // Kept inputs go to `offload`, if it is not null.
  RecomputedModules(const std::vector<UnitModule>& modules, ActivationCheckpointing how,
                    std::shared_ptr<ActivationOffload> offload);
  ~RecomputedModules();
  RecomputedModules(const RecomputedModules&) = delete;
  RecomputedModules& operator=(const RecomputedModules&) = delete;

 private:
  std::vector<nn::Module*> modules_;
};

}  // namespace tessera
