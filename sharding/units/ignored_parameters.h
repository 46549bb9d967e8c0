// The parameters of ignored modules on one rank: whole, in the dtype they were made in, on the
// rank's device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "comm/communicator.h"
#include "engine/nn/module.h"
#include "sharding/policy/module_tree.h"

namespace tessera {

class IgnoredParameters {
 public:
  // Parameters elsewhere, or on `meta`, are replaced in their modules by such on `device`; others
  // stay the tensors that they are.
  IgnoredParameters(const std::vector<OwnedParameter>& parameters, Device device);
  ~IgnoredParameters();
  IgnoredParameters(const IgnoredParameters&) = delete;
  IgnoredParameters& operator=(const IgnoredParameters&) = delete;

  [[nodiscard]] const std::vector<nn::NamedParameter>& list() const { return list_; }
  [[nodiscard]] std::size_t bytes() const;
  // Collective. Error(configuration) that names a parameter which is not the same on two ranks.
  // Values are read again where they were written since the last time.
  void compare(comm::Communicator& world);

 private:
  void take_checksums();

  std::vector<nn::NamedParameter> list_;
  std::vector<std::uint64_t> checksums_;  // of each
  bool written_ = true;                   // since these were taken
  bool has_pointers_ = false;             // somebody may write at any time
};

}  // namespace tessera
