// Master shards, views and gradients of one unit.
#include "sharding/units/unit.h"

#include <algorithm>

#include "base/error.h"
#include "engine/device/launch.h"
#include "engine/device/memory_kind.h"
#include "engine/device/queue.h"
#include "sharding/memory/unit_memory.h"
#include "sharding/units/equal_values.h"

namespace tessera {
namespace {

// Values of a `meta` parameter, first rounded to its own dtype like those of a parameter in memory.
void fill_as(const Tensor& source, ElementRange part, std::byte* out, DType dtype, Device device) {
  const Initializer& initializer = *source.impl()->initializer;
  if (source.dtype() == dtype) {
    initializer.fill(out, dtype, part.first, part.count, device);
    return;
  }
  const MemoryScope kind(MemoryKind::other);
  Tensor rounded = Tensor::empty({part.count}, source.dtype(), device);
  initializer.fill(rounded.data(), source.dtype(), part.first, part.count, device);
  TESSERA_LAUNCH(device, cast,
                 {rounded.data(), out, part.count, source.dtype(), dtype, 1.0f, false});
}

// Elements of a tensor as a separate tensor on `device`.
Tensor part_on(Device device, const Tensor& source, ElementRange part) {
  const std::size_t offset =
      source.impl()->offset + static_cast<std::size_t>(part.first) * size_of(source.dtype());
  return Tensor::view_of(source.storage(), offset, {part.count}, source.dtype()).to(device);
}

}  // namespace

Unit::Unit(std::string name, int index, const std::vector<OwnedParameter>& parameters,
           const std::vector<ParameterSpec>& specs, int shards, int shard,
           const OffloadFiles& files)
    : name_(std::move(name)),
      index_(index),
      layout_(specs, shards),
      shard_(shard),
      files_(files),
      device_(files.device) {
  create_masters(parameters);
  const auto& segments = layout_.segments();
  computes_on_master_ = tessera::computes_on_master(layout_, {.parameters = masters_->placement()});
  parameters_ = Storage::lent(layout_.bytes(), device_, unit_title(name_));
  if (computes_on_master_) parameters_->attach(masters(0).raw_data());
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const auto& slot = layout_.slots()[i];
    const auto& segment = segments[static_cast<std::size_t>(slot.segment)];
    const std::size_t offset = segment.byte_offset + static_cast<std::size_t>(slot.range.first) *
                                                         size_of(segment.compute_dtype);
    Tensor view = Tensor::view_of(parameters_, offset, slot.spec.shape, segment.compute_dtype);
    view.impl()->requires_grad = slot.spec.trainable;
    for (nn::Module* place : parameters[i].places) {
      place->replace_own_parameter(parameters[i].tensor, view);
    }
    views_.push_back(view);
  }
  create_local_tensors();
}

void Unit::create_masters(const std::vector<OwnedParameter>& parameters) {
  masters_ = make_masters(files_, layout_);
  for (std::size_t s = 0; s < layout_.segments().size(); ++s) {
    const auto segment = static_cast<int>(s);
    const ElementRange local = layout_.local(segment, shard_);
    masters_->fill(s, [&](ElementRange range, std::byte* out, Device device) {
      fill_range(parameters, segment, {local.first + range.first, range.count}, out, device);
    });
    Storage& storage = *masters(segment).storage();
    storage.edit_shard().padded_to = layout_.segments()[s].block;
    if (!layout_.segments()[s].trainable) continue;
    storage.edit_shard().state_folder = files_.moments;
    storage.edit_shard().host_link = files_.host_link;
    local_segments_.push_back({segment, local, layout_.segments()[s].local_gradient_offset});
  }
}

