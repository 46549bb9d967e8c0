// Modules whose names have dots: the tree of a model of transformers has levels that only provide
// names.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "engine/nn/module.h"

namespace tessera::models {

// An empty module that only provides names.
class NamesImpl : public nn::Module {
 public:
  template <class Handle>
  Handle add(const std::string& name, const Handle& handle) {
    return register_module(name, handle);
  }
};
TESSERA_MODULE(Names);

// Registers modules under dotted paths, with an empty module for each name on the path.
class ModulePlaces {
 public:
  // add_to_root(name, handle) registers a module in the one that owns the paths.
  template <class Handle, class Register>
  Handle add(const std::string& path, const Handle& handle, const Register& add_to_root) {
    const auto dot = path.rfind('.');
    if (dot == std::string::npos) return add_to_root(path, handle);
    return at(path.substr(0, dot), add_to_root)->add(path.substr(dot + 1), handle);
  }

 private:
  template <class Register>
  Names at(const std::string& path, const Register& add_to_root) {
    if (const auto it = places_.find(path); it != places_.end()) return it->second;
    Names place = add(path, Names(std::make_shared<NamesImpl>()), add_to_root);
    places_.emplace(path, place);
    return place;
  }

  std::map<std::string, Names> places_;
};

// The modules of a transformer's layer by their path below it.
struct EncoderLayerNames {
  std::string query, key, value, attention_output, attention_norm, intermediate, output,
      output_norm;
};

}  // namespace tessera::models
