// The three places of a shard.
#include "sharding/units/shard_storage.h"

#include <algorithm>
#include <span>

#include "engine/device/launch.h"
#include "engine/device/memory_kind.h"

namespace tessera {
namespace {

class DeviceShard final : public ShardStorage {
 public:
  using ShardStorage::ShardStorage;

  [[nodiscard]] Placement placement() const override { return Placement::device; }
  void read(std::size_t index, std::byte* out, DType out_dtype) const override {
    const Tensor& tensor = tensors()[index];
    copy_cast(files_.device, tensor.data(), tensor.elements(), tensor.dtype(), out, out_dtype);
  }
  [[nodiscard]] Carried carry(std::vector<ElementRange> dropped) override {
    apply(ShardStorage::carry(std::move(dropped)), gradient().raw_data());
    return {true, 1.0f, {}};
  }
  [[nodiscard]] std::byte* open(const Carried& /*carried*/) const override {
    return gradient().raw_data();
  }
};

// Side streams use addresses: Storage::data() is for the thread that owns the unit.
class HostShard final : public ShardStorage {
 public:
  HostShard(const OffloadFiles& files, std::shared_ptr<Storage> memory, std::vector<Tensor> parts)
      : ShardStorage(files, std::move(memory), std::move(parts)) {
    for (const Tensor& tensor : tensors()) addresses_.push_back(tensor.raw_data());
  }

  [[nodiscard]] Placement placement() const override { return Placement::host; }
  void read(std::size_t index, std::byte* out, DType out_dtype) const override {
    const Tensor& tensor = tensors()[index];
    files_.uploads->upload(addresses_[index], tensor.elements(), tensor.dtype(), out, out_dtype);
  }
  [[nodiscard]] PointHandle reads_done() const override { return files_.uploads->read(); }
  [[nodiscard]] std::byte* open(const Carried& carried) const override {
    std::byte* const sums =
        files_.downloads->open(addresses_[0], gradient().bytes(), carried.is_set);
    apply(carried, sums);
    return sums;
  }
  PointHandle close() const override {
    return files_.downloads->close(addresses_[0], gradient().bytes());
  }

 private:
  std::vector<std::byte*> addresses_;
};

class FileShard final : public ShardStorage {
 public:
  using ShardStorage::ShardStorage;

