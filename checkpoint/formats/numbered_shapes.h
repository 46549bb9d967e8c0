// Parameters that an optimizer knows by number, found among a model's by their order and shapes.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tessera::checkpoint::formats {

struct NumberedParameter {
  std::size_t number = 0;
  std::optional<std::vector<std::int64_t>> shape;  // none: it has no state, and fits every shape
};

struct ModelParameter {
  std::string name;
  std::vector<std::int64_t> shape;
};

// The parameters of the model that an optimizer with fewer parameters has: frozen ones and buffers
// have no number. They keep the model's order and have the shapes of the states.
struct ChosenParameters {
  std::map<std::size_t, std::string> names;  // by number
  std::string note;                          // which were left out
  std::string problem;  // why the choice is not certain; then there are no names
};
ChosenParameters choose_parameters(const std::vector<NumberedParameter>& numbered,
                                   const std::vector<ModelParameter>& model);

// Two of the model's parameters with one shape, of which one at least has a number: their order is
// not proven. None: shapes prove the order.
std::optional<std::pair<std::string, std::string>> alike_parameters(
    const std::map<std::size_t, std::string>& names, const std::vector<ModelParameter>& model);

}  // namespace tessera::checkpoint::formats
