// The kernel's information about this node.
#include "comm/nodes/tcp/own_address.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <memory>
#include <optional>

#include "base/error.h"
#include "comm/file_descriptor.h"

namespace tessera::comm {
namespace {

std::string text_of(const in_addr& address) {
  char text[INET_ADDRSTRLEN];
  return inet_ntop(AF_INET, &address, text, sizeof(text)) == nullptr ? "" : text;
}

bool is_loopback(const in_addr& address) {
  return ntohl(address.s_addr) >> 24 == 127;
}

// The address from which packets to `destination` would go; none are sent.
std::optional<in_addr> address_towards(const std::string& destination) {
  addrinfo hints{};
  hints.ai_family = AF_INET;
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(destination.c_str(), "9", &hints, &found) != 0) return std::nullopt;
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, &freeaddrinfo);
  const FileDescriptor probe(TESSERA_SYSTEM(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)));
  if (connect(probe.get(), found->ai_addr, found->ai_addrlen) != 0) return std::nullopt;
  sockaddr_in own{};
  socklen_t bytes = sizeof(own);
  TESSERA_SYSTEM(getsockname(probe.get(), reinterpret_cast<sockaddr*>(&own), &bytes));
  return own.sin_addr;
}

std::optional<in_addr> first_network_address() {
  ifaddrs* list = nullptr;
  TESSERA_SYSTEM(getifaddrs(&list));
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(list, &freeifaddrs);
  for (const ifaddrs* one = list; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr || one->ifa_addr->sa_family != AF_INET) continue;
    if ((one->ifa_flags & IFF_LOOPBACK) != 0 || (one->ifa_flags & IFF_UP) == 0) continue;
    return reinterpret_cast<const sockaddr_in*>(one->ifa_addr)->sin_addr;
  }
  return std::nullopt;
}

}  // namespace

std::string own_machine() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string boot;
  std::getline(file, boot);
  struct stat name_space {};
  const bool known = stat("/proc/self/ns/net", &name_space) == 0;
  if (boot.empty()) {  // without /proc the name must suffice
    char host[256]{};
    TESSERA_SYSTEM(gethostname(host, sizeof(host) - 1));
    boot = host;
  }
  return fmt::format("{}/{}", boot, known ? name_space.st_ino : 0);
}

std::string own_node(const World& world) {
  // A launcher that does not number nodes (mpirun) need not assign ranks node by node, nor equally
  // many to each.
  if (!world.node_is_known) return own_machine();
  return fmt::format("{}/{}", world.node_rank, own_machine());
}

std::string own_address(const std::string& destination) {
  const char* named = std::getenv("TESSERA_HOST_ADDRESS");
  if (named != nullptr && *named != '\0') {
    in_addr address{};
    TESSERA_CHECK(inet_pton(AF_INET, named, &address) == 1, ErrorCode::configuration,
                  "TESSERA_HOST_ADDRESS is '{}': use an IPv4 address of this host", named);
    return named;
  }
  const std::optional<in_addr> towards = address_towards(destination);
  if (towards && !is_loopback(*towards)) return text_of(*towards);
  if (const std::optional<in_addr> first = first_network_address()) return text_of(*first);
  return "127.0.0.1";  // no network: the other ranks are on this machine
}

}  // namespace tessera::comm
