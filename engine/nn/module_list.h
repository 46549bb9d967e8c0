// A numbered list of modules of one class, registered as "0", "1", ...: the layers of a
// transformer.
#pragma once

#include <string>
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

}  // namespace tessera::nn
