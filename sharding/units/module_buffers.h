// The buffers of a module tree on one rank: whole, in their own dtype, on the rank's device.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "engine/nn/module.h"

namespace tessera {

class ModuleBuffers {
 public:
  // Collective. Replaces buffers on another device or on `meta` by buffers on the world's device in
  // their modules; others stay the same tensors. With `sync` they get rank 0's values; without it,
  // values that differ between two ranks are an Error(configuration) that names the buffer.
  ModuleBuffers(nn::Module& root, comm::Communicator& world, bool sync);

  [[nodiscard]] const std::vector<nn::NamedBuffer>& list() const { return list_; }
  [[nodiscard]] std::size_t bytes() const;

 private:
  std::vector<nn::NamedBuffer> list_;
};

// One line for each buffer, in which ranks must agree.
std::string describe_buffers(const nn::Module& root);

}  // namespace tessera
