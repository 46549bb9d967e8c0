// Rows of all ranks brought together, and their gradients sent back: what Context::all_gather does.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <string>

#include "engine/tensor.h"
#include "sharding/comm/communicator.h"

namespace tessera {

// Of one rank; used by the thread that computes, whose calls have the order of the other ranks'. A
// gather and the reduction of its gradients are collectives of the world's own communicator: no
// strategy changes their order.
class RowGathering : public std::enable_shared_from_this<RowGathering> {
 public:
  explicit RowGathering(std::shared_ptr<comm::Communicator> communicator)
      : communicator_(std::move(communicator)) {}

  [[nodiscard]] Tensor gather(const Tensor& rows);

 private:
  // Collective memory for rows of one shape and dtype, which its name says: ranks that gather
  // different rows are told so.
  struct Buffers {
    std::string name;
    std::shared_ptr<comm::Buffer> rows;
    std::shared_ptr<comm::Buffer> gradients;  // from the first backward on
  };
  static constexpr std::size_t most_buffers = 4;

  [[nodiscard]] Buffers& buffers_for(const std::string& name);
  // Sums what all ranks have for this rank's rows into `out`.
  void reduce(const std::string& name, std::uint64_t call, const Tensor& gradients,
              const Tensor& out, bool accumulate);

  std::shared_ptr<comm::Communicator> communicator_;
  std::list<Buffers> buffers_;  // those used last come first
  std::uint64_t calls_ = 0;
};

}  // namespace tessera
