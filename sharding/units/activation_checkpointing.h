// Which modules keep their inputs alone for backward and run again there (engine/recompute.h).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/activation_offload.h"
#include "engine/nn/module.h"
#include "sharding/policy/options.h"
#include "sharding/policy/wrap_policy.h"

namespace tessera {

// The units but the root, or the modules of the named classes; of modules inside one another the
// outermost, so that nothing runs a third time; of these every n-th, the first one included.
// Error(configuration) for a class that is nowhere in the tree, one whose modules are not called (a
// list; parts of a fused operation), and where there is nothing to choose.
std::vector<UnitModule> choose_recomputed(nn::Module& root, const std::vector<UnitModule>& units,
                                          const ShardingOptions& options);

// Has modules recomputed for its lifetime. Those that are already, by their user, it leaves alone.
class RecomputedModules {
 public:
  // Kept inputs go to `offload`, where there is one.
  RecomputedModules(const std::vector<UnitModule>& modules, ActivationCheckpointing how,
                    std::shared_ptr<ActivationOffload> offload);
  ~RecomputedModules();
  RecomputedModules(const RecomputedModules&) = delete;
  RecomputedModules& operator=(const RecomputedModules&) = delete;

 private:
  std::vector<nn::Module*> modules_;
};

}  // namespace tessera
