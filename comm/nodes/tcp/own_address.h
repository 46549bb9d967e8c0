// The machine of this process, and the address at which other nodes reach it.
#pragma once

#include <string>

#include "comm/world.h"

namespace tessera::comm {

// Identifies the running system and its network namespace: processes that share both reach each
// other at 127.0.0.1 and at abstract unix sockets. Two containers on one machine differ.
std::string own_machine();

// Identifies this rank's node among others: the machine, and the launcher's number of the node if
// it sets one.
std::string own_node(const World& world);

// TESSERA_HOST_ADDRESS, else the address from which this node reaches `destination` (MASTER_ADDR);
// when that is the node itself without a network, its first network address.
std::string own_address(const std::string& destination);

}  // namespace tessera::comm
