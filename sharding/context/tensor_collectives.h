// Gathers, sums or exchanges tensors of all ranks, with their gradients: the implementation of
// Context::all_gather, all_reduce and mean, and of ContextParallel.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "comm/communicator.h"
#include "engine/device/stream.h"
#include "engine/tensor.h"

namespace tessera {

// The calls so far, with those of gradients.
struct ExchangeCounts {
  std::uint64_t calls = 0;
  std::uint64_t bytes = 0;         // that reached this rank from others
  std::uint64_t allocations = 0;   // of collective memory
  std::uint64_t buffer_bytes = 0;  // of collective memory that is held now
  double seconds = 0;              // in which the compute stream did nothing else
};

// A call, for a recorder.
struct ExchangeCall {
  enum class Kind : std::uint8_t { all_to_all, all_gather, reduce_scatter, all_reduce };
  Kind kind = Kind::all_to_all;
  comm::Phase phase = comm::Phase::forward;
  std::uint64_t bytes = 0;  // that reach this rank from others
};

// The collectives of one rank; used by the thread that computes, in the same order as on the other
// ranks. They are calls of the world's own communicator, also in the backward: no strategy changes
// their order.
class TensorCollectives : public std::enable_shared_from_this<TensorCollectives> {
 public:
  explicit TensorCollectives(std::shared_ptr<comm::Communicator> communicator)
      : communicator_(std::move(communicator)), stalls_(communicator_->device()) {}

  [[nodiscard]] comm::Communicator& communicator() const { return *communicator_; }
  // Runs around each call, in which the thread waits; it calls `work` once.
  using Observer = std::function<void(const ExchangeCall& call, const std::function<void()>& work)>;
  void set_observer(Observer observer) { observer_ = std::move(observer); }

  [[nodiscard]] Tensor gather(const Tensor& rows);
  // pieces [ranks, ...]: piece i goes to rank i. The result has the pieces that the ranks gave to
  // this one, in their order. `purpose` says what else the ranks must have in common: those that
  // differ in it, or in shape or dtype, get an error.
  [[nodiscard]] Tensor all_to_all(const Tensor& pieces, std::string_view purpose = {});
  // The sum over the ranks times `scale`, on every rank. `call_name` is what the program called.
  [[nodiscard]] Tensor all_reduce(const Tensor& x, float scale, std::string_view call_name);

  [[nodiscard]] ExchangeCounts counts() const;

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
  void exchange(const Tensor& pieces, const Tensor& out, const std::string& purpose, comm::Tag tag);
  // Counts and times the call.
  void wait_for(const ExchangeCall& call, const std::function<void()>& work);
  void count_allocation(std::size_t bytes);
  // Sums the gradients of all ranks for this rank's rows into `out`.
  void reduce(const std::string& name, std::uint64_t call, const Tensor& gradients,
              const Tensor& out, bool accumulate);
  // Sums the summands of all ranks into `out`, on every rank.
  void sum_all(const std::string& name, const Tensor& summands, const Tensor& out,
               const comm::Reduction& reduction, comm::Tag tag);

  std::shared_ptr<comm::Communicator> communicator_;
  std::list<Buffers> buffers_;  // the last used first
  std::uint64_t calls_ = 0;
  std::shared_ptr<comm::Buffer> pieces_;  // of all_to_all(): as large as the largest so far
  ExchangeCounts counts_;
  Observer observer_;
  StallClock stalls_;
};

}  // namespace tessera
