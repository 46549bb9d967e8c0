// State of a rank that lies in the host's page-locked memory instead of its GPU's, and the way
// between the two.
//
// An optimizer updates where its moments lie: on the host by the CPU's kernels, else on the GPU.
// Parameters and gradients that lie on the other side pass through windows, piece by piece: one
// piece is worked on while the next ones come and the one before goes. Copies run on two queues of
// their own, one for each direction, in the order of points; the thread waits only where the CPU is
// about to compute.
#pragma once

#include <array>
#include <cstddef>
#include <memory>

#include "engine/device/memory_kind.h"
#include "engine/device/queue.h"
#include "engine/storage/storage.h"

namespace tessera {

// What lies on the host.
struct OnHost {
  bool parameters = false;
  bool gradients = false;
  bool optimizer = false;
};

class HostLink {
 public:
  static constexpr std::size_t pieces = 3;

  // A few pieces of memory on the side where updates are.
  class Window {
   public:
    Window(std::shared_ptr<Storage> memory, std::size_t piece_bytes)
        : memory_(std::move(memory)), piece_bytes_(piece_bytes) {}
    [[nodiscard]] std::byte* piece(std::size_t index) const {
      return memory_->data() + index % pieces * piece_bytes_;
    }
    [[nodiscard]] std::size_t piece_bytes() const { return piece_bytes_; }
    // From when on the piece may be written again.
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
  // Of the calling thread, which alone uses it.
  HostLink(Device device, const OnHost& on_host, const Sizes& sizes);

  [[nodiscard]] Device device() const { return device_; }
  // Where updates are computed.
  [[nodiscard]] Device updates_on() const { return on_host_.optimizer ? device_.host() : device_; }
  // Memory for moments; zeros.
  [[nodiscard]] std::shared_ptr<Storage> make_state(std::size_t bytes) const;
  // Null: they lie where updates are.
  [[nodiscard]] Window* parameters() const { return parameters_.get(); }
  [[nodiscard]] Window* gradients() const { return gradients_.get(); }

  [[nodiscard]] DeviceQueue& up() const { return *up_; }      // to the GPU
  [[nodiscard]] DeviceQueue& down() const { return *down_; }  // from it

  static std::size_t bytes_of_piece(std::size_t piece_bytes, std::size_t largest);
  // That a window for arrays of at most `largest` bytes takes.
  static std::size_t window_bytes(std::size_t piece_bytes, std::size_t largest) {
    return pieces * bytes_of_piece(piece_bytes, largest);
  }

 private:
  [[nodiscard]] std::unique_ptr<Window> make_window(MemoryKind kind, const Sizes& sizes,
                                                    std::size_t largest) const;

  Device device_;
  OnHost on_host_;
  std::unique_ptr<Window> parameters_, gradients_;
  std::unique_ptr<DeviceQueue> up_, down_;  // end, and are waited for, before what they copy
};

}  // namespace tessera
