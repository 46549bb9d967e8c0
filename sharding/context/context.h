// The program's world: the rank, the number of ranks, and the operations over all ranks that a
// training loop needs.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "comm/world.h"
#include "engine/data/tensor_loader.h"
#include "engine/tensor.h"

namespace tessera {

class TensorCollectives;

// Copies share the world. Collective calls must be made by every rank in the same order.
class Context {
 public:
  Context(comm::World world, std::shared_ptr<comm::Communicator> communicator);

  [[nodiscard]] int rank() const { return communicator_->rank(); }
  [[nodiscard]] int world_size() const { return communicator_->size(); }
  [[nodiscard]] bool is_main() const { return rank() == 0; }
  [[nodiscard]] const comm::World& world() const { return world_; }
  // The device of sharded modules and of this thread's new tensors.
  [[nodiscard]] Device device() const { return communicator_->device(); }
  [[nodiscard]] comm::Communicator& communicator() const { return *communicator_; }

  // Distributes the loader's samples over the ranks: in step s this rank sees global samples
  // (s*world + rank)*batch ... of the loader.
  [[nodiscard]] data::TensorLoader prepare(const data::TensorLoader& loader) const;
  // The rows of `values` of all ranks, concatenated in the order of the samples, without those that
  // only filled up the last batch; `values` are this rank's results for the last batch of `loader`.
  // The result is on their device.
  [[nodiscard]] Tensor gather_for_metrics(const Tensor& values,
                                          const data::TensorLoader& loader) const;
  // The same for a loop with another source of data: the first `samples` rows of each rank.
  // `samples` may differ between ranks and may be 0.
  [[nodiscard]] Tensor gather_for_metrics(const Tensor& values, std::int64_t samples) const;

  // The rows of all ranks, concatenated in rank order: [n, ...] of each becomes [world * n, ...] on
  // all. Collective; the rows have one shape and dtype on all ranks, on device(). Autograd works
  // through it: a row's gradient is the sum of its gradients on all ranks, in the fixed order.
  // Losses of gathered rows are thus averaged over the ranks like any other loss. With one rank the
  // result is `rows` itself.
  [[nodiscard]] Tensor all_gather(const Tensor& rows) const;

  // The elementwise sum of the ranks' tensors, or their mean, on all ranks. The tensors have one
  // shape and floating dtype on all ranks and are on device(). Collective. Sums have the order and
  // the precision of gradient sums (fp32 for 16 bits), so every rank gets the same bits. Autograd
  // works through it: the gradient of a rank's tensor is the sum (for mean(): the mean) of the
  // result's gradients on all ranks. With one rank the result is `x` itself.
  [[nodiscard]] Tensor all_reduce(const Tensor& x) const;
  [[nodiscard]] Tensor mean(const Tensor& x) const;

  // Collective, in rank order, so every rank gets the same bits.
  [[nodiscard]] double sum(double value) const;
  [[nodiscard]] double mean(double value) const { return sum(value) / world_size(); }
  [[nodiscard]] double max(double value) const;
  void barrier() const;

 private:
  comm::World world_;
  std::shared_ptr<comm::Communicator> communicator_;
  std::shared_ptr<TensorCollectives> collectives_;
};

// The world that the environment describes (torchrun's variables); one rank when it describes none.
// `device` becomes the calling thread's default device; several processes with GPUs name one each.
// options.device is ignored. A process that was fork()ed after its parent had used the library
// cannot be a rank: a logic_error.
Context init(Device device = Device::cpu(), const comm::ConnectOptions& options = {});

// Runs fn on `ranks` threads of this process, one for each rank; rethrows the first failure. On a
// GPU all ranks share it: for tests and for comparing strategies. `device` is every thread's
// default device.
void launch(int ranks, const std::function<void(Context&)>& fn, Device device = Device::cpu());

}  // namespace tessera
