// Which of the nested dicts of a program's state are the model and the optimizer.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/formats/torch/state_names.h"

namespace tessera::checkpoint::formats {

struct SortedState {
  std::vector<StateTensor*> model;      // names are the last keys of their paths
  std::vector<StateTensor*> optimizer;  // [..., "state", parameter, key]
  std::string optimizer_dict;           // its keys, joined by dots; empty: the outermost dict
  std::vector<std::string> notes;       // of tensors that were left out
};

// Finds the model's dict (by its name, or the only one there is) and the optimizer's. Keys of a
// dict inside the model's become part of the tensors' names. Error(checkpoint) for several models
// or optimizers, with their names. An optimizer's flat dict ("state.a.weight.exp_avg",
// "param_groups.a.weight.lr") becomes a nested one, whose groups are the parameters with the same
// hyperparameters. `items` must outlive the result.
SortedState sort_state(StateItems& items, const std::string& source);

// True for plain values that name_state needs: steps and hyperparameters, also under the keys of
// StateDictOptions(flatten_optimizer_state_dict=True), such as "param_groups.a.weight.lr".
bool is_optimizer_value(const StatePath& path);

// Keys from the outermost dict inwards, joined by dots.
std::string joined_keys(const StatePath& path, std::size_t count);

}  // namespace tessera::checkpoint::formats
