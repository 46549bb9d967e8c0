// The parts of a row of kernels_bench: a kernel's call on its own memory, the bytes and operations
// that it cannot avoid, and the timing of both.
#pragma once

#include <benchmark/benchmark.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bench/harness/median.h"
#include "kernels/registry.h"

namespace tessera::bench {

// The processor time of one call on the calling thread; time that other programs take does not
// count.
double processor_seconds_of(const std::function<void()>& run);

// The memory of one row; it is freed when the row is done.
class Memory {
 public:
  // Random numbers near 0, in every dtype.
  void* random(std::int64_t count, DType dtype);
  void* zeros(std::int64_t bytes);
  // `count` numbers below `end`, as ids or targets.
  std::int32_t* ids(std::int64_t count, std::int64_t end);
  // Any object, kept until the row is done.
  template <class T>
  T& keep(T value) {
    auto owned = std::make_shared<T>(std::move(value));
    T& place = *owned;
    kept_.push_back(std::move(owned));
    return place;
  }

 private:
  std::vector<std::shared_ptr<void>> kept_;
};

// The products of a linear layer alone, on random numbers: [rows, in] by [out, in], and with
// `trained` the gradients of both. For dtypes without bare products, in fp32.
std::function<void()> bare_linear(std::int64_t rows, std::int64_t in, std::int64_t out, DType dtype,
                                  bool trained, Memory& memory);

struct Work {
  std::function<void()> run;
  double bytes = 0;          // the least to move: each tensor once
  double flops = 0;          // in its matrix products
  DType products = float32;  // their dtype
  // The same products by oneDNN alone, in the same shapes; may be empty.
  std::function<void()> onednn = {};
  double onednn_share = 1;  // the part of them that is needed: half with a causal mask
  std::function<double()> peak_bytes = {};  // memory of the last call; may be empty
};
using MakeWork = std::function<Work(Memory&)>;

// The rows of one kernel, "kernel/variant". main() sets the number of rounds. A round times the
// call and, in turn with it, its bound: memcpy of the same number of bytes, and oneDNN's largest
// rate in a square product of that dtype for its operations; the bound is the longer one. Counters
// are bytes_per_second, flops_per_second, of_bound (the bound's time over the kernel's: 1 is at the
// bound) and, if there are bare products, of_onednn; they are computed from median times.
class Rows {
 public:
  Rows(std::string kernel, int rounds) : kernel_(std::move(kernel)), rounds_(rounds) {}
  void add(const std::string& variant, const MakeWork& make);
  // The same with a third of the rounds, for long calls.
  void add_long(const std::string& variant, const MakeWork& make);
  [[nodiscard]] int added() const { return added_; }

 private:
  void add(const std::string& variant, const MakeWork& make, int rounds);

  std::string kernel_;
  int rounds_;
  int added_ = 0;
};

// A row in fp32 and one in bf16.
template <class Make>
void add_dtypes(Rows& to, const std::string& variant, const Make& make) {
  for (const DType dtype : {float32, bfloat16}) {
    const std::string name(name_of(dtype));
    to.add(variant.empty() ? name : variant + "/" + name,
           [make, dtype](Memory& memory) { return make(memory, dtype); });
  }
}

// Every kernel of the table has its rows here, so that a kernel without rows does not link.
#define TESSERA_KERNEL_ROWS(name, Arguments) void rows_of_##name(Rows& rows);
TESSERA_KERNELS(TESSERA_KERNEL_ROWS)
#undef TESSERA_KERNEL_ROWS

// Rows of more than one kernel.
struct WholeOptions {
  int rounds = 15;
  int ranks = 2;
  std::string folder = ".";  // for the checkpoints
  std::int64_t state_mib = 256;
};
void add_head_rows(const WholeOptions& options);
void add_grouped_rows(const WholeOptions& options);
void add_collective_rows(const WholeOptions& options);
void add_checkpoint_rows(const WholeOptions& options);

// One row of other work: `round` returns its seconds and those of its bound.
struct Measured {
  double seconds = 0, bound = 0;
};
void report(benchmark::State& state, double bytes, const std::vector<Measured>& rounds);

}  // namespace tessera::bench
