// Finds the modules by name.
#include "sharding/policy/ignored_modules.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>

#include "base/error.h"
#include "engine/nn/name_pattern.h"

namespace tessera {
namespace {

using NamedModules = std::vector<std::pair<std::string, nn::Module*>>;

// Lists the modules at the point where the name leaves the tree.
[[noreturn]] void refuse_module_name(const NamedModules& modules, const std::string& wanted) {
  std::string_view at = "the model";
  const nn::Module* parent = modules.front().second;
  for (const auto& [name, module] : modules) {
    if (name.empty() || !wanted.starts_with(name + ".")) continue;
    at = name;
    parent = module;
  }
  std::vector<std::string> children;
  for (const auto& child : parent->children()) children.push_back(child.first);
  fail(ErrorCode::configuration, "ignored_modules: no module is called \"{}\"; {} has {}", wanted,
       at, children.empty() ? "no modules" : fmt::format("{}", fmt::join(children, ", ")));
}

std::set<std::string> matching_names(const NamedModules& modules, const std::string& pattern) {
  std::set<std::string> matched;
  const NamePattern expression(pattern, "ignored_modules:");
  for (const auto& [name, module] : modules) {
    if (!name.empty() && expression.matches(name)) matched.insert(name);
  }
  TESSERA_CHECK(!matched.empty(), ErrorCode::configuration,
                "ignored_modules: no module's whole name matches \"{}\"; a name is as {}", pattern,
                modules.size() > 1 ? modules.back().first : "none");
  return matched;
}

}  // namespace

IgnoredModules::IgnoredModules(nn::Module& root, const std::vector<std::string>& names,
                               const std::string& pattern) {
  if (names.empty() && pattern.empty()) return;
  choose(root, names, pattern);
  const ModuleTree tree(root);
  for (const OwnedParameter& parameter : tree.parameters()) {
    const auto ignored = std::count_if(parameter.places.begin(), parameter.places.end(),
                                       [this](const nn::Module* place) { return contain(place); });
    TESSERA_CHECK(ignored == 0 || ignored == static_cast<std::ptrdiff_t>(parameter.places.size()),
                  ErrorCode::configuration,
                  "ignored_modules: parameter {} is used outside of the ignored modules as well "
                  "(tied), and is sharded there; ignore all modules that use it, or none",
                  parameter.name);
    if (ignored > 0) parameters_.push_back(parameter);
  }
  TESSERA_CHECK(parameters_.size() < tree.parameters().size(), ErrorCode::configuration,
                "ignored_modules: every parameter of the model is ignored, and nothing is left to "
                "shard");
}

void IgnoredModules::choose(nn::Module& root, const std::vector<std::string>& names,
                            const std::string& pattern) {
  const NamedModules modules = root.named_modules();
  std::set<std::string> wanted;
  if (!pattern.empty()) wanted = matching_names(modules, pattern);
  for (const std::string& name : names) {
    const bool found =
        !name.empty() && std::any_of(modules.begin(), modules.end(),
                                     [&](const auto& module) { return module.first == name; });
    if (!found) refuse_module_name(modules, name);
    wanted.insert(name);
  }
  for (const auto& [name, module] : modules) {
    if (!wanted.contains(name) || contain(module)) continue;  // modules around others come first
    outermost_.emplace_back(name, module);
    for (const auto& [below, inner] : module->named_modules()) all_.insert(inner);
  }
}

}  // namespace tessera
