// Tensors' names without the prefixes and components that wrappers add.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/formats/format.h"

namespace tessera::checkpoint {

// "_fsdp_wrapped_module.", "_checkpoint_wrapped_module." and "_orig_mod." are removed wherever they
// are components. "module." is removed where all of the model's names begin with it, and "model."
// where the rest of a name shows that it is a wrapper's as well.
class WrapperNames {
 public:
  explicit WrapperNames(const formats::Contents& source);
  // A parameter's name, or one that begins with a parameter's.
  std::string operator()(const std::string& name) const;

 private:
  std::string prefix_;
};

// The names of a model, in the same order.
std::vector<std::string> without_wrappers(const std::vector<std::string>& names);

}  // namespace tessera::checkpoint
