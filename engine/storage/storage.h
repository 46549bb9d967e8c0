// A tensor's memory: owned, or lent by an owner that can withdraw it and provide it again
// (sharding). Sharding's callbacks and the optimizers' data of a shard are behind a pointer each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "engine/device/device.h"
#include "engine/device/memory.h"
#include "engine/storage/file_place.h"

namespace tessera {

namespace detail {
struct TensorData;
}

class HostLink;

namespace optim {
class ShardPeers;
}

// Functions that follow what happens to tensors in a memory (sharding). Empty ones are skipped.
struct StorageObserver {
  enum class Write : std::uint8_t {
    now,
    by_pointer,  // a pointer is given out: the values may change now and at any time later
  };
  // data() finds no memory: it must attach some, or throw.
  std::function<void()> on_missing = {};
  // The values change (by optimizers, loaders): copies of them become stale.
  std::function<void(Write)> on_write = {};
  // A step of an optimizer over the tensors begins, with or without gradients; it may throw.
  std::function<void(double learning_rate)> on_step = {};
  // The gradient of a tensor is dropped (Tensor::zero_grad).
  std::function<void(const detail::TensorData&)> on_zero_grad = {};
  // requires_grad of a tensor is about to change; it may throw.
  std::function<void(const detail::TensorData&)> on_requires_grad = {};
};

// What optimizers have to know of a shard's memory.
struct ShardMetadata {
  // The folder in which optimizers keep the state for this memory; null: in memory.
  std::shared_ptr<const StateFolder> state_folder;
  // The link through which optimizers work on state that is partly on a GPU and partly on the host.
  // Null: all is in one memory (or in files).
  std::shared_ptr<HostLink> host_link;
  // Tensors in this memory have one dtype and begin at multiples of this many elements. The space
  // between two neighbours is padding, so element-wise work may run over it. 0: unknown.
  std::int64_t padded_to = 0;
  // The ranks with the other parts of the tensors, for optimizers that need whole ones
  // (engine/optim/parts/shard_peers.h). Null: the tensors are whole, on this rank alone.
  std::shared_ptr<optim::ShardPeers> peers;
  // A factor that is not applied yet: the true values are the stored ones times this. Clipping
  // leaves it to the optimizer's pass over the gradients; Tensor::grad() applies it.
  float pending_factor = 1.0f;
};

class Storage {
 public:
  using Write = StorageObserver::Write;

  // Owned memory from the thread's pool; none on `meta`.
  static std::shared_ptr<Storage> allocate(std::size_t bytes, Device device);
  // Zeros in page-locked host memory, for transfers with `device`, whose pool counts it. On the CPU
  // it is ordinary memory.
  static std::shared_ptr<Storage> pinned(std::size_t bytes, Device device);
  // A part of another storage's owned memory; the memory lives as long as either storage. Its
  // observer and its metadata are its own.
  static std::shared_ptr<Storage> part_of(const std::shared_ptr<Storage>& whole, std::size_t offset,
                                          std::size_t bytes);
  // Memory comes later, through attach(). `name` names its owner in errors.
  static std::shared_ptr<Storage> lent(std::size_t bytes, Device device, std::string name);
  // The next bytes of a state file. Work on all of them goes in pieces
  // (engine/storage/file_window.h); data() maps them, for reading a few.
  static std::shared_ptr<Storage> in_file(const std::shared_ptr<StateFile>& file,
                                          std::size_t bytes);

  // The present address. A pointer from before a detach() is not valid after it. Throws a
  // logic_error without memory.
  [[nodiscard]] std::byte* data() const;
  // For reading values outside computations: never asks the owner for memory. Throws a logic_error
  // if they are missing.
  void require_present() const {
    if (!present()) [[unlikely]]
      fail_missing();
  }
  [[nodiscard]] bool present() const { return data_ != nullptr || file_ || arrival_ || aside_; }
  // Its place in a file; empty: in memory.
  [[nodiscard]] const FilePlace& file() const { return file_; }
  // Lends owned memory whose values are not needed to other users (MemoryPool::Aside) until
  // restore(). The values will then be written, and the address differs. A read before that gets
  // zeros. Has no effect if lending does not pay. Only the owner of the values may call it, when no
  // work uses them.
  void discard() const;
  void restore() const;

  // The values are still being copied into owned memory: the next data() calls `wait` first.
  void set_arrival(std::function<void()> wait);

  [[nodiscard]] std::size_t bytes() const { return bytes_; }
  [[nodiscard]] bool is_lent() const { return lender_ != nullptr; }
  // True if the memory belongs to another library or to the program (from_blob()).
  [[nodiscard]] bool is_foreign() const { return lender_ && lender_->name == foreign_lender; }
  static constexpr std::string_view foreign_lender = "from_blob()";
  [[nodiscard]] Device device() const { return device_; }

  void attach(std::byte* data) { data_ = data; }
  void detach() { data_ = nullptr; }

  // The error text for missing lent memory; empty: "the module is sharded".
  void set_why_missing(std::string why) { lender_->why_missing = std::move(why); }
  // True if set_why_missing() was called: the memory will not come back.
  [[nodiscard]] bool has_ended() const { return lender_ && !lender_->why_missing.empty(); }

  // Replaces the observer; a default one observes nothing.
  void set_observer(StorageObserver observer) {
    observer_ = std::make_unique<const StorageObserver>(std::move(observer));
  }
  [[nodiscard]] bool is_watched() const { return observer_ && observer_->on_write; }
  // Announces a change of the values. Waits while a checkpoint reads the file that holds them.
  void will_write(Write how = Write::now) const;
  void will_step(double learning_rate) const {
    if (observer_ && observer_->on_step) observer_->on_step(learning_rate);
  }
  void will_zero_grad(const detail::TensorData& tensor) const {
    if (observer_ && observer_->on_zero_grad) observer_->on_zero_grad(tensor);
  }
  void will_set_requires_grad(const detail::TensorData& tensor) const {
    if (observer_ && observer_->on_requires_grad) observer_->on_requires_grad(tensor);
  }

  // Defaults, unless edit_shard() was called.
  [[nodiscard]] const ShardMetadata& shard() const { return shard_ ? *shard_ : no_shard; }
  [[nodiscard]] ShardMetadata& edit_shard() {
    if (!shard_) shard_ = std::make_unique<ShardMetadata>();
    return *shard_;
  }

 private:
  struct Lender {
    std::string name;
    std::string why_missing;
  };
  static constinit const ShardMetadata no_shard;

  Storage(std::size_t bytes, Device device) : bytes_(bytes), device_(device) {}
  [[noreturn]] void fail_missing() const;

  void map() const;
  void await_arrival() const;

  mutable std::shared_ptr<std::byte> owned_;  // for a file: its mapping, after the first data()
  mutable std::byte* data_ = nullptr;
  mutable std::unique_ptr<MemoryPool::Aside> aside_;  // if set, the two above are null
  FilePlace file_;
  mutable std::function<void()> arrival_;  // if set, data_ is null
  std::size_t bytes_;
  Device device_;
  bool part_ = false;               // part of another storage's block
  std::unique_ptr<Lender> lender_;  // null: the memory is not lent
  std::unique_ptr<const StorageObserver> observer_;
  std::unique_ptr<ShardMetadata> shard_;
};

}  // namespace tessera
