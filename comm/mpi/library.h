// MPI's calls, from the library that is on the machine: the build needs no MPI, and programs that
// do not use it start without it. MPI has two binary interfaces in use, Open MPI's and MPICH's
// (Intel MPI, MVAPICH, Cray); this code detects which one a library has, and refuses a library with
// neither.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <string_view>

#include "base/error.h"

namespace tessera::comm {

// Thread-safe. When MPI refuses a call, it throws Error(rank_failed) with the call and MPI's text.
// Only init(), finalize(), broadcast() and the calls with a Look wait for other ranks; between two
// looks they wait for a millisecond.
class Mpi {
 public:
  enum class Threads : int { single, funneled, serialized, multiple };  // MPI's numbers
  // An address in one interface, a number in the other.
  struct Communicator {
    std::uintptr_t handle = 0;
  };
  struct Request {
    std::uintptr_t handle = 0;
  };
  using Look = std::function<void()>;  // throws when the wait must end

  Mpi() = default;
  virtual ~Mpi() = default;
  Mpi(const Mpi&) = delete;
  Mpi& operator=(const Mpi&) = delete;

  [[nodiscard]] virtual const std::string& description() const = 0;  // "Open MPI v4.1.4"

  // Before, during and after MPI's life, which a process has only once.
  [[nodiscard]] virtual bool initialized() = 0;
  [[nodiscard]] virtual bool finalized() = 0;
  // Throws Error(configuration) when MPI does not start.
  virtual void init() = 0;
  virtual void finalize() = 0;
  // The level with which MPI was initialised, by this class or by the program. With `serialized`
  // this class lets one thread call at a time.
  virtual Threads threads() = 0;

  [[nodiscard]] virtual Communicator world() = 0;
  [[nodiscard]] virtual int rank() = 0;  // in the world
  [[nodiscard]] virtual int size() = 0;
  [[nodiscard]] virtual int largest_tag() = 0;
  // Without it, an error in MPI ends the process.
  virtual void return_errors(Communicator of) = 0;

  // Collective over the world.
  virtual Communicator copy_world(const Look& look) = 0;
  virtual void meet(const Look& look) = 0;
  virtual void broadcast(void* memory, int bytes, int root) = 0;

  virtual Request send(const void* memory, int bytes, int to, int tag, Communicator over) = 0;
  virtual Request receive(void* memory, int bytes, int from, int tag, Communicator over) = 0;
  // True when it is done; then also the bytes that a receive got. Lets MPI make progress.
  virtual bool test(Request& request, std::size_t* received) = 0;
  // True when a message has arrived that take() gets at once.
  virtual bool is_there(int from, int tag, Communicator over) = 0;
  virtual void take(void* memory, int bytes, int from, int tag, Communicator over) = 0;

  // After a failure: further calls are refused. When it returns, no thread is in MPI, and memory
  // that MPI was given may be freed; except when a call does not return within a second.
  void give_up();

 protected:
  // Held during a call.
  class Turn {
   public:
    Turn(Mpi& mpi, bool alone);

   private:
    std::shared_lock<std::shared_timed_mutex> together_;
    std::unique_lock<std::shared_timed_mutex> alone_;
  };

 private:
  mutable std::shared_timed_mutex calls_;  // one call alone, or several
  std::atomic<bool> given_up_{false};
};

// Loaded at the first call, once for the process: the library that the program is linked with, else
// the one that TESSERA_MPI_LIBRARY names, else the first one found of those that belong to the
// launcher. Throws Error(configuration): `wanted_by` needs MPI, and `instead` is the way out.
Mpi& mpi_library(std::string_view wanted_by, std::string_view instead);

}  // namespace tessera::comm
