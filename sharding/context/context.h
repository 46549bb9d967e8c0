// The program's world: rank, ranks, and what a training loop asks of all of them together.
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
  // Where sharded modules live and this thread's new tensors go.
  [[nodiscard]] Device device() const { return communicator_->device(); }
  [[nodiscard]] comm::Communicator& communicator() const { return *communicator_; }

  // The loader's samples dealt out to the ranks: in step s this rank sees global samples (s*world +
  // rank)*batch ... of the loader.
  [[nodiscard]] data::TensorLoader prepare(const data::TensorLoader& loader) const;
  // Every rank's rows of `values` one after the other, in the order of the samples and without
  // those that only filled up the last batch; `values` are what this rank computed for the batch
  // that `loader` gave last. The result is on their device.
  [[nodiscard]] Tensor gather_for_metrics(const Tensor& values,
                                          const data::TensorLoader& loader) const;
  // The same of a loop that has its data from elsewhere: the first `samples` rows of each rank,
  // which may be another number on each of them, 0 too.
  [[nodiscard]] Tensor gather_for_metrics(const Tensor& values, std::int64_t samples) const;

  // Every rank's rows one after the other, in rank order: [n, ...] of each becomes [world * n, ...]
  // on all. Collective; the rows have one shape and dtype on all ranks, on device(). Autograd
  // follows: a row's gradient is the sum, over the ranks in the fixed order, of those that it has
  // on each of them. Losses of gathered rows are thus averaged over the ranks like any other loss.
  // With one rank it is `rows` itself.
  [[nodiscard]] Tensor all_gather(const Tensor& rows) const;

  // Element by element, the sum of the ranks' tensors and their mean, on all of them: of one shape
  // and floating dtype everywhere, on device(). Collective. Sums have the order and the precision
  // of gradients' (fp32 for 16 bits), so every rank gets the same bits. Autograd follows: the
  // gradient of a rank's tensor is the sum (for mean(): the mean) of those that the result has on
  // all ranks. With one rank it is `x` itself.
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

// Runs fn on `ranks` threads of this process, each a rank of its own; rethrows the first failure.
// On a GPU all of them share it: for tests and for comparing strategies. It is every thread's
// default device.
void launch(int ranks, const std::function<void(Context&)>& fn, Device device = Device::cpu());

}  // namespace tessera
