// Whole parameters outside of passes: for reading, for writing, and to restore the module.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "engine/autograd.h"
#include "engine/device/memory_kind.h"
#include "engine/device/queue.h"
#include "sharding/runtime/runtime.h"
#include "sharding/units/equal_values.h"

namespace tessera {
namespace {

// A copy on the host, even if the tensor is there already.
Tensor copy_on_host(const Tensor& tensor) {
  const Device host = Device::cpu();
  return tensor.device() == host ? tensor.clone() : tensor.to(host);
}

// Copies the elements of `now`, in the compute dtype, that differ from `before` into `master`; the
// others keep their unrounded values. All tensors are on the host. Returns whether any differ.
bool take_written(const Tensor& before, const Tensor& now, Tensor& master) {
  const std::size_t narrow = size_of(now.dtype()), wide = size_of(master.dtype());
  if (std::memcmp(before.data(), now.data(), now.bytes()) == 0) return false;
  Tensor converted = Tensor::empty(now.shape(), master.dtype(), Device::cpu());
  converted.copy_from(now);
  const std::byte *const old = before.data(), *const written = now.data();
  std::byte* const out = master.data();
  const std::byte* const in = std::as_const(converted).data();
  for (std::size_t i = 0; i < static_cast<std::size_t>(now.elements()); ++i) {
    if (std::memcmp(old + i * narrow, written + i * narrow, narrow) != 0)
      std::memcpy(out + i * wide, in + i * wide, wide);
  }
  return true;
}

}  // namespace

// A unit's whole parameters in this rank's own memory, while a program writes them.
class PrivateCopy {
 public:
  explicit PrivateCopy(const Unit& unit) : unit_(&unit) {
    if (unit.layout().slots().empty()) return;
    const Storage& storage = *unit.parameter_storage();
    gathered_ = storage.data();
    const auto whole = [&] {
      Tensor copy =
          Tensor::empty({static_cast<std::int64_t>(storage.bytes())}, uint8, storage.device());
      current_queue(storage.device()).copy(copy.data(), gathered_, storage.bytes());
      return copy;
    };
    before_ = whole();
    if (unit.computes_on_master()) return;  // no other rank sees the master
    memory_ = whole();
    unit.parameter_storage()->attach(memory_.data());
  }
  PrivateCopy(const PrivateCopy&) = delete;
  PrivateCopy& operator=(const PrivateCopy&) = delete;
  PrivateCopy(PrivateCopy&& other) noexcept
      : unit_(other.unit_),
        gathered_(std::exchange(other.gathered_, nullptr)),
        before_(std::move(other.before_)),
        memory_(std::move(other.memory_)) {}
  PrivateCopy& operator=(PrivateCopy&&) = delete;
  ~PrivateCopy() {
    if (gathered_ != nullptr) unit_->parameter_storage()->attach(gathered_);
  }

  // Appends this rank's parts that were written, with their present values.
  void take_written(std::vector<std::pair<Tensor, Tensor>>& written) const {
    for (std::size_t i = 0; i < unit_->views().size() && !on_planned(); ++i) {
      const Tensor local = unit_->local_parameters()[i].tensor;
      const Tensor now = copy_on_host(part_of(i, unit_->parameter_storage()));
      Tensor master = unit_->computes_on_master() ? now : copy_on_host(local);
      if (tessera::take_written(copy_on_host(part_of(i, before_.storage())), now, master))
        written.emplace_back(local, master);
    }
  }
  // Restores masters that were written in place.
  void restore() const {
    if (gathered_ == nullptr || memory_.defined()) return;
    current_queue(before_.device()).copy(gathered_, before_.raw_data(), before_.bytes());
  }
  [[nodiscard]] std::uint64_t checksum() const {
    if (gathered_ == nullptr) return 0;
    return checksum_of(
        Tensor::view_of(unit_->parameter_storage(), 0, before_.shape(), before_.dtype()));
  }

