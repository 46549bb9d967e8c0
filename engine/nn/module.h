// Modules: named parameters and children, as in libtorch.
//
//   struct BlockImpl : nn::Module { BlockImpl(...); Tensor forward(const Tensor& x); };
//   TESSERA_MODULE(Block);      // Block is a handle: Block(...) makes one, block(x) calls forward
//   with hooks
//
// A root module may also be an ordinary object (`struct Net : nn::Module`), called as
// net.forward(x).
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <unordered_set>
#include <utility>
#include <vector>

#include "engine/hook_list.h"
#include "engine/module_call.h"
#include "engine/recompute.h"
#include "engine/tensor.h"

namespace tessera::nn {

class Module;

// A parameter with its full name ("h.0.attn.c_attn.weight"). `shape` is the logical shape, even if
// `tensor` is one rank's shard.
struct NamedParameter {
  std::string name;
  Tensor tensor;
  Shape shape;
};

// A tensor of a module that is not trained (running statistics, masks, tables), with its full name.
struct NamedBuffer {
  std::string name;
  Tensor tensor;
  bool persistent = true;  // checkpoints contain it
};

namespace detail {

struct ForwardOfAnother {
  int forward;
};
template <class T>
struct WithForward : T, ForwardOfAnother {};
// True if T has a member `forward`, overloaded or not: the name is then ambiguous.
template <class T>
inline constexpr bool has_forward = !requires {
  &WithForward<T>::forward;
};
template <class T>
requires std::is_final_v<T>
inline constexpr bool has_forward<T> = true;

// The class name without namespaces and "Impl".
std::string class_name_of(const std::type_info& type);
[[noreturn]] void fail_empty_handle(const std::type_info& type, bool takes_nothing);

}  // namespace detail

// The dtype in which a module computes, and the dtype of its surroundings.
struct ModulePrecision {
  DType inside = DType::float32;
  DType outside = DType::float32;
};

// Hooks on a module's calls. They get the tensors among the arguments of its forward (alone, or in
// pairs, tuples and vectors), and those of its result. A forward hook may replace results by
// assignment.
using ForwardPreHook = std::function<void(Module&, std::span<const Tensor> inputs)>;
using ForwardHook =
    std::function<void(Module&, std::span<const Tensor> inputs, std::span<Tensor> outputs)>;

class Module {
 public:
  Module() = default;
  virtual ~Module() = default;
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  // Depth first in the order of registration. A parameter that is registered twice (tied) appears
  // once, under its first name.
  [[nodiscard]] std::vector<NamedParameter> named_parameters() const;
  [[nodiscard]] std::vector<NamedParameter> parameters() const { return named_parameters(); }
  // This module ("" first) and all modules below it, each once.
  [[nodiscard]] std::vector<std::pair<std::string, Module*>> named_modules();
  [[nodiscard]] const std::vector<std::pair<std::string, Tensor>>& own_parameters() const {
    return parameters_;
  }
  // In the same order, each tensor once.
  [[nodiscard]] std::vector<NamedBuffer> named_buffers() const;
  [[nodiscard]] const std::vector<NamedBuffer>& own_buffers() const { return buffers_; }
  [[nodiscard]] const std::vector<std::pair<std::string, std::shared_ptr<Module>>>& children()
      const {
    return children_;
  }

  // Sets training mode for this module and all below. Dropout is active only in training mode.
  void train(bool on = true);
  void eval() { train(false); }
  [[nodiscard]] bool is_training() const { return training_; }

  // The class name without namespaces and "Impl", as in TRANSFORMER_BASED_WRAP.
  [[nodiscard]] virtual std::string class_name() const;
  // True if the parameters of its children are used outside the children's own forward (fused ops):
  // wrap policies never split such a module.
  [[nodiscard]] virtual bool is_indivisible() const { return false; }
  // True if it was registered as a module with a forward, which its handle calls with hooks. A list
  // of modules has no forward, so its use cannot be observed.
  [[nodiscard]] bool has_forward() const { return has_forward_; }
  // The arguments of reads_parameter().
  [[nodiscard]] const std::vector<Tensor>& parameters_read() const { return read_; }

