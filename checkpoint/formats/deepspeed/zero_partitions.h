// The contents of a DeepSpeed folder's optimizer files: each rank's partition of the flat fp32
// weights and moments, and the hyperparameters.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "checkpoint/formats/deepspeed/zero_files.h"
#include "checkpoint/formats/pieces.h"
#include "checkpoint/formats/torch/torch_archive.h"

namespace tessera::checkpoint::formats {

template <class... Args>
void check_zero(const std::string& source, bool condition, fmt::format_string<Args...> format,
                Args&&... args) {
  if (condition) return;
  fail(ErrorCode::checkpoint, "{}: {}", source, fmt::format(format, std::forward<Args>(args)...));
}

// Runs of elements in records, one after the other.
class Lane {
 public:
  // A flat tensor of the archive, which must lie within its storage.
  void add(PieceStore& store, const TorchArchive& from, const TorchTensor& tensor);
  void append(const Lane& other);
  [[nodiscard]] std::int64_t size() const { return size_; }
  // Elements [first, first + count) as pieces of a tensor that begin at its element `at`.
  void cut(std::int64_t first, std::int64_t count, std::int64_t at,
           std::vector<Piece>& pieces) const;

 private:
  struct Run {
    std::size_t record;
    std::int64_t first, stride, count, begin;
  };
  std::vector<Run> runs_;
  std::int64_t size_ = 0;
};

// The contents of the ranks' partitions: the weights, and each tensor of state.
using Lanes = std::map<std::string, Lane>;
constexpr const char* weights_lane = "";

struct ZeroPartitions {
  int stage = 0;
  const StoredDType* stored = nullptr;       // of all of them
  std::vector<std::vector<Lanes>> of_ranks;  // by rank, then by group
  std::vector<nlohmann::json> groups;        // the optimizer's hyperparameters
  std::optional<std::int64_t> step;
};

TorchArchive open_zero_file(PieceStore& store, const std::filesystem::path& path);
// `source` begins every Error about the folder as a whole. There is at least one partition.
ZeroPartitions read_zero_partitions(PieceStore& store, const ZeroFiles& files,
                                    const std::string& source);

}  // namespace tessera::checkpoint::formats
