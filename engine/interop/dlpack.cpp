// The table of types, and the structures' owners.
#include "engine/interop/dlpack.h"

#include <fmt/format.h>

#include <memory>
#include <vector>

#include "base/error.h"
#include "engine/device/queue.h"
#include "engine/interop/foreign_memory.h"

namespace tessera::dlpack {
namespace {

constexpr std::int32_t cpu_type = 1, cuda_type = 2;

struct TypeRow {
  DType dtype;
  std::uint8_t code;
};
constexpr TypeRow types[] = {{float32, 2}, {float64, 2}, {float16, 2}, {bfloat16, 4},
                             {int32, 0},   {int64, 0},   {uint8, 1},   {boolean, 6}};

std::uint8_t bits_of(DType dtype) {
  return static_cast<std::uint8_t>(8 * size_of(dtype));
}

// All that a description refers to.
struct Exported {
  ManagedTensor description{};
  Tensor tensor;
  std::vector<std::int64_t> shape, strides;
};

void release(ManagedTensor* tensor) {
  const std::unique_ptr<Exported> exported(static_cast<Exported*>(tensor->owner));
}

DType dtype_for(const Type& type) {
  for (const TypeRow& row : types) {
    if (row.code == type.code && bits_of(row.dtype) == type.bits && type.lanes == 1) {
      return row.dtype;
    }
  }
  misuse("dlpack: an array of type code {} with {} bits and {} lanes; there is no such dtype here",
         type.code, type.bits, type.lanes);
}

Device device_of(const Place& place) {
  if (place.type == cpu_type) return Device::cpu();
  TESSERA_REQUIRE(place.type == cuda_type,
                  "dlpack: an array on a device of type {}; 1 (CPU) or 2 (CUDA)", place.type);
  return Device::cuda(place.index);
}

Shape shape_of(const Array& array) {
  TESSERA_REQUIRE(array.dimensions >= 0 && array.dimensions <= Shape::max_dimensions,
                  "dlpack: an array of {} dimensions; at most {}", array.dimensions,
                  Shape::max_dimensions);
  const std::vector<std::int64_t> sizes(array.shape, array.shape + array.dimensions);
  const Shape shape(sizes);
  std::int64_t adjacent = 1;
  for (int i = array.dimensions - 1; array.strides != nullptr && i >= 0; --i) {
    TESSERA_REQUIRE(sizes[static_cast<std::size_t>(i)] <= 1 || array.strides[i] == adjacent ||
                        shape.elements() == 0,
                    "dlpack: an array of shape {} with a stride of {} in dimension {}; make it "
                    "contiguous first",
                    shape.to_string(), array.strides[i], i);
    adjacent *= sizes[static_cast<std::size_t>(i)];
  }
  return shape;
}

}  // namespace

ManagedTensor* export_tensor(const Tensor& x) {
  const Device device = x.device();
  TESSERA_REQUIRE(device.type == DeviceType::cpu || device.type == DeviceType::cuda,
                  "dlpack: a tensor on {}; cpu or cuda", device.to_string());
  TESSERA_REQUIRE(!x.storage()->is_watched(),
                  "dlpack: a parameter of shape {} of a sharded module, whose memory comes and "
                  "goes; export a clone() of it",
                  x.shape().to_string());
  if (device.type == DeviceType::cuda) current_queue(device).synchronize();
  auto exported = std::make_unique<Exported>();
  exported->tensor = x;
  exported->shape.assign(x.shape().sizes().begin(), x.shape().sizes().end());
  exported->strides.assign(exported->shape.size(), 1);
  for (std::size_t i = exported->shape.size(); i > 1; --i) {
    exported->strides[i - 2] = exported->strides[i - 1] * exported->shape[i - 1];
  }
  std::uint8_t code = 0;
  for (const TypeRow& row : types) {
    if (row.dtype == x.dtype()) code = row.code;
  }
  exported->description = {
      .array = {.data = const_cast<std::byte*>(x.data()),
                .place = {device.type == DeviceType::cpu ? cpu_type : cuda_type, device.index},
                .dimensions = static_cast<std::int32_t>(x.dimensions()),
                .type = {code, bits_of(x.dtype()), 1},
                .shape = exported->shape.data(),
                .strides = exported->strides.data(),
                .byte_offset = 0},
      .owner = exported.get(),
      .deleter = release};
  return &exported.release()->description;
}

Tensor import_tensor(ManagedTensor* tensor) {
  TESSERA_REQUIRE(tensor != nullptr, "dlpack: a null pointer");
  const Array& array = tensor->array;
  const DType dtype = dtype_for(array.type);
  const Device device = device_of(array.place);
  const Shape shape = shape_of(array);
  return from_blob(static_cast<std::byte*>(array.data) + array.byte_offset, shape, dtype, device,
                   [tensor] {
                     if (tensor->deleter != nullptr) tensor->deleter(tensor);
                   });
}

}  // namespace tessera::dlpack
