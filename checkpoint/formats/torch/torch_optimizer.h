// The optimizer of a checkpoint in the form of PyTorch's get_optimizer_state_dict: state by the
// parameter's name, and parameter groups.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "checkpoint/formats/format.h"
#include "checkpoint/formats/pickle/pickle.h"

namespace tessera::checkpoint::formats {

class OptimizerLayout {
 public:
  struct Parameter {
    std::string name;
    std::map<std::string, std::size_t> tensors;  // PyTorch's key to the tensor in the contents
    bool has_step = false;
    float step = 0;
  };

  OptimizerLayout() = default;
  explicit OptimizerLayout(const Contents& contents);
  // The parameters with state, in the model's order.
  [[nodiscard]] const std::vector<Parameter>& parameters() const { return parameters_; }
  // The groups of the checkpoint with the names of their parameters, or one group with PyTorch's
  // defaults and all parameters (two where some are Muon's): a list of dicts, to be written by
  // write_json.
  [[nodiscard]] const nlohmann::json& groups() const { return groups_; }

 private:
  void set_steps(const Contents& contents);
  void set_groups(const Contents& contents);
  void set_default_groups();
  void set_schedule_free_groups(const nlohmann::json& scalars);
  std::vector<Parameter> parameters_;
  nlohmann::json groups_;
};

// A plain value; lists that torch keeps as tuples, such as "betas", become tuples.
void write_json(PickleWriter& pickle, const nlohmann::json& value, bool as_tuple = false);
// The value of a key of a parameter group.
void write_json_value(PickleWriter& pickle, const std::string& key, const nlohmann::json& value);

}  // namespace tessera::checkpoint::formats