  // Called before and after each forward that the module's handle calls, in the order of
  // registration. A plain module->forward(x) does not call them. Sharding has gathered the module's
  // parameters then, so hooks can read them. If the module runs again in backward, hooks also run
  // again (autograd::in_backward() tells). The returned handle removes the hook.
  HookHandle register_forward_pre_hook(ForwardPreHook hook);
  HookHandle register_forward_hook(ForwardHook hook);
  [[nodiscard]] bool has_forward_hooks() const {
    return !pre_hooks_.empty() || !forward_hooks_.empty();
  }
  // The handle calls these.
  void run_pre_hooks(std::span<const Tensor> inputs);
  void run_forward_hooks(std::span<const Tensor> inputs, std::span<Tensor> outputs);
  // Called by handle.call() for a module with forward hooks.
  [[noreturn]] void refuse_forward_hooks() const;

  // Not for programs, which use register_forward_hook(). Sets the one set of hooks with which a
  // schedule (sharding) follows the module's calls. Throws a logic_error if there is one already;
  // null removes it.
  void set_hooks(std::shared_ptr<const ModuleHooks> hooks);
  [[nodiscard]] const std::shared_ptr<const ModuleHooks>& hooks() const { return hooks_; }
  // For messages. Used by the caller of the module.
  [[nodiscard]] std::shared_ptr<const ModulePosition> position();

  // Wraps each call through the module's handle in recompute(): it keeps only its arguments for
  // backward, and runs again there. The arguments are copied.
  void set_recompute(std::optional<RecomputeOptions> options) { recompute_ = std::move(options); }
  [[nodiscard]] const std::optional<RecomputeOptions>& recompute_options() const {
    return recompute_;
  }
  [[noreturn]] void refuse_recompute() const;  // an argument cannot be copied

  // Makes calls through the module's handle cast floating arguments to the module's dtype, and cast
  // results back. Its parameters must have that dtype.
  void set_precision(const std::optional<ModulePrecision>& precision) { precision_ = precision; }
  [[nodiscard]] const std::optional<ModulePrecision>& precision() const { return precision_; }
  [[noreturn]] void refuse_precision() const;  // an argument or a result cannot be cast

  // While `reason` is alive, registering a parameter or a module here throws a logic_error with
  // that text. Sharding sets it, because it has decided the layout of all parameters.
  void forbid_registration(std::weak_ptr<const std::string> reason) {
    registration_forbidden_ = std::move(reason);
  }
  // Expires with the module, for observers that do not own it.
  [[nodiscard]] std::weak_ptr<const void> life() const { return life_; }

  // Replaces this module's own registrations of `old` by `tensor` (sharding swaps parameters for
  // views). Modules below keep theirs.
  void replace_own_parameter(const Tensor& old, const Tensor& tensor);
  // The same for a buffer (sharding moves buffers to the rank's device).
  void replace_own_buffer(const Tensor& old, const Tensor& tensor);

 protected:
  // The name must be new in this module and have no dot. The tensor is a leaf; one of a floating
  // dtype that make_parameter() has not made requires a gradient afterwards. Returns it.
  Tensor register_parameter(const std::string& name, Tensor parameter);
  template <class Handle>
  Handle register_module(const std::string& name, Handle handle) {
    using Implementation = std::remove_cvref_t<decltype(*handle)>;
    add_child(name, handle.pointer(), detail::has_forward<Implementation>);
    return handle;
  }
  // Registers the children of `module` here, under their names: this module takes its place in the
  // tree, and calls its forward.
  void register_children_of(const Module& module) {
    for (const auto& [name, child] : module.children_) {
      child->position_->parent.reset();
      add_child(name, child, child->has_forward_);
    }
  }
  // Declares that this module's forward reads a parameter that another module registers, outside
  // that module's forward (a head that multiplies by the token table). The parameter then belongs
  // to a unit around both.
  void reads_parameter(const Tensor& parameter) { read_.push_back(parameter); }
  // Looks up the parameter itself; a member variable would keep a tensor that sharding has
  // replaced.
  [[nodiscard]] const Tensor& parameter(std::string_view name) const;

  // A tensor that belongs to the module and is not trained. Sharding keeps it whole on every rank,
  // on the rank's device and in its own dtype, and checkpoints contain it if it is persistent. Make
  // it with make_buffer() if the module may be made on `meta`. The name must be new in this module,
  // also among its parameters. Returns the registered tensor.
  Tensor register_buffer(const std::string& name, Tensor buffer, bool persistent = true);
  // Looks up the buffer itself, as parameter() does.
  [[nodiscard]] const Tensor& buffer(std::string_view name) const;
  // Writes new values, of the same shape, into the buffer, outside the graph; converts the dtype.
  // Has no effect when a recomputed forward runs again in backward, so that an update counts once.
  // A value that a backward still needs must not be written: read the buffer through clone() in a
  // forward that also writes it.
  void set_buffer(std::string_view name, const Tensor& value);

