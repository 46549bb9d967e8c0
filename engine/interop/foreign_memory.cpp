// Lent storage that keeps the memory's owner.
#include "engine/interop/foreign_memory.h"

#include <cstdint>
#include <exception>
#include <memory>
#include <utility>

#include "base/error.h"
#include "engine/device/queue.h"

namespace tessera {
namespace {

// The storage is a part of this, so that the last handle to it releases the memory.
struct ForeignMemory {
  ForeignMemory(std::shared_ptr<Storage> lent, std::function<void()> when_released)
      : storage(std::move(lent)), release(std::move(when_released)) {}
  ~ForeignMemory() {
    if (!release) return;
    await_device();
    release();
  }
  ForeignMemory(const ForeignMemory&) = delete;
  ForeignMemory& operator=(const ForeignMemory&) = delete;

  // The owner may give the memory to others at once.
  void await_device() const {
    if (storage->device().type == DeviceType::cpu) return;
    try {
      current_queue(storage->device()).synchronize();
    } catch (const std::exception&) {
      // The device has failed: its next use reports that, and nothing reads the memory any more.
    }
  }

  std::shared_ptr<Storage> storage;
  std::function<void()> release;
};

}  // namespace

Tensor from_blob(void* data, const Shape& shape, DType dtype, Device device,
                 std::function<void()> release) {
  TESSERA_REQUIRE(device.type == DeviceType::cpu || device.type == DeviceType::cuda,
                  "from_blob: memory of {}; cpu or cuda", device.to_string());
  TESSERA_REQUIRE(data != nullptr || shape.elements() == 0,
                  "from_blob: a null pointer for a tensor of shape {}", shape.to_string());
  TESSERA_REQUIRE(reinterpret_cast<std::uintptr_t>(data) % size_of(dtype) == 0,
                  "from_blob: memory that is not aligned for {}", name_of(dtype));
  const std::size_t bytes = static_cast<std::size_t>(shape.elements()) * size_of(dtype);
  auto storage = Storage::lent(bytes, device, std::string(Storage::foreign_lender));
  // A tensor without elements may come without memory; a storage without memory is a shard's.
  static std::max_align_t none;
  storage->attach(data != nullptr ? static_cast<std::byte*>(data)
                                  : reinterpret_cast<std::byte*>(&none));
  Storage* const address = storage.get();
  const auto memory = std::make_shared<ForeignMemory>(std::move(storage), std::move(release));
  return Tensor::view_of({memory, address}, 0, shape, dtype);
}

}  // namespace tessera
