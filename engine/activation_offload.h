// What recomputed functions keep for backward, on the host of a GPU: an input goes there while its
// function runs for the first time, and comes back while the function after it has its backward.
//
// The copies run on two queues of their own. An input's memory on the GPU is free again when the
// next function begins; the last one's, whose backward comes first, stays. Page-locked memory goes
// round: steps allocate none after the first.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "engine/device/queue.h"
#include "engine/tensor.h"

namespace tessera {

// Of the calling thread, which alone uses it and what it keeps.
class ActivationOffload : public std::enable_shared_from_this<ActivationOffload> {
 public:
  static std::shared_ptr<ActivationOffload> create(Device device);
  ActivationOffload(const ActivationOffload&) = delete;
  ActivationOffload& operator=(const ActivationOffload&) = delete;

  // The inputs of one call of a function.
  class Kept {
   public:
    explicit Kept(std::shared_ptr<ActivationOffload> owner) : owner_(std::move(owner)) {}
    ~Kept();  // of one whose backward never came, too
    Kept(const Kept&) = delete;
    Kept& operator=(const Kept&) = delete;

    // Puts the inputs back where they were taken from, and sends for those of the call before.
    void bring_back();

   private:
    friend class ActivationOffload;
    struct Place {
      Tensor* of;
      Tensor tensor;  // what stood there, without memory
    };
    struct Input {
      std::vector<Place> places;     // that share the memory
      std::shared_ptr<Storage> own;  // on the GPU: what was kept, or what came back
      std::shared_ptr<Storage> host;
      bool returns = false;  // `own` is what comes back
      PointHandle copied;    // `own` was read, or written
    };
    void leave();     // the memory on the GPU goes
    void send_for();  // and comes again

    std::shared_ptr<ActivationOffload> owner_;
    std::vector<Input> inputs_;
  };

  // Takes what was computed on the GPU from `inputs`, which are not looked at until bring_back().
  // Leaves and what lies elsewhere stays.
  std::shared_ptr<Kept> keep(const std::vector<Tensor*>& inputs);

 private:
  explicit ActivationOffload(Device device);
  [[nodiscard]] bool takes(const Tensor& tensor) const;
  [[nodiscard]] std::shared_ptr<Storage> take_host_memory(std::size_t bytes);
  void give_back(std::shared_ptr<Storage> memory, PointHandle writable);

  struct Free {
    std::shared_ptr<Storage> memory;
    PointHandle writable;
  };
  Device device_;
  std::vector<std::weak_ptr<Kept>> calls_;  // in the order of forward
  std::vector<Free> free_;
  std::unique_ptr<DeviceQueue> up_, down_;
};

}  // namespace tessera
