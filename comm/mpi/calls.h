// The calls of one binary interface of MPI. The two interfaces differ in their handles (Open MPI's
// are addresses of objects, MPICH's are numbers) and some constants; statuses are only passed on.
#pragma once

#include <dlfcn.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "base/error.h"
#include "comm/mpi/library.h"

namespace tessera::comm {

struct OpenMpiInterface {
  using Handle = void*;
  static constexpr int largest_tag_key = 0;
  static void* no_status() { return nullptr; }
  // Its objects are symbols.
  static Handle world(void* library) { return dlsym(library, "ompi_mpi_comm_world"); }
  static Handle byte(void* library) { return dlsym(library, "ompi_mpi_byte"); }
  static Handle return_errors(void* library) { return dlsym(library, "ompi_mpi_errors_return"); }
  // Ranks of one host reach each other by its memory. Open MPI would open ports for them as well,
  // and it does not authenticate who connects. Transports that the user has chosen stay.
  static void prepare() {
    const char* all = std::getenv("OMPI_COMM_WORLD_SIZE");
    const char* here = std::getenv("OMPI_COMM_WORLD_LOCAL_SIZE");
    if (all == nullptr || here == nullptr || std::string_view(all) != here) return;
    for (const char* chosen : {"OMPI_MCA_pml", "OMPI_MCA_mtl", "OMPI_MCA_btl"}) {
      if (std::getenv(chosen) != nullptr) return;
    }
    setenv("OMPI_MCA_pml", "ob1", 1);
    setenv("OMPI_MCA_btl", "self,vader", 1);
  }
};

struct MpichInterface {
  using Handle = int;
  static constexpr int largest_tag_key = 0x64400001;
  static void* no_status() { return reinterpret_cast<void*>(1); }
  static Handle world(void* /*library*/) { return 0x44000000; }
  static Handle byte(void* /*library*/) { return 0x4c00010d; }
  static Handle return_errors(void* /*library*/) { return 0x54000001; }
  static void prepare() {}
};

template <class Interface>
class MpiCalls final : public Mpi {
 public:
  using Handle = typename Interface::Handle;

  MpiCalls(void* library, std::string description)
      : description_(std::move(description)),
        library_(library),
        world_(Interface::world(library)),
        byte_(Interface::byte(library)),
        return_errors_(Interface::return_errors(library)) {
    find(initialized_, "MPI_Initialized");
    find(finalized_, "MPI_Finalized");
    find(init_thread_, "MPI_Init_thread");
    find(query_thread_, "MPI_Query_thread");
    find(finalize_, "MPI_Finalize");
    find(error_string_, "MPI_Error_string");
    find(comm_rank_, "MPI_Comm_rank");
    find(comm_size_, "MPI_Comm_size");
    find(comm_get_attr_, "MPI_Comm_get_attr");
    find(comm_set_errhandler_, "MPI_Comm_set_errhandler");
    find(comm_idup_, "MPI_Comm_idup");
    find(ibarrier_, "MPI_Ibarrier");
    find(bcast_, "MPI_Bcast");
    find(isend_, "MPI_Isend");
    find(irecv_, "MPI_Irecv");
    find(recv_, "MPI_Recv");
    find(iprobe_, "MPI_Iprobe");
    find(test_, "MPI_Test");
    find(get_count_, "MPI_Get_count");
  }

  [[nodiscard]] const std::string& description() const override { return description_; }

  [[nodiscard]] bool initialized() override { return flag_of(initialized_); }
  [[nodiscard]] bool finalized() override { return flag_of(finalized_); }

  void init() override {
    const auto turn = alone();
    Interface::prepare();
    int provided = 0;
    const int status =
        init_thread_(nullptr, nullptr, static_cast<int>(Threads::multiple), &provided);
    TESSERA_CHECK(status == 0, ErrorCode::configuration,
                  "MPI_Init_thread failed with {}; was the program started by mpirun or srun?",
                  status);
    serial_ = static_cast<Threads>(provided) != Threads::multiple;
  }

  void finalize() override {
    const auto turn = alone();
    check("MPI_Finalize", finalize_());
  }

  Threads threads() override {
    const auto turn = alone();
    int provided = 0;
    check("MPI_Query_thread", query_thread_(&provided));
    serial_ = static_cast<Threads>(provided) != Threads::multiple;
    return static_cast<Threads>(provided);
  }

  [[nodiscard]] Communicator world() override { return {to_number(world_)}; }

  [[nodiscard]] int rank() override {
    const auto turn = take_turn();
    int rank = 0;
    check("MPI_Comm_rank", comm_rank_(world_, &rank));
    return rank;
  }

  [[nodiscard]] int size() override {
    const auto turn = take_turn();
    int size = 0;
    check("MPI_Comm_size", comm_size_(world_, &size));
    return size;
  }

  // An attribute of the world, which its copies need not have.
  [[nodiscard]] int largest_tag() override {
    const auto turn = take_turn();
    int* value = nullptr;
    int found = 0;
    check("MPI_Comm_get_attr",
          comm_get_attr_(world_, Interface::largest_tag_key, static_cast<void*>(&value), &found));
    constexpr int promised = 32767;  // by the standard
    return found != 0 && value != nullptr ? *value : promised;
  }

  void return_errors(Communicator of) override {
    const auto turn = take_turn();
    check("MPI_Comm_set_errhandler", comm_set_errhandler_(to_handle(of.handle), return_errors_));
  }

