// Modules of one class: a numbered list, registered as "0", "1", ... (the layers of a transformer),
// and a dictionary, registered under its keys.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "engine/nn/module.h"

namespace tessera::nn {

template <class Handle>
class ModuleListImpl : public Module {
 public:
  explicit ModuleListImpl(std::vector<Handle> modules) : modules_(std::move(modules)) {
    for (std::size_t i = 0; i < modules_.size(); ++i)
      register_module(std::to_string(i), modules_[i]);
  }
  [[nodiscard]] std::string class_name() const override { return "ModuleList"; }

  [[nodiscard]] std::size_t size() const { return modules_.size(); }
  const Handle& operator[](std::size_t index) const {
    TESSERA_REQUIRE(index < modules_.size(), "module {} of a list of {}", index, modules_.size());
    return modules_[index];
  }
  [[nodiscard]] auto begin() const { return modules_.begin(); }
  [[nodiscard]] auto end() const { return modules_.end(); }

 private:
  std::vector<Handle> modules_;
};

template <class Handle>
using ModuleList = ModuleHandle<ModuleListImpl<Handle>>;

template <class Handle>
class ModuleDictImpl : public Module {
 public:
  // In the order of registration. A key is a name without a dot.
  explicit ModuleDictImpl(std::vector<std::pair<std::string, Handle>> modules)
      : modules_(std::move(modules)) {
    for (const auto& [key, module] : modules_) register_module(key, module);
  }
  [[nodiscard]] std::string class_name() const override { return "ModuleDict"; }

  [[nodiscard]] std::size_t size() const { return modules_.size(); }
  const Handle& operator[](std::string_view key) const {
    for (const auto& [name, module] : modules_) {
      if (name == key) return module;
    }
    misuse("a dictionary of {} modules has none with the key \"{}\"", modules_.size(), key);
  }
  [[nodiscard]] auto begin() const { return modules_.begin(); }
  [[nodiscard]] auto end() const { return modules_.end(); }

 private:
  std::vector<std::pair<std::string, Handle>> modules_;
};

template <class Handle>
using ModuleDict = ModuleHandle<ModuleDictImpl<Handle>>;

}  // namespace tessera::nn
