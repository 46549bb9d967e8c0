// Finds the modules around each module in one walk.
#include "sharding/policy/module_tree.h"

#include <algorithm>

#include "base/error.h"

namespace tessera {

ModuleTree::ModuleTree(nn::Module& root) {
  find_modules(root);
  find_parameters(root);
}

void ModuleTree::find_modules(nn::Module& root) {
  for (auto& [name, module] : root.named_modules()) {
    index_.emplace(module, entries_.size());
    entries_.push_back({std::move(name), module});
  }
  // The reverse of the order in which a depth-first walk leaves the modules: each module comes
  // after all modules that contain it.
  std::vector<std::vector<std::size_t>> above(entries_.size());
  std::vector<bool> entered(entries_.size(), false);
  struct Visit {
    std::size_t module;
    std::size_t next_child;
  };
  std::vector<Visit> path{{0, 0}};
  entered[0] = true;
  while (!path.empty()) {
    Visit& visit = path.back();
    const auto& children = entries_[visit.module].module->children();
    if (visit.next_child == children.size()) {
      order_.push_back(visit.module);
      path.pop_back();
      continue;
    }
    const std::size_t child = index_of(children[visit.next_child++].second.get());
    above[child].push_back(visit.module);
    if (entered[child]) continue;
    entered[child] = true;
    path.push_back({child, 0});
  }
  std::reverse(order_.begin(), order_.end());
  for (const std::size_t module : order_) {
    if (module == 0) continue;
    Entry& entry = entries_[module];
    entry.around = above[module].front();
    for (const std::size_t one : above[module]) {
      entry.around = innermost_around(entry.around, one);
      const Entry& parent = entries_[one];
      entry.inside_fused =
          entry.inside_fused || parent.inside_fused || parent.module->is_indivisible();
    }
    entry.depth = entries_[entry.around].depth + 1;
  }
}

void ModuleTree::find_parameters(nn::Module& root) {
  std::unordered_map<const void*, std::size_t> found;
  for (auto& parameter : root.named_parameters()) {
    found.emplace(parameter.tensor.impl().get(), parameters_.size());
    parameters_.push_back({std::move(parameter.name), std::move(parameter.tensor), {}});
  }
  const auto add_place = [&](const Tensor& tensor, nn::Module* module) {
    const auto at = found.find(tensor.impl().get());
    if (at == found.end()) return;  // a parameter that is read but outside of this tree
    auto& places = parameters_[at->second].places;
    if (places.empty() || places.back() != module) places.push_back(module);
  };
  for (const Entry& entry : entries_) {
    for (const auto& [name, tensor] : entry.module->own_parameters())
      add_place(tensor, entry.module);
    for (const Tensor& tensor : entry.module->parameters_read()) add_place(tensor, entry.module);
  }
}

std::size_t ModuleTree::around_all(const OwnedParameter& parameter) const {
  std::size_t around = index_of(parameter.places.front());
  for (const nn::Module* place : parameter.places) {
    around = innermost_around(around, index_of(place));
  }
  return around;
}

std::size_t ModuleTree::innermost_around(std::size_t a, std::size_t b) const {
  while (a != b) {
    std::size_t& deeper = entries_[a].depth >= entries_[b].depth ? a : b;
    deeper = entries_[deeper].around;
  }
  return a;
}

std::size_t ModuleTree::index_of(const nn::Module* module) const {
  const auto found = index_.find(module);
  TESSERA_REQUIRE(found != index_.end(), "a module that is not in the tree");
  return found->second;
}

}  // namespace tessera
