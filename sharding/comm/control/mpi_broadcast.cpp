// OpenMPI by dlopen: programs that do not use it must start without it.
#include "sharding/comm/control/mpi_broadcast.h"

#include <dlfcn.h>

#include "kernels/base/error.h"

namespace tessera::comm::control {
namespace {

// The part of OpenMPI's binary interface that is used: handles are addresses of global objects.
class OpenMpi {
 public:
  OpenMpi() : library_(dlopen("libmpi.so.40", RTLD_NOW | RTLD_GLOBAL)) {
    TESSERA_CHECK(library_ != nullptr, ErrorCode::configuration,
                  "TESSERA_BOOTSTRAP=mpi needs OpenMPI's library: {}; install it, or use tcp or "
                  "file:PATH",
                  dlerror());
    initialized = symbol<int (*)(int*)>("MPI_Initialized");
    init_thread = symbol<int (*)(int*, char***, int, int*)>("MPI_Init_thread");
    finalize = symbol<int (*)()>("MPI_Finalize");
    broadcast = symbol<int (*)(void*, int, void*, int, void*)>("MPI_Bcast");
    world = symbol<void*>("ompi_mpi_comm_world");
    character = symbol<void*>("ompi_mpi_char");
  }

  int (*initialized)(int*) = nullptr;
  int (*init_thread)(int*, char***, int, int*) = nullptr;
  int (*finalize)() = nullptr;
  int (*broadcast)(void*, int, void*, int, void*) = nullptr;
  void* world = nullptr;
  void* character = nullptr;

 private:
  template <class T>
  T symbol(const char* name) {
    void* found = dlsym(library_, name);
    TESSERA_CHECK(found != nullptr, ErrorCode::configuration,
                  "libmpi.so.40 is not OpenMPI's: it has no {}", name);
    return reinterpret_cast<T>(found);
  }

  void* library_;  // stays loaded: OpenMPI has threads and handlers of its own
};

}  // namespace

std::string broadcast_by_mpi(const std::string& text, int rank) {
  const OpenMpi mpi;
  int already = 0;
  mpi.initialized(&already);
  if (already == 0) {
    constexpr int serialized = 2;  // MPI_THREAD_SERIALIZED
    int provided = 0;
    TESSERA_CHECK(mpi.init_thread(nullptr, nullptr, serialized, &provided) == 0,
                  ErrorCode::configuration, "MPI_Init_thread failed; was mpirun used?");
  }
  std::string message(256, '\0');
  if (rank == 0) message.replace(0, text.size(), text);
  const int status =
      mpi.broadcast(message.data(), static_cast<int>(message.size()), mpi.character, 0, mpi.world);
  TESSERA_CHECK(status == 0, ErrorCode::rank_failed, "MPI_Bcast failed with {}", status);
  if (already == 0) mpi.finalize();
  return message.substr(0, message.find('\0'));
}

}  // namespace tessera::comm::control
