// Saving, finding, verifying and loading checkpoints. docs/checkpoint-format.md has the bytes.
//
// A save writes into DIR/step-N.partial-<id>/, fsyncs, writes manifest.json (sizes, XXH3 of every
// chunk, layout, save id), renames to DIR/step-N/, fsyncs DIR, then updates DIR/latest and applies
// retention. Readers take committed steps only.
//
// Paths are strings, which a std::filesystem::path becomes and makes by itself: <filesystem> is a
// sixth of what a user's file paid for the library's headers.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/state.h"
#include "sharding/comm/communicator.h"

namespace tessera::checkpoint {

enum class StateDictType : std::uint8_t {
  full,     // model.safetensors + optimizer.safetensors, every rank writes its ranges in place
  sharded,  // model-rank-RRRRR-of-WWWWW.safetensors per rank, and likewise optimizer
};

struct SaveOptions {
  StateDictType type = StateDictType::full;
  DType model_dtype = DType::float32;  // of the model's floating tensors in the file
  int keep = 0;                        // committed steps to keep; 0: all
  std::map<std::string, std::string> files =
      {};  // extra small files by name (config.json ...), from rank 0
  // FULL: what is more goes into numbered files with an index, as Hugging Face has it; 0: one file.
  std::uint64_t max_file_size = 0;
  // A disk that is slow ends no save; one of which no call comes back for so long does, by name.
  // 0: never.
  std::chrono::milliseconds stall_timeout{300'000};
};

// Collective. All ranks return, or all throw the same Error(checkpoint) that names the rank, file
// and cause; the previous checkpoint is intact in that case and the partial folder is removed where
// possible. Returns DIR/step-N.
std::string save(comm::Communicator& communicator, const std::string& dir, std::int64_t step,
                 const State& state, const SaveOptions& options);

struct Found {
  std::string path;  // a committed step folder
  std::int64_t step = 0;
  std::vector<std::string>
      skipped;  // a line for each newer one that was passed over, with the reason
};

// The newest committed step of DIR that verifies (ordered by step number, never by time), or none
// when DIR has no step at all. Steps that are all damaged are an Error(checkpoint) with the
// reasons. Collective: rank 0 looks, the ranks share the verification, all agree.
std::optional<Found> find_latest(comm::Communicator& communicator, const std::string& dir);

// Every file present, of its size, every chunk's checksum right. Throws Error(checkpoint) naming
// file, offset and tensor.
void verify(const std::string& step_folder);

// The scalars of a committed step folder.
Scalars read_scalars(const std::string& step_folder);

// Collective. Fills the pieces of `state` (names, shapes and pieces given; scalars are filled) from
// a step folder of any world size and either type. Missing, unexpected and mis-shaped tensors are
// one Error(checkpoint) that lists them all. Bytes that are read are verified.
enum class LoadParts : std::uint8_t {
  everything,
  model_only
};  // model_only ignores the optimizer's tensors
void load(comm::Communicator& communicator, const std::string& step_folder, State& state,
          LoadParts parts = LoadParts::everything);

// Fills pieces from a plain Hugging Face folder (model.safetensors, or numbered files + index).
// `rename` maps a logical name to the names it may have in the files, tried in order. Unexpected
// names that match none of `ignored` (ECMAScript regexes) are errors.
void load_hugging_face(const std::string& folder, std::vector<LogicalTensor>& tensors,
                       const std::vector<std::string>& ignored,
                       std::vector<std::string> (*rename)(const std::string& name));

}  // namespace tessera::checkpoint
