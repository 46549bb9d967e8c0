// Saves, finds, verifies and loads checkpoints. docs/checkpoint-format.md has the bytes.
//
// A save writes into DIR/step-N.partial-<id>/, fsyncs, writes manifest.json (sizes, XXH3 of every
// chunk, layout, save id, lineage), renames to DIR/step-N/, fsyncs DIR, then updates DIR/latest and
// applies retention. Readers take committed steps only.
//
// Paths are strings. A std::filesystem::path converts to and from them, and <filesystem> took a
// sixth of the time to compile the library's headers.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/state/line.h"
#include "checkpoint/state/state.h"
#include "comm/communicator.h"

namespace tessera::checkpoint {

enum class StateDictType : std::uint8_t {
  full,     // model.safetensors + optimizer.safetensors, every rank writes its ranges in place
  sharded,  // model-rank-RRRRR-of-WWWWW.safetensors per rank, and likewise optimizer
};

}  // namespace tessera::checkpoint

namespace tessera {

namespace checkpoint {
// Maps a parameter's own name, and whether it is trained, to its name in a checkpoint. An empty
// name: the checkpoint does not contain it. No function: all parameters, under their own names.
using StateNames = std::function<std::string(const std::string& name, bool trained)>;

// True for the names in the checkpoint that take part. No function: all names.
using NameFilter = std::function<bool(const std::string& name)>;

// Names that only one side has: the state, or the checkpoint.
struct Mismatch {
  // Wanted and not stored: it keeps the value that it had.
  std::vector<std::string> missing;
  std::vector<std::string> unexpected;  // stored and not wanted
};
}  // namespace checkpoint

struct SaveOptions {
  // N in the name of the folder, step-N. Unset: the number of steps that the optimizer took.
  std::optional<std::int64_t> step = {};
  checkpoint::StateDictType type = checkpoint::StateDictType::full;
  DType model_dtype = DType::float32;  // of the model's floating tensors in the file
  int keep = 0;                        // committed steps of this run to keep, the newest; 0: all
  Scalars scalars = {};                // the program's own values, the same on every rank
  std::map<std::string, std::string> files =
      {};  // extra small files by name (config.json, 1_Pooling/config.json ...), from rank 0
  // The modes of files that come from other files: what others may not read there, they may not
  // read here. From rank 0.
  std::map<std::string, mode_t> file_modes = {};
  // FULL: the model's tensors whose names begin with one of these and a dot go into
  // model.safetensors in a folder of that name, without this prefix.
  std::set<std::string> tensor_folders = {};
  checkpoint::StateNames names = {};
  // FULL: name of the file with the model's tensors, without ".safetensors". Tensors in folders
  // always go into model.safetensors.
  std::string model_file = "model";
  checkpoint::Line line = {};        // the run that the step belongs to
  std::optional<double> score = {};  // validation loss: lower is better
  int keep_best = 0;                 // retention also keeps this many steps with the lowest scores
  // FULL: bytes of a file. Larger parts are split into numbered files with an index, as in Hugging
  // Face folders; 0: one file.
  std::uint64_t max_file_size = 0;
  // A slow disk does not end a save. If no file-system call returns for this long, the save fails
  // with an error that names the call. 0: never.
  std::chrono::milliseconds stall_timeout{300'000};
};

}  // namespace tessera

namespace tessera::checkpoint {

struct Saved {
  std::string path;  // DIR/step-N
  Line line;         // for the next save: this save is its parent
  // One line for each problem that did not fail the step: something old that could not be removed,
  // a lock that is weaker than it should be, a step of another run that had this name.
  std::vector<std::string> warnings;
};

// Collective. All ranks return, or all throw the same Error(checkpoint) that names the rank, file
// and cause. After an error the previous checkpoint is intact, and the partial folder is removed
// where possible. The step is `step` and the scalars are those of `state`, not the options'.
Saved save(comm::Communicator& communicator, const std::string& dir, std::int64_t step,
           const State& state, const SaveOptions& options);

struct Fit;

// Which tensors a load is about. What a filter leaves out is neither wanted nor unexpected.
struct Selection {
  bool strict = true;  // missing and unexpected tensors are errors
  NameFilter model = {};
  NameFilter optimizer = {};  // by the names of the parameters that the state belongs to
  // End of the error message about tensors that do not match.
  std::string way_out = "use the configuration it was saved with";
  // Called with the scalars of a step and with what does not match, before anything is filled; it
  // throws when the step must not be loaded. On a thread of the load.
  std::function<void(const Scalars& scalars, const Fit& fit)> check = {};
};

// The tensors that did not match. A strict load has none but optional ones that are not stored.
struct Fit {
  Mismatch model, optimizer;
};

struct FoundCheckpoint {
  std::string path;  // a committed step folder
  std::int64_t step = 0;
  Line line;  // for the next save, when training goes on from here
  // One line for each newer step of the run that was skipped, with the reason, and for each step
  // that could not be read.
  std::vector<std::string> skipped;
  std::vector<std::string> others;  // one line for each other run that has steps in DIR
  Fit fit = {};                     // of load_latest
};

enum class LoadParts : std::uint8_t {
  everything,
  model_only
};  // model_only ignores the optimizer's tensors

// The run of a folder to search.
struct CheckpointQuery {
  std::string launch = {};  // the run that this launch saved last; empty: the run saved last
  std::string named_by = "checkpoint.resume";  // the key that names a single step, for messages
};

// The newest committed step that passes verification. The search starts with the run that was saved
// last (by a number that grows with every commit in DIR, never by time) and goes on with the run
// that it came from. Returns none when DIR has no such run. If all steps of a run are damaged,
// throws Error(checkpoint) with the reasons. It also throws if a step cannot be read (EACCES, EIO,
// ESTALE ...): that does not show whether the step is damaged. With model_only, damage in the
// optimizer's files alone does not skip a step, because they are not read. Collective: rank 0
// searches, the ranks share the verification, all agree on the result.
std::optional<FoundCheckpoint> find_latest(comm::Communicator& communicator, const std::string& dir,
                                           const CheckpointQuery& search = {},
                                           LoadParts parts = LoadParts::everything);

// Checks that every file is present and has its size, and that every chunk matches its checksum.
// Throws Error(checkpoint) naming file, offset and tensor.
void verify(const std::string& step_folder);

// The scalars of a committed step folder.
Scalars read_scalars(const std::string& step_folder);

// Collective. Fills the pieces of `state` (names, shapes and pieces given; scalars are filled) from
// a step folder of any world size and either type. Missing, unexpected and mis-shaped tensors are
// one Error(checkpoint) that lists them. A selection that is not strict returns the missing and
// unexpected names instead. Bytes that are read are verified.
Fit load(comm::Communicator& communicator, const std::string& step_folder, State& state,
         LoadParts parts = LoadParts::everything, const Selection& selection = {});

// find_latest and load in one; every byte is read once. If a step turns out to be damaged during
// the load, the next older step is loaded over it. Tensors that do not match are an Error and do
// not cause a fallback.
std::optional<FoundCheckpoint> load_latest(comm::Communicator& communicator, const std::string& dir,
                                           State& state, LoadParts parts = LoadParts::everything,
                                           const CheckpointQuery& search = {},
                                           const Selection& selection = {});

// The same, but `state` is called once, and only when there is a step to load: an optimizer's state
// takes memory.
std::optional<FoundCheckpoint> load_latest(comm::Communicator& communicator, const std::string& dir,
                                           const std::function<State&()>& state,
                                           LoadParts parts = LoadParts::everything,
                                           const CheckpointQuery& search = {},
                                           const Selection& selection = {});

// The run that the next saves belong to, and a line for each other run in the folder.
struct RunStart {
  Line line;
  std::vector<std::string> others;
};
// Collective. `from` is the step folder whose state training continues from; empty: training starts
// anew. The saves continue the step's run if the step is the last of its run in DIR; otherwise they
// begin a new run.
RunStart start_line(comm::Communicator& communicator, const std::string& dir,
                    const std::string& from = {});

// True if the name matches the pattern, in which '#' stands for one or more decimal digits and
// every other character for itself.
bool matches_name(std::string_view pattern, std::string_view name);

// The names that a tensor may have in a file, by its name in the state, in the order in which they
// are tried.
using Aliases = std::function<std::vector<std::string>(const std::string& name)>;

// Fills pieces from a plain Hugging Face folder (model.safetensors, or numbered files + index) or
// from one .safetensors file. Each rank calls it by itself. Without `rename` names are unchanged.
// Unexpected names that match none of `ignored` (matches_name()) are errors.
void load_hugging_face(const std::string& source, std::vector<LogicalTensor>& tensors,
                       const std::vector<std::string>& ignored, const Aliases& rename = {});

}  // namespace tessera::checkpoint
