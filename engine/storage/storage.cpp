// Owned and lent memory behind one type.
#include "engine/storage/storage.h"

#include "base/error.h"
#include "engine/device/backend.h"
#include "engine/device/memory.h"
#include "engine/device/queue.h"
#include "engine/storage/state_file.h"

namespace tessera {

constinit const ShardMetadata Storage::no_shard;

std::shared_ptr<Storage> Storage::allocate(std::size_t bytes, Device device) {
  auto storage = std::shared_ptr<Storage>(new Storage(bytes, device));  // private constructor
  if (device.is_meta()) return storage;
  storage->owned_ = MemoryPool::current(device)->allocate(bytes);
  storage->data_ = storage->owned_.get();
  return storage;
}

std::shared_ptr<Storage> Storage::pinned(std::size_t bytes, Device device) {
  auto storage = std::shared_ptr<Storage>(new Storage(bytes, device.host()));
  if (device == device.host()) {
    storage->owned_ = MemoryPool::current(device)->allocate(bytes);
  } else {
    const std::shared_ptr<MemoryPool> pool = MemoryPool::current(device);
    const MemoryKind kind = current_memory_kind();
    std::shared_ptr<std::byte> block = backend_of(device.type).allocate_pinned(bytes);
    pool->count_host(kind, bytes);
    std::byte* const address = block.get();
    storage->owned_ =
        std::shared_ptr<std::byte>(address, [pool, kind, bytes, block = std::move(block)](
                                                std::byte*) { pool->uncount_host(kind, bytes); });
  }
  storage->data_ = storage->owned_.get();
  current_queue(storage->device_).zero(storage->data_, bytes);
  return storage;
}

std::shared_ptr<Storage> Storage::part_of(const std::shared_ptr<Storage>& whole, std::size_t offset,
                                          std::size_t bytes) {
  TESSERA_REQUIRE(!whole->is_lent(), "a part of {}, which is lent", whole->lender_->name);
  TESSERA_REQUIRE(offset <= whole->bytes_ && bytes <= whole->bytes_ - offset,
                  "bytes {} to {} of a storage of {}", offset, offset + bytes, whole->bytes_);
  auto storage = std::shared_ptr<Storage>(new Storage(bytes, whole->device_));
  if (whole->data_ == nullptr) return storage;  // on `meta`
  storage->owned_ = std::shared_ptr<std::byte>(whole->owned_, whole->data_ + offset);
  storage->data_ = storage->owned_.get();
  storage->part_ = true;
  return storage;
}

std::shared_ptr<Storage> Storage::lent(std::size_t bytes, Device device, std::string name) {
  auto storage = std::shared_ptr<Storage>(new Storage(bytes, device));
  storage->lender_ = std::make_unique<Lender>(Lender{std::move(name), {}});
  return storage;
}

std::shared_ptr<Storage> Storage::in_file(const std::shared_ptr<StateFile>& file,
                                          std::size_t bytes) {
  auto storage = std::shared_ptr<Storage>(new Storage(bytes, file->folder().device));
  storage->file_ = {file, file->take(bytes)};
  return storage;
}

std::byte* Storage::data() const {
  if (data_ != nullptr) [[likely]]
    return data_;
  if (arrival_) {
    await_arrival();
    return data_;
  }
  if (file_) {
    map();
    return data_;
  }
  if (aside_) {
    restore();
    current_queue(device_).zero(data_, bytes_);
    return data_;
  }
  if (observer_ && observer_->on_missing) {
    observer_->on_missing();
    if (data_ != nullptr) return data_;
  }
  fail_missing();
}

void Storage::will_write(Write how) const {
  if (is_watched()) observer_->on_write(how);
  if (file_) file_.file->await_holders();
}

void Storage::set_arrival(std::function<void()> wait) {
  arrival_ = std::move(wait);
  data_ = nullptr;
}

// If the wait throws, later calls throw again: the values never arrive.
void Storage::await_arrival() const {
  arrival_();
  arrival_ = nullptr;
  data_ = owned_.get();
}

void Storage::map() const {
  owned_ = file_.file->map(file_.offset, bytes_);
  data_ = owned_.get();
}

void Storage::discard() const {
  TESSERA_REQUIRE(!part_, "a part of a block cannot be discarded alone");
  if (!owned_ || file_) return;
  aside_ = MemoryPool::set_aside(owned_);
  if (aside_) data_ = nullptr;
}

void Storage::restore() const {
  if (!aside_) return;
  owned_ = aside_->bring_back();
  aside_.reset();
  data_ = owned_.get();
}

void Storage::fail_missing() const {
  const std::string name = lender_ ? lender_->name : "";
  if (has_ended()) misuse("{} {}", name, lender_->why_missing);
  if (device_.is_meta()) misuse("a tensor on `meta` has no memory; materialise it first");
  misuse(
      "{} is sharded now: its parameters can be read inside their module's forward and backward, "
      "or within an unsharded(model) scope; a module whose forward reads another's parameter must "
      "declare it in its constructor, by reads_parameter(tensor)",
      name);
}

}  // namespace tessera
