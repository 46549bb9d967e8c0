// A tensor's memory: owned, or lent by an owner that can withdraw it and provide it again
// (sharding).
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

class Storage {
 public:
  // Owned memory from the thread's pool; none on `meta`.
  static std::shared_ptr<Storage> allocate(std::size_t bytes, Device device);
  // Zeros in page-locked host memory, for transfers with `device`, whose pool counts it. On the CPU
  // it is ordinary memory.
  static std::shared_ptr<Storage> pinned(std::size_t bytes, Device device);
  // A part of another storage's owned memory; the memory lives as long as either storage. Settings
  // (write callbacks, padding, a pending factor) apply only to this part.
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

  // The folder in which optimizers keep the state for this memory; null: in memory.
  [[nodiscard]] const std::shared_ptr<const StateFolder>& state_folder() const {
    return state_folder_;
  }
  void set_state_folder(std::shared_ptr<const StateFolder> folder) {
    state_folder_ = std::move(folder);
  }
  // The link through which optimizers work on state that is partly on a GPU and partly on the host.
  // Null: all is in one memory (or in files).
  [[nodiscard]] const std::shared_ptr<HostLink>& host_link() const { return host_link_; }
  void set_host_link(std::shared_ptr<HostLink> link) { host_link_ = std::move(link); }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }
  [[nodiscard]] bool is_lent() const { return !name_.empty(); }
  [[nodiscard]] Device device() const { return device_; }

  void attach(std::byte* data);
  void detach() { data_ = nullptr; }

  // The error text for missing lent memory; empty: "the module is sharded".
  void set_why_missing(std::string why) { why_missing_ = std::move(why); }
  // True if set_why_missing() was called: the memory will not come back.
  [[nodiscard]] bool has_ended() const { return !why_missing_.empty(); }
  // Called by data() if memory is missing; it must attach some, or throw.
  void set_on_missing(std::function<void()> callback) { on_missing_ = std::move(callback); }
  // Announces a change of the values (by optimizers, loaders), so that holders of copies can drop
  // them. Waits while a checkpoint reads the file that holds them.
  enum class Write : std::uint8_t {
    now,
    by_pointer,  // a pointer is given out: the values may change now and at any time later
  };
  void will_write(Write how = Write::now) const;
  void set_on_write(std::function<void(Write)> callback) { on_write_ = std::move(callback); }
  [[nodiscard]] bool is_watched() const { return static_cast<bool>(on_write_); }
  // An optimizer calls it at the start of a step over tensors in this memory, with or without
  // gradients; it may throw.
  void will_step() const {
    if (on_step_) on_step_();
  }
  void set_on_step(std::function<void()> callback) { on_step_ = std::move(callback); }
  // Called when the gradient of a tensor in this memory is dropped (Tensor::zero_grad).
  void will_zero_grad(const detail::TensorData& tensor) const {
    if (on_zero_grad_) on_zero_grad_(tensor);
  }
  void set_on_zero_grad(std::function<void(const detail::TensorData&)> callback) {
    on_zero_grad_ = std::move(callback);
  }
  // Called before requires_grad of a tensor in this memory changes; it may throw.
  void will_set_requires_grad(const detail::TensorData& tensor) const {
    if (on_requires_grad_) on_requires_grad_(tensor);
  }
  void set_on_requires_grad(std::function<void(const detail::TensorData&)> callback) {
    on_requires_grad_ = std::move(callback);
  }

  // Tensors in this memory have one dtype and begin at multiples of this many elements. The space
  // between two neighbours is padding, so element-wise work may run over it. 0: unknown.
  [[nodiscard]] std::int64_t padded_to() const { return padded_to_; }
  void set_padded_to(std::int64_t elements) { padded_to_ = elements; }

  // A factor that is not applied yet: the true values are the stored ones times this. Clipping
  // leaves it to the optimizer's pass over the gradients; Tensor::grad() applies it.
  [[nodiscard]] float pending_factor() const { return pending_factor_; }
  void set_pending_factor(float factor) { pending_factor_ = factor; }

 private:
  Storage(std::size_t bytes, Device device) : bytes_(bytes), device_(device) {}
  [[noreturn]] void fail_missing() const;

  void map() const;
  void await_arrival() const;

  mutable std::shared_ptr<std::byte> owned_;  // for a file: its mapping, after the first data()
  mutable std::byte* data_ = nullptr;
  mutable std::unique_ptr<MemoryPool::Aside> aside_;  // if set, the two above are null
  FilePlace file_;
  std::shared_ptr<const StateFolder> state_folder_;
  std::shared_ptr<HostLink> host_link_;
  mutable std::function<void()> arrival_;  // if set, data_ is null
  std::size_t bytes_;
  Device device_;
  std::string name_;
  std::string why_missing_;
  std::function<void()> on_missing_;
  std::function<void(Write)> on_write_;
  std::function<void()> on_step_;
  std::function<void(const detail::TensorData&)> on_zero_grad_;
  std::function<void(const detail::TensorData&)> on_requires_grad_;
  std::int64_t padded_to_ = 0;
  float pending_factor_ = 1.0f;
  bool part_ = false;  // part of another storage's block
};

}  // namespace tessera
