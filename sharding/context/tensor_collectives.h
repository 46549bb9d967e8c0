// Gathers or sums tensors of all ranks, with their gradients: the implementation of
// Context::all_gather, all_reduce and mean.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <string_view>

#include "comm/communicator.h"
#include "engine/tensor.h"

namespace tessera {

// The collectives of one rank; used by the thread that computes, in the same order as on the other
// ranks. They are calls of the world's own communicator, also in the backward: no strategy changes
// their order.
class TensorCollectives : public std::enable_shared_from_this<TensorCollectives> {
 public:
  explicit TensorCollectives(std::shared_ptr<comm::Communicator> communicator)
      : communicator_(std::move(communicator)) {}

  [[nodiscard]] Tensor gather(const Tensor& rows);
  // The sum over the ranks times `scale`, on every rank. `call_name` is what the program called.
  [[nodiscard]] Tensor all_reduce(const Tensor& x, float scale, std::string_view call_name);

 private:
  // Collective memory for tensors of one shape and dtype. Its name contains both, so that ranks
  // which pass different ones get an error.
  struct Buffers {
    std::string name;
    std::shared_ptr<comm::Buffer> rows;
    std::shared_ptr<comm::Buffer> summands;  // of gathered rows: from the first backward on
  };
  static constexpr std::size_t most_buffers = 4;

  [[nodiscard]] Buffers& buffers_for(const std::string& name);
  void require_device(std::string_view call, const Tensor& tensor) const;
  // The buffer for what is summed, free to be written, with `summands` in it.
  comm::Buffer& filled_with(const std::string& name, const Tensor& summands, comm::Tag tag);
  // Sums the gradients of all ranks for this rank's rows into `out`.
  void reduce(const std::string& name, std::uint64_t call, const Tensor& gradients,
              const Tensor& out, bool accumulate);
  // Sums the summands of all ranks into `out`, on every rank.
  void sum_all(const std::string& name, const Tensor& summands, const Tensor& out,
               const comm::Reduction& reduction, comm::Tag tag);

  std::shared_ptr<comm::Communicator> communicator_;
  std::list<Buffers> buffers_;  // the last used first
  std::uint64_t calls_ = 0;
};

}  // namespace tessera
