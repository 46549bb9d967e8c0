// LoRA: a module whose own parameters are frozen, and adapters on some of its linear layers that
// are trained instead. Before the module is sharded:
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

// No parameter of the module will be trained. With `storage`, floating ones are kept in that dtype
// from now on, where that is smaller: what is not trained needs no fp32 masters. Those below a
// module of one of these classes (ShardingOptions::keep_fp32) stay what they are.
void freeze(nn::Module& module, std::optional<DType> storage = {},
            const std::vector<std::string>& wide_classes = {});

// The names of the linear layers that the options mean, in the module's order, matched as PEFT
// does. A name that means none, and a pattern that means none, is an Error(configuration) that
// lists the names that layers have.
std::vector<std::string> lora_targets(nn::Module& module, const LoraOptions& options);

// The same of layers by their names: none where the options mean none of them.
std::vector<std::string> lora_targets(const std::vector<std::string>& layers,
                                      const LoraOptions& options);

// Gives each of them an adapter (nn::LinearImpl::add_lora) and returns their names. What else is
// trained is not changed.
std::vector<std::string> add_lora(nn::Module& module, const LoraOptions& options);

// Whether a parameter of this name is an adapter's.
bool is_lora_parameter(std::string_view name);

}  // namespace tessera
