// Shared by the checkpoint tests: a temporary folder, states with known elements, and ways to cut
// them.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>
#include <nlohmann/json.hpp>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/low_precision.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/state/scalars_json.h"
#include "comm/world.h"
#include "tests/support/errors.h"
#include "tests/support/temporary_folder.h"

namespace tessera::checkpoint::testing {

namespace fs = std::filesystem;

// In memory, because the sweeps make thousands of files.
class TemporaryFolder : public tessera::testing::TemporaryFolder {
 public:
  TemporaryFolder() : tessera::testing::TemporaryFolder(Place::in_memory) {}
};

inline std::string read_all(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

inline void write_all(const fs::path& path, const std::string& contents) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << contents;
}

// The message of the Error that `body` must throw.
inline std::string error_of(const std::function<void()>& body,
                            ErrorCode code = ErrorCode::checkpoint) {
  return tessera::testing::error_of(body, code);
}

inline ::testing::AssertionResult has(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "'" << text << "' lacks '" << part << "'";
}

// Element i of tensor number `tensor`: small integers, exact in every dtype.
inline double element(std::size_t tensor, std::int64_t i, int version) {
  return static_cast<double>((i * 7 + static_cast<std::int64_t>(tensor) * 31 + version * 101) %
                             251) -
         125.0;
}

inline void store(std::byte* out, DType dtype, double value) {
  const auto put = [&](auto typed) { std::memcpy(out, &typed, sizeof typed); };
  switch (dtype) {
    case DType::float32:
      return put(static_cast<float>(value));
    case DType::bfloat16:
      return put(to_bfloat16(static_cast<float>(value)));
    case DType::float16:
      return put(to_float16(static_cast<float>(value)));
    case DType::float64:
      return put(value);
    case DType::int32:
      return put(static_cast<std::int32_t>(value));
    case DType::int64:
      return put(static_cast<std::int64_t>(value));
    default:
      return put(static_cast<std::uint8_t>(static_cast<int>(value) & 0xff));
  }
}

inline std::int64_t elements_of(const std::vector<std::int64_t>& shape) {
  std::int64_t n = 1;
  for (const std::int64_t d : shape) n *= d;
  return n;
}

// A rank's state with its memory.
struct RankState {
  State state;
  std::vector<std::vector<std::byte>> memory;
};

// Returns the runs (first, count) of a tensor of n elements that a rank has.
using Cut = std::function<std::vector<std::pair<std::int64_t, std::int64_t>>(
    std::size_t tensor, std::int64_t n, int rank, int world)>;

// Consecutive equal shards, the last ones short or empty, as FSDP cuts.
inline Cut even_cut() {
  return [](std::size_t, std::int64_t n, int rank, int world) {
    const std::int64_t part = (n + world - 1) / world;
    const std::int64_t first = std::min(n, part * rank);
    return std::vector{std::pair{first, std::min(part, n - first)}};
  };
}

// Assigns random runs to random ranks; the last of several ranks gets none.
inline Cut random_cut(unsigned seed) {
  return [seed](std::size_t tensor, std::int64_t n, int rank, int world) {
    std::mt19937 random(seed * 1000 + static_cast<unsigned>(tensor));
    std::vector<std::pair<std::int64_t, std::int64_t>> runs;
    const int owners = world > 1 ? world - 1 : 1;
    for (std::int64_t first = 0; first < n;) {
      const std::int64_t count =
          std::min<std::int64_t>(n - first, 1 + static_cast<std::int64_t>(random() % 40));
      if (static_cast<int>(random() % static_cast<unsigned>(owners)) == rank) {
        runs.emplace_back(first, count);
      }
      first += count;
    }
    return runs;
  };
}

// Every rank gets the whole tensor.
inline Cut whole_cut() {
  return [](std::size_t, std::int64_t n, int, int) {
    return std::vector{std::pair{std::int64_t{0}, n}};
  };
}

struct TensorPlan {
  std::string name;
  DType dtype;
  std::vector<std::int64_t> shape;
};

inline std::vector<TensorPlan> model_plans(DType floating = DType::float32) {
  return {{"transformer.wte.weight", floating, {37, 13}},
          {"transformer.ln.weight", floating, {1}},
          {"scale", floating, {}},
          {"empty", floating, {0, 5}},
          {"bias", floating, {129}},
          {"counts", DType::int64, {5}},
          {"mask", DType::boolean, {3, 3}},
          {"naïve \"quoted\" ☃", floating, {2, 3, 5}}};
}

inline std::vector<TensorPlan> optimizer_plans() {
  return {{"transformer.wte.weight.exp_avg", DType::float32, {37, 13}},
          {"transformer.wte.weight.exp_avg_sq", DType::float32, {37, 13}},
          {"bias.exp_avg", DType::float32, {129}}};
}

inline Scalars scalars_of(int version) {
  return to_scalars(
      {{"step", version}, {"loss_scale", 65536.5}, {"rng", {1, 2, version}}, {"name", "ü"}});
}

// A state of `version` (filled), or one to load into (filled = false: 0xEE everywhere).
inline RankState make_state(int rank, int world, int version, const Cut& cut, bool filled,
                            DType floating = DType::float32) {
  RankState out;
  std::size_t number = 0;
  for (auto* section : {&out.state.model, &out.state.optimizer}) {
    for (const TensorPlan& plan :
         section == &out.state.model ? model_plans(floating) : optimizer_plans()) {
      LogicalTensor tensor{plan.name, plan.dtype, plan.shape, {}};
      for (const auto& [first, count] : cut(number, elements_of(plan.shape), rank, world)) {
        const std::size_t size = size_of(plan.dtype);
        auto& memory =
            out.memory.emplace_back(static_cast<std::size_t>(count) * size + 1, std::byte{0xEE});
        for (std::int64_t i = 0; filled && i < count; ++i) {
          store(memory.data() + static_cast<std::size_t>(i) * size, plan.dtype,
                element(number, first + i, version));
        }
        tensor.pieces.push_back({first, count, memory.data()});
      }
      section->push_back(std::move(tensor));
      ++number;
    }
  }
  if (filled) out.state.scalars = scalars_of(version);
  return out;
}

// The number of elements that differ from those of the version.
inline std::int64_t wrong_elements(const State& state, int version) {
  std::int64_t wrong = 0;
  std::size_t number = 0;
  for (const auto* section : {&state.model, &state.optimizer}) {
    for (const LogicalTensor& tensor : *section) {
      for (const Piece& piece : tensor.pieces) {
        const std::size_t size = size_of(tensor.dtype);
        for (std::int64_t i = 0; i < piece.count; ++i) {
          std::byte expected[8];
          store(expected, tensor.dtype, element(number, piece.first + i, version));
          wrong +=
              std::memcmp(expected, piece.data + static_cast<std::size_t>(i) * size, size) != 0;
        }
      }
      ++number;
    }
  }
  return wrong;
}

inline fs::path save_version(comm::Communicator& communicator, const fs::path& dir, int version,
                             const SaveOptions& options, const Cut& cut = even_cut()) {
  const RankState own = make_state(communicator.rank(), communicator.size(), version, cut, true);
  return save(communicator, dir, version, own.state, options).path;
}

inline void save_version(const fs::path& dir, int version, const SaveOptions& options = {},
                         int world = 1) {
  comm::run_local(
      world, [&](const auto& communicator) { save_version(*communicator, dir, version, options); });
}

// Loads a step on one rank and compares every element.
inline void expect_version(const fs::path& step_folder, int version) {
  comm::run_local(1, [&](const auto& communicator) {
    RankState own = make_state(0, 1, 0, whole_cut(), false);
    load(*communicator, step_folder, own.state);
    EXPECT_EQ(wrong_elements(own.state, version), 0);
    EXPECT_EQ(own.state.scalars, scalars_of(version));
  });
}

inline std::optional<FoundCheckpoint> find_latest_alone(const fs::path& dir) {
  std::optional<FoundCheckpoint> found;
  comm::run_local(1, [&](const auto& communicator) { found = find_latest(*communicator, dir); });
  return found;
}

}  // namespace tessera::checkpoint::testing
