// Tensors' names without the prefixes and components that wrappers add.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <utility>
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

// The tensors of a checkpoint by their names without wrappers. A tied tensor has several names.
class TensorIndex {
 public:
  using Key = std::pair<formats::Part, std::string>;

  // With `weights_only`, the model's tensors alone. `path` begins the Error(checkpoint) about two
  // tensors of one name.
  TensorIndex(const formats::Contents& contents, bool weights_only, const std::string& path);

  // By name, without those that are tied to another tensor: numbers in the contents.
  [[nodiscard]] const std::map<Key, std::size_t>& tensors() const { return tensors_; }
  // By any name.
  [[nodiscard]] std::optional<std::size_t> find(const Key& key) const;

 private:
  std::map<Key, std::size_t> tensors_;
  std::map<Key, Key> aliases_;
};

// The names of a model, in the same order.
std::vector<std::string> without_wrappers(const std::vector<std::string>& names);

}  // namespace tessera::checkpoint
