// Selects the modules that are trained whole beside adapters.
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "base/error.h"
#include "engine/nn/lora.h"

namespace tessera {
namespace {

using NamedModules = std::vector<std::pair<std::string, nn::Module*>>;

bool ends_with_one(std::string_view name, const std::vector<std::string>& ends) {
  return std::any_of(ends.begin(), ends.end(),
                     [&](const std::string& end) { return name.ends_with(end); });
}

bool is_inside(std::string_view name, std::string_view outer) {
  return name.size() > outer.size() && name.starts_with(outer) && name[outer.size()] == '.';
}

bool is_list(const nn::Module& module) {
  return module.class_name() == "ModuleList";
}

std::string last_part(const std::string& name) {
  return name.substr(name.rfind('.') + 1);
}

// The last parts of the names of modules that can be trained whole.
std::string modules_to_choose_from(const NamedModules& modules) {
  std::set<std::string> names;
  for (const auto& [name, part] : modules) {
    const std::string last = last_part(name);
    const bool of_list = last.find_first_not_of("0123456789") == std::string::npos;
    if (of_list || is_list(*part) || part->named_parameters().empty()) continue;
    names.insert(last);
  }
  return fmt::format("there are {}", fmt::join(names, ", "));
}

// The modules whose names end with `end`; Error if none of them can be trained whole.
std::vector<std::string> modules_of(const NamedModules& modules, const std::string& end) {
  std::vector<std::string> found;
  const nn::Module* empty = nullptr;
  std::string name_of_empty;
  TESSERA_CHECK(!end.empty(), ErrorCode::configuration,
                "LoRA: modules_to_save has an empty name; {}", modules_to_choose_from(modules));
  for (const auto& [name, part] : modules) {
    if (name.empty() || !name.ends_with(end)) continue;
    TESSERA_CHECK(!is_list(*part), ErrorCode::configuration,
                  "LoRA: modules_to_save: {} is a list of modules; name the modules in it; {}",
                  name, modules_to_choose_from(modules));
    if (part->named_parameters().empty()) {
      empty = part;
      name_of_empty = name;
      continue;
    }
    found.push_back(name);
  }
  TESSERA_CHECK(!found.empty() || empty == nullptr, ErrorCode::configuration,
                "LoRA: modules_to_save: {} of class {} has no parameters; {}", name_of_empty,
                empty->class_name(), modules_to_choose_from(modules));
  TESSERA_CHECK(!found.empty(), ErrorCode::configuration,
                "LoRA: modules_to_save: no module's name ends with \"{}\"; {}", end,
                modules_to_choose_from(modules));
  return found;
}

// A tied head reads the token table. With a copy of the table, the head would have its own.
void refuse_shared(const NamedModules& modules, const std::vector<std::string>& saved) {
  const auto is_saved = [&](const std::string& name) {
    return std::any_of(saved.begin(), saved.end(), [&](const std::string& outer) {
      return name == outer || is_inside(name, outer);
    });
  };
  std::vector<std::pair<const void*, std::string>> own;
  for (const auto& [name, part] : modules) {
    if (!is_saved(name)) continue;
    for (const auto& [parameter, tensor] : part->own_parameters())
      own.emplace_back(tensor.impl().get(), name + "." + parameter);
  }
  for (const auto& [name, part] : modules) {
    if (is_saved(name)) continue;
    std::vector<Tensor> read = part->parameters_read();
    for (const auto& [parameter, tensor] : part->own_parameters()) read.push_back(tensor);
    for (const Tensor& tensor : read) {
      const auto found = std::find_if(own.begin(), own.end(), [&](const auto& one) {
        return one.first == tensor.impl().get();
      });
      if (found == own.end()) continue;
      fail(ErrorCode::configuration,
           "LoRA: modules_to_save: {} is also read by {}, as by a head that is tied to the token "
           "table, and PEFT would train a copy of it that is not tied; use a base whose "
           "config.json has tie_word_embeddings = false",
           found->second, name.empty() ? part->class_name() : name);
    }
  }
}

}  // namespace

std::vector<std::string> modules_to_save(nn::Module& module, const LoraOptions& options) {
  std::vector<std::string> saved;
  if (options.modules_to_save.empty()) return saved;
  const NamedModules modules = module.named_modules();
  for (const auto& [name, part] : modules) {
    if (name.empty() || !ends_with_one(name, options.modules_to_save)) continue;
    if (part->named_parameters().empty()) continue;
    const bool inside = std::any_of(saved.begin(), saved.end(), [&, &inner = name](const auto& o) {
      return is_inside(inner, o);
    });
    if (!inside) saved.push_back(name);
  }
  refuse_shared(modules, saved);
  return saved;
}

std::vector<std::string> check_modules_to_save(nn::Module& module, const LoraOptions& options) {
  const NamedModules modules = module.named_modules();
  std::set<std::string> selected;
  for (const std::string& end : options.modules_to_save) {
    for (std::string& name : modules_of(modules, end)) selected.insert(std::move(name));
  }
  for (const std::string& inner : selected) {
    for (const std::string& outer : selected) {
      TESSERA_CHECK(!is_inside(inner, outer), ErrorCode::configuration,
                    "LoRA: modules_to_save: {} is a part of {}, which is trained whole; leave one "
                    "of them out",
                    inner, outer);
    }
  }
  std::vector<std::string> layers;
  for (const auto& [name, part] : modules) {
    if (dynamic_cast<const nn::LinearImpl*>(part) != nullptr) layers.push_back(name);
  }
  for (const std::string& layer : lora_targets(layers, options)) {
    for (const std::string& outer : selected) {
      TESSERA_CHECK(layer != outer && !is_inside(layer, outer), ErrorCode::configuration,
                    "LoRA: modules_to_save: {} is trained whole, and target_modules gives {} an "
                    "adapter; leave one of them out (modules to save are: {})",
                    outer, layer, fmt::join(selected, ", "));
    }
  }
  return modules_to_save(module, options);
}

bool is_in_module_to_save(std::string_view name, const std::vector<std::string>& modules) {
  if (modules.empty()) return false;
  for (std::size_t dot = name.rfind('.'); dot != std::string_view::npos && dot > 0;
       dot = name.rfind('.', dot - 1)) {
    if (ends_with_one(name.substr(0, dot), modules)) return true;
  }
  return false;
}

}  // namespace tessera
