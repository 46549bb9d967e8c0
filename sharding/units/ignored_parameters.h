// The parameters of ignored modules on one rank: whole, in their own dtype, on the rank's device.
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
  // Replaces parameters on another device or on `meta` by parameters on `device` in their modules;
  // others stay the same tensors.
  IgnoredParameters(const std::vector<OwnedParameter>& parameters, Device device);
  ~IgnoredParameters();
  IgnoredParameters(const IgnoredParameters&) = delete;
  IgnoredParameters& operator=(const IgnoredParameters&) = delete;

  [[nodiscard]] const std::vector<nn::NamedParameter>& list() const { return list_; }
  [[nodiscard]] std::size_t bytes() const;
  // Collective. Throws Error(configuration) that names a parameter which differs between two ranks.
  // Reads values again if they were written since the last time.
  void compare(comm::Communicator& world);

 private:
  void take_checksums();

  std::vector<nn::NamedParameter> list_;
  std::vector<std::uint64_t> checksums_;  // of each
  bool written_ = true;                   // since the checksums were computed
  bool has_pointers_ = false;             // which may write at any time
};

}  // namespace tessera
