// Rank 0's address by TCP port, by file, or by MPI.
#include "comm/control/bootstrap.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <optional>
#include <sstream>
#include <string_view>
#include <thread>

#include "base/error.h"
#include "comm/control/mpi_broadcast.h"
#include "comm/wait_notice.h"
#include "comm/watch/port_holder.h"

namespace tessera::comm::control {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int ports_tried = 16;
constexpr std::chrono::milliseconds pause{50};
constexpr std::chrono::milliseconds patience_at_others{1'000};

struct Address {
  std::string host;
  int first_port = 0;
  int ports = 0;
};

bool is_set(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0';
}

// This node's address, as other nodes reach it.
std::string own_address(const World& world) {
  if (world.local_size == world.size) return "127.0.0.1";
  if (is_set("TESSERA_HOST_ADDRESS")) return std::getenv("TESSERA_HOST_ADDRESS");
  ifaddrs* list = nullptr;
  TESSERA_SYSTEM(getifaddrs(&list));
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(list, &freeifaddrs);
  for (const ifaddrs* one = list; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr || one->ifa_addr->sa_family != AF_INET) continue;
    if ((one->ifa_flags & IFF_LOOPBACK) != 0 || (one->ifa_flags & IFF_UP) == 0) continue;
    char text[INET_ADDRSTRLEN];
    const auto* address = reinterpret_cast<const sockaddr_in*>(one->ifa_addr);
    if (inet_ntop(AF_INET, &address->sin_addr, text, sizeof(text)) != nullptr) return text;
  }
  fail(ErrorCode::configuration,
       "this host has no network address for the other hosts' ranks; name one with "
       "TESSERA_HOST_ADDRESS, or use TESSERA_BOOTSTRAP=tcp with MASTER_ADDR");
}

int port_of_rank_0(const World& world) {
  if (!is_set(port_variable)) return world.master_port;
  const std::string text = std::getenv(port_variable);
  const int port = std::atoi(text.c_str());
  TESSERA_CHECK(
      port > 0 && port < 65536 && text == std::to_string(port), ErrorCode::configuration,
      "environment variable {}='{}' is not a port: `tessera launch` sets it; unset it for "
      "MASTER_PORT",
      port_variable, text);
  return port;
}

// The listener that the launcher has passed to this process, if it is one at this port. The
// launcher's descriptor stays open for a later connection of this process, and for no child of it.
std::optional<FileDescriptor> listener_of_launcher(int port) {
  if (!is_set(listener_variable)) return std::nullopt;
  const int given = std::atoi(std::getenv(listener_variable));
  int listens = 0;
  socklen_t bytes = sizeof(listens);
  if (given <= STDERR_FILENO ||
      getsockopt(given, SOL_SOCKET, SO_ACCEPTCONN, &listens, &bytes) != 0 || listens == 0 ||
      port_of(given) != port) {
    return std::nullopt;
  }
  TESSERA_SYSTEM(fcntl(given, F_SETFD, FD_CLOEXEC));
  set_blocking(given, false);
  // Callers of an earlier start of the ranks may wait here; one of this start comes again.
  constexpr int longest_queue = 4096;
  for (int i = 0; i < longest_queue; ++i) {
    if (FileDescriptor(::accept(given, nullptr, nullptr)).get() < 0) break;
  }
  return FileDescriptor(TESSERA_SYSTEM(fcntl(given, F_DUPFD_CLOEXEC, 0)));
}

// Rank 0 moves to another port only if its own launcher has MASTER_PORT.
FileDescriptor listen_at(int port, bool loopback) {
  if (auto given = listener_of_launcher(port)) return std::move(*given);
  if (auto listener = listen_on(port, loopback)) return std::move(*listener);
  const PortHolder holder = holder_of_port(port);
  TESSERA_CHECK(holder.is_ours, ErrorCode::configuration,
                "rank 0 cannot listen at {0}={1}: {2} has this port of its host; end that process, "
                "or set {0} to another on all hosts",
                is_set(port_variable) ? port_variable : "MASTER_PORT", port, holder.name);
  for (int i = 1; i < ports_tried; ++i) {
    if (auto listener = listen_on(port + i, loopback)) return std::move(*listener);
  }
  fail(ErrorCode::configuration,
       "ports {} to {} are all taken on rank 0's host; set MASTER_PORT to another", port,
       port + ports_tried - 1);
}

std::string as_text(const World& world, int listener) {
  return fmt::format("{} {}", own_address(world), port_of(listener));
}

Address from_text(const std::string& text, std::string_view source) {
  std::istringstream stream(text);
  Address address;
  address.ports = 1;
  TESSERA_CHECK(static_cast<bool>(stream >> address.host >> address.first_port),
                ErrorCode::configuration, "{} holds no address of rank 0: '{}'", source, text);
  return address;
}

// Writes the file whole or not at all: other ranks may read it at any time. The folder may be one
// that other users can write to, such as /tmp: no file or link of theirs is followed.
void write_address(const std::filesystem::path& path, const std::string& text) {
  std::uint64_t random = 0;
  std::memcpy(&random, make_nonce().data(), sizeof(random));
  const std::string partial = fmt::format("{}.partial-{:016x}", path.string(), random);
  const std::string line = text + "\n";
  FileDescriptor file(
      ::open(partial.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644));
  const bool opened = file.get() >= 0;
  const bool written =
      opened && ::write(file.get(), line.data(), line.size()) == static_cast<ssize_t>(line.size());
  const bool whole = written && std::rename(partial.c_str(), path.c_str()) == 0;
  const int error = errno;
  const char* const call = written ? "rename" : opened ? "write" : "open";
  if (!whole && opened) (void)::unlink(partial.c_str());
  TESSERA_CHECK(whole, ErrorCode::configuration,
                "TESSERA_BOOTSTRAP: {} cannot be written ({}); name a file that all hosts see",
                path.string(), describe_errno(call, error));
}

// The present content of the file: nothing, or an earlier job's address, until rank 0 has written.
std::optional<Address> read_address(const std::filesystem::path& path) {
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (file.get() < 0 && errno != ELOOP) return std::nullopt;
  struct stat status {};
  const bool is_ours = file.get() >= 0 && ::fstat(file.get(), &status) == 0 &&
                       S_ISREG(status.st_mode) &&
                       (status.st_uid == ::geteuid() || status.st_uid == 0);
  TESSERA_CHECK(is_ours, ErrorCode::configuration,
                "TESSERA_BOOTSTRAP: {} is not a regular file of this user or of root; name another",
                path.string());
  std::array<char, 512> bytes{};
  const ssize_t got = ::read(file.get(), bytes.data(), bytes.size());
  const std::string_view text(bytes.data(), static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
  const std::string line(text.substr(0, text.find('\n')));
  if (line.empty()) return std::nullopt;
  return from_text(line, path.string());
}

// Tries the ports until the job's hub answers at one. The ports after the first are worth a look
// only if another program answers at the first: otherwise rank 0 has not come yet. Each listener
// must prove itself, so that a stranger at one of these ports costs a moment and no more.
std::shared_ptr<RankControl> join(const std::function<std::optional<Address>()>& where,
                                  const std::string& place, const World& world, const JobKey& key,
                                  const Patience& patience) {
  const auto deadline = Clock::now() + patience.rendezvous;
  std::string last = "no process listens there";
  Patience at_others = patience;
  at_others.introduction = std::min(patience.introduction, patience_at_others);
  WaitNotice notice(patience.rendezvous);
  do {
    const Address address = where().value_or(Address{});
    for (int port = address.first_port; port < address.first_port + address.ports; ++port) {
      std::optional<FileDescriptor> connection = connect_to(address.host, port);
      const bool is_first = port == address.first_port;
      if (!connection && is_first) break;
      if (!connection) continue;
      try {
        return std::make_shared<RankControl>(std::move(*connection), world, key,
                                             is_first ? patience : at_others);
      } catch (const NotOurHub& other) {
        if (is_first) last = other.what();
      }
    }
    notice.look(
        [&] { return fmt::format("rank {} waits for rank 0 at {}: {}", world.rank, place, last); });
    std::this_thread::sleep_for(pause);
  } while (Clock::now() < deadline);
  fail(ErrorCode::rank_failed, "rank {} did not find rank 0 by {} within {} s: {}", world.rank,
       place, std::chrono::duration<double>(patience.rendezvous).count(), last);
}

// The value of TESSERA_BOOTSTRAP; without it, ranks of mpirun that have no address of rank 0 use
// MPI.
std::string way_to_meet(bool one_node) {
  if (is_set("TESSERA_BOOTSTRAP")) return std::getenv("TESSERA_BOOTSTRAP");
  const bool of_mpirun =
      (is_set("OMPI_COMM_WORLD_SIZE") || is_set("MPI_LOCALNRANKS")) && !is_set("RANK");
  return of_mpirun && !one_node && !is_set("MASTER_ADDR") ? "mpi" : "tcp";
}

}  // namespace

bool meets_by_mpi(const World& world) {
  return way_to_meet(world.local_size == world.size) == "mpi";
}

ControlPlane connect_control_plane(const World& world, const Patience& patience) {
  return connect_control_plane(world, patience, JobKey::from_environment());
}

ControlPlane connect_control_plane(const World& world, const Patience& patience,
                                   const JobKey& key) {
  const bool one_node = world.local_size == world.size;
  TESSERA_CHECK(one_node || key.given() || key.declined(), ErrorCode::configuration,
                "a job over several hosts needs a secret key: give all hosts the same {} (`openssl "
                "rand -hex 32` makes one) or {}, or set {}={} on a trusted network",
                job_key_variable, job_key_file_variable, job_key_variable, no_job_key);
  const std::string way = way_to_meet(one_node);
  constexpr std::string_view file_prefix = "file:";
  const bool by_file = way.starts_with(file_prefix) && way.size() > file_prefix.size();
  TESSERA_CHECK(way == "tcp" || way == "mpi" || by_file, ErrorCode::configuration,
                "TESSERA_BOOTSTRAP is '{}': use tcp, mpi or file:PATH", way);
  const std::filesystem::path path = by_file ? way.substr(file_prefix.size()) : "";

  ControlPlane plane;
  const int port = port_of_rank_0(world);
  Address address{world.master_address, port, ports_tried};
  std::string announced;
  if (world.rank == 0) {
    // If this rank cannot resolve the name, the other nodes' ranks cannot either.
    if (way == "tcp" && !one_node) require_address(world.master_address);
    // The ranks of one node connect over its loopback, unless MASTER_ADDR names another address.
    const bool loopback = one_node && is_loopback(world.master_address);
    FileDescriptor listener = way == "tcp" ? listen_at(port, loopback) : *listen_on(0, loopback);
    if (way != "tcp") announced = as_text(world, listener.get());
    address = {"127.0.0.1", port_of(listener.get()), 1};
    plane.hub = std::make_unique<Hub>(std::move(listener), world, key,
                                      Hub::Options{.rendezvous = patience.rendezvous,
                                                   .collective = patience.collective,
                                                   .standstill = patience.standstill});
    if (by_file) write_address(path, announced);
  }
  if (way == "mpi") {
    const std::string text = broadcast_by_mpi(announced, world.rank);
    if (world.rank != 0) address = from_text(text, "MPI's broadcast");
  }
  const auto where = [&]() -> std::optional<Address> {
    return by_file && world.rank != 0 ? read_address(path) : address;
  };
  const std::string place = by_file ? "the file " + path.string()
                                    : fmt::format("{} port {}", address.host, address.first_port);
  plane.control = join(where, place, world, key, patience);
  if (by_file && world.rank == 0) std::filesystem::remove(path);  // all have come
  return plane;
}

}  // namespace tessera::comm::control
