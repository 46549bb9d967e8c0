// A rank that uses only the control plane, for scripts/several-hosts: it exchanges messages with
// the other ranks, prints its progress, and ends as `tessera` does.
//   control_ranks ROUNDS PAUSE_MS BYTES
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "comm/control/bootstrap.h"
#include "comm/timeout.h"
#include "sharding/context/failure.h"

int main(int argc, char** argv) {
  using namespace tessera::comm;
  if (argc != 4) {
    std::fprintf(stderr, "usage: control_ranks ROUNDS PAUSE_MS BYTES\n");
    return 2;
  }
  try {
    const World world = world_from_environment();
    const control::ControlPlane plane = control::connect_control_plane(
        world, {std::chrono::seconds(60), collective_timeout({}), standstill_timeout()});
    std::vector<std::int32_t> members;
    for (int rank = 0; rank < world.size; ++rank) members.push_back(rank);
    control::HubGroup group(plane.control, members, 1, "world");
    const std::string message(std::strtoull(argv[3], nullptr, 10), static_cast<char>(world.rank));
    const std::uint64_t rounds = std::strtoull(argv[1], nullptr, 10);
    for (std::uint64_t step = 1; step <= rounds; ++step) {
      const auto all = group.exchange(Call(Op::exchange, {.step = step}), message);
      for (std::size_t rank = 0; rank < all.size(); ++rank) {
        if (all[rank] != std::string(message.size(), static_cast<char>(rank))) return 1;
      }
      if (world.rank == 0 && step % 10 == 0) {
        std::printf("round %llu\n", static_cast<unsigned long long>(step));
        std::fflush(stdout);
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(std::strtoull(argv[2], nullptr, 10)));
    }
    std::printf("rank %d has ended in good order\n", world.rank);
    return 0;
  } catch (...) {
    const auto failure = tessera::current_failure();
    tessera::report_failure(*failure);
    return failure->code;
  }
}