// Writes elements of a segment to `out` on `device`, which is zero outside of parameters.
void Unit::fill_range(const std::vector<OwnedParameter>& parameters, int segment,
                      ElementRange range, std::byte* out, Device device) const {
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const auto& slot = layout_.slots()[i];
    if (slot.segment != segment) continue;
    const ElementRange common = intersect(slot.range, range);
    if (common.count == 0) continue;
    const ElementRange part = {common.first - slot.range.first, common.count};
    const DType dtype = slot.spec.master_dtype;
    std::byte* to = out + static_cast<std::size_t>(common.first - range.first) * size_of(dtype);
    const Tensor& source = parameters[i].tensor;
    if (source.is_meta()) {
      TESSERA_REQUIRE(
          source.impl()->initializer != nullptr,
          "parameter {} is on `meta` and has no initializer; make it with nn::make_parameter",
          parameters[i].name);
      fill_as(source, part, to, dtype, device);
    } else {
      const MemoryScope staging(MemoryKind::other);
      const Tensor in = part_on(device, source, part);
      TESSERA_LAUNCH(device, cast, {in.data(), to, part.count, in.dtype(), dtype, 1.0f, false});
    }
  }
}

void Unit::create_local_tensors() {
  for (const auto& slot : layout_.slots()) {
    const ElementRange part = layout_.local_of(slot, shard_);
    const ElementRange local = layout_.local(slot.segment, shard_);
    const Tensor& master = masters(slot.segment);
    const std::int64_t at = part.count == 0 ? 0 : slot.range.first + part.first - local.first;
    Tensor tensor = Tensor::view_of(master.storage(),
                                    static_cast<std::size_t>(at) * size_of(slot.spec.master_dtype),
                                    {part.count}, slot.spec.master_dtype);
    tensor.impl()->requires_grad = slot.spec.trainable;
    // A write into this rank's part is visible to a graph that reads the gathered parameter.
    views_[local_.size()].share_version(tensor);
    local_.push_back({slot.spec.name, tensor, slot.spec.shape});
  }
  optimizer_segments_ = optim::find_segments(local_);
}

PointHandle Unit::write_share(std::byte* buffer, Part part) const {
  for (std::size_t s = 0; s < layout_.segments().size(); ++s) {
    const auto& segment = layout_.segments()[s];
    if (part == Part::trainable && !segment.trainable) continue;
    const auto first = static_cast<std::size_t>(layout_.local(static_cast<int>(s), shard_).first);
    masters_->read(s, buffer + segment.byte_offset + first * size_of(segment.compute_dtype),
                   segment.compute_dtype);
  }
  return masters_->reads_done();
}

void Unit::create_gradient_views(DType dtype) {
  gradient_dtype_ = dtype;
  gradients_ =
      Storage::lent(gradient_buffer_bytes(), device_, "the gradient of " + unit_title(name_));
  for (std::size_t i = 0; i < views_.size(); ++i) {
    const auto& slot = layout_.slots()[i];
    Tensor view;
    if (slot.spec.trainable) {
      const auto& segment = layout_.segments()[static_cast<std::size_t>(slot.segment)];
      const auto at = static_cast<std::size_t>(segment.gradient_offset + slot.range.first);
      view = Tensor::view_of(gradients_, at * size_of(dtype), slot.spec.shape, dtype);
      views_[i].impl()->grad = view.impl();
    }
    gradient_views_.push_back(view);
  }
}

void Unit::zero_gradient_gaps() {
  for (const ElementRange& gap : layout_.gradient_gaps()) {
    const std::size_t element = size_of(gradient_dtype_);
    current_queue(device_).zero(gradients_->data() + static_cast<std::size_t>(gap.first) * element,
                                static_cast<std::size_t>(gap.count) * element);
  }
}

bool Unit::received_gradient() const {
  return std::any_of(views_.begin(), views_.end(),
                     [](const Tensor& view) { return view.impl()->grad_ready; });
}

// Parameters whose requires_grad was turned off also have a place in the buffer.
bool Unit::gradient_is_complete() const {
  for (std::size_t i = 0; i < views_.size(); ++i) {
    if (gradient_views_[i].defined() && !views_[i].impl()->grad_ready) return false;
  }
  return true;
}

void Unit::complete_gradient() {
  for (std::size_t i = 0; i < views_.size(); ++i) {
    if (!gradient_views_[i] || views_[i].impl()->grad_ready) continue;
    current_queue(device_).zero(gradient_views_[i].data(), gradient_views_[i].bytes());
  }
}

