// Keeps the inputs of recomputed functions in host memory instead of the GPU's. An input is copied
// to the host while its function runs for the first time. It is copied back while the function
// after it runs its backward.
//
// The copies run on two queues of their own. An input's memory on the GPU is free again when the
// next function begins. The inputs of the last function stay, because its backward comes first.
// Page-locked memory is reused: steps after the first allocate none.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "engine/device/queue.h"
#include "engine/tensor.h"

namespace tessera {

// Belongs to one thread; only that thread uses it and what it keeps.
class ActivationOffload : public std::enable_shared_from_this<ActivationOffload> {
 public:
  static std::shared_ptr<ActivationOffload> create(Device device);
  ActivationOffload(const ActivationOffload&) = delete;
  ActivationOffload& operator=(const ActivationOffload&) = delete;

  // The inputs of one call of a function.
  class Kept {
   public:
    explicit Kept(std::shared_ptr<ActivationOffload> owner) : owner_(std::move(owner)) {}
    ~Kept();  // also if its backward never came
    Kept(const Kept&) = delete;
    Kept& operator=(const Kept&) = delete;

    // Puts the inputs back in their places, and starts the copies for the call before.
    void bring_back();

   private:
    friend class ActivationOffload;
    struct Place {
      Tensor* of;
      Tensor tensor;  // the tensor at that place, without memory
    };
    struct Input {
      std::vector<Place> places;     // places that share the memory
      std::shared_ptr<Storage> own;  // on the GPU: the original, or the copy brought back
      std::shared_ptr<Storage> host;
      bool returns = false;  // `own` is the copy brought back
      PointHandle copied;    // the point after which `own` has been read, or written
    };
    void leave();     // frees the memory on the GPU
    void send_for();  // allocates it again and starts the copy back

    std::shared_ptr<ActivationOffload> owner_;
    std::vector<Input> inputs_;
  };

  // Takes those of `inputs` that were computed on the GPU; they must not be read until
  // bring_back(). Leaves, and tensors elsewhere, stay.
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