  [[nodiscard]] Placement placement() const override { return Placement::file; }
  void fill(std::size_t index, const Write& write) override {
    const Tensor& tensor = tensors()[index];
    const FilePlace& place = tensor.storage()->file();
    const FileWindow& window = *place.file->window();
    const std::size_t element = size_of(tensor.dtype());
    const auto step = static_cast<std::int64_t>(window.piece_bytes() / element);
    for (std::int64_t done = 0; done < tensor.elements(); done += step) {
      const std::int64_t count = std::min(step, tensor.elements() - done);
      const std::size_t bytes = StateFile::round_up(static_cast<std::size_t>(count) * element);
      current_queue(files_.device).zero(window.piece(0), bytes);
      write({done, count}, window.piece(0), files_.device);
      place.file->write(place.offset + static_cast<std::uint64_t>(done) * element, window.piece(0),
                        bytes);
    }
  }
  void read(std::size_t index, std::byte* out, DType out_dtype) const override {
    const Tensor& tensor = tensors()[index];
    const DType dtype = tensor.dtype();
    const StreamedArray array{files_.gathers.get(), tensor.storage()->file().offset,
                              size_of(dtype)};
    stream_arrays(std::span(&array, 1), {0, tensor.elements()}, 0,
                  [&](ElementRange piece, std::span<std::byte* const> where) {
                    copy_cast(files_.device, where[0], piece.count, dtype,
                              out + static_cast<std::size_t>(piece.first) * size_of(out_dtype),
                              out_dtype);
                  });
  }
  [[nodiscard]] std::byte* open(const Carried& carried) const override {
    const FilePlace& place = gradient().storage()->file();
    std::byte* const sums = files_.reduced.data();
    if (carried.is_set)
      place.file->read(place.offset, sums, StateFile::round_up(gradient().bytes()));
    apply(carried, sums);
    return sums;
  }
  PointHandle close() const override {
    const FilePlace& place = gradient().storage()->file();
    place.file->write(place.offset, files_.reduced.data(), StateFile::round_up(gradient().bytes()));
    return nullptr;
  }
};

std::shared_ptr<Storage> zeros(bool on_host, std::int64_t elements, DType dtype, Device device) {
  if (!on_host) return Tensor::zeros({elements}, dtype, device).storage();
  return Storage::pinned(static_cast<std::size_t>(elements) * size_of(dtype), device);
}

std::unique_ptr<ShardStorage> make_shard(bool on_host, const OffloadFiles& files,
                                         std::shared_ptr<Storage> memory,
                                         std::vector<Tensor> tensors) {
  if (!memory) return std::make_unique<FileShard>(files, nullptr, std::move(tensors));
  if (on_host) return std::make_unique<HostShard>(files, std::move(memory), std::move(tensors));
  return std::make_unique<DeviceShard>(files, std::move(memory), std::move(tensors));
}

}  // namespace

void ShardStorage::fill(std::size_t index, const Write& write) {
  const Tensor& tensor = tensors_[index];
  write({0, tensor.elements()}, tensor.raw_data(), tensor.device());
}

ShardStorage::Carried ShardStorage::carry(std::vector<ElementRange> dropped) {
  Storage& storage = *gradient().storage();
  Carried carried{true, storage.shard().pending_factor, std::move(dropped)};
  storage.edit_shard().pending_factor = 1.0f;
  return carried;
}

void ShardStorage::apply(const Carried& carried, std::byte* values) const {
  const DType dtype = gradient().dtype();
  if (carried.factor != 1.0f) {
    TESSERA_LAUNCH(files_.device, cast,
                   {values, values, gradient().elements(), dtype, dtype, carried.factor, false});
  }
  for (const ElementRange& range : carried.dropped) {
    current_queue(files_.device)
        .zero(values + static_cast<std::size_t>(range.first) * size_of(dtype),
              static_cast<std::size_t>(range.count) * size_of(dtype));
  }
}

// In one piece of memory, segment after segment: with one shard and no cast this piece is the flat
// parameter.
std::unique_ptr<ShardStorage> make_masters(const OffloadFiles& files, const UnitLayout& layout) {
  const MemoryScope kind(MemoryKind::parameters);
  const bool on_host = files.uploads != nullptr;
  std::size_t bytes = 0;
  for (const auto& segment : layout.segments()) bytes += segment.master_bytes();
  std::shared_ptr<Storage> memory;
  if (!files.masters)
    memory = zeros(on_host, static_cast<std::int64_t>(bytes), uint8, files.device);
  std::vector<Tensor> tensors;
  std::size_t offset = 0;
  for (const auto& segment : layout.segments()) {
    auto storage = memory ? Storage::part_of(memory, offset, segment.master_bytes())
                          : Storage::in_file(files.masters, segment.master_bytes());
    offset += segment.master_bytes();
    tensors.push_back(
        Tensor::view_of(std::move(storage), 0, {segment.share}, segment.master_dtype));
  }
  return make_shard(on_host, files, std::move(memory), std::move(tensors));
}

std::unique_ptr<ShardStorage> make_gradient(const OffloadFiles& files, std::int64_t elements,
                                            DType dtype) {
  const MemoryScope kind(MemoryKind::gradients);
  const bool on_host = files.downloads != nullptr;
  std::shared_ptr<Storage> memory;
  if (!files.gradients) memory = zeros(on_host, elements, dtype, files.device);
  const std::size_t bytes = static_cast<std::size_t>(elements) * size_of(dtype);
  const auto storage = memory ? memory : Storage::in_file(files.gradients, bytes);
  return make_shard(on_host, files, memory, {Tensor::view_of(storage, 0, {elements}, dtype)});
}

}  // namespace tessera
