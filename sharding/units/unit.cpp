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
  create_masters();
  fill_masters(parameters);
  const auto& segments = layout_.segments();
  computes_on_master_ =
      !files_.masters && !files_.uploads && tessera::computes_on_master(layout_, {});
  parameters_ = Storage::lent(layout_.bytes(), device_, unit_title(name_));
  if (computes_on_master_) parameters_->attach(master_memory_.data());
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

// Creates masters in one piece of memory (or of the host's), segment after segment: with one shard
// and no cast this piece is the flat parameter.
void Unit::create_masters() {
  const MemoryScope kind(MemoryKind::parameters);
  const auto bytes_of = [](const UnitLayout::Segment& segment) {
    return static_cast<std::size_t>(segment.share) * size_of(segment.master_dtype);
  };
  std::size_t bytes = 0;
  for (const auto& segment : layout_.segments()) bytes += bytes_of(segment);
  if (files_.uploads) {
    master_memory_ = Tensor::view_of(Storage::pinned(bytes, device_), 0,
                                     {static_cast<std::int64_t>(bytes)}, uint8);
  } else if (!files_.masters) {
    master_memory_ = Tensor::zeros({static_cast<std::int64_t>(bytes)}, uint8, device_);
  }
  std::size_t offset = 0;
  for (std::size_t s = 0; s < layout_.segments().size(); ++s) {
    const auto& segment = layout_.segments()[s];
    const auto storage =
        files_.masters ? Storage::in_file(files_.masters, bytes_of(segment))
                       : Storage::part_of(master_memory_.storage(), offset, bytes_of(segment));
    storage->edit_shard().padded_to = parameter_alignment;
    masters_.push_back(Tensor::view_of(storage, 0, {segment.share}, segment.master_dtype));
    if (files_.uploads) host_masters_.push_back(storage->data());
    offset += bytes_of(segment);
    if (!segment.trainable) continue;
    storage->edit_shard().state_folder = files_.moments;
    storage->edit_shard().host_link = files_.host_link;
    local_segments_.push_back({static_cast<int>(s), layout_.local(static_cast<int>(s), shard_),
                               local_gradient_elements_});
    local_gradient_elements_ +=
        (segment.share + gradient_alignment - 1) / gradient_alignment * gradient_alignment;
  }
}

