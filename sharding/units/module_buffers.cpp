// Moves a module's buffers to the rank's device, and makes them equal on all ranks.
#include "sharding/units/module_buffers.h"

#include <fmt/format.h>

#include <cstdint>
#include <optional>
#include <utility>

#include "base/error.h"
#include "sharding/units/equal_values.h"
#include "sharding/units/whole_tensor.h"

namespace tessera {
namespace {

constexpr comm::Tag buffers_tag{0, 0, comm::Phase::setup};

void take_from_first_rank(comm::Communicator& world, const std::vector<nn::NamedBuffer>& buffers) {
  for (const nn::NamedBuffer& buffer : buffers) {
    const Tensor& tensor = buffer.tensor;
    if (tensor.bytes() == 0) continue;
    world.broadcast(tensor.raw_data(), tensor.bytes(), 0, buffers_tag);
    tensor.count_write();
  }
}

void require_equal(comm::Communicator& world, const std::vector<nn::NamedBuffer>& buffers) {
  std::vector<std::uint64_t> checksums;
  for (const nn::NamedBuffer& buffer : buffers) checksums.push_back(checksum_of(buffer.tensor));
  const std::optional<ValueDifference> difference = find_difference(world, checksums);
  if (!difference) return;
  fail(ErrorCode::configuration,
       "ranks 0 and {} begin with different values of the buffer {}: make the module in the same "
       "way on every rank, or take rank 0's values with ShardingOptions::sync_module_states",
       difference->rank, buffers.at(difference->index).name);
}

}  // namespace

ModuleBuffers::ModuleBuffers(nn::Module& root, comm::Communicator& world, bool sync)
    : list_(root.named_buffers()) {
  const auto modules = root.named_modules();
  for (nn::NamedBuffer& buffer : list_) {
    const Tensor tensor =
        whole_on(world.device(), buffer.tensor, "buffer " + buffer.name, "nn::make_buffer");
    for (const auto& [name, module] : modules) module->replace_own_buffer(buffer.tensor, tensor);
    buffer.tensor = tensor;
  }
  if (list_.empty() || world.size() == 1 || world.device().is_planned()) return;
  sync ? take_from_first_rank(world, list_) : require_equal(world, list_);
}

std::size_t ModuleBuffers::bytes() const {
  std::size_t bytes = 0;
  for (const nn::NamedBuffer& buffer : list_) bytes += buffer.tensor.bytes();
  return bytes;
}

std::string describe_buffers(const nn::Module& root) {
  std::string text;
  for (const nn::NamedBuffer& buffer : root.named_buffers()) {
    text +=
        fmt::format("buffer {} {} {}{}\n", buffer.name, buffer.tensor.shape().to_string(),
                    name_of(buffer.tensor.dtype()), buffer.persistent ? "" : ", not persistent");
  }
  return text;
}

}  // namespace tessera
