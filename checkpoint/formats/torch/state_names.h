// Turns the nested state dicts that PyTorch programs save into a checkpoint's model tensors,
// optimizer state and scalars.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "checkpoint/formats/format.h"

namespace tessera::checkpoint::formats {

// Keys from the outermost dict inwards; numbers in digits.
using StatePath = std::vector<std::string>;

struct StateTensor {
  StatePath path;
  const StoredDType* stored = nullptr;
  std::vector<std::int64_t> shape;
  std::size_t handle = 0;  // the caller's
  std::string memory;      // the same for two tensors that are the same memory; empty: unknown
};

struct StateValue {
  StatePath path;
  nlohmann::json value;
};

struct StateItems {
  std::vector<StateTensor> tensors;
  std::vector<StateValue> values;
};

struct NamedState {
  Contents contents;
  std::vector<std::size_t> handles;  // of contents.tensors
};

// Finds the model's tensors (at the top, or in dicts called model, module, state_dict ...) and the
// optimizer's (in a dict with `state` and `param_groups`), removes the prefixes of wrappers from
// their names, replaces numbers of parameters by names (in the state and in the groups), and turns
// steps and hyperparameters into scalars. State of a parameter that the model does not have is not
// read. Other values are left out with a note. `number` reads a tensor of one element.
NamedState name_state(StateItems items, const std::function<double(std::size_t handle)>& number,
                      const std::string& source);

// The scalar that keeps the hyperparameters of the optimizer's parameter groups, a list of {"lr":
// ..., "params": [names]}.
inline constexpr const char* param_groups_key = "param_groups";
// In a parameter group of StateItems: names like PyTorch's param_names that a reader took from the
// order of the model's tensors, so that they are assumed.
inline constexpr const char* assumed_names_key = "assumed_param_names";
// The steps that an optimizer has done, by parameter. Error(checkpoint) that begins with `source`
// for a value that is not a whole number.
using StepCounts = std::map<std::string, std::int64_t>;
void add_step_count(StepCounts& steps, const std::string& parameter, double value,
                    const std::string& source);
// Keeps them: the largest as the scalar "step", and all under step_counts_key, with 0 for
// parameters without state. Notes it if they differ. No steps: nothing is kept.
void keep_step_counts(const StepCounts& steps, Contents& contents);
// The same for groups of schedule-free AdamW, which count steps, with the numbers beside them. The
// groups have the names of their parameters.
void keep_counts_of_groups(const nlohmann::json& groups, Contents& contents);
// The name without the wrappers around its module.
std::string unwrapped_name(const std::string& name);

}  // namespace tessera::checkpoint::formats
