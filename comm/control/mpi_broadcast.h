// One message through MPI, in a program that mpirun started.
#pragma once

#include <string>

namespace tessera::comm::control {

// Returns rank 0's text on every rank. This call loads MPI. A program that uses MPI itself has
// already initialised it; else this function initialises and finalises it, because mpirun requires
// that of every program. Throws Error(configuration) when MPI cannot be loaded.
std::string broadcast_by_mpi(const std::string& text, int rank);

}  // namespace tessera::comm::control