// Masters in a file are filled one window piece at a time.
void Unit::fill_masters(const std::vector<OwnedParameter>& parameters) {
  for (std::size_t s = 0; s < masters_.size(); ++s) {
    const auto segment = static_cast<int>(s);
    const ElementRange local = layout_.local(segment, shard_);
    if (local.count == 0) continue;
    const FilePlace& place = masters_[s].storage()->file();
    if (!place) {
      fill_range(parameters, segment, local, masters_[s].data(), masters_[s].device());
      continue;
    }
    const FileWindow& window = *place.file->window();
    const std::size_t element = size_of(masters_[s].dtype());
    const auto step = static_cast<std::int64_t>(window.piece_bytes() / element);
    for (std::int64_t done = 0; done < local.count; done += step) {
      const std::int64_t count = std::min(step, local.count - done);
      const std::size_t bytes = StateFile::round_up(static_cast<std::size_t>(count) * element);
      current_queue(device_).zero(window.piece(0), bytes);
      fill_range(parameters, segment, {local.first + done, count}, window.piece(0), device_);
      place.file->write(place.offset + static_cast<std::uint64_t>(done) * element, window.piece(0),
                        bytes);
    }
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
    const Tensor& master = masters_[static_cast<std::size_t>(slot.segment)];
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

std::size_t Unit::master_bytes() const {
  return master_memory_ && !files_.uploads ? master_memory_.bytes() : 0;
}

std::size_t Unit::gradient_bytes() const {
  const bool elsewhere =
      !gradient_shard_ || gradient_shard_.storage()->file() || gradient_is_on_host();
  return elsewhere ? 0 : gradient_shard_.bytes();
}

PointHandle Unit::write_share(std::byte* buffer, Part part) const {
  for (std::size_t s = 0; s < masters_.size(); ++s) {
    const auto& segment = layout_.segments()[s];
    if (part == Part::trainable && !segment.trainable) continue;
    const ElementRange range = layout_.local(static_cast<int>(s), shard_);
    std::byte* out = buffer + segment.byte_offset +
                     static_cast<std::size_t>(range.first) * size_of(segment.compute_dtype);
    if (files_.uploads) {
      files_.uploads->upload(host_masters_[s], range.count, segment.master_dtype, out,
                             segment.compute_dtype);
    } else if (const FilePlace& place = masters_[s].storage()->file()) {
      const StreamedArray array{files_.gathers.get(), place.offset, size_of(segment.master_dtype)};
      stream_arrays(std::span(&array, 1), {0, range.count}, 0,
                    [&](ElementRange piece, std::span<std::byte* const> where) {
                      write_part(s, where[0], piece.count,
                                 out + static_cast<std::size_t>(piece.first) *
                                           size_of(segment.compute_dtype));
                    });
    } else {
      write_part(s, masters_[s].data(), range.count, out);
    }
  }
  return files_.uploads ? files_.uploads->read() : nullptr;
}

// Writes elements of a segment's masters, cast to the compute dtype.
void Unit::write_part(std::size_t segment_index, const std::byte* in, std::int64_t count,
                      std::byte* out) const {
  const auto& segment = layout_.segments()[segment_index];
  if (segment.compute_dtype == segment.master_dtype) {
    current_queue(device_).copy(out, in,
                                static_cast<std::size_t>(count) * size_of(segment.master_dtype));
  } else {
    TESSERA_LAUNCH(device_, cast,
                   {in, out, count, segment.master_dtype, segment.compute_dtype, 1.0f, false});
  }
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

Tensor& Unit::gradient_shard() {
  if (gradient_shard_) return gradient_shard_;
  const DType dtype = sum_dtype_of(layout_);
  gradient_shard_ = files_.make_gradient(local_gradient_elements_, dtype);
  if (files_.downloads) host_gradient_ = gradient_shard_.data();
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

void Unit::discard_unset_gradient() {
  if (gradient_is_discarded_ || !gradient_shard_ || gradient_is_set()) return;
  gradient_shard_.storage()->discard();
  gradient_is_discarded_ = true;
}

Unit::Carried Unit::prepare_to_accumulate() {
  const Tensor& shard = gradient_shard();  // created here if missing
  const auto& storage = shard.storage();
  storage->restore();
  gradient_is_discarded_ = false;
  Carried carried;
  carried.is_set = gradient_is_set();
  if (!carried.is_set) {
    storage->edit_shard().pending_factor = 1.0f;
    gradient_is_unscaled_ = false;
    return carried;
  }
  TESSERA_REQUIRE(!gradient_is_unscaled_,
                  "a backward after clip_grad_norm(max_norm, loss_scale) would add gradients of a "
                  "scaled loss to those of {}, which are divided already; clip after the last "
                  "backward, and zero_grad() before the next",
                  unit_title(name_));
  // For a shard in a file or on the host, open_gradient() does the rest.
  const bool when_opened = storage->file() || gradient_is_on_host();
  if (when_opened) {
    carried.factor = storage->shard().pending_factor;
    storage->edit_shard().pending_factor = 1.0f;
  } else {
    shard.multiply_pending_factor();
  }
  for (const auto& parameter : local_) {
    const auto& data = parameter.tensor.impl();
    if (!data->requires_grad || data->grad_ready) continue;
    Tensor gradient(data->grad);
    if (when_opened) {
      carried.dropped.push_back(
          {static_cast<std::int64_t>(data->grad->offset / size_of(gradient.dtype())),
           gradient.elements()});
    } else {
      current_queue(device_).zero(gradient.data(), gradient.bytes());
    }
  }
  return carried;
}

bool Unit::gradient_shard_is_elsewhere() const {
  return gradient_is_on_host() || static_cast<bool>(gradient_shard_.storage()->file());
}

std::byte* Unit::open_gradient(const Carried& carried) const {
  const FilePlace& place = gradient_shard_.storage()->file();
  if (!place && !gradient_is_on_host()) return gradient_shard_.raw_data();
  std::byte* const sums =
      place ? files_.reduced.data()
            : files_.downloads->open(host_gradient_, gradient_shard_.bytes(), carried.is_set);
  if (!carried.is_set) return sums;
  const DType dtype = gradient_shard_.dtype();
  if (place) place.file->read(place.offset, sums, StateFile::round_up(gradient_shard_.bytes()));
  if (carried.factor != 1.0f) {
    TESSERA_LAUNCH(device_, cast,
                   {sums, sums, local_gradient_elements_, dtype, dtype, carried.factor, false});
  }
  for (const ElementRange& range : carried.dropped) {
    current_queue(device_).zero(sums + static_cast<std::size_t>(range.first) * size_of(dtype),
                                static_cast<std::size_t>(range.count) * size_of(dtype));
  }
  return sums;
}

PointHandle Unit::close_gradient() const {
  if (gradient_is_on_host())
    return files_.downloads->close(host_gradient_, gradient_shard_.bytes());
  const FilePlace& place = gradient_shard_.storage()->file();
  if (!place) return nullptr;
  place.file->write(place.offset, files_.reduced.data(),
                    StateFile::round_up(gradient_shard_.bytes()));
  return nullptr;
}

void Unit::scale_gradient(float factor) {
  if (!gradient_is_set()) return;
  const auto& storage = gradient_shard_.storage();
  storage->edit_shard().pending_factor *= factor;
}

void Unit::unscale_gradient(float factor) {
  if (!gradient_is_set() || gradient_is_unscaled_) return;
  scale_gradient(factor);
  gradient_is_unscaled_ = true;
}

std::uint64_t Unit::checksum_of_masters() const {
  std::uint64_t sum = 0;
  for (const Tensor& master : masters_) sum = sum * 0x9e3779b97f4a7c15 + checksum_of(master);
  return sum;
}

void Unit::mark_gradient_set() {
  for (auto& parameter : local_) {
    if (parameter.tensor.requires_grad()) parameter.tensor.impl()->grad_ready = true;
  }
}

}  // namespace tessera
