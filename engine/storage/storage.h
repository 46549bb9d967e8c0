// A tensor's memory: owned, or lent by somebody who can take it away and give it back (sharding
// does).
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
  // Zeros in page-locked memory of the host, for transfers with `device`, whose pool counts it. On
  // the CPU itself it is memory like any other.
  static std::shared_ptr<Storage> pinned(std::size_t bytes, Device device);
  // A part of another's owned memory, which lives as long as either does. What is said of it (who
  // is told of writes, padding, a pending factor) is said of this part alone.
  static std::shared_ptr<Storage> part_of(const std::shared_ptr<Storage>& whole, std::size_t offset,
                                          std::size_t bytes);
  // Memory comes later, through attach(). `name` says whose it is in errors.
  static std::shared_ptr<Storage> lent(std::size_t bytes, Device device, std::string name);
  // The next bytes of a file of state. Whoever has to do with all of them works on them in pieces
  // (engine/storage/file_window.h); data() maps them, for whoever reads a few.
  static std::shared_ptr<Storage> in_file(const std::shared_ptr<StateFile>& file,
                                          std::size_t bytes);

  // The address now; no pointer from before a detach() is valid after it. A logic_error when there
  // is none.
  [[nodiscard]] std::byte* data() const;
  // For whoever reads values outside of any computation: never asks anybody to bring them. A
  // logic_error when there are none.
  void require_present() const {
    if (!present()) [[unlikely]]
      fail_missing();
  }
  [[nodiscard]] bool present() const { return data_ != nullptr || file_ || arrival_ || aside_; }
  // Where it lies; none: in memory.
  [[nodiscard]] const FilePlace& file() const { return file_; }
  // Owned memory that nobody needs for a while, nor its values, goes to others (MemoryPool::Aside)
  // until restore() says that they will be written; the address then is another one. Who reads
  // before that gets zeros. Without effect where it is not worth it. By whoever owns the values,
  // when no work on them is under way.
  void discard() const;
  void restore() const;
  // Memory that a mapping has taken goes back to the system; addresses stay valid.
  void drop_mapped() const;

  // The values are on their way into owned memory: the next data() calls `wait` first.
  void set_arrival(std::function<void()> wait);

  // Where optimizers keep the state that goes with what lies here; none: in memory.
  [[nodiscard]] const std::shared_ptr<const StateFolder>& state_folder() const {
    return state_folder_;
  }
  void set_state_folder(std::shared_ptr<const StateFolder> folder) {
    state_folder_ = std::move(folder);
  }
  // Through which optimizers work on what lies partly on a GPU and partly on the host; none: all
  // is in one memory (or in files).
  [[nodiscard]] const std::shared_ptr<HostLink>& host_link() const { return host_link_; }
  void set_host_link(std::shared_ptr<HostLink> link) { host_link_ = std::move(link); }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }
  [[nodiscard]] bool is_lent() const { return !name_.empty(); }
  [[nodiscard]] Device device() const { return device_; }

  void attach(std::byte* data);
  void detach() { data_ = nullptr; }

  // What an error says where lent memory is missing; empty: that the module is sharded.
  void set_why_missing(std::string why) { why_missing_ = std::move(why); }
  // Whether somebody has said so, for good.
  [[nodiscard]] bool has_ended() const { return !why_missing_.empty(); }
  // Called by data() when there is no memory: it must attach some, or throw.
  void set_on_missing(std::function<void()> callback) { on_missing_ = std::move(callback); }
  // Whoever is about to change the values (optimizers, loaders) says so, so that holders of copies
  // can drop them. What lies in a file that is being read for a checkpoint is waited for.
  enum class Write : std::uint8_t {
    now,
    by_pointer,  // a pointer is given away: the values may change now and at any time later
  };
  void will_write(Write how = Write::now) const;
  void set_on_write(std::function<void(Write)> callback) { on_write_ = std::move(callback); }
  [[nodiscard]] bool is_watched() const { return static_cast<bool>(on_write_); }
  // Called by an optimizer at the begin of a step over tensors in this memory, whether they have
  // gradients or not; it may throw.
  void will_step() const {
    if (on_step_) on_step_();
  }
  void set_on_step(std::function<void()> callback) { on_step_ = std::move(callback); }
  // Called when the gradient of a tensor over this memory is dropped (Tensor::zero_grad).
  void will_zero_grad(const detail::TensorData& tensor) const {
    if (on_zero_grad_) on_zero_grad_(tensor);
  }
  void set_on_zero_grad(std::function<void(const detail::TensorData&)> callback) {
    on_zero_grad_ = std::move(callback);
  }
  // Called before requires_grad of a tensor over this memory changes; it may throw.
  void will_set_requires_grad(const detail::TensorData& tensor) const {
    if (on_requires_grad_) on_requires_grad_(tensor);
  }
  void set_on_requires_grad(std::function<void(const detail::TensorData&)> callback) {
    on_requires_grad_ = std::move(callback);
  }

  // Tensors in it have one dtype and begin at multiples of so many elements, and what lies between
  // two neighbours belongs to nobody: element-wise work may run over it. 0: nothing is known.
  [[nodiscard]] std::int64_t padded_to() const { return padded_to_; }
  void set_padded_to(std::int64_t elements) { padded_to_ = elements; }

  // A factor that is not multiplied in yet: every value stands for itself times this. Clipping
  // leaves it to the optimizer's pass over the gradients; Tensor::grad() multiplies it in.
  [[nodiscard]] float pending_factor() const { return pending_factor_; }
  void set_pending_factor(float factor) { pending_factor_ = factor; }

 private:
  Storage(std::size_t bytes, Device device) : bytes_(bytes), device_(device) {}
  [[noreturn]] void fail_missing() const;

  void map() const;
  void await_arrival() const;

  mutable std::shared_ptr<std::byte> owned_;  // a file's: its mapping, from the first data() on
  mutable std::byte* data_ = nullptr;
  mutable std::unique_ptr<MemoryPool::Aside> aside_;  // then the two are null
  FilePlace file_;
  std::shared_ptr<const StateFolder> state_folder_;
  std::shared_ptr<HostLink> host_link_;
  mutable std::function<void()> arrival_;  // then data_ is null
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
  bool part_ = false;  // of another's block
};

}  // namespace tessera
