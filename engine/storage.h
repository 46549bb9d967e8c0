// A tensor's memory: owned, or lent by somebody who can take it away and give it back (sharding
// does).
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "engine/device.h"

namespace tessera {

class Storage {
 public:
  // Owned memory from the thread's pool; none on `meta`.
  static std::shared_ptr<Storage> allocate(std::size_t bytes, Device device);
  // Memory comes later, through attach(). `name` says whose it is in errors.
  static std::shared_ptr<Storage> lent(std::size_t bytes, Device device, std::string name);

  // The address now; no pointer from before a detach() is valid after it. A logic_error when there
  // is none.
  [[nodiscard]] std::byte* data() const;
  [[nodiscard]] bool present() const { return data_ != nullptr; }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }
  [[nodiscard]] bool is_lent() const { return !name_.empty(); }
  [[nodiscard]] Device device() const { return device_; }

  void attach(std::byte* data);
  void detach() { data_ = nullptr; }

  // Called by data() when there is no memory: it must attach some, or throw.
  void set_on_missing(std::function<void()> callback) { on_missing_ = std::move(callback); }
  // Whoever is about to change the values (optimizers, loaders) says so, so that holders of copies
  // can drop them.
  void will_write() const {
    if (on_write_) on_write_();
  }
  void set_on_write(std::function<void()> callback) { on_write_ = std::move(callback); }

 private:
  Storage(std::size_t bytes, Device device) : bytes_(bytes), device_(device) {}

  std::shared_ptr<std::byte> owned_;
  std::byte* data_ = nullptr;
  std::size_t bytes_;
  Device device_;
  std::string name_;
  std::function<void()> on_missing_;
  std::function<void()> on_write_;
};

}  // namespace tessera
