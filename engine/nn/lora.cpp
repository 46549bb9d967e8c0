// Freezes modules, and selects the layers that get an adapter.
#include "engine/nn/lora.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <map>
#include <set>
#include <utility>

#include "base/error.h"
#include "engine/autograd.h"
#include "engine/device/memory_kind.h"
#include "engine/nn/name_pattern.h"
#include "engine/nn/output_head.h"

namespace tessera {
namespace {

constexpr std::string_view all_linear = "all-linear";

struct NamedLinear {
  std::string name;
  nn::LinearImpl* layer;
};

std::vector<NamedLinear> linear_layers(nn::Module& module) {
  std::vector<NamedLinear> layers;
  for (const auto& [name, part] : module.named_modules()) {
    if (auto* layer = dynamic_cast<nn::LinearImpl*>(part)) layers.push_back({name, layer});
  }
  return layers;
}

bool is_name_or_its_end(std::string_view name, std::string_view wanted) {
  if (!name.ends_with(wanted)) return false;
  const std::string_view before = name.substr(0, name.size() - wanted.size());
  return before.empty() || before.ends_with('.');
}

// The last parts of the layers' names, which lists of names usually contain.
std::string names_to_choose_from(const std::vector<NamedLinear>& layers) {
  std::set<std::string> names;
  for (const NamedLinear& layer : layers) {
    names.insert(layer.name.substr(layer.name.rfind('.') + 1));
  }
  if (names.empty()) return "the model has no linear layers";
  return fmt::format("there are {}", fmt::join(names, ", "));
}

std::function<bool(const std::string&)> meant_by_pattern(const std::string& pattern) {
  if (pattern == all_linear) {
    return [](const std::string& layer) { return !nn::is_output_head(layer); };
  }
  return [expression = NamePattern(pattern, "LoRA:")](const std::string& layer) {
    return expression.matches(layer);
  };
}

std::vector<std::string> match_pattern(const std::vector<NamedLinear>& layers,
                                       const std::string& pattern) {
  std::vector<std::string> matched;
  const auto is_meant = meant_by_pattern(pattern);
  for (const NamedLinear& layer : layers) {
    if (is_meant(layer.name)) matched.push_back(layer.name);
  }
  TESSERA_CHECK(!matched.empty(), ErrorCode::configuration,
                "LoRA: no linear layer's whole name matches \"{}\"; a name is as {}, and the last "
                "parts of names are: {}",
                pattern, layers.empty() ? "none" : layers.front().name,
                names_to_choose_from(layers));
  return matched;
}

// Reports why a name of the list selects no linear layer.
[[noreturn]] void refuse_name(nn::Module& module, const std::vector<NamedLinear>& layers,
                              const std::string& wanted) {
  for (const auto& [name, part] : module.named_modules()) {
    if (name.empty() || !is_name_or_its_end(name, wanted)) continue;
    fail(ErrorCode::configuration,
         "LoRA: {} is of class {}, and adapters are for linear layers; {}", name,
         part->class_name(), names_to_choose_from(layers));
  }
  fail(ErrorCode::configuration, "LoRA: no linear layer is called \"{}\"; {}", wanted,
       names_to_choose_from(layers));
}

std::vector<std::string> match_names(nn::Module& module, const std::vector<NamedLinear>& layers,
                                     const std::vector<std::string>& wanted) {
  std::set<std::string> used;
  std::vector<std::string> matched;
  for (const NamedLinear& layer : layers) {
    bool any = false;
    for (const std::string& name : wanted) {
      if (!is_name_or_its_end(layer.name, name)) continue;
      used.insert(name);
      any = true;
    }
    if (any) matched.push_back(layer.name);
  }
  for (const std::string& name : wanted) {
    if (!used.contains(name)) refuse_name(module, layers, name);
  }
  return matched;
}

Tensor in_dtype(const Tensor& parameter, DType dtype) {
  Tensor made;
  if (parameter.is_meta()) {
    made = Tensor::empty(parameter.shape(), dtype, parameter.device());
    made.impl()->initializer = parameter.impl()->initializer;
  } else {
    const MemoryScope kind(MemoryKind::parameters);
    made = cast(parameter.detach(), dtype);
  }
  made.set_requires_grad(false);
  return made;
}

// A pattern that matches no adapter is a mistake.
template <class T>
void require_used(const std::vector<std::pair<std::string, T>>& patterns,
                  const std::vector<std::string>& adapted, const char* what) {
  for (const auto& [pattern, value] : patterns) {
    nn::LoraOptions one;
    one.rank_pattern = {{pattern, nn::max_lora_rank}};
    const bool used = std::any_of(adapted.begin(), adapted.end(), [&](const std::string& layer) {
      return one.of_layer(layer).rank == nn::max_lora_rank;
    });
    TESSERA_CHECK(used, ErrorCode::configuration,
                  "LoRA: the pattern of {} \"{}\" matches no layer with an adapter, as {}", what,
                  pattern, adapted.front());
  }
}

std::set<const void*> parameters_below(nn::Module& module,
                                       const std::vector<std::string>& classes) {
  std::set<const void*> parameters;
  if (classes.empty()) return parameters;
  for (const auto& [name, part] : module.named_modules()) {
    if (std::find(classes.begin(), classes.end(), part->class_name()) == classes.end()) continue;
    for (const nn::NamedParameter& parameter : part->named_parameters())
      parameters.insert(parameter.tensor.impl().get());
  }
  return parameters;
}

std::set<const void*> parameters_of(nn::Module& module, const std::vector<std::string>& names) {
  std::set<const void*> parameters;
  if (names.empty()) return parameters;
  for (const auto& [name, part] : module.named_modules()) {
    if (std::find(names.begin(), names.end(), name) == names.end()) continue;
    for (const nn::NamedParameter& parameter : part->named_parameters())
      parameters.insert(parameter.tensor.impl().get());
  }
  return parameters;
}

}  // namespace

void freeze(nn::Module& module, std::optional<DType> storage,
            const std::vector<std::string>& wide_classes, const std::vector<std::string>& trained) {
  const std::set<const void*> wide = parameters_below(module, wide_classes);
  const std::set<const void*> kept = parameters_of(module, trained);
  std::map<const void*, std::pair<Tensor, Tensor>> changed;  // a tied parameter is one
  for (const nn::NamedParameter& parameter : module.named_parameters()) {
    Tensor tensor = parameter.tensor;
    if (kept.contains(tensor.impl().get())) continue;
    tensor.set_requires_grad(false);
    if (!storage || !is_floating(tensor.dtype()) || size_of(*storage) >= size_of(tensor.dtype()) ||
        wide.contains(tensor.impl().get())) {
      continue;
    }
    changed.emplace(tensor.impl().get(), std::pair(tensor, in_dtype(tensor, *storage)));
  }
  if (changed.empty()) return;
  for (const auto& [name, part] : module.named_modules()) {
    std::vector<Tensor> had = part->parameters_read();
    for (const auto& own : part->own_parameters()) had.push_back(own.second);
    for (const Tensor& tensor : had) {
      const auto found = changed.find(tensor.impl().get());
      if (found != changed.end()) {
        part->replace_own_parameter(found->second.first, found->second.second);
      }
    }
  }
}

std::vector<std::string> quantize_frozen(nn::Module& module, QuantizedFormat format) {
  std::vector<std::string> names;
  for (const NamedLinear& linear : linear_layers(module)) {
    if (nn::is_output_head(linear.name) || linear.layer->stored_weight().requires_grad()) continue;
    if (linear.layer->quantize_weight(format)) names.push_back(linear.name);
  }
  TESSERA_CHECK(!names.empty(), ErrorCode::configuration,
                "no linear layer is frozen and has a weight of a multiple of {} elements",
                nf4_block);
  return names;
}

std::vector<std::string> lora_targets(nn::Module& module, const LoraOptions& options) {
  TESSERA_REQUIRE(options.target_modules.empty() != options.target_pattern.empty(),
                  "LoRA: set either target_modules or target_pattern to choose the layers");
  const std::vector<NamedLinear> layers = linear_layers(module);
  return options.target_pattern.empty() ? match_names(module, layers, options.target_modules)
                                        : match_pattern(layers, options.target_pattern);
}

std::vector<std::string> lora_targets(const std::vector<std::string>& layers,
                                      const LoraOptions& options) {
  const auto& list = options.target_modules;
  std::function<bool(const std::string&)> means = [&](const std::string& layer) {
    return std::any_of(list.begin(), list.end(),
                       [&](const std::string& name) { return is_name_or_its_end(layer, name); });
  };
  std::vector<std::string> meant;
  try {
    if (!options.target_pattern.empty()) means = meant_by_pattern(options.target_pattern);
    std::copy_if(layers.begin(), layers.end(), std::back_inserter(meant), means);
  } catch (const Error& error) {  // syntax that only Python has
    if (error.code() != ErrorCode::configuration) throw;
    meant.clear();
  }
  return meant;
}

std::vector<std::string> add_lora(nn::Module& module, const LoraOptions& options) {
  std::vector<std::string> names = lora_targets(module, options);
  const std::set<std::string> wanted(names.begin(), names.end());
  require_used(options.rank_pattern, names, "ranks");
  require_used(options.alpha_pattern, names, "alphas");
  if (!options.modules_to_save.empty()) {
    const std::vector<std::string> saved = check_modules_to_save(module, options);
    for (const auto& [name, part] : module.named_modules()) {
      if (std::find(saved.begin(), saved.end(), name) == saved.end()) continue;
      for (nn::NamedParameter& parameter : part->named_parameters())
        parameter.tensor.set_requires_grad(is_floating(parameter.tensor.dtype()));
    }
  }
  for (const NamedLinear& layer : linear_layers(module)) {
    if (wanted.contains(layer.name)) layer.layer->add_lora(options.of_layer(layer.name));
  }
  return names;
}

namespace {

thread_local bool adapters_are_off = false;

}  // namespace

WithoutLora::WithoutLora() : previous_(std::exchange(adapters_are_off, true)) {
  TESSERA_REQUIRE(!grad_enabled(),
                  "WithoutLora needs a NoGradGuard: a backward computes with the adapters");
}
WithoutLora::~WithoutLora() {
  adapters_are_off = previous_;
}
bool WithoutLora::is_on() {
  return adapters_are_off;
}

bool is_lora_parameter(std::string_view name) {
  return is_name_or_its_end(name, "lora_A.weight") || is_name_or_its_end(name, "lora_B.weight") ||
         is_lora_magnitude(name);
}

bool is_lora_magnitude(std::string_view name) {
  return is_name_or_its_end(name, "lora_magnitude_vector");
}

}  // namespace tessera
