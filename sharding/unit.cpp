// Master shards, views, gradients of one unit.
#include "sharding/unit.h"

#include <algorithm>

#include "engine/launch.h"
#include "engine/queue.h"
#include "kernels/base/error.h"

namespace tessera {
namespace {

DType sum_dtype(const UnitLayout& layout) {
  const bool fp64 =
      std::any_of(layout.slots().begin(), layout.slots().end(), [](const UnitLayout::Slot& slot) {
        return slot.spec.trainable && slot.spec.master_dtype == float64;
      });
  return fp64 ? float64 : float32;
}

// Values of a `meta` parameter, rounded to its own dtype first as those of one in memory are.
void fill_as(const Tensor& source, ElementRange part, std::byte* out, DType dtype, Device device) {
  const Initializer& initializer = *source.impl()->initializer;
  if (source.dtype() == dtype) {
    initializer.fill(out, dtype, part.first, part.count, device);
    return;
  }
  const Tensor rounded = Tensor::empty({part.count}, source.dtype(), device);
  initializer.fill(rounded.data(), source.dtype(), part.first, part.count, device);
  TESSERA_LAUNCH(device, cast,
                 {rounded.data(), out, part.count, source.dtype(), dtype, 1.0f, false});
}

// Elements of a tensor as one of their own, on `device`.
Tensor part_on(Device device, const Tensor& source, ElementRange part) {
  const std::size_t offset =
      source.impl()->offset + static_cast<std::size_t>(part.first) * size_of(source.dtype());
  return Tensor::view_of(source.storage(), offset, {part.count}, source.dtype()).to(device);
}

}  // namespace

Unit::Unit(std::string name, int index, nn::Module& root,
           const std::vector<nn::NamedParameter>& parameters,
           const std::vector<ParameterSpec>& specs, int shards, int shard, Device device)
    : name_(std::move(name)),
      index_(index),
      layout_(specs, shards),
      shard_(shard),
      device_(device) {
  for (std::size_t s = 0; s < layout_.segments().size(); ++s) {
    const auto& segment = layout_.segments()[s];
    const ElementRange range = layout_.local(static_cast<int>(s), shard_);
    masters_.push_back(Tensor::zeros({range.count}, segment.master_dtype, device_));
    if (!segment.trainable) continue;
    local_segments_.push_back({static_cast<int>(s), range, local_gradient_elements_});
    local_gradient_elements_ +=
        (range.count + gradient_alignment - 1) / gradient_alignment * gradient_alignment;
  }
  fill_master(parameters);
  const auto& segments = layout_.segments();
  computes_on_master_ =
      shards == 1 && segments.size() == 1 && segments[0].compute_dtype == segments[0].master_dtype;
  parameters_ = Storage::lent(layout_.bytes(), device_,
                              name_.empty() ? std::string("the root unit") : "unit " + name_);
  if (computes_on_master_) {
    parameters_->attach(masters_[0].data());
    state = ParameterState::unsharded;
  }
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const auto& slot = layout_.slots()[i];
    const auto& segment = segments[static_cast<std::size_t>(slot.segment)];
    const std::size_t offset = segment.byte_offset + static_cast<std::size_t>(slot.range.first) *
                                                         size_of(segment.compute_dtype);
    Tensor view = Tensor::view_of(parameters_, offset, slot.spec.shape, segment.compute_dtype);
    view.impl()->requires_grad = slot.spec.trainable;
    root.replace_parameter(parameters[i].tensor, view);
    views_.push_back(view);
  }
  create_local_tensors();
}

void Unit::fill_master(const std::vector<nn::NamedParameter>& parameters) {
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const auto& slot = layout_.slots()[i];
    const ElementRange part = layout_.local_of(slot, shard_);
    if (part.count == 0) continue;
    const ElementRange local = layout_.local(slot.segment, shard_);
    const Tensor& master = masters_[static_cast<std::size_t>(slot.segment)];
    const DType dtype = slot.spec.master_dtype;
    const std::int64_t at = slot.range.first + part.first - local.first;
    std::byte* out = master.data() + static_cast<std::size_t>(at) * size_of(dtype);
    const Tensor& source = parameters[i].tensor;
    if (source.is_meta()) {
      TESSERA_REQUIRE(
          source.impl()->initializer != nullptr,
          "parameter {} is on `meta` and has no initializer; make it with nn::make_parameter",
          parameters[i].name);
      fill_as(source, part, out, dtype, device_);
    } else {
      const Tensor in = part_on(device_, source, part);
      TESSERA_LAUNCH(device_, cast, {in.data(), out, part.count, in.dtype(), dtype, 1.0f, false});
    }
  }
}

