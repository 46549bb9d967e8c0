// Making them, and telling whether the ranks have the same.
#include "sharding/ignored_parameters.h"

#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>

#include "engine/memory_kind.h"
#include "engine/queue.h"
#include "kernels/base/error.h"

namespace tessera {
namespace {

constexpr std::size_t checked_piece = std::size_t{4} << 20;  // of a GPU's memory, to look at

// The same values on `device`; the tensor itself where it is there.
Tensor whole_on(Device device, const OwnedParameter& parameter) {
  const Tensor& source = parameter.tensor;
  const MemoryScope kind(MemoryKind::parameters);
  Tensor tensor;
  if (source.is_meta()) {
    const std::shared_ptr<Initializer>& initializer = source.impl()->initializer;
    TESSERA_REQUIRE(
        initializer != nullptr,
        "parameter {} is on `meta` and has no initializer; make it with nn::make_parameter",
        parameter.name);
    tensor = Tensor::empty(source.shape(), source.dtype(), device);
    initializer->fill(tensor.data(), tensor.dtype(), 0, tensor.elements(), device);
    tensor.impl()->initializer = initializer;
  } else {
    tensor = source.to(device);
  }
  if (tensor.impl() != source.impl()) tensor.set_requires_grad(source.requires_grad());
  return tensor;
}

std::uint64_t checksum_of(const Tensor& tensor) {
  if (tensor.device().type == DeviceType::cpu) return XXH3_64bits(tensor.data(), tensor.bytes());
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state(XXH3_createState(),
                                                                       &XXH3_freeState);
  XXH3_64bits_reset(state.get());
  std::vector<std::byte> piece(std::min(checked_piece, tensor.bytes()));
  for (std::size_t done = 0; done < tensor.bytes(); done += piece.size()) {
    const std::size_t bytes = std::min(piece.size(), tensor.bytes() - done);
    current_queue(tensor.device()).copy_to_host(piece.data(), tensor.data() + done, bytes);
    XXH3_64bits_update(state.get(), piece.data(), bytes);
  }
  return XXH3_64bits_digest(state.get());
}

std::string message_of_sums(const std::uint64_t* sums, std::size_t count) {
  std::string bytes(count * sizeof *sums, '\0');
  std::memcpy(bytes.data(), sums, bytes.size());
  return bytes;
}

}  // namespace

IgnoredParameters::IgnoredParameters(const std::vector<OwnedParameter>& parameters, Device device) {
  for (const OwnedParameter& parameter : parameters) {
    const Tensor tensor = whole_on(device, parameter);
    for (nn::Module* place : parameter.places) {
      place->replace_own_parameter(parameter.tensor, tensor);
    }
    list_.push_back({parameter.name, tensor, tensor.shape()});
  }
  for (const nn::NamedParameter& parameter : list_) {
    parameter.tensor.storage()->set_on_write([this] { written_ = true; });
  }
}

IgnoredParameters::~IgnoredParameters() {
  for (const nn::NamedParameter& parameter : list_) {
    parameter.tensor.storage()->set_on_write(nullptr);
  }
}

std::size_t IgnoredParameters::bytes() const {
  std::size_t bytes = 0;
  for (const nn::NamedParameter& parameter : list_) bytes += parameter.tensor.bytes();
  return bytes;
}

void IgnoredParameters::take_checksums() {
  checksums_.clear();
  for (const nn::NamedParameter& parameter : list_) {
    // What is only planned has no values.
    const bool planned = parameter.tensor.device().is_planned();
    checksums_.push_back(planned ? 0 : checksum_of(parameter.tensor));
  }
  written_ = false;
}

// Ranks that agree exchange one number.
void IgnoredParameters::compare(comm::Communicator& world) {
  if (list_.empty()) return;
  if (written_) take_checksums();
  const comm::Tag tag{0, 0, comm::Phase::checkpoint};
  const std::uint64_t all =
      XXH3_64bits(checksums_.data(), checksums_.size() * sizeof(std::uint64_t));
  const auto digests = world.exchange(message_of_sums(&all, 1), tag);
  const auto same = [&](const std::string& digest) { return digest == digests.front(); };
  if (std::all_of(digests.begin(), digests.end(), same)) return;
  const auto ranks = world.exchange(message_of_sums(checksums_.data(), checksums_.size()), tag);
  for (std::size_t rank = 1; rank < ranks.size(); ++rank) {
    if (ranks[rank] == ranks[0]) continue;
    const auto differs = std::mismatch(ranks[0].begin(), ranks[0].end(), ranks[rank].begin()).first;
    const auto at = static_cast<std::size_t>(differs - ranks[0].begin()) / sizeof(std::uint64_t);
    fail(ErrorCode::configuration,
         "ignored_modules: ranks 0 and {} have different values of {}, which nothing makes equal: "
         "give all ranks the same (one seed, or `meta`); freeze it, or average its gradient over "
         "the ranks before each optimizer step",
         rank, list_.at(at).name);
  }
}

}  // namespace tessera
