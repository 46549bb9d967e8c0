// The ranks of a shard group as optimizers see them that need whole matrices.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "engine/optim/parts/shard_peers.h"
#include "sharding/profiler/step_recorder.h"
#include "sharding/units/unit.h"

namespace tessera {

// The peers of one model. The communicator is the shard group's, or the world's if every rank has a
// whole copy, and used on the compute stream.
class UnitPeers final : public optim::ShardPeers {
 public:
  // The communicator and the units that are added must outlive this object's use: a step after the
  // model's end is refused before (Runtime::stop_watching).
  explicit UnitPeers(comm::Communicator& communicator, std::function<StepRecorder*()> recorder)
      : communicator_(communicator), recorder_(std::move(recorder)) {}
  void add(const Unit& unit);

  [[nodiscard]] int rank() const override { return communicator_.rank(); }
  [[nodiscard]] int size() const override { return communicator_.size(); }
  // A logic_error for another model's tensor.
  [[nodiscard]] std::vector<ElementRange> parts_of(const Tensor& local) const override;
  void send(const std::byte* memory, std::size_t bytes, int to) override;
  void receive(std::byte* memory, std::size_t bytes, int from) override;
  void broadcast(std::byte* memory, std::size_t bytes, int root) override;
  void sum(double* numbers, std::int64_t count) override;

  [[nodiscard]] std::uint64_t received_bytes() const { return received_bytes_; }

 private:
  struct Place {
    const Unit* unit;
    std::size_t slot;
  };

  comm::Communicator& communicator_;
  std::function<StepRecorder*()> recorder_;
  std::unordered_map<const detail::TensorData*, Place> places_;  // by local tensor
  std::shared_ptr<comm::Buffer> summands_;                       // after the first sum()
  std::uint64_t received_bytes_ = 0;
};

}  // namespace tessera
