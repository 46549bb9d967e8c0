// A planted bug: a wrong kernel, and the way in which each build of the emulator must detect it.
#pragma once

#include <memory>
#include <vector>

#include "emulator/scheduler/grid.h"
#include "kernels/cuda/device/gpu.h"

namespace tessera::testing {

// The sign of a bug. A build may also detect a bug that it need not: `none` promises nothing.
enum class Sign {
  none,
  numbers,    // the result is wrong, under at least one of the schedules
  report,     // the emulator's report
  sanitizer,  // a sanitizer's report
  refused     // the launch's configuration is refused
};

// The signs that the three builds must show: plain, with the address and undefined-behaviour
// sanitizers, with the thread sanitizer.
struct Expected {
  Sign plain = Sign::none, address = Sign::none, thread = Sign::none;
};

struct Case {
  const char* name;
  Expected expected;
  // Runs the kernel; returns true if the numbers are right.
  bool (*run)();
};

// Memory of exactly `count` elements, so that sanitizers see its end.
template <class T>
class Array {
 public:
  explicit Array(int count, T value = {}) : count_(count), data_(new T[count]) {
    for (int i = 0; i < count; ++i) data_[i] = value;
  }
  // 0, 1, 2 ...
  static Array counting(int count) {
    Array array(count);
    for (int i = 0; i < count; ++i) array.data()[i] = static_cast<T>(i);
    return array;
  }
  [[nodiscard]] T* data() const { return data_.get(); }
  T& operator[](int i) const { return data_[i]; }
  [[nodiscard]] int size() const { return count_; }

 private:
  int count_;
  std::unique_ptr<T[]> data_;
};

// True if every element i of the array is expected(i).
template <class T, class Expectation>
bool all_of(const Array<T>& array, Expectation expected) {
  for (int i = 0; i < array.size(); ++i) {
    if (array[i] != expected(i)) return false;
  }
  return true;
}

// planted_kernel_bugs handles a configuration that the device refuses.
struct Refused {
  cudaError_t error;
};

template <class Body>
void run_blocks(dim3 grid, dim3 block, std::size_t shared_bytes, Body body) {
  const cudaError_t error = emulator::check_configuration(grid, block, shared_bytes);
  if (error != cudaSuccess) throw Refused{error};
  emulator::run_grid(grid, block, shared_bytes, "planted", body);
}
template <class Body>
void run_block(int threads, std::size_t shared_bytes, Body body) {
  run_blocks(dim3(1), dim3(static_cast<unsigned>(threads)), shared_bytes, body);
}

}  // namespace tessera::testing
