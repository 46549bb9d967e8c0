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
// module of one of `wide_classes` (ShardingOptions::keep_fp32) keep their dtype.
void freeze(nn::Module& module, std::optional<DType> storage = {},
            const std::vector<std::string>& wide_classes = {});

// The names of the linear layers that the options select, in the module's order, matched as PEFT
// does. A name or a pattern that selects none is an Error(configuration) that lists the layers'
// names.
std::vector<std::string> lora_targets(nn::Module& module, const LoraOptions& options);

// The same for a list of layer names; empty if the options select none.
std::vector<std::string> lora_targets(const std::vector<std::string>& layers,
                                      const LoraOptions& options);

// Gives each selected layer an adapter (nn::LinearImpl::add_lora) and returns their names. Does not
// change which other parameters are trained.
std::vector<std::string> add_lora(nn::Module& module, const LoraOptions& options);

// True if the name is that of an adapter's parameter.
bool is_lora_parameter(std::string_view name);

// While it lives, layers on this thread compute without their adapters: as the frozen module alone.
// For a forward without a graph, because a backward that computes again would not see the guard.
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
