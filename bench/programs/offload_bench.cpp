// A step through files, compared with the disk alone, in turns in one run:
//   offload_bench [--folder DIR] [--mib STATE] [--rounds N] [--json FILE]
// `step`: AdamW over master shards, gradients and two moments, all in files of the folder, STATE in
// total: 16 bytes read and 12 written for each parameter. `disk`: the same transfers without
// computation. `norm`: the gradients' sum of squares, compared with their reads alone. `adamw`: the
// kernel alone, on memory, compared with memcpy, each by the bytes that it moves, on the same
// number of threads (OMP_NUM_THREADS). Targets: step 0.7 of disk, adamw 0.8 of memcpy.
#include <fmt/core.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/parallel.h"
#include "bench/harness/median.h"
#include "bench/programs/options.h"
#include "engine/device/memory.h"
#include "engine/optim/optimizer.h"
#include "engine/storage/file_window.h"
#include "kernels/registry.h"

namespace {

using namespace tessera;

double seconds_of(const std::function<void()>& run) {
  const auto begin = std::chrono::steady_clock::now();
  run();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// One parameter whose state is in files.
class State {
 public:
  State(const std::string& folder, std::int64_t count) : count_(count) {
    const auto place = std::make_shared<StateFolder>();
    place->path = folder;
    place->owner = "the benchmark";
    const std::size_t bytes = StateFile::round_up(static_cast<std::size_t>(count) * 4);
    masters_ = std::make_shared<StateFile>(*place, "masters", MemoryKind::parameters, bytes);
    gradients_ = std::make_shared<StateFile>(*place, "gradients", MemoryKind::gradients, bytes);
    for (const auto& file : {masters_, gradients_}) file->make_window(bytes);
    const auto storage = Storage::in_file(masters_, bytes);
    storage->edit_shard().padded_to = 32;
    storage->edit_shard().state_folder = place;
    Tensor parameter = Tensor::view_of(storage, 0, {count}, float32);
    parameter.set_requires_grad(true);
    gradient_ = Storage::in_file(gradients_, bytes);
    parameter.impl()->grad = Tensor::view_of(gradient_, 0, {count}, float32).impl();
    parameter.impl()->grad_ready = true;
    optimizer_ = std::make_unique<optim::AdamW>(
        std::vector<nn::NamedParameter>{{"p", parameter, parameter.shape()}},
        optim::AdamWOptions{});
    for (std::size_t i = 0; i < 2; ++i)
      moments_.push_back(optimizer_->segment_state(0, i).storage()->file().file);
    fill(*masters_, 0.5f);
    fill(*gradients_, 0.25f);
  }

  void step() { optimizer_->step(); }

  double norm() {
    kernels::ExactSum sum;
    const StreamedArray array{gradients_->window(), 0, 4};
    stream_arrays(
        std::span(&array, 1), {0, count_}, 0,
        [&](ElementRange range, std::span<std::byte* const> where) {
          kernels::cpu::sum_of_squares(
              {.x = where[0], .n = range.count, .dtype = float32, .scale = 1, .sum = &sum});
        });
    return sum.value();
  }

  // One thread per file, as in the step, in pieces of the same size.
  void transfer(bool whole_step) {
    const auto work = [this](StateFile& file, bool writes) {
      const std::size_t piece = file.window()->piece_bytes();
      std::byte* const memory = file.window()->piece(0);
      const auto bytes = static_cast<std::size_t>(count_) * 4;
      for (std::size_t at = 0; at < bytes; at += piece) {
        const std::size_t n = StateFile::round_up(std::min(piece, bytes - at));
        file.read(at, memory, n);
        if (writes) file.write(at, memory, n);
      }
    };
    if (!whole_step) return work(*gradients_, false);
    std::vector<std::thread> threads;
    threads.emplace_back(work, std::ref(*masters_), true);
    threads.emplace_back(work, std::ref(*gradients_), false);
    for (const auto& moment : moments_) threads.emplace_back(work, std::ref(*moment), true);
    for (std::thread& thread : threads) thread.join();
  }

  [[nodiscard]] bool is_direct() const { return masters_->is_direct(); }

 private:
  void fill(StateFile& file, float value) const {
    const std::size_t piece = file.window()->piece_bytes();
    std::byte* const memory = file.window()->piece(0);
    std::fill_n(reinterpret_cast<float*>(memory), piece / 4, value);
    const auto bytes = static_cast<std::size_t>(count_) * 4;
    for (std::size_t at = 0; at < bytes; at += piece)
      file.write(at, memory, StateFile::round_up(std::min(piece, bytes - at)));
  }

  std::int64_t count_;
  std::shared_ptr<StateFile> masters_, gradients_;
  std::vector<std::shared_ptr<StateFile>> moments_;
  std::shared_ptr<Storage> gradient_;
  std::unique_ptr<optim::AdamW> optimizer_;
};

nlohmann::json compare_with_disk(const std::string& folder, std::int64_t count, int rounds) {
  State state(folder, count);
  std::vector<double> step, disk, norm, reads;
  for (int round = 0; round <= rounds; ++round) {
    const double a = seconds_of([&] { state.step(); });
    const double b = seconds_of([&] { state.transfer(true); });
    const double c = seconds_of([&] { (void)state.norm(); });
    const double d = seconds_of([&] { state.transfer(false); });
    if (round == 0) continue;  // the first round writes into new blocks
    step.push_back(a);
    disk.push_back(b);
    norm.push_back(c);
    reads.push_back(d);
  }
  const double moved = 28.0 * static_cast<double>(count);
  return {{"direct", state.is_direct()},
          {"step_gb_per_s", moved / bench::median(step) / 1e9},
          {"disk_gb_per_s", moved / bench::median(disk) / 1e9},
          {"step_of_disk", bench::median(disk) / bench::median(step)},
          {"norm_of_reads", bench::median(reads) / bench::median(norm)}};
}

nlohmann::json compare_with_memory(int rounds) {
  constexpr std::int64_t count = std::int64_t{1} << 25;
  std::vector<float> p(count, 1.0f), g(count, 0.1f), m(count), v(count);
  const auto adamw = [&] {
    kernels::cpu::adamw_step({.param = p.data(),
                              .grad = g.data(),
                              .m = m.data(),
                              .v = v.data(),
                              .copy = nullptr,
                              .n = count,
                              .dtype = float32,
                              .grad_dtype = float32,
                              .copy_dtype = float32,
                              .lr = 1e-4,
                              .beta1 = 0.9,
                              .beta2 = 0.95,
                              .eps = 1e-8,
                              .weight_decay = 0.1,
                              .correction1 = 0.1,
                              .correction2 = 0.05,
                              .grad_scale = 1.0f});
  };
  const auto copy = [&] {
    const int threads = compute_threads();
    std::vector<std::thread> helpers;
    const std::size_t part = static_cast<std::size_t>(count) / static_cast<std::size_t>(threads);
    for (int t = 0; t < threads; ++t) {
      helpers.emplace_back([&, t] {
        const std::size_t at = part * static_cast<std::size_t>(t);
        std::memcpy(m.data() + at, g.data() + at, part * sizeof(float));
      });
    }
    for (std::thread& helper : helpers) helper.join();
  };
  std::vector<double> update, copies;
  for (int round = 0; round <= rounds; ++round) {
    const double a = seconds_of(adamw);
    const double b = seconds_of(copy);
    if (round == 0) continue;
    update.push_back(a);
    copies.push_back(b);
  }
  const double adamw_rate = 28.0 * count / bench::median(update) / 1e9;
  const double copy_rate = 8.0 * count / bench::median(copies) / 1e9;
  return {{"threads", compute_threads()},
          {"adamw_gb_per_s", adamw_rate},
          {"memcpy_gb_per_s", copy_rate},
          {"adamw_of_memcpy", adamw_rate / copy_rate}};
}

}  // namespace

int main(int argc, char** argv) {
  std::string folder = "offload-bench", json;
  std::int64_t mib = 2048;
  int rounds = 5;
  bench::read_options(argc, argv, "AdamW on state in files, compared with the disk alone.",
                      {bench::text("--folder", folder, "where the files are written"),
                       bench::number<std::int64_t>("--mib", mib, 1, "MiB of state"),
                       bench::number("--rounds", rounds, 1, "rounds, of which the median counts"),
                       bench::text("--json", json, "a file for the results")});
  nlohmann::json result = compare_with_disk(folder, (mib << 20) / 16, rounds);
  result["state_mib"] = mib;
  result["memory"] = compare_with_memory(rounds);
  fmt::print("{}\n", result.dump(2));
  if (!json.empty()) std::ofstream(json) << result.dump(2) << '\n';
  return 0;
}
