// Changes of requires_grad after a module was sharded.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "engine/tensor.h"
#include "sharding/units/unit.h"

namespace tessera {

class RequiresGradChanges {
 public:
  // Both must outlive this object.
  RequiresGradChanges(const std::vector<std::unique_ptr<Unit>>& units, comm::Communicator& world)
      : units_(units), world_(world) {}

  // Called before requires_grad of a parameter of the unit changes: its view and its local tensor
  // change together, and its gradient is dropped. `busy`: a forward or a backward is under way,
  // which is refused.
  void toggle(Unit& unit, const detail::TensorData& tensor, bool busy);
  // Collective when this rank has changed one since the last call: ranks that train different
  // parameters are named. `pass` tells apart calls of different passes.
  void compare(std::uint64_t pass);

 private:
  [[nodiscard]] std::vector<std::string> exchange(const std::string& mine, std::uint64_t pass);

  const std::vector<std::unique_ptr<Unit>>& units_;
  comm::Communicator& world_;
  // The first parameter that has changed since the ranks last compared theirs.
  std::optional<std::string> toggled_;
};

}  // namespace tessera
