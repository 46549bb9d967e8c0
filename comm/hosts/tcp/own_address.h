// Where this process runs: which machine, and at which address other hosts reach it.
#pragma once

#include <string>

#include "comm/world.h"

namespace tessera::comm {

// The running system and its network namespace: processes that share them reach each other at
// 127.0.0.1 and at abstract unix sockets. Two containers on one machine differ.
std::string own_machine();

// What tells this rank's host from others: the machine, and the launcher's number of the node where
// it says one.
std::string own_host(const World& world);

// TESSERA_HOST_ADDRESS, else the address from which this host reaches `destination` (MASTER_ADDR);
// when that is the host itself without a network, its first network address.
std::string own_address(const std::string& destination);

}  // namespace tessera::comm
