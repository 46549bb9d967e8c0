// Listening sockets and their processes, read in /proc.
#include "comm/watch/port_holder.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>
#include <vector>

namespace tessera::comm {
namespace {

namespace fs = std::filesystem;

struct ListeningSocket {
  std::string link;  // "socket:[4711]", as in /proc/PID/fd
  unsigned uid = 0;
};

std::vector<ListeningSocket> sockets_at(int port) {
  std::vector<ListeningSocket> sockets;
  const std::string port_field = fmt::format(":{:04X}", port);
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream lines(table);
    for (std::string line; std::getline(lines, line);) {
      std::istringstream fields(line);
      std::string local, state, skipped, inode;
      unsigned uid = 0;
      fields >> skipped >> local >> skipped >> state >> skipped >> skipped >> skipped >> uid >>
          skipped >> inode;
      constexpr const char* listening = "0A";
      if (!fields || state != listening || !local.ends_with(port_field)) continue;
      sockets.push_back({fmt::format("socket:[{}]", inode), uid});
    }
  }
  return sockets;
}

// A process of another user shows no descriptors.
bool has_one_of(const std::string& process, const std::vector<ListeningSocket>& sockets) {
  std::error_code error;
  for (fs::directory_iterator entry("/proc/" + process + "/fd", error), end; !error && entry != end;
       entry.increment(error)) {
    std::error_code closed;
    const std::string link = fs::read_symlink(entry->path(), closed).string();
    const auto is_it = [&](const ListeningSocket& one) { return one.link == link; };
    if (std::any_of(sockets.begin(), sockets.end(), is_it)) return true;
  }
  return false;
}

// "0" behind the first process of this namespace.
std::string parent_of(const std::string& process) {
  std::ifstream stat("/proc/" + process + "/stat");
  std::string line;
  std::getline(stat, line);
  // The name before these fields may hold any character.
  std::istringstream fields(line.substr(std::min(line.size(), line.rfind(')') + 1)));
  std::string state, parent = "0";
  fields >> state >> parent;
  return parent;
}

std::string name_of_process(const std::string& process) {
  std::ifstream stream("/proc/" + process + "/comm");
  std::string name;
  std::getline(stream, name);
  return fmt::format("pid {} ({})", process, name);
}

}  // namespace

PortHolder holder_of_port(int port) {
  PortHolder holder;
  const std::vector<ListeningSocket> sockets = sockets_at(port);
  if (sockets.empty()) return holder;
  holder.name = fmt::format("a process of the user with uid {}", sockets.front().uid);
  for (std::string process = std::to_string(::getpid()); process != "0" && !process.empty();
       process = parent_of(process)) {
    if (has_one_of(process, sockets)) return {true, name_of_process(process)};
  }
  std::error_code error;
  for (fs::directory_iterator entry("/proc", error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string process = entry->path().filename().string();
    const bool is_number = process.find_first_not_of("0123456789") == std::string::npos;
    if (is_number && has_one_of(process, sockets)) return {false, name_of_process(process)};
  }
  return holder;
}

}  // namespace tessera::comm
