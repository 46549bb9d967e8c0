// LoRA: the module's own parameters are frozen, and adapters on some of its linear layers are
// trained instead. Call these before the module is sharded:
//
//   ts::freeze(net, ts::bfloat16);
//   ts::add_lora(net, {.rank = 8, .alpha = 16, .target_modules = {"q_proj", "v_proj"}});
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/nn/layers.h"

namespace tessera {

using nn::LoraOptions;

// Freezes all parameters of the module. With `storage`, floating parameters are stored in that
// dtype from now on if it is smaller: frozen parameters need no fp32 masters. Parameters below a
// module of one of `wide_classes` (ShardingOptions::keep_fp32) keep their dtype. The modules with
// the full names `trained` (the result of modules_to_save()) stay as they are.
void freeze(nn::Module& module, std::optional<DType> storage = {},
            const std::vector<std::string>& wide_classes = {},
            const std::vector<std::string>& trained = {});

// QLoRA: the frozen weights of linear layers become codes (engine/ops/products/quantized.h), a
// quarter of bfloat16's bytes as nf4. Left as they are: output heads, layers that are trained, and
// weights that do not consist of whole blocks. Returns the names of the layers that are quantised;
// Error(configuration) if there are none. Codes have no dtype to compute in: such a layer computes
// in that of its bias, or of its input if it has none, which is wider than the weight was if the
// input comes from a module of ShardingOptions::keep_fp32. Magnitudes of DoRA do not change.
std::vector<std::string> quantize_frozen(nn::Module& module, QuantizedFormat format);

// The names of the linear layers that the options select, in the module's order, matched as PEFT
// does. A name or a pattern that selects none is an Error(configuration) that lists the layers'
// names.
std::vector<std::string> lora_targets(nn::Module& module, const LoraOptions& options);

// The same for a list of layer names; empty if the options select none.
std::vector<std::string> lora_targets(const std::vector<std::string>& layers,
                                      const LoraOptions& options);

// The full names of the modules that options.modules_to_save selects, in the module's order,
// without those inside another one. Names that select none are passed over. Error(configuration) if
// a module outside reads one of their parameters, as a tied head does: PEFT trains a copy, which
// unties them.
std::vector<std::string> modules_to_save(nn::Module& module, const LoraOptions& options);

// The same, for which every name must select some: Error(configuration) for a name that selects no
// module, a list of modules, modules without parameters, one inside another, or one that has layers
// with adapters in it. The message lists the names.
std::vector<std::string> check_modules_to_save(nn::Module& module, const LoraOptions& options);

// True if `name` is that of a parameter in a module whose name ends with one of `modules`.
bool is_in_module_to_save(std::string_view name, const std::vector<std::string>& modules);

// Gives each selected layer an adapter (nn::LinearImpl::add_lora) and returns their names. The
// parameters of options.modules_to_save are trained, in the dtype that they have; which others are
// trained does not change.
std::vector<std::string> add_lora(nn::Module& module, const LoraOptions& options);

// True if the name is that of an adapter's parameter: of a factor, or of DoRA's magnitude.
bool is_lora_parameter(std::string_view name);
bool is_lora_magnitude(std::string_view name);

// While it lives, layers on this thread compute without their adapters: as the frozen module alone,
// if no module is trained whole beside them (LoraOptions::modules_to_save). For a forward without a
// graph, because a backward that computes again would not see the guard.
class WithoutLora {
 public:
  WithoutLora();
  ~WithoutLora();
  WithoutLora(const WithoutLora&) = delete;
  WithoutLora& operator=(const WithoutLora&) = delete;

  [[nodiscard]] static bool is_on();

 private:
  bool previous_;
};

}  // namespace tessera
