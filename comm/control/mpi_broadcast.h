// One message by MPI, where mpirun started the program.
#pragma once

#include <string>

namespace tessera::comm::control {

// Rank 0's text on every rank. MPI is loaded when this is called. A program that uses MPI
// itself has initialised it before; else it is initialised and finalised here, as mpirun wants it
// of every program. Throws Error(configuration) where it cannot be loaded.
std::string broadcast_by_mpi(const std::string& text, int rank);

}  // namespace tessera::comm::control
