// Data between nodes through MPI, for programs that mpirun or srun started: MPI's ranks are the
// world's.
//
// Each of our communicators has its own tag for each pair of ranks, over a private copy of MPI's
// world. The lower rank of a pair chooses the tag and sends it in a message.
#pragma once

#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "comm/mpi/library.h"
#include "comm/nodes/network.h"
#include "comm/world.h"

namespace tessera::comm {

class MpiNetwork final : public Network {
 public:
  // Loads MPI. When the ranks also find each other through MPI, the constructor initialises it.
  explicit MpiNetwork(const World& world);
  ~MpiNetwork() override;

  [[nodiscard]] std::string_view backend() const override { return "shm+mpi"; }
  [[nodiscard]] std::string contact() const override { return mpi_.description(); }
  void start(const std::vector<std::string>& contacts) override;
  void meet(Look look) override;
  [[nodiscard]] std::unique_ptr<Transport> open(std::uint64_t channel,
                                                const std::vector<Peer>& peers,
                                                std::chrono::milliseconds timeout,
                                                const Look& look) override;
  void give_up() noexcept override;
  void leave(const Look& look) override;

 private:
  struct Hello {
    static constexpr std::uint64_t magic_number = 0x3169706d6c737374;  // "tsslmpi1" in memory
    std::uint64_t magic = magic_number;
    std::uint64_t channel = 0;
    std::int32_t tag = 0;
    std::int32_t unused = 0;
  };

  void initialize();
  void check_world();
  int next_tag(int rank);
  void say(int rank, const Hello& hello, const Look& look);
  [[nodiscard]] int hear(std::uint64_t channel, const Peer& peer, std::chrono::milliseconds timeout,
                         const Look& look);
  void push_on();
  void stop_pushing();

  Mpi& mpi_;
  const World world_;
  bool is_ours_ = false;  // to finalise
  int largest_tag_ = 0;
  Mpi::Communicator copy_;

  std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  bool ending_ = false;
  std::map<int, int> tags_;                                 // the last one, by rank
  std::map<std::pair<int, std::uint64_t>, int> announced_;  // tags, by rank and channel
  std::thread pusher_;
};

}  // namespace tessera::comm