 private:
  void add_child(const std::string& name, std::shared_ptr<Module> child, bool has_forward);
  void add_tensor_name(const std::string& name, const Tensor& tensor, std::string_view kind);
  void require_registration_allowed(const std::string& what) const;

  std::vector<std::pair<std::string, Tensor>> parameters_;
  std::vector<NamedBuffer> buffers_;
  std::vector<std::pair<std::string, std::shared_ptr<Module>>> children_;
  // The names in these, so that a long list registers each of its modules in constant time.
  // Parameters and buffers share one set.
  std::unordered_set<std::string> tensor_names_, child_names_;
  std::vector<Tensor> read_;
  std::shared_ptr<const ModuleHooks> hooks_;
  HookList<ForwardPreHook> pre_hooks_;
  HookList<ForwardHook> forward_hooks_;
  // The place of its first registration.
  std::shared_ptr<ModulePosition> position_ = std::make_shared<ModulePosition>();
  bool has_forward_ = false;
  std::optional<RecomputeOptions> recompute_;
  std::optional<ModulePrecision> precision_;
  bool training_ = true;
  std::weak_ptr<const std::string> registration_forbidden_;
  std::shared_ptr<const void> life_ = std::make_shared<char>();
};

namespace detail {

// Casts a floating dtype other than `dtype` and fp64. Anything else, also an undefined tensor, is
// returned unchanged.
Tensor in_precision(const Tensor& tensor, DType dtype);

template <class T>
decltype(auto) into_module(T&& argument, DType dtype) {
  if constexpr (std::is_same_v<std::decay_t<T>, Tensor>) {
    return in_precision(argument, dtype);
  } else {
    return std::forward<T>(argument);
  }
}

inline Tensor out_of_module(const Tensor& result, DType dtype) {
  return in_precision(result, dtype);
}
inline std::pair<Tensor, Tensor> out_of_module(const std::pair<Tensor, Tensor>& result,
                                               DType dtype) {
  return {in_precision(result.first, dtype), in_precision(result.second, dtype)};
}

template <class T>
inline constexpr bool is_vector = false;
template <class T>
inline constexpr bool is_vector<std::vector<T>> = true;

// Calls visit(tensor) for each tensor that the value contains.
template <class T, class Visit>
void for_tensors(T& value, Visit&& visit) {
  using Plain = std::remove_cv_t<T>;
  if constexpr (std::is_same_v<Plain, Tensor>) {
    visit(value);
  } else if constexpr (is_vector<Plain> && !std::is_same_v<Plain, std::vector<bool>>) {
    for (auto& element : value) for_tensors(element, visit);
  } else if constexpr (requires { std::tuple_size<Plain>::value; }) {
    std::apply([&](auto&... elements) { (for_tensors(elements, visit), ...); }, value);
  }
}

}  // namespace detail

// A shared handle to a module. Default-constructed handles are empty.
template <class Impl>
class ModuleHandle {
 public:
  ModuleHandle() = default;
  explicit ModuleHandle(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
  template <class... Args, class = std::enable_if_t<(sizeof...(Args) > 0)>,
            class = std::enable_if_t<std::is_constructible_v<Impl, Args...>>>
  explicit ModuleHandle(Args&&... args)
      : impl_(std::make_shared<Impl>(std::forward<Args>(args)...)) {}

  Impl* operator->() const { return &implementation(); }
  Impl& operator*() const { return implementation(); }
  explicit operator bool() const { return impl_ != nullptr; }
  [[nodiscard]] std::shared_ptr<Module> pointer() const { return impl_; }

  // Calls forward with the module's hooks around it.
  template <class... Args>
  auto operator()(Args&&... args) const {
    Impl& module = implementation();
    if (module.recompute_options() && tessera::detail::recompute_applies()) [[unlikely]] {
      if constexpr ((std::is_constructible_v<std::decay_t<Args>, Args&> && ...)) {
        const auto forward = [impl = impl_](auto&&... inputs) {
          return run(*impl, std::forward<decltype(inputs)>(inputs)...);
        };
        return recompute(*module.recompute_options(), forward, std::forward<Args>(args)...);
      } else {
        module.refuse_recompute();
      }
    }
    return run(module, std::forward<Args>(args)...);
  }
  // Runs the same hooks around code that computes with the module's parameters: body(module). It is
  // never recomputed, and forward hooks are refused.
  template <class Body>
  auto call(Body&& body) const {
    Impl& module = implementation();
    if (module.has_forward_hooks()) [[unlikely]]
      module.refuse_forward_hooks();
    const ModulePlace place(static_cast<Module&>(module).position());
    ModuleCallScope scope(module.hooks());
    auto result = body(module);
    scope.finish();
    return result;
  }

 private:
  Impl& implementation() const {
    if (impl_ == nullptr) [[unlikely]]
      detail::fail_empty_handle(typeid(Impl), std::is_default_constructible_v<Impl>);
    return *impl_;
  }

  template <class... Args>
  static auto run(Impl& impl, Args&&... args) {
    const ModulePlace place(static_cast<Module&>(impl).position());
    ModuleCallScope scope(impl.hooks());
    auto result = run_with_hooks(impl, std::forward<Args>(args)...);
    scope.finish();
    return result;
  }
  template <class... Args>
  static auto run_with_hooks(Impl& impl, Args&&... args) {
    if (!impl.has_forward_hooks()) [[likely]]
      return compute(impl, std::forward<Args>(args)...);
    std::vector<Tensor> inputs;
    const auto note_input = [&](const Tensor& tensor) { inputs.push_back(tensor); };
    (detail::for_tensors(args, note_input), ...);
    impl.run_pre_hooks(inputs);
    auto result = compute(impl, std::forward<Args>(args)...);
    std::vector<Tensor> outputs;
    detail::for_tensors(result, [&](const Tensor& tensor) { outputs.push_back(tensor); });
    impl.run_forward_hooks(inputs, outputs);
    std::size_t next = 0;
    detail::for_tensors(result, [&](Tensor& tensor) { tensor = outputs[next++]; });
    return result;
  }
  template <class... Args>
  static auto compute(Impl& impl, Args&&... args) {
    if (impl.precision()) [[unlikely]]
      return run_in_precision(impl, std::forward<Args>(args)...);
    return std::decay_t<decltype(impl.forward(std::forward<Args>(args)...))>(
        impl.forward(std::forward<Args>(args)...));
  }
  template <class... Args>
  static auto run_in_precision(Impl& impl, Args&&... args) {
    using Result = decltype(impl.forward(std::forward<Args>(args)...));
    constexpr bool casts = requires(std::decay_t<Result> result) {
      detail::out_of_module(result, float32);
      impl.forward(detail::into_module(std::forward<Args>(args), float32)...);
    };
    if constexpr (casts) {
      const ModulePrecision precision = *impl.precision();
      return std::decay_t<Result>(detail::out_of_module(
          impl.forward(detail::into_module(std::forward<Args>(args), precision.inside)...),
          precision.outside));
    } else {
      impl.refuse_precision();
      return std::decay_t<Result>(impl.forward(std::forward<Args>(args)...));
    }
  }

  std::shared_ptr<Impl> impl_;
};

#define TESSERA_MODULE(Name)                                     \
  class Name : public ::tessera::nn::ModuleHandle<Name##Impl> {  \
   public:                                                       \
    using ::tessera::nn::ModuleHandle<Name##Impl>::ModuleHandle; \
  }

// The dtype of parameters that the calling thread makes: float32, or as set by a guard.
DType default_parameter_dtype();

class ParameterDTypeGuard {
 public:
  explicit ParameterDTypeGuard(DType dtype);
  ~ParameterDTypeGuard();
  ParameterDTypeGuard(const ParameterDTypeGuard&) = delete;
  ParameterDTypeGuard& operator=(const ParameterDTypeGuard&) = delete;

 private:
  DType previous_;
};

// Makes a parameter on the thread's default device. On `meta` it gets its values when it is
// materialised.
Tensor make_parameter(const Shape& shape, Initializer initializer,
                      DType dtype = default_parameter_dtype());
// Makes a buffer in the same way. It is not trained.
Tensor make_buffer(const Shape& shape, Initializer initializer, DType dtype = DType::float32);
inline Initializer constant(double value) {
  return {Initializer::Kind::constant, value, 0};
}
inline Initializer uniform(double low, double high) {
  return {Initializer::Kind::uniform, low, high};
}
inline Initializer normal(double mean, double deviation) {
  return {Initializer::Kind::normal, mean, deviation};
}

}  // namespace tessera::nn
