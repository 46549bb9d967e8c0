// The module tree.
#include "engine/nn/module.h"

#include <cxxabi.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <typeinfo>
#include <unordered_set>
#include <utility>

#include "base/error.h"
#include "engine/autograd.h"
#include "engine/device/memory_kind.h"
#include "engine/ops.h"
#include "engine/random.h"

namespace tessera::nn {
namespace {

thread_local DType parameter_dtype = float32;

std::string join(const std::string& prefix, const std::string& name) {
  return prefix.empty() ? name : prefix + "." + name;
}

// `seen` contains modules and parameters.
void collect_parameters(const Module& module, const std::string& prefix,
                        std::unordered_set<const void*>& seen, std::vector<NamedParameter>& out) {
  if (!seen.insert(&module).second) return;
  for (const auto& [name, tensor] : module.own_parameters()) {
    if (seen.insert(tensor.impl().get()).second) {
      out.push_back({join(prefix, name), tensor, tensor.shape()});
    }
  }
  for (const auto& [name, child] : module.children()) {
    collect_parameters(*child, join(prefix, name), seen, out);
  }
}

void collect_buffers(const Module& module, const std::string& prefix,
                     std::unordered_set<const void*>& seen, std::vector<NamedBuffer>& out) {
  if (!seen.insert(&module).second) return;
  for (const NamedBuffer& buffer : module.own_buffers()) {
    if (seen.insert(buffer.tensor.impl().get()).second) {
      out.push_back({join(prefix, buffer.name), buffer.tensor, buffer.persistent});
    }
  }
  for (const auto& [name, child] : module.children()) {
    collect_buffers(*child, join(prefix, name), seen, out);
  }
}

void collect_modules(Module& module, const std::string& prefix,
                     std::unordered_set<const Module*>& seen,
                     std::vector<std::pair<std::string, Module*>>& out) {
  if (!seen.insert(&module).second) return;
  out.emplace_back(prefix, &module);
  for (const auto& [name, child] : module.children()) {
    collect_modules(*child, join(prefix, name), seen, out);
  }
}

}  // namespace

std::vector<NamedParameter> Module::named_parameters() const {
  std::vector<NamedParameter> out;
  std::unordered_set<const void*> seen;
  collect_parameters(*this, "", seen, out);
  return out;
}

std::vector<NamedBuffer> Module::named_buffers() const {
  std::vector<NamedBuffer> out;
  std::unordered_set<const void*> seen;
  collect_buffers(*this, "", seen, out);
  return out;
}

std::vector<std::pair<std::string, Module*>> Module::named_modules() {
  std::vector<std::pair<std::string, Module*>> out;
  std::unordered_set<const Module*> seen;
  collect_modules(*this, "", seen, out);
  return out;
}

void Module::train(bool on) {
  for (const auto& [name, module] : named_modules()) module->training_ = on;
}

std::string Module::class_name() const {
  return detail::class_name_of(typeid(*this));
}

std::string detail::class_name_of(const std::type_info& type) {
  const std::unique_ptr<char, decltype(&std::free)> demangled(
      abi::__cxa_demangle(type.name(), nullptr, nullptr, nullptr), &std::free);
  std::string name = demangled ? demangled.get() : type.name();
  if (const auto colon = name.rfind("::"); colon != std::string::npos) name.erase(0, colon + 2);
  if (name.ends_with("Impl")) name.resize(name.size() - 4);
  return name;
}

void detail::fail_empty_handle(const std::type_info& type, bool takes_nothing) {
  const std::string name = class_name_of(type);
  const std::string way = takes_nothing
                              ? fmt::format("{}(std::make_shared<{}Impl>())", name, name)
                              : fmt::format("{}(...) with the arguments of its constructor", name);
  misuse(
      "an empty handle of {} is used: a default-constructed handle has no module; make one by {}",
      name, way);
}

HookHandle Module::register_forward_pre_hook(ForwardPreHook hook) {
  TESSERA_REQUIRE(hook, "an empty function as a forward pre-hook of {}", class_name());
  return pre_hooks_.add(std::move(hook));
}

HookHandle Module::register_forward_hook(ForwardHook hook) {
  TESSERA_REQUIRE(hook, "an empty function as a forward hook of {}", class_name());
  return forward_hooks_.add(std::move(hook));
}

void Module::run_pre_hooks(std::span<const Tensor> inputs) {
  pre_hooks_.run(*this, inputs);
}

void Module::run_forward_hooks(std::span<const Tensor> inputs, std::span<Tensor> outputs) {
  forward_hooks_.run(*this, inputs, outputs);
}

void Module::refuse_forward_hooks() const {
  misuse(
      "{} has forward hooks, and a module around it computes with its parameters instead of "
      "calling "
      "its forward: register the hooks on the module around it",
      position_->class_name.empty() ? class_name() : position_->describe());
}

void Module::set_hooks(std::shared_ptr<const ModuleHooks> hooks) {
  TESSERA_REQUIRE(!hooks || !hooks_,
                  "{} already has the hooks of {}, which follow its calls; use "
                  "register_forward_hook() and register_forward_pre_hook() instead",
                  class_name(), hooks_->owner);
  hooks_ = std::move(hooks);
}

std::shared_ptr<const ModulePosition> Module::position() {
  if (position_->class_name.empty()) [[unlikely]]
    position_->class_name = class_name();
  return position_;
}

void Module::refuse_recompute() const {
  misuse("{} cannot be recomputed: an argument of its forward cannot be copied", class_name());
}

void Module::refuse_precision() const {
  misuse(
      "{} cannot compute in another dtype than its surroundings: its forward must return one or "
      "two tensors, and must not change an argument",
      class_name());
}

namespace detail {

Tensor in_precision(const Tensor& tensor, DType dtype) {
  const bool casts = tensor.defined() && is_floating(tensor.dtype()) && tensor.dtype() != float64 &&
                     tensor.dtype() != dtype;
  return casts ? cast(tensor, dtype) : tensor;
}

}  // namespace detail

void Module::replace_own_parameter(const Tensor& old, const Tensor& tensor) {
  const Tensor kept(old.impl());  // `old` may be the tensor that is replaced
  for (auto& [name, parameter] : parameters_) {
    if (parameter.impl() == kept.impl()) parameter = tensor;
  }
  for (Tensor& parameter : read_) {
    if (parameter.impl() == kept.impl()) parameter = tensor;
  }
}

void Module::replace_own_buffer(const Tensor& old, const Tensor& tensor) {
  const Tensor kept(old.impl());
  for (NamedBuffer& buffer : buffers_) {
    if (buffer.tensor.impl() == kept.impl()) buffer.tensor = tensor;
  }
}

void Module::add_tensor_name(const std::string& name, const Tensor& tensor, std::string_view kind) {
  TESSERA_REQUIRE(!name.empty() && name.find('.') == std::string::npos,
                  "{} name \"{}\" of {} is empty or has a dot", kind, name, class_name());
  TESSERA_REQUIRE(!tensor_names_.contains(name), "{} has a parameter or a buffer {} already",
                  class_name(), name);
  require_registration_allowed(fmt::format("{} {}", kind, name));
  TESSERA_REQUIRE(tensor.defined(), "{} {} of {} is undefined", kind, name, class_name());
  tensor_names_.insert(name);
}

Tensor Module::register_parameter(const std::string& name, Tensor parameter) {
  TESSERA_REQUIRE(
      !parameter.defined() || !parameter.storage()->is_foreign(),
      "parameter {} {} of {} lies in memory of another owner, by from_blob() or DLPack; a "
      "parameter owns its memory: register clone() of it",
      name, parameter.shape().to_string(), class_name());
  add_tensor_name(name, parameter, "parameter");
  TESSERA_REQUIRE(!parameter.impl()->grad_node,
                  "parameter {} {} of {} is the result of an op, through which a gradient passes: "
                  "register a leaf, as nn::make_parameter() and detach() give it",
                  name, parameter.shape().to_string(), class_name());
  // A tensor without an initializer was not made as a parameter: it becomes one here.
  if (!parameter.impl()->initializer && is_floating(parameter.dtype())) {
    parameter.set_requires_grad(true);
  }
  parameters_.emplace_back(name, parameter);
  return parameter;
}

Tensor Module::register_buffer(const std::string& name, Tensor buffer, bool persistent) {
  TESSERA_REQUIRE(!buffer.defined() || !buffer.requires_grad(),
                  "buffer {} of {} requires a gradient: register it as a parameter, or give "
                  "detach() of it",
                  name, class_name());
  add_tensor_name(name, buffer, "buffer");
  buffers_.push_back({name, buffer, persistent});
  return buffer;
}

const Tensor& Module::buffer(std::string_view name) const {
  const auto found = std::find_if(buffers_.begin(), buffers_.end(),
                                  [&](const NamedBuffer& own) { return own.name == name; });
  TESSERA_REQUIRE(found != buffers_.end(), "{} has no buffer {}", class_name(), name);
  return found->tensor;
}

void Module::set_buffer(std::string_view name, const Tensor& value) {
  Tensor own = buffer(name);
  TESSERA_REQUIRE(value.defined() && value.shape() == own.shape(),
                  "buffer {} of {} has the shape {}, and the new value {}", name, class_name(),
                  own.shape().to_string(),
                  value.defined() ? value.shape().to_string() : "is undefined");
  if (autograd::in_backward()) return;
  const NoGradGuard no_grad;
  own.copy_from(value);
}

const Tensor& Module::parameter(std::string_view name) const {
  const auto found = std::find_if(parameters_.begin(), parameters_.end(),
                                  [&](const auto& entry) { return entry.first == name; });
  TESSERA_REQUIRE(found != parameters_.end(), "{} has no parameter {}", class_name(), name);
  return found->second;
}

void Module::add_child(const std::string& name, std::shared_ptr<Module> child, bool has_forward) {
  TESSERA_REQUIRE(!name.empty() && name.find('.') == std::string::npos,
                  "module name \"{}\" in {} is empty or has a dot", name, class_name());
  TESSERA_REQUIRE(child != nullptr, "module {} in {} is an empty handle", name, class_name());
  TESSERA_REQUIRE(!child_names_.contains(name), "{} has a module {} already", class_name(), name);
  require_registration_allowed("module " + name);
  child->has_forward_ = child->has_forward_ || has_forward;
  if (child->position_->parent.expired()) {
    child->position_->name = name;
    child->position_->parent = position_;
  }
  child_names_.insert(name);
  children_.emplace_back(name, std::move(child));
}

void Module::require_registration_allowed(const std::string& what) const {
  if (const auto reason = registration_forbidden_.lock())
    misuse("{} cannot be registered in {}: {}", what, class_name(), *reason);
}

DType default_parameter_dtype() {
  return parameter_dtype;
}

ParameterDTypeGuard::ParameterDTypeGuard(DType dtype) : previous_(parameter_dtype) {
  TESSERA_REQUIRE(is_floating(dtype), "parameters cannot be {}", name_of(dtype));
  parameter_dtype = dtype;
}
ParameterDTypeGuard::~ParameterDTypeGuard() {
  parameter_dtype = previous_;
}

Tensor make_buffer(const Shape& shape, Initializer initializer, DType dtype) {
  initializer.seed = current_seed();
  initializer.stream = next_parameter_stream();
  const MemoryScope kind(MemoryKind::parameters);
  Tensor tensor = Tensor::empty(shape, dtype);
  if (!tensor.is_meta()) {
    initializer.fill(tensor.data(), dtype, 0, tensor.elements(), tensor.device());
  }
  tensor.impl()->initializer = std::make_shared<Initializer>(initializer);
  return tensor;
}

Tensor make_parameter(const Shape& shape, Initializer initializer, DType dtype) {
  return make_buffer(shape, initializer, dtype).set_requires_grad(true);
}

}  // namespace tessera::nn