void Unit::create_local_tensors() {
  for (const auto& slot : layout_.slots()) {
    const ElementRange part = layout_.local_of(slot, shard_);
    const ElementRange local = layout_.local(slot.segment, shard_);
    const Tensor& master = masters_[static_cast<std::size_t>(slot.segment)];
    const std::int64_t at = part.count == 0 ? 0 : slot.range.first + part.first - local.first;
    Tensor tensor = Tensor::view_of(master.storage(),
                                    static_cast<std::size_t>(at) * size_of(slot.spec.master_dtype),
                                    {part.count}, slot.spec.master_dtype);
    tensor.impl()->requires_grad = slot.spec.trainable;
    local_.push_back({slot.spec.name, tensor, slot.spec.shape});
  }
}

std::size_t Unit::master_bytes() const {
  std::size_t total = 0;
  for (const Tensor& master : masters_) total += master.bytes();
  return total;
}

void Unit::write_share(std::byte* share) const {
  const auto share_begin = static_cast<std::size_t>(shard_) * layout_.share_bytes();
  for (std::size_t s = 0; s < masters_.size(); ++s) {
    const auto& segment = layout_.segments()[s];
    const ElementRange range = layout_.local(static_cast<int>(s), shard_);
    if (range.count == 0) continue;
    const std::size_t at = segment.byte_offset +
                           static_cast<std::size_t>(range.first) * size_of(segment.compute_dtype);
    std::byte* out = share + (at - share_begin);
    if (segment.compute_dtype == segment.master_dtype) {
      current_queue(device_).copy(out, masters_[s].data(), masters_[s].bytes());
    } else {
      TESSERA_LAUNCH(device_, cast,
                     {masters_[s].data(), out, range.count, segment.master_dtype,
                      segment.compute_dtype, 1.0f, false});
    }
  }
}

void Unit::create_gradient_views(DType dtype) {
  gradient_dtype_ = dtype;
  gradients_ = Storage::lent(
      gradient_buffer_bytes(), device_,
      "the gradient of " + (name_.empty() ? std::string("the root unit") : "unit " + name_));
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

void Unit::complete_gradient() {
  for (std::size_t i = 0; i < views_.size(); ++i) {
    if (!gradient_views_[i]) continue;
    if (!views_[i].impl()->grad_ready) {
      current_queue(device_).zero(gradient_views_[i].data(), gradient_views_[i].bytes());
    }
    views_[i].impl()->grad_ready = false;
  }
}

std::vector<comm::ReducedRange> Unit::reduced_ranges(std::byte* out) const {
  std::vector<comm::ReducedRange> ranges;
  const std::size_t size = size_of(sum_dtype(layout_));
  for (const LocalSegment& local : local_segments_) {
    if (local.range.count == 0) continue;
    const auto& segment = layout_.segments()[static_cast<std::size_t>(local.segment)];
    ranges.push_back({segment.gradient_offset + local.range.first, local.range.count,
                      out + static_cast<std::size_t>(local.offset) * size});
  }
  return ranges;
}

Tensor& Unit::gradient_shard() {
  if (gradient_shard_) return gradient_shard_;
  const DType dtype = sum_dtype(layout_);
  gradient_shard_ = Tensor::zeros({local_gradient_elements_}, dtype, device_);
  for (std::size_t i = 0; i < local_.size(); ++i) {
    const auto& slot = layout_.slots()[i];
    if (!slot.spec.trainable) continue;
    const auto local =
        std::find_if(local_segments_.begin(), local_segments_.end(),
                     [&](const LocalSegment& l) { return l.segment == slot.segment; });
    const ElementRange part = layout_.local_of(slot, shard_);
    const std::int64_t at =
        part.count == 0 ? 0 : local->offset + slot.range.first + part.first - local->range.first;
    local_[i].tensor.impl()->grad =
        Tensor::view_of(gradient_shard_.storage(), static_cast<std::size_t>(at) * size_of(dtype),
                        {part.count}, dtype)
            .impl();
  }
  return gradient_shard_;
}

bool Unit::gradient_is_set() const {
  return std::any_of(local_.begin(), local_.end(),
                     [](const auto& p) { return p.tensor.impl()->grad_ready; });
}

void Unit::prepare_to_accumulate() {
  if (!gradient_is_set()) return;
  for (const auto& parameter : local_) {
    const auto& data = parameter.tensor.impl();
    if (!data->requires_grad) continue;
    if (data->grad_ready) {
      (void)parameter.tensor.grad();  // multiplies what clipping left for later
    } else {
      current_queue(device_).zero(Tensor(data->grad).data(), Tensor(data->grad).bytes());
    }
  }
}

void Unit::mark_gradient_set() {
  for (auto& parameter : local_) {
    if (parameter.tensor.requires_grad()) parameter.tensor.impl()->grad_ready = true;
  }
}

}  // namespace tessera
