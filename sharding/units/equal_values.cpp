// Exchanges checksums of parameters; broadcasts parameters.
#include "sharding/units/equal_values.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>

#include "base/error.h"
#include "comm/exchange_values.h"
#include "engine/device/queue.h"

namespace tessera {
namespace {

constexpr std::size_t checked_piece = std::size_t{4} << 20;  // of a GPU's memory
constexpr comm::Tag values_tag{0, 0, comm::Phase::setup};

std::uint64_t checksum_of_draws(const Initializer& initializer) {
  const std::uint64_t parts[] = {static_cast<std::uint64_t>(initializer.kind),
                                 XXH3_64bits(&initializer.a, sizeof initializer.a),
                                 XXH3_64bits(&initializer.b, sizeof initializer.b),
                                 initializer.seed, initializer.stream};
  return XXH3_64bits(parts, sizeof parts);
}

// Rank 0's description of a parameter, which precedes its values: empty when they are in memory,
// else the initializer that will draw them.
std::string description_of(const Tensor& tensor) {
  if (!tensor.is_meta() || !tensor.impl()->initializer) return {};
  const Initializer& initializer = *tensor.impl()->initializer;
  std::string bytes(sizeof initializer, '\0');
  std::memcpy(bytes.data(), &initializer, sizeof initializer);
  return bytes;
}

// Where a parameter's values come from, in words that follow "it".
std::string origin_of(const Tensor& tensor) {
  if (!tensor.is_meta()) return "has values in memory";
  const auto& initializer = tensor.impl()->initializer;
  if (!initializer) return "is on `meta` without an initializer";
  return fmt::format("is on `meta` and was made as parameter number {}", initializer->stream + 1);
}

void replace(OwnedParameter& parameter, const Tensor& tensor) {
  tensor.impl()->requires_grad = parameter.tensor.requires_grad();
  tensor.impl()->initializer = parameter.tensor.impl()->initializer;
  for (nn::Module* place : parameter.places) place->replace_own_parameter(parameter.tensor, tensor);
  parameter.tensor = tensor;
}

void sync(comm::Communicator& world, OwnedParameter& parameter) {
  TESSERA_REQUIRE(world.rank() != 0 || !parameter.tensor.is_meta() ||
                      parameter.tensor.impl()->initializer != nullptr,
                  "parameter {} is on `meta` and has no initializer; make it with "
                  "nn::make_parameter",
                  parameter.name);
  const std::string draws = world.broadcast(description_of(parameter.tensor), 0, values_tag);
  const DeviceGuard on_device(world.device());
  if (!draws.empty()) {
    const Tensor& mine = parameter.tensor;
    if (!mine.is_meta())
      replace(parameter, Tensor::empty(mine.shape(), mine.dtype(), Device::meta()));
    Initializer initializer;
    std::memcpy(static_cast<void*>(&initializer), draws.data(), sizeof initializer);
    parameter.tensor.impl()->initializer = std::make_shared<Initializer>(initializer);
    return;
  }
  if (parameter.tensor.is_meta()) {
    const Tensor& mine = parameter.tensor;
    replace(parameter, Tensor::empty(mine.shape(), mine.dtype(), world.device()));
  }
  const Tensor here = parameter.tensor.to(world.device());
  if (here.bytes() > 0) world.broadcast(here.raw_data(), here.bytes(), 0, values_tag);
  if (here.impl() != parameter.tensor.impl()) parameter.tensor.copy_from(here);
}

}  // namespace

std::uint64_t checksum_of(const Tensor& tensor) {
  if (tensor.device().is_planned()) return 0;
  if (tensor.is_meta()) {
    return tensor.impl()->initializer ? checksum_of_draws(*tensor.impl()->initializer) : 0;
  }
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

std::optional<ValueDifference> find_difference(comm::Communicator& world,
                                               const std::vector<std::uint64_t>& checksums) {
  const std::uint64_t all = XXH3_64bits(checksums.data(), checksums.size() * sizeof(std::uint64_t));
  const auto digests = comm::exchange_values(world, all, values_tag);
  const auto same = [&](std::uint64_t digest) { return digest == digests.front(); };
  if (std::all_of(digests.begin(), digests.end(), same)) return std::nullopt;
  const auto ranks = comm::exchange_arrays(world, std::span(checksums), values_tag);
  for (std::size_t rank = 1; rank < ranks.size(); ++rank) {
    if (ranks[rank] == ranks[0]) continue;
    const auto differs = std::mismatch(ranks[0].begin(), ranks[0].end(), ranks[rank].begin()).first;
    const auto at = static_cast<std::size_t>(differs - ranks[0].begin());
    return ValueDifference{at, static_cast<int>(rank)};
  }
  return std::nullopt;
}

void compare_initial_values(comm::Communicator& world, const std::vector<UnitPlan>& plan) {
  if (world.size() == 1 || world.device().is_planned()) return;
  std::vector<std::uint64_t> checksums;
  std::vector<const std::string*> names;
  std::vector<const Tensor*> tensors;
  for (const UnitPlan& planned : plan) {
    for (const OwnedParameter& parameter : planned.unit.parameters) {
      checksums.push_back(checksum_of(parameter.tensor));
      tensors.push_back(&parameter.tensor);
      names.push_back(&parameter.name);
    }
  }
  const std::optional<ValueDifference> difference = find_difference(world, checksums);
  if (!difference) return;
  const auto origins = world.exchange(origin_of(*tensors.at(difference->index)), values_tag);
  const auto other = static_cast<std::size_t>(difference->rank);
  const std::string first = fmt::format("ranks 0 and {} begin with different values of {}", other,
                                        *names.at(difference->index));
  constexpr std::string_view end =
      "or take rank 0's values with ShardingOptions::sync_module_states";
  if (origins[0] == origins[other]) {
    fail(ErrorCode::configuration,
         "{}, and would train a mix of two models: make the module with the same seed on every "
         "rank (ts::manual_seed), {}",
         first, end);
  }
  fail(ErrorCode::configuration,
       "{}: on rank 0 it {}, on rank {} it {}. Make the module in the same way on every rank, {}",
       first, origins[0], other, origins[other], end);
}

void sync_initial_values(comm::Communicator& world,
                         const std::vector<OwnedParameter*>& parameters) {
  if (world.size() == 1 || world.device().is_planned()) return;
  for (OwnedParameter* const parameter : parameters) sync(world, *parameter);
}

}  // namespace tessera