 private:
  [[nodiscard]] bool on_planned() const {
    return unit_->parameter_storage()->device().is_planned();
  }
  // This rank's part of a parameter in the flat parameter `storage`.
  [[nodiscard]] Tensor part_of(std::size_t index, const std::shared_ptr<Storage>& storage) const {
    const Tensor& view = unit_->views()[index];
    const auto& slot = unit_->layout().slots()[index];
    const ElementRange part = unit_->layout().local_of(slot, unit_->shard());
    const std::size_t at =
        view.impl()->offset + static_cast<std::size_t>(part.first) * size_of(view.dtype());
    return Tensor::view_of(storage, at, {part.count}, view.dtype());
  }

  const Unit* unit_;
  std::byte* gathered_ = nullptr;  // null: the unit has no parameters
  Tensor before_, memory_;
};

void Runtime::hold() {
  const ComputeScope own(recorder_.get(), SpanKind::schedule);
  if (held_ == 0) gather_all();
  ++held_;
}

// Memory beyond that of training is allocated first, for all units or for none.
void Runtime::gather_all() {
  std::vector<Unit*> made;
  std::size_t spare = whole_.free.size();
  try {
    for (const auto& unit : units_) {
      UnitState& state = state_of(*unit);
      if (state.parameters != ParameterState::sharded || state.own_parameters) continue;
      if (unit->layout().slots().empty()) continue;
      if (spare > 0 && !state.part_is_set) {
        --spare;
        continue;
      }
      made.push_back(unit.get());
      if (!state.scope_parameters)
        state.scope_parameters = allocate_parameters(*whole_.ranks, unit->layout().bytes());
    }
  } catch (...) {
    for (UnitState& state : states_) {
      if (state.scope_parameters) drop(state.scope_parameters);
    }
    throw;
  }
  for (Unit* const unit : made) {
    UnitState& state = state_of(*unit);
    state.parameter_buffer = std::move(state.scope_parameters);
    state.owner = BufferOwner::scope;
    start_gather(*unit, comm::Phase::other);
  }
  for (const auto& unit : units_) gather(*unit, comm::Phase::other);
  for (const auto& unit : units_) await_gather(*unit);
}

void Runtime::let_go() noexcept {
  if (--held_ > 0) return;
  const ComputeScope own(recorder_.get(), SpanKind::schedule);
  for (const auto& unit : units_) {
    try {
      if (!stays_between_passes(*unit)) reshard_unless_used(*unit);
    } catch (const std::exception& error) {  // the next call on the device reports it
      std::fprintf(stderr, "after an unsharded scope: %s\n", error.what());
    }
  }
}

void Runtime::drop_copies(Unit& unit) {
  UnitState& state = state_of(unit);
  reshard(unit);
  state.part_is_set = false;
  state.own_has_frozen = false;
}

// Each rank writes into its own memory: when ranks see one gathered copy, a rank that halves the
// values must not read values that another rank has halved.
void Runtime::write_unsharded(const std::function<void()>& write) {
  TESSERA_REQUIRE(held_ == 0 && !autograd::in_backward(),
                  "write_unsharded inside an unsharded(model) scope or a backward");
  const NoGradGuard no_grad;
  hold();
  std::vector<PrivateCopy> copies;
  std::vector<std::pair<Tensor, Tensor>> written;  // a rank's part, and its present values
  try {
    for (const auto& unit : units_) copies.emplace_back(*unit);
    writing_ = true;
    write();
    for (const PrivateCopy& copy : copies) copy.take_written(written);
    compare_written(copies);
    writing_ = false;
  } catch (...) {
    for (const PrivateCopy& copy : copies) copy.restore();
    copies.clear();
    writing_ = false;
    let_go();
    throw;
  }
  copies.clear();
  let_go();
  for (const auto& unit : units_) drop_copies(*unit);
  for (auto& [local, value] : written) local.copy_from(value);
}

// Ranks that wrote different values would hold parts of different models.
void Runtime::compare_written(const std::vector<PrivateCopy>& copies) {
  if (device_.is_planned()) return;
  std::vector<std::uint64_t> checksums;
  for (const PrivateCopy& copy : copies) checksums.push_back(copy.checksum());
  const std::optional<ValueDifference> difference = find_difference(*world_, checksums);
  if (!difference) return;
  const Unit& unit = *units_.at(difference->index);
  fail(ErrorCode::configuration,
       "write_unsharded: ranks 0 and {} wrote different values into {}: every rank writes the same",
       difference->rank, unit_title(unit.name()));
}

std::vector<Tensor> Runtime::gather_masters(Unit& unit) {
  const UnitLayout& layout = unit.layout();
  std::vector<Tensor> whole(layout.slots().size());
  for (std::size_t s = 0; s < layout.segments().size(); ++s) {
    const UnitLayout::Segment& segment = layout.segments()[s];
    const std::size_t element = size_of(segment.master_dtype);
    const std::size_t share = static_cast<std::size_t>(segment.share) * element;
    const std::size_t bytes = share * static_cast<std::size_t>(shards_);
    std::shared_ptr<comm::Buffer> buffer = allocate_parameters(*whole_.ranks, bytes);
    const Tensor& masters = unit.masters(static_cast<int>(s));
    const comm::Tag tag{pass_, static_cast<std::uint32_t>(unit.index()), comm::Phase::other};
    std::byte* const out = buffer->data() + share * static_cast<std::size_t>(unit.shard());
    const Event gathered = enqueue(
        *gather_stream_, [this, &masters, buffer, out, in = masters.data(), share, bytes, tag] {
          whole_.ranks->acquire(*buffer, tag);
          DeviceQueue& queue = current_queue(device_);
          if (masters.device() == device_) {
            queue.copy(out, in, share);
          } else {
            queue.copy_from_host(out, in, share);
          }
          whole_.ranks->all_gather(*buffer, bytes, tag);
        });
    join(gathered, Exposed::other, unit);
    const MemoryScope kind(MemoryKind::parameters);
    for (std::size_t i = 0; i < whole.size(); ++i) {
      const UnitLayout::Slot& slot = layout.slots()[i];
      if (slot.segment != static_cast<int>(s)) continue;
      whole[i] = Tensor::empty(slot.spec.shape, segment.master_dtype, device_);
      current_queue(device_).copy(
          whole[i].data(), buffer->data() + static_cast<std::size_t>(slot.range.first) * element,
          whole[i].bytes());
    }
    buffer->release();
    drop(buffer);
  }
  return whole;
}

void Runtime::unwrap() {
  bool busy = autograd::in_backward() || held_ > 0;
  for (const UnitState& state : states_) busy = busy || state.in_use();
  TESSERA_REQUIRE(
      !busy,
      "unwrap() in the middle of a forward or a backward, or inside an unsharded(model) "
      "scope: its parameters are in use");
  TESSERA_REQUIRE(!root_life_.expired(), "unwrap(): the module has gone already");
  std::map<const detail::TensorData*, Tensor> whole;
  for (const auto& unit : units_) {
    std::vector<Tensor> values = gather_masters(*unit);
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i].impl()->requires_grad = unit->local_parameters()[i].tensor.requires_grad();
      whole.emplace(unit->views()[i].impl().get(), std::move(values[i]));
    }
  }
  std::vector<nn::Module*> modules{root_};
  for (const auto& module : owned_modules_) modules.push_back(module.get());
  for (nn::Module* const module : modules) {
    if (module == nullptr) continue;
    std::vector<Tensor> views = module->parameters_read();
    for (const auto& [name, tensor] : module->own_parameters()) views.push_back(tensor);
    for (const Tensor& view : views) {
      const auto found = whole.find(view.impl().get());
      if (found != whole.end()) module->replace_own_parameter(view, found->second);
    }
  }
}

}  // namespace tessera