  // MPI writes the new communicator to this address, which stays valid until then.
  Communicator copy_world(const Look& look) override {
    Handle request{};
    Handle* copy = nullptr;
    {
      const std::lock_guard lock(copies_mutex_);
      copy = &copies_.emplace_back();
    }
    {
      const auto turn = take_turn();
      check("MPI_Comm_idup", comm_idup_(world_, copy, &request));
    }
    wait(request, look);
    return {to_number(*copy)};
  }

  void meet(const Look& look) override {
    Handle request{};
    {
      const auto turn = take_turn();
      check("MPI_Ibarrier", ibarrier_(world_, &request));
    }
    wait(request, look);
  }

  void broadcast(void* memory, int bytes, int root) override {
    const auto turn = take_turn();
    check("MPI_Bcast", bcast_(memory, bytes, byte_, root, world_));
  }

  Request send(const void* memory, int bytes, int to, int tag, Communicator over) override {
    const auto turn = take_turn();
    Handle request{};
    check("MPI_Isend", isend_(memory, bytes, byte_, to, tag, to_handle(over.handle), &request));
    return {to_number(request)};
  }

  Request receive(void* memory, int bytes, int from, int tag, Communicator over) override {
    const auto turn = take_turn();
    Handle request{};
    check("MPI_Irecv", irecv_(memory, bytes, byte_, from, tag, to_handle(over.handle), &request));
    return {to_number(request)};
  }

  bool test(Request& request, std::size_t* received) override {
    const auto turn = take_turn();
    Handle handle = to_handle(request.handle);
    alignas(16) std::array<std::byte, 64> status{};  // more than either interface's
    int done = 0;
    check("MPI_Test", test_(&handle, &done, status.data()));
    request.handle = to_number(handle);
    if (done == 0) return false;
    if (received != nullptr) {
      int count = 0;
      check("MPI_Get_count", get_count_(status.data(), byte_, &count));
      *received = static_cast<std::size_t>(count);
    }
    return true;
  }

  bool is_there(int from, int tag, Communicator over) override {
    const auto turn = take_turn();
    int there = 0;
    check("MPI_Iprobe", iprobe_(from, tag, to_handle(over.handle), &there, Interface::no_status()));
    return there != 0;
  }

  void take(void* memory, int bytes, int from, int tag, Communicator over) override {
    const auto turn = take_turn();
    check("MPI_Recv",
          recv_(memory, bytes, byte_, from, tag, to_handle(over.handle), Interface::no_status()));
  }

 private:
  static std::uintptr_t to_number(void* handle) { return reinterpret_cast<std::uintptr_t>(handle); }
  static std::uintptr_t to_number(int handle) { return static_cast<unsigned>(handle); }
  static Handle to_handle(std::uintptr_t number) {
    if constexpr (std::is_pointer_v<Handle>) {
      return reinterpret_cast<Handle>(number);
    } else {
      return static_cast<Handle>(number);
    }
  }

  template <class Function>
  void find(Function& function, const char* name) {
    function = reinterpret_cast<Function>(dlsym(library_, name));
    TESSERA_CHECK(function != nullptr, ErrorCode::configuration,
                  "{} has no {}: an MPI 3 library is required", description_, name);
  }

  [[nodiscard]] Turn take_turn() { return Turn(*this, serial_.load()); }
  [[nodiscard]] Turn alone() { return Turn(*this, true); }

  bool flag_of(int (*function)(int*)) {
    int flag = 0;
    function(&flag);
    return flag != 0;
  }

  // The caller holds a turn.
  void check(const char* call, int status) {
    if (status == 0) return;
    std::array<char, 4096> text{};
    int length = 0;
    error_string_(status, text.data(), &length);
    fail(ErrorCode::rank_failed, "{} failed: {}", call, text.data());
  }

  void wait(Handle handle, const Look& look) {
    Request request{to_number(handle)};
    while (!test(request, nullptr)) {
      look();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

  std::string description_;
  void* library_;
  Handle world_, byte_, return_errors_;
  std::atomic<bool> serial_{false};
  std::mutex copies_mutex_;
  std::deque<Handle> copies_;

  int (*initialized_)(int*) = nullptr;
  int (*finalized_)(int*) = nullptr;
  int (*init_thread_)(int*, char***, int, int*) = nullptr;
  int (*query_thread_)(int*) = nullptr;
  int (*finalize_)() = nullptr;
  int (*error_string_)(int, char*, int*) = nullptr;
  int (*comm_rank_)(Handle, int*) = nullptr;
  int (*comm_size_)(Handle, int*) = nullptr;
  int (*comm_get_attr_)(Handle, int, void*, int*) = nullptr;
  int (*comm_set_errhandler_)(Handle, Handle) = nullptr;
  int (*comm_idup_)(Handle, Handle*, Handle*) = nullptr;
  int (*ibarrier_)(Handle, Handle*) = nullptr;
  int (*bcast_)(void*, int, Handle, int, Handle) = nullptr;
  int (*isend_)(const void*, int, Handle, int, int, Handle, Handle*) = nullptr;
  int (*irecv_)(void*, int, Handle, int, int, Handle, Handle*) = nullptr;
  int (*recv_)(void*, int, Handle, int, int, Handle, void*) = nullptr;
  int (*iprobe_)(int, int, Handle, int*, void*) = nullptr;
  int (*test_)(Handle*, int*, void*) = nullptr;
  int (*get_count_)(const void*, Handle, int*) = nullptr;
};

}  // namespace tessera::comm
