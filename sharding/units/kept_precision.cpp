// Finds the modules and sets their precision.
#include "sharding/units/kept_precision.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <string>
#include <string_view>

#include "base/error.h"

namespace tessera {
namespace {

// Maps each module inside an indivisible one to the class of that one.
std::map<const nn::Module*, std::string> modules_inside_fused(nn::Module& root) {
  std::map<const nn::Module*, std::string> inside_fused;
  for (const auto& [path, module] : root.named_modules()) {
    if (!module->is_indivisible()) continue;
    for (const auto& [below, inner] : module->named_modules()) {
      if (inner != module) inside_fused.emplace(inner, module->class_name());
    }
  }
  return inside_fused;
}

[[noreturn]] void refuse_class(nn::Module& root, const std::string& name) {
  std::set<std::string> present;
  for (const auto& [path, module] : root.named_modules()) present.insert(module->class_name());
  fail(ErrorCode::configuration, "keep_fp32: no module of the model is a {}; there are {}", name,
       fmt::join(present, ", "));
}

}  // namespace

KeptModules::KeptModules(nn::Module& root, const ShardingOptions& options,
                         const IgnoredModules& ignored) {
  const std::vector<std::string>& classes = options.keep_fp32;
  if (classes.empty()) return;
  TESSERA_CHECK(options.param_dtype == bfloat16 || options.param_dtype == float16,
                ErrorCode::configuration, "keep_fp32 requires param_dtype bfloat16 or float16");
  std::set<std::string> found;
  const auto inside_fused = modules_inside_fused(root);
  for (const auto& [path, module] : root.named_modules()) {
    const std::string name = module->class_name();
    if (std::find(classes.begin(), classes.end(), name) == classes.end()) continue;
    if (ignored.contain(module)) {
      found.insert(name);
      continue;
    }
    TESSERA_CHECK(module->has_forward(), ErrorCode::configuration,
                  "keep_fp32: calls of {} cannot be seen (it is the root, or a list of "
                  "modules), so nothing can be cast around it; name the classes below it",
                  name);
    const auto fused = inside_fused.find(module);
    TESSERA_CHECK(fused == inside_fused.end(), ErrorCode::configuration,
                  "keep_fp32: {} reads the parameters of its {} itself, in one operation with "
                  "others; name {} instead",
                  fused->second, name, fused->second);
    found.insert(name);
    if (all_.contains(module)) continue;  // parents come first
    outermost_.push_back(module);
    for (const auto& [below, inner] : module->named_modules()) all_.insert(inner);
  }
  for (const std::string& name : classes) {
    if (!found.contains(name)) refuse_class(root, name);
  }
}

bool KeptModules::contain(const OwnedParameter& parameter) const {
  const auto kept = std::count_if(parameter.places.begin(), parameter.places.end(),
                                  [this](const nn::Module* place) { return all_.contains(place); });
  TESSERA_CHECK(kept == 0 || kept == static_cast<std::ptrdiff_t>(parameter.places.size()),
                ErrorCode::configuration,
                "keep_fp32: parameter {} is used inside and outside of the modules that are kept, "
                "and has one dtype; leave their class out, or name the other's as well",
                parameter.name);
  return kept > 0;
}

KeptPrecision::KeptPrecision(nn::Module& root, const ShardingOptions& options,
                             const IgnoredModules& ignored, bool called) {
  const KeptModules kept(root, options, ignored);
  if (options.output_dtype) choose_root(root, options, called);
  if (!options.param_dtype) {
    for (const auto& [module, precision] : modules_) module->set_precision(precision);
    return;
  }
  for (nn::Module* module : kept.outermost()) {
    modules_.emplace_back(module, nn::ModulePrecision{float32, *options.param_dtype});
  }
  const auto inside_fused = modules_inside_fused(root);
  for (const auto& [name, module] : ignored.outermost()) {
    choose_ignored(name, *module, kept.contain(module) ? float32 : *options.param_dtype,
                   inside_fused);
  }
  for (const auto& [module, precision] : modules_) module->set_precision(precision);
}

KeptPrecision::~KeptPrecision() {
  for (const auto& [module, precision] : modules_) module->set_precision(std::nullopt);
}

void KeptPrecision::choose_root(nn::Module& root, const ShardingOptions& options, bool called) {
  TESSERA_CHECK(is_floating(*options.output_dtype), ErrorCode::configuration,
                "output_dtype: results cannot be {}", name_of(*options.output_dtype));
  TESSERA_CHECK(called, ErrorCode::configuration,
                "output_dtype: {} is not a handle, and calls of net.forward(x) cannot be "
                "seen; make its class a handle by TESSERA_MODULE and give fully_shard that, or "
                "cast the result by ts::cast",
                root.class_name());
  modules_.emplace_back(
      &root, nn::ModulePrecision{options.param_dtype.value_or(float32), *options.output_dtype});
}

// An ignored module whose dtype differs from its surroundings computes in its own dtype.
void KeptPrecision::choose_ignored(const std::string& name, nn::Module& module, DType outside,
                                   const std::map<const nn::Module*, std::string>& inside_fused) {
  std::set<DType> own;
  for (const auto& parameter : module.named_parameters()) {
    if (is_floating(parameter.tensor.dtype())) own.insert(parameter.tensor.dtype());
  }
  if (own.empty() || (own.size() == 1 && own.contains(outside))) return;
  if (!module.has_forward() && module.own_parameters().empty()) {  // a list of modules
    for (const auto& [child, inner] : module.children()) {
      choose_ignored(name + "." + child, *inner, outside, inside_fused);
    }
    return;
  }
  std::string_view why;
  if (own.size() > 1) why = "has parameters of several dtypes";
  if (inside_fused.contains(&module)) {
    why = "is used by the module around it in one operation with others";
  }
  if (!module.has_forward()) why = "its calls cannot be seen";
  TESSERA_CHECK(why.empty(), ErrorCode::configuration,
                "ignored_modules: {} keeps its own dtype beside param_dtype {}, and {}, so that "
                "nothing can be cast around it; ignore what is around it instead, or make its "
                "parameters {}",
                name, name_of(outside), why, name_of(outside));
  modules_.emplace_back(&module, nn::ModulePrecision{*own.begin(), outside});
}

}  // namespace tessera
