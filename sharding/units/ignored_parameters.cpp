// Creates ignored parameters and checks that they are equal on all ranks.
#include "sharding/units/ignored_parameters.h"

#include <memory>
#include <optional>

#include "base/error.h"
#include "engine/device/memory_kind.h"
#include "sharding/units/equal_values.h"

namespace tessera {
namespace {

// The same values on `device`; the tensor itself if it is already there.
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
    initializer->fill(tensor.raw_data(), tensor.dtype(), 0, tensor.elements(), device);
    tensor.impl()->initializer = initializer;
  } else {
    tensor = source.to(device);
  }
  if (tensor.impl() != source.impl()) tensor.set_requires_grad(source.requires_grad());
  return tensor;
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
    parameter.tensor.storage()->set_observer({.on_write = [this](Storage::Write how) {
      written_ = true;
      has_pointers_ = has_pointers_ || how == Storage::Write::by_pointer;
    }});
  }
}

IgnoredParameters::~IgnoredParameters() {
  for (const nn::NamedParameter& parameter : list_) {
    parameter.tensor.storage()->set_observer({});
  }
}

std::size_t IgnoredParameters::bytes() const {
  std::size_t bytes = 0;
  for (const nn::NamedParameter& parameter : list_) bytes += parameter.tensor.bytes();
  return bytes;
}

void IgnoredParameters::take_checksums() {
  checksums_.clear();
  for (const nn::NamedParameter& parameter : list_)
    checksums_.push_back(checksum_of(parameter.tensor));
  written_ = false;
}

void IgnoredParameters::compare(comm::Communicator& world) {
  if (list_.empty()) return;
  if (written_ || has_pointers_) take_checksums();
  const std::optional<ValueDifference> difference = find_difference(world, checksums_);
  if (!difference) return;
  fail(ErrorCode::configuration,
       "ignored_modules: ranks 0 and {} have different values of {}, which are not synchronised: "
       "give all ranks the same (one seed, or `meta`); freeze it, or average its gradient over "
       "the ranks before each optimizer step",
       difference->rank, list_.at(difference->index).name);
}

}  // namespace tessera
