// Steps in pieces, and the state files, of optimizers whose parameters, gradients or state are in
// files.
#include <algorithm>

#include "base/error.h"
#include "engine/device/memory_kind.h"
#include "engine/optim/optimizer.h"
#include "engine/storage/file_window.h"
#include "engine/storage/host_link.h"

namespace tessera::optim {
namespace {

// State in a file has the same offset within a block as its parameters, so pieces of both start at
// block boundaries.
std::int64_t lead_of(const Segment& segment) {
  return segment.first % static_cast<std::int64_t>(StateFile::alignment / size_of(segment.dtype));
}

std::size_t state_bytes_of(const Segment& segment) {
  return static_cast<std::size_t>(lead_of(segment) + segment.count) * size_of(segment.dtype);
}

// One operand of a step, by element: in memory, or through the window of its file.
class Array {
 public:
  // Element 0 of the segment is at `offset` bytes in `storage`.
  Array(const Storage& storage, std::int64_t offset, DType dtype, bool changes)
      : storage_(storage), offset_(offset), element_(size_of(dtype)), changes_(changes) {
    if (!storage.file() && storage.device().type != DeviceType::meta) memory_ = storage.data();
  }
  [[nodiscard]] bool in_file() const { return static_cast<bool>(storage_.file()); }
  [[nodiscard]] StreamedArray streamed() const {
    const FilePlace& place = storage_.file();
    return {place.file->window(), place.offset + static_cast<std::uint64_t>(offset_), element_,
            changes_};
  }
  // The address of the element, for an array in memory.
  [[nodiscard]] std::byte* at(std::int64_t element) const {
    return memory_ + offset_ + element * static_cast<std::int64_t>(element_);
  }

 private:
  const Storage& storage_;
  std::int64_t offset_;
  std::size_t element_;
  bool changes_;
  std::byte* memory_ = nullptr;
};

std::int64_t bytes_of(std::int64_t elements, DType dtype) {
  return elements * static_cast<std::int64_t>(size_of(dtype));
}

}  // namespace

void Optimizer::make_state_files(const std::vector<std::string>& names) {
  for (const Segment& segment : segments_) {
    const auto& folder = segment.storage->shard().state_folder;
    const bool known = std::any_of(state_files_.begin(), state_files_.end(),
                                   [&](const StateFiles& f) { return f.folder == folder; });
    if (!folder || known) continue;
    std::size_t bytes = 0, largest = 0;
    for (const Segment& other : segments_) {
      const bool trains = parameters_[other.parameters.front()].tensor.requires_grad();
      if (other.storage->shard().state_folder != folder || !trains) continue;
      bytes += StateFile::round_up(state_bytes_of(other));
      largest = std::max(largest, state_bytes_of(other));
    }
    StateFiles& made = state_files_.emplace_back();
    made.folder = folder;
    for (const std::string& name : names) {
      made.files.push_back(std::make_shared<StateFile>(*folder, "the moments (" + name + ")",
                                                       MemoryKind::optimizer, bytes));
      made.files.back()->make_window(largest);
    }
  }
}

Tensor Optimizer::make_state(std::size_t segment, std::size_t which) {
  const Segment& whole = segments_[segment];
  const auto& folder = whole.storage->shard().state_folder;
  const StateFormat own = state_format(whole.parameters.front(), which);
  if (own.dtype.value_or(whole.dtype) != whole.dtype || own.block > 1 || own.whole) {
    const std::string& name = parameters_[whole.parameters.front()].name;
    TESSERA_CHECK(!folder && !whole.storage->shard().host_link, ErrorCode::configuration,
                  "the state of {} has a StateFormat and is offloaded: leave out OffloadOptions",
                  name);
    TESSERA_CHECK(whole.storage->shard().padded_to % own.block == 0, ErrorCode::configuration,
                  "shard boundaries may lie inside a block of {} elements of {}: set "
                  "ShardingOptions::block",
                  own.block, name);
  }
  if (!folder) {
    const MemoryScope kind(MemoryKind::optimizer);
    if (const auto& link = whole.storage->shard().host_link) {
      const std::size_t bytes = static_cast<std::size_t>(whole.count) * size_of(whole.dtype);
      return Tensor::view_of(link->make_state(bytes), 0, {whole.count}, whole.dtype);
    }
    const StateFormat format = format_in(segment, which);
    std::int64_t elements = format.elements_for(whole.count);
    if (format.whole) {
      elements = whole_offset(segment, which, whole.parameters.size()) /
                 static_cast<std::int64_t>(size_of(*format.dtype));
    }
    return Tensor::zeros({elements}, *format.dtype, whole.storage->device());
  }
  make_state_files(state_names());  // makes the files that do not exist yet
  const auto found = std::find_if(state_files_.begin(), state_files_.end(),
                                  [&](const StateFiles& f) { return f.folder == folder; });
  return Tensor::view_of(Storage::in_file(found->files.at(which), state_bytes_of(whole)),
                         static_cast<std::size_t>(bytes_of(lead_of(whole), whole.dtype)),
                         {whole.count}, whole.dtype);
}

void Optimizer::step_through_files(std::size_t segment, const std::vector<GradientRun>& runs) {
  const Segment& whole = segments_[segment];
  const GradientRun& run = runs.front();
  std::vector<Array> arrays;  // parameter, gradient, states
  arrays.emplace_back(*whole.storage, bytes_of(whole.first, whole.dtype), whole.dtype, true);
  arrays.emplace_back(*run.storage, bytes_of(run.at - run.range.first, run.dtype), run.dtype,
                      false);
  for (std::size_t i = 0; i < state_names().size(); ++i) {
    const Tensor state = segment_state(segment, i);
    arrays.emplace_back(*state.storage(), static_cast<std::int64_t>(state.impl()->offset),
                        whole.dtype, true);
  }
  std::vector<StreamedArray> streamed;
  for (const Array& array : arrays) {
    if (array.in_file()) streamed.push_back(array.streamed());
  }
  const ElementRange all = {run.range.first, runs.back().range.end() - run.range.first};
  stream_arrays(streamed, all, whole.first,
                [&](ElementRange range, std::span<std::byte* const> where) {
                  auto next = where.begin();
                  const auto place_of = [&](const Array& array) {
                    return array.in_file() ? *next++ : array.at(range.first);
                  };
                  Memory memory;
                  memory.device = whole.storage->device();
                  memory.parameter = place_of(arrays[0]);
                  memory.gradient = place_of(arrays[1]);
                  for (std::size_t i = 2; i < arrays.size(); ++i)
                    memory.states.push_back(place_of(arrays[i]));
                  update_range(segment, range, memory);
                });
}

}  // namespace tessera::optim
