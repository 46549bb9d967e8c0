// Creates ignored parameters and checks that they are equal on all ranks.
#include "sharding/units/ignored_parameters.h"

#include <optional>

#include "base/error.h"
#include "sharding/units/equal_values.h"
#include "sharding/units/whole_tensor.h"

namespace tessera {
IgnoredParameters::IgnoredParameters(const std::vector<OwnedParameter>& parameters, Device device) {
  for (const OwnedParameter& parameter : parameters) {
    const Tensor tensor =
        whole_on(device, parameter.tensor, "parameter " + parameter.name, "nn::make_parameter");
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
