#include "sharding/runtime/whole_parameters.h"

#include <cstring>
#include <optional>
#include <utility>

#include "base/error.h"
#include "engine/autograd.h"
#include "engine/device/memory_kind.h"
#include "engine/device/queue.h"
#include "sharding/memory/unit_memory.h"
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

UnshardedWriter::UnshardedWriter(const std::vector<std::unique_ptr<Unit>>& units,
                                 const ProcessGroups& groups, ParameterGatherer& gatherer)
    : units_(units), groups_(groups), gatherer_(gatherer) {}

// Each rank writes into its own memory: when ranks see one gathered copy, a rank that halves the
// values must not read values that another rank has halved.
void UnshardedWriter::write(const std::function<void()>& write) {
  TESSERA_REQUIRE(!gatherer_.keeps_all() && !autograd::in_backward(),
                  "write_unsharded inside an unsharded(model) scope or a backward");
  const NoGradGuard no_grad;
  gatherer_.unshard_all();
  std::vector<PrivateCopy> copies;
  std::vector<std::pair<Tensor, Tensor>> written;  // a rank's part, and its present values
  try {
    for (const auto& unit : units_) copies.emplace_back(*unit);
    is_writing_ = true;
    write();
    for (const PrivateCopy& copy : copies) copy.take_written(written);
    compare(copies);
    is_writing_ = false;
  } catch (...) {
    for (const PrivateCopy& copy : copies) copy.restore();
    copies.clear();
    is_writing_ = false;
    gatherer_.release_all();
    throw;
  }
  copies.clear();
  gatherer_.release_all();
  for (const auto& unit : units_) gatherer_.drop_copies(*unit);
  for (auto& [local, value] : written) local.copy_from(value);
}

// Ranks that wrote different values would hold parts of different models.
void UnshardedWriter::compare(const std::vector<PrivateCopy>& copies) {
  if (groups_.world().device().is_planned()) return;
  std::vector<std::uint64_t> checksums;
  for (const PrivateCopy& copy : copies) checksums.push_back(copy.checksum());
  const std::optional<ValueDifference> difference = find_difference(groups_.world(), checksums);
  if (!difference) return;
  const Unit& unit = *units_.at(difference->index);
  fail(ErrorCode::configuration,
       "write_unsharded: ranks 0 and {} wrote different values into {}: every rank writes the same",
       difference->rank, unit_title(unit.name()));
}

std::vector<Tensor> gather_masters(const Unit& unit, const ProcessGroups& groups,
                                   SideStreams& streams) {
  comm::Communicator& ranks = groups.gather();
  const Device device = ranks.device();
  const UnitLayout& layout = unit.layout();
  std::vector<Tensor> whole(layout.slots().size());
  for (std::size_t s = 0; s < layout.segments().size(); ++s) {
    const UnitLayout::Segment& segment = layout.segments()[s];
    const std::size_t element = size_of(segment.master_dtype);
    const std::size_t share = static_cast<std::size_t>(segment.share) * element;
    const std::size_t bytes = share * static_cast<std::size_t>(groups.shards());
    std::shared_ptr<comm::Buffer> buffer =
        streams.allocate(streams.gather(), ranks, "parameters", bytes, comm::Sharing::one_copy);
    const Tensor& masters = unit.masters(static_cast<int>(s));
    const comm::Tag tag = streams.tag_of(unit, comm::Phase::other);
    std::byte* const out = buffer->data() + share * static_cast<std::size_t>(unit.shard());
    const Event gathered = streams.enqueue(
        streams.gather(),
        [&ranks, device, &masters, buffer, out, in = masters.data(), share, bytes, tag] {
          ranks.acquire(*buffer, tag);
          DeviceQueue& queue = current_queue(device);
          if (masters.device() == device) {
            queue.copy(out, in, share);
          } else {
            queue.copy_from_host(out, in, share);
          }
          ranks.all_gather(*buffer, bytes, tag);
        });
    streams.join(gathered, Exposed::other, unit);
    const MemoryScope kind(MemoryKind::parameters);
    for (std::size_t i = 0; i < whole.size(); ++i) {
      const UnitLayout::Slot& slot = layout.slots()[i];
      if (slot.segment != static_cast<int>(s)) continue;
      whole[i] = Tensor::empty(slot.spec.shape, segment.master_dtype, device);
      current_queue(device).copy(
          whole[i].data(), buffer->data() + static_cast<std::size_t>(slot.range.first) * element,
          whole[i].bytes());
    }
    buffer->release();
    streams.drop(buffer);
  }
  return whole;
}

}  // namespace tessera
