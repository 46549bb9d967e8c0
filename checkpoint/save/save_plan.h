// The files, headers and writes of a save. Every rank computes the same plan from every rank's
// pieces.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/state/state.h"
#include "checkpoint/steps/manifest.h"

namespace tessera::checkpoint {

// The pieces (first, count) of each tensor of a section on one rank.
struct Run {
  std::int64_t first = 0;
  std::int64_t count = 0;
};
using RankPieces = std::vector<std::vector<Run>>;

struct PieceLists {
  RankPieces model, optimizer;
};

// A run of bytes of a file that one rank writes.
struct FileSpan {
  std::uint64_t begin = 0;  // ends where the next one begins, or at the end of the file
  int rank = 0;
};

struct PlannedFile {
  std::string name;
  std::string header;
  std::uint64_t bytes = 0;
  int creator = 0;      // the rank that writes the header, and creates a file that only it writes
  bool shared = false;  // written by several ranks, which find the file created
  std::vector<FileSpan> spans;
  // The file's record in the manifest, without the checksums.
  [[nodiscard]] FileRecord record() const;
};

// A run of this rank's elements to write into a file.
struct PlannedWrite {
  std::size_t file = 0;
  std::uint64_t offset = 0;
  const std::byte* data = nullptr;
  std::int64_t count = 0;
  DType memory_dtype = DType::float32;
  DType file_dtype = DType::float32;
  Device device = Device::cpu();  // of data
  FilePlace in_file = {};         // instead of data
};

struct SavePlan {
  std::vector<PlannedFile> files;
  std::vector<PlannedWrite> writes;          // this rank's, by file and rising offset
  std::map<std::string, std::string> texts;  // small files that belong to them: indexes
  Section model, optimizer;
  [[nodiscard]] std::uint64_t total_bytes() const;
};

// Throws on names that are not UTF-8 or appear twice, and on pieces outside their tensor.
PieceLists list_pieces(const State& state);

// Checks that every element of every tensor is in exactly one piece of one rank. Otherwise throws
// an Error that names tensor, elements, ranks.
void check_coverage(const State& state, const std::vector<PieceLists>& of_ranks);

SavePlan plan_save(const State& state, const SaveOptions& options,
                   const std::vector<PieceLists>& of_ranks, int rank, bool with_optimizer = true);

}  // namespace tessera::checkpoint
