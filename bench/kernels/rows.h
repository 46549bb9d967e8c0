// What the rows of kernels_bench are made of: a kernel's call on memory of its own, the bytes and
// operations that it cannot avoid, and how it is timed next to them.
#pragma once

#include <benchmark/benchmark.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/registry.h"

namespace tessera::bench {

// How long one call takes on the calling thread, in processor time: what else runs on the machine
// takes time away that does not count.
double processor_seconds_of(const std::function<void()>& run);
double median(std::vector<double> values);

// Memory of one row. It goes when the row is done.
class Memory {
 public:
  // Random numbers near 0, in every dtype.
  void* random(std::int64_t count, DType dtype);
  void* zeros(std::int64_t bytes);
  // count numbers below `end`, as ids or targets.
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

struct Work {
  std::function<void()> run;
  double bytes = 0;          // to be moved at least: each tensor once
  double flops = 0;          // of its matrix products
  DType products = float32;  // the dtype of these
  // The same products by oneDNN alone, in the same shapes; may be empty.
  std::function<void()> onednn = {};
  double onednn_share = 1;  // of them that is needed: half, where causality leaves half
  std::function<double()> peak_bytes = {};  // memory that the last call took; may be empty
};
using MakeWork = std::function<Work(Memory&)>;

// The rows of one kernel, "kernel/variant". Each is run as many rounds as main() says. A round
// times the call and, in turn with it, what bounds it: memcpy of as many bytes, and oneDNN's
// largest rate in a square product of that dtype for its operations; the bound is the longer one.
// Counters are bytes_per_second, flops_per_second, of_bound (the bound's time over the kernel's: 1
// is at the bound) and, where there are bare products, of_onednn; the times behind them are
// medians.
class Rows {
 public:
  Rows(std::string kernel, int rounds) : kernel_(std::move(kernel)), rounds_(rounds) {}
  void add(const std::string& variant, const MakeWork& make);
  // The same with a third of the rounds, for what takes long.
  void add_long(const std::string& variant, const MakeWork& make);
  [[nodiscard]] int added() const { return added_; }

 private:
  void add(const std::string& variant, const MakeWork& make, int rounds);

  std::string kernel_;
  int rounds_;
  int added_ = 0;
};

// Every kernel of the table has its rows here, so that one without them does not link.
#define TESSERA_KERNEL_ROWS(name, Arguments) void rows_of_##name(Rows& rows);
TESSERA_KERNELS(TESSERA_KERNEL_ROWS)
#undef TESSERA_KERNEL_ROWS

// What is more than one kernel.
struct WholeOptions {
  int rounds = 15;
  int ranks = 2;
  std::string folder = ".";  // of the checkpoints
  std::int64_t state_mib = 256;
};
void add_head_rows(const WholeOptions& options);
void add_collective_rows(const WholeOptions& options);
void add_checkpoint_rows(const WholeOptions& options);

// One row of something else: `round` gives its seconds and its bound's.
struct Measured {
  double seconds = 0, bound = 0;
};
void report(benchmark::State& state, double bytes, const std::vector<Measured>& rounds);

}  // namespace tessera::bench