void Unit::forget_gradient() {
  for (const Tensor& view : views_) view.impl()->grad_ready = false;
}

std::vector<comm::ReducedRange> Unit::reduced_ranges(std::byte* out) const {
  std::vector<comm::ReducedRange> ranges;
  const std::size_t size = size_of(sum_dtype_of(layout_));
  for (const LocalSegment& local : local_segments_) {
    const auto& segment = layout_.segments()[static_cast<std::size_t>(local.segment)];
    ranges.push_back({segment.gradient_offset + local.range.first, local.range.count,
                      out + static_cast<std::size_t>(local.offset) * size});
  }
  return ranges;
}

const Tensor& Unit::gradient_shard() {
  if (gradient_) return gradient_->tensors()[0];
  const DType dtype = sum_dtype_of(layout_);
  gradient_ = make_gradient(files_, local_gradient_elements(), dtype);
  const Tensor& shard = gradient_->tensors()[0];
  for (std::size_t i = 0; i < local_.size(); ++i) {
    const auto& slot = layout_.slots()[i];
    if (!slot.spec.trainable) continue;
    const auto& segment = layout_.segments()[static_cast<std::size_t>(slot.segment)];
    const Tensor& part = local_[i].tensor;
    const std::size_t at = part.elements() == 0
                               ? 0
                               : static_cast<std::size_t>(segment.local_gradient_offset) +
                                     part.impl()->offset / size_of(segment.master_dtype);
    part.impl()->grad =
        Tensor::view_of(shard.storage(), at * size_of(dtype), {part.elements()}, dtype).impl();
  }
  return shard;
}

bool Unit::gradient_is_set() const {
  return std::any_of(local_.begin(), local_.end(),
                     [](const auto& p) { return p.tensor.impl()->grad_ready; });
}

void Unit::discard_unset_gradient() {
  if (gradient_is_discarded_ || !gradient_ || gradient_is_set()) return;
  gradient_shard().storage()->discard();
  gradient_is_discarded_ = true;
}

Unit::Carried Unit::prepare_to_accumulate() {
  Storage& storage = *gradient_shard().storage();  // created here if missing
  storage.restore();
  gradient_is_discarded_ = false;
  if (!gradient_is_set()) {
    storage.edit_shard().pending_factor = 1.0f;
    gradient_is_unscaled_ = false;
    return {};
  }
  TESSERA_REQUIRE(!gradient_is_unscaled_,
                  "a backward after clip_grad_norm(max_norm, loss_scale) would add gradients of a "
                  "scaled loss to those of {}, which are divided already; clip after the last "
                  "backward, and zero_grad() before the next",
                  unit_title(name_));
  std::vector<ElementRange> dropped;
  for (const auto& parameter : local_) {
    const auto& data = parameter.tensor.impl();
    if (!data->requires_grad || data->grad_ready) continue;
    const Tensor gradient(data->grad);
    dropped.push_back({static_cast<std::int64_t>(data->grad->offset / size_of(gradient.dtype())),
                       gradient.elements()});
  }
  return gradient_->carry(std::move(dropped));
}

void Unit::scale_gradient(float factor) {
  if (!gradient_is_set()) return;
  Storage& storage = *gradient_shard().storage();
  storage.edit_shard().pending_factor *= factor;
}

void Unit::unscale_gradient(float factor) {
  if (!gradient_is_set() || gradient_is_unscaled_) return;
  scale_gradient(factor);
  gradient_is_unscaled_ = true;
}

std::uint64_t Unit::checksum_of_masters() const {
  std::uint64_t sum = 0;
  for (const Tensor& master : masters_->tensors())
    sum = sum * 0x9e3779b97f4a7c15 + checksum_of(master);
  return sum;
}

void Unit::mark_gradient_set() {
  for (auto& parameter : local_) {
    if (parameter.tensor.requires_grad()) parameter.tensor.impl()->grad_ready = true;
  }
}

}  // namespace tessera
