// Gathers and sums between nodes, compared with raw TCP: a rank and its counterpart on another node
// exchange the same bytes through one socket with blocking calls, in the same run and in turns.
// Every process is a rank of the environment (scripts/hosts-bench starts them); rank 0 prints.
#include <arpa/inet.h>
#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/parallel.h"
#include "bench/harness/median.h"
#include "bench/programs/options.h"
#include "comm/control/wire.h"
#include "comm/nodes/tcp/own_address.h"
#include "comm/world.h"

namespace {

using namespace tessera;
using namespace tessera::comm;
using Ranks = std::shared_ptr<Communicator>;

// A connection to the rank in the same place on the other of two nodes.
FileDescriptor connect_raw(const World& world, const Ranks& ranks) {
  TESSERA_CHECK(ranks->size() == 2 * world.local_size, ErrorCode::configuration,
                "hosts_bench: two hosts with as many ranks each wanted");
  std::optional<FileDescriptor> listener = control::listen_on(0);
  const auto addresses = ranks->exchange(
      fmt::format("{} {}", own_address(world.master_address), control::port_of(listener->get())));
  const int other = (ranks->rank() + world.local_size) % ranks->size();
  FileDescriptor connection;
  if (other < ranks->rank()) {
    const std::string& address = addresses[static_cast<std::size_t>(other)];
    const std::size_t space = address.find(' ');
    auto made = control::connect_to(address.substr(0, space), std::stoi(address.substr(space)));
    TESSERA_CHECK(made.has_value(), ErrorCode::runtime, "hosts_bench: no rank listens at {}",
                  address);
    connection = std::move(*made);
  } else {
    connection = FileDescriptor(TESSERA_SYSTEM(accept(listener->get(), nullptr, nullptr)));
  }
  ranks->barrier();
  return connection;
}

// Both directions at once, with one thread each.
void swap_raw(int socket, const std::vector<std::byte>& out, std::vector<std::byte>& in) {
  std::thread sender([&] {
    for (std::size_t done = 0; done < out.size();) {
      done += static_cast<std::size_t>(
          TESSERA_SYSTEM(send(socket, out.data() + done, out.size() - done, MSG_NOSIGNAL)));
    }
  });
  for (std::size_t done = 0; done < in.size();) {
    const ssize_t bytes = TESSERA_SYSTEM(recv(socket, in.data() + done, in.size() - done, 0));
    if (bytes == 0) break;
    done += static_cast<std::size_t>(bytes);
  }
  sender.join();
}

// The seconds of the slowest rank.
double timed(const Ranks& ranks, const std::function<void()>& work) {
  ranks->barrier();
  const auto begin = std::chrono::steady_clock::now();
  work();
  const double own =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  double slowest = 0;
  for (const std::string& text : ranks->exchange(fmt::format("{}", own))) {
    slowest = std::max(slowest, std::stod(text));
  }
  return slowest;
}

void measure(std::size_t bytes, int rounds) {
  const World world = world_from_environment();
  set_compute_threads(1);
  const Ranks ranks = connect(world);
  const FileDescriptor raw = connect_raw(world, ranks);
  const auto size = static_cast<std::size_t>(ranks->size());
  const std::size_t share = bytes / size / sizeof(float) * sizeof(float);
  const auto count = static_cast<std::int64_t>(share / sizeof(float));
  std::vector<std::byte> out(share), in(share);
  std::vector<float> sums(static_cast<std::size_t>(count));
  auto gathered = ranks->allocate("gathered", share * size, Sharing::one_copy);
  auto gradients = ranks->allocate("gradients", share * size, Sharing::per_rank);
  std::vector<double> of_raw, of_gather, of_reduce;
  for (int round = 0; round < rounds + 2; ++round) {  // two to warm up
    const double raw_seconds = timed(ranks, [&] { swap_raw(raw.get(), out, in); });
    const double gather_seconds = timed(ranks, [&] {
      ranks->acquire(*gathered);
      ranks->all_gather(*gathered, share * size, {});
      gathered->release();
    });
    const double reduce_seconds = timed(ranks, [&] {
      ranks->acquire(*gradients);
      ranks->reduce_scatter(*gradients, {{ranks->rank() * count, count, sums.data()}}, {}, {});
    });
    if (round < 2) continue;
    of_raw.push_back(raw_seconds);
    of_gather.push_back(gather_seconds);
    of_reduce.push_back(reduce_seconds);
  }
  if (ranks->rank() != 0) return;
  // All three give a node this much data from the other.
  const double crossing = static_cast<double>(share) * world.local_size;
  const auto rate = [&](const std::vector<double>& seconds) {
    return crossing / bench::median(seconds) / 1e9;
  };
  fmt::print(
      "{{\"ranks\": {}, \"bytes\": {}, \"raw_tcp_GB_s\": {:.3f}, \"all_gather_GB_s\": {:.3f}, "
      "\"reduce_scatter_GB_s\": {:.3f}, \"all_gather_of_raw\": {:.3f}, "
      "\"reduce_scatter_of_raw\": {:.3f}}}\n",
      size, share * size, rate(of_raw), rate(of_gather), rate(of_reduce),
      rate(of_gather) / rate(of_raw), rate(of_reduce) / rate(of_raw));
}

}  // namespace

int main(int arguments, char** values) {
  try {
    std::size_t mebibytes = 64;
    int rounds = 20;
    bench::read_options(
        arguments, values,
        "Gathers and sums between two nodes, compared with raw TCP. Each process is a rank of "
        "the\nenvironment; scripts/hosts-bench starts them.",
        {bench::number<std::size_t>("MIB", mebibytes, 1, "MiB of the whole buffer"),
         bench::number("ROUNDS", rounds, 1, "rounds, of which the median counts")});
    measure(mebibytes << 20, rounds);
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "hosts_bench: {}\n", error.what());
    return 1;
  }
}
