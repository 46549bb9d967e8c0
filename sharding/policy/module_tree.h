// The modules of a tree and the relations that the choice of units needs: which module is around
// which, also when modules and parameters are registered in several places.
//
// A module is *around* another when every path from the root to that one leads through it. When
// nothing is registered twice these are simply the modules above; a module that two others have is
// inside neither of them.
#pragma once

#include <cstddef>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/nn/module.h"

namespace tessera {

// A parameter and all modules that register or read it (nn::Module::reads_parameter).
struct OwnedParameter {
  std::string name;  // the first in the tree
  Tensor tensor;
  std::vector<nn::Module*> places;
};

class ModuleTree {
 public:
  explicit ModuleTree(nn::Module& root);

  struct Entry {
    std::string name;  // the first in the tree; "" for the root
    nn::Module* module = nullptr;
    std::size_t around = 0;     // the innermost module around this one; the root's is itself
    int depth = 0;              // the number of modules around it
    bool inside_fused = false;  // a module above it is indivisible
  };
  // Depth first in the order of registration: the root comes first.
  [[nodiscard]] const std::vector<Entry>& modules() const { return entries_; }
  // The same as indices, each after all modules above it.
  [[nodiscard]] const std::vector<std::size_t>& outermost_first() const { return order_; }
  // In the order of nn::Module::named_parameters().
  [[nodiscard]] const std::vector<OwnedParameter>& parameters() const { return parameters_; }
  // The innermost module around (or at) all places of a parameter.
  [[nodiscard]] std::size_t around_all(const OwnedParameter& parameter) const;

 private:
  void find_modules(nn::Module& root);
  void find_parameters(nn::Module& root);
  [[nodiscard]] std::size_t innermost_around(std::size_t a, std::size_t b) const;
  [[nodiscard]] std::size_t index_of(const nn::Module* module) const;

  std::vector<Entry> entries_;
  std::vector<std::size_t> order_;
  std::vector<OwnedParameter> parameters_;
  std::unordered_map<const nn::Module*, std::size_t> index_;
};

}  // namespace tessera
