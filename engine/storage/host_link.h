// State of a rank in page-locked host memory instead of its GPU's, and the transfers between the
// two.
//
// An optimizer updates on the side of its moments: on the host with the CPU's kernels, else on the
// GPU. Parameters and gradients on the other side pass through windows, piece by piece: one piece
// is updated while the next ones arrive and the previous one leaves. Copies run on two queues of
// their own, one for each direction, ordered by points. The thread waits only when the CPU is about
// to compute.
#pragma once

#include <array>
#include <cstddef>
#include <memory>

#include "engine/device/memory_kind.h"
#include "engine/device/queue.h"
#include "engine/storage/storage.h"

namespace tessera {

// The kinds of state that are on the host.
struct OnHost {
  bool parameters = false;
  bool gradients = false;
  bool optimizer = false;
};

class HostLink {
 public:
  static constexpr std::size_t pieces = 3;

  // A few pieces of memory on the side of the updates.
  class Window {
   public:
    Window(std::shared_ptr<Storage> memory, std::size_t piece_bytes)
        : memory_(std::move(memory)), piece_bytes_(piece_bytes) {}
    [[nodiscard]] std::byte* piece(std::size_t index) const {
      return memory_->data() + index % pieces * piece_bytes_;
    }
    [[nodiscard]] std::size_t piece_bytes() const { return piece_bytes_; }
    // The point from which the piece may be overwritten.
    [[nodiscard]] PointHandle& writable(std::size_t index) { return writable_[index % pieces]; }

   private:
    std::shared_ptr<Storage> memory_;
    std::size_t piece_bytes_;
    std::array<PointHandle, pieces> writable_;
  };

  struct Sizes {
    std::size_t piece_bytes = std::size_t{4} << 20;
    std::size_t largest_parameters = 0;  // of one segment
    std::size_t largest_gradients = 0;
  };
  // Belongs to the calling thread; only that thread uses it.
  HostLink(Device device, const OnHost& on_host, const Sizes& sizes);

  [[nodiscard]] Device device() const { return device_; }
  // The device that computes updates.
  [[nodiscard]] Device updates_on() const { return on_host_.optimizer ? device_.host() : device_; }
  // Memory for moments, filled with zeros.
  [[nodiscard]] std::shared_ptr<Storage> make_state(std::size_t bytes) const;
  // Null: they are on the side of the updates.
  [[nodiscard]] Window* parameters() const { return parameters_.get(); }
  [[nodiscard]] Window* gradients() const { return gradients_.get(); }

  [[nodiscard]] DeviceQueue& up() const { return *up_; }      // to the GPU
  [[nodiscard]] DeviceQueue& down() const { return *down_; }  // from it

  static std::size_t bytes_of_piece(std::size_t piece_bytes, std::size_t largest);
  // Bytes of a window for arrays of at most `largest` bytes.
  static std::size_t window_bytes(std::size_t piece_bytes, std::size_t largest) {
    return pieces * bytes_of_piece(piece_bytes, largest);
  }

 private:
  [[nodiscard]] std::unique_ptr<Window> make_window(MemoryKind kind, const Sizes& sizes,
                                                    std::size_t largest) const;

  Device device_;
  OnHost on_host_;
  std::unique_ptr<Window> parameters_, gradients_;
  std::unique_ptr<DeviceQueue> up_, down_;  // destroyed, after a wait, before their memory
};

}  // namespace tessera
