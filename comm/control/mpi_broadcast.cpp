// One MPI_Bcast.
#include "comm/control/mpi_broadcast.h"

#include "base/error.h"
#include "comm/mpi/library.h"

namespace tessera::comm::control {

std::string broadcast_by_mpi(const std::string& text, int rank) {
  Mpi& mpi = mpi_library("TESSERA_BOOTSTRAP=mpi", "use tcp or file:PATH");
  TESSERA_CHECK(!mpi.finalized(), ErrorCode::configuration,
                "TESSERA_BOOTSTRAP=mpi: MPI starts once in a process, and has ended in this one; "
                "call MPI_Init and MPI_Finalize in the program, or use tcp or file:PATH");
  const bool already = mpi.initialized();
  if (!already) mpi.init();
  std::string message(256, '\0');
  if (rank == 0) message.replace(0, text.size(), text);
  mpi.broadcast(message.data(), static_cast<int>(message.size()), 0);
  if (!already) mpi.finalize();
  return message.substr(0, message.find('\0'));
}

}  // namespace tessera::comm::control
