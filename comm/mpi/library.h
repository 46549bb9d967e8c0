// MPI's calls, from the library that is on the machine: the build needs none, and programs that do
// not use it start without it. MPI has two binary interfaces in use, Open MPI's and MPICH's (Intel
// MPI, MVAPICH, Cray); which one a library has is found out, and one of neither is refused.
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

// Thread-safe. What MPI refuses is an Error(rank_failed) with the call and MPI's text. There is no
// call that waits for another rank but init(), finalize(), broadcast() and those that look; between
// two looks they wait for a millisecond.
class Mpi {
 public:
  enum class Threads : int { single, funneled, serialized, multiple };  // MPI's numbers
  // An address in the one interface, a number in the other.
  struct Communicator {
    std::uintptr_t handle = 0;
  };
  struct Request {
    std::uintptr_t handle = 0;
  };
  using Look = std::function<void()>;  // throws when there is no need to wait any longer

  Mpi() = default;
  virtual ~Mpi() = default;
  Mpi(const Mpi&) = delete;
  Mpi& operator=(const Mpi&) = delete;

  [[nodiscard]] virtual const std::string& description() const = 0;  // "Open MPI v4.1.4"

  // Before, during and after MPI's life, of which a process has one.
  [[nodiscard]] virtual bool initialized() = 0;
  [[nodiscard]] virtual bool finalized() = 0;
  // Throws Error(configuration) where MPI does not start.
  virtual void init() = 0;
  virtual void finalize() = 0;
  // What MPI was initialised with, by whomever. With `serialized` this class lets one thread call
  // at a time.
  virtual Threads threads() = 0;

  [[nodiscard]] virtual Communicator world() = 0;
  [[nodiscard]] virtual int rank() = 0;  // in the world
  [[nodiscard]] virtual int size() = 0;
  [[nodiscard]] virtual int largest_tag() = 0;
  // Without it, what MPI refuses ends the process.
  virtual void return_errors(Communicator of) = 0;

  // Collective over the world.
  virtual Communicator copy_world(const Look& look) = 0;
  virtual void meet(const Look& look) = 0;
  virtual void broadcast(void* memory, int bytes, int root) = 0;

  virtual Request send(const void* memory, int bytes, int to, int tag, Communicator over) = 0;
  virtual Request receive(void* memory, int bytes, int from, int tag, Communicator over) = 0;
  // Whether it is done; then also how many bytes a receive has got. Lets MPI move what it can.
  virtual bool test(Request& request, std::size_t* received) = 0;
  // Whether a message is there that take() gets at once.
  virtual bool is_there(int from, int tag, Communicator over) = 0;
  virtual void take(void* memory, int bytes, int from, int tag, Communicator over) = 0;

  // After a failure: further calls are refused. When it returns, no thread is in MPI, and memory
  // that MPI was told of may go; unless a call does not return within a second.
  void give_up();
  [[nodiscard]] bool given_up() const;

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

// Loaded at the first call, once for the process: the library that the program is linked with, the
// one that TESSERA_MPI_LIBRARY names, else the first that is found of those that belong to the
// launcher. Throws Error(configuration): `wanted_by` needs it, and `instead` is the way out.
Mpi& mpi_library(std::string_view wanted_by, std::string_view instead);

}  // namespace tessera::comm
