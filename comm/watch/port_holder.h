// Which process listens at a TCP port of this node.
#pragma once

#include <string>

namespace tessera::comm {

struct PortHolder {
  // It is this process, or one that started it: a launcher that uses the port itself.
  bool is_ours = false;
  // "pid 4711 (nginx)", "a process of the user with uid 1001", "another program".
  std::string name = "another program";
};

PortHolder holder_of_port(int port);

}  // namespace tessera::comm
