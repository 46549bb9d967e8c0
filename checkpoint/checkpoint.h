// Saving, finding, verifying and loading checkpoints. docs/checkpoint-format.md has the bytes.
//
// A save writes into DIR/step-N.partial-<id>/, fsyncs, writes manifest.json (sizes, XXH3 of every
// chunk, layout, save id, lineage), renames to DIR/step-N/, fsyncs DIR, then updates DIR/latest and
// applies retention. Readers take committed steps only.
//
// Paths are strings, which a std::filesystem::path becomes and makes by itself: <filesystem> is a
// sixth of what a user's file paid for the library's headers.
#pragma once

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
// What a parameter is called in a checkpoint, by its own name and whether it is trained; an empty
// name: the checkpoint does not have it. No function: everything, under its own name.
using StateNames = std::function<std::string(const std::string& name, bool trained)>;

// Whether what has this name in the checkpoint takes part. No function: everything does.
using NameFilter = std::function<bool(const std::string& name)>;

// Names in the checkpoint that one side alone has.
struct Mismatch {
  std::vector<std::string> missing;     // wanted and not stored: it keeps the value that it had
  std::vector<std::string> unexpected;  // stored and not wanted
};
}  // namespace checkpoint

struct SaveOptions {
  // N in the name of the folder, step-N. Unset: the number of steps that the optimizer took.
  std::optional<std::int64_t> step = {};
  checkpoint::StateDictType type = checkpoint::StateDictType::full;
  DType model_dtype = DType::float32;  // of the model's floating tensors in the file
  int keep = 0;                        // committed steps of this run to keep, the newest; 0: all
  Scalars scalars = {};                // whatever the program wants back, the same on every rank
  std::map<std::string, std::string> files =
      {};  // extra small files by name (config.json, 1_Pooling/config.json ...), from rank 0
  // FULL: the model's tensors whose names begin with one of these and a dot go into the file
  // model.safetensors of a folder of that name, and have the rest of their names there.
  std::set<std::string> tensor_folders = {};
  checkpoint::StateNames names = {};
  // FULL: of the file that has the model's tensors, without ".safetensors". Tensors in folders go
  // into model.safetensors all the same.
  std::string model_file = "model";
  checkpoint::Line line = {};        // which run the step belongs to
  std::optional<double> score = {};  // validation loss: the lower the better
  int keep_best = 0;  // retention leaves the steps with the lowest scores, beside the newest
  // FULL: what is more goes into numbered files with an index, as Hugging Face has it; 0: one file.
  std::uint64_t max_file_size = 0;
  // A disk that is slow ends no save; one of which no call comes back for so long does, by name.
  // 0: never.
  std::chrono::milliseconds stall_timeout{300'000};
};

}  // namespace tessera

namespace tessera::checkpoint {

struct Saved {
  std::string path;  // DIR/step-N
  Line line;         // for what is saved next: this save is its parent
  // A line for each trouble that has not cost the step: something old that could not be removed, a
  // lock that is weaker than it should be, another run's step that had this name.
  std::vector<std::string> warnings;
};

// Collective. All ranks return, or all throw the same Error(checkpoint) that names the rank, file
// and cause; the previous checkpoint is intact in that case and the partial folder is removed where
// possible. The step and the scalars are those given here and in `state`, not the options'.
Saved save(comm::Communicator& communicator, const std::string& dir, std::int64_t step,
           const State& state, const SaveOptions& options);

// Which tensors a load is about. What a filter leaves out is neither wanted nor unexpected.
struct Selection {
  bool strict = true;  // missing and unexpected tensors are errors
  NameFilter model = {};
  NameFilter optimizer = {};  // by the names of the parameters whose state it is
  // How the error of what does not fit ends.
  std::string way_out = "use the configuration it was saved with";
};

// The tensors that did not match in a load that is not strict.
struct Fit {
  Mismatch model, optimizer;
};

struct Found {
  std::string path;  // a committed step folder
  std::int64_t step = 0;
  Line line;  // for what is saved next, when training goes on from here
  // A line for each newer one of the run that was passed over, with the reason, and for each that
  // could not be read at all.
  std::vector<std::string> skipped;
  std::vector<std::string> others;  // a line for each other run that has steps in DIR
  Fit fit = {};                     // of load_latest
};

enum class LoadParts : std::uint8_t {
  everything,
  model_only
};  // model_only ignores the optimizer's tensors

// Which run of a folder is looked at.
struct Search {
  std::string launch = {};  // the one that this launch saved last; empty: the one saved last
  std::string named_by = "checkpoint.resume";  // for messages: what names a single step instead
};

// The newest committed step that verifies, of the run that was saved last (by a number that grows
// with every commit in DIR, never by time), then of the run that it came from; or none when DIR has
// no such run. A run whose steps are all damaged is an Error(checkpoint) with the reasons; so is a
// step that cannot be read (EACCES, EIO, ESTALE ...), since that says nothing about what is stored.
// With model_only, damage in the optimizer's files alone passes nothing over: nobody reads them.
// Collective: rank 0 looks, the ranks share the verification, all agree.
std::optional<Found> find_latest(comm::Communicator& communicator, const std::string& dir,
                                 const Search& search = {},
                                 LoadParts parts = LoadParts::everything);

// Every file present, of its size, every chunk's checksum right. Throws Error(checkpoint) naming
// file, offset and tensor.
void verify(const std::string& step_folder);

// The scalars of a committed step folder.
Scalars read_scalars(const std::string& step_folder);

// Collective. Fills the pieces of `state` (names, shapes and pieces given; scalars are filled) from
// a step folder of any world size and either type. Missing, unexpected and mis-shaped tensors are
// one Error(checkpoint) that lists them; of what is missing and unexpected, a selection that is not
// strict gives the lists instead. Bytes that are read are verified.
Fit load(comm::Communicator& communicator, const std::string& step_folder, State& state,
         LoadParts parts = LoadParts::everything, const Selection& selection = {});

// find_latest and load in one, reading every byte once: what turns out to be damaged while it is
// loaded is passed over, and the next older step is loaded over it. What does not fit is an Error
// and no reason to fall back.
std::optional<Found> load_latest(comm::Communicator& communicator, const std::string& dir,
                                 State& state, LoadParts parts = LoadParts::everything,
                                 const Search& search = {}, const Selection& selection = {});

// The same with a state that is asked for, once, when there is a step to load, and not where there
// is none: an optimizer's takes memory.
std::optional<Found> load_latest(comm::Communicator& communicator, const std::string& dir,
                                 const std::function<State&()>& state,
                                 LoadParts parts = LoadParts::everything, const Search& search = {},
                                 const Selection& selection = {});

// Where the saves of a run that begins now belong, and what it should be told of the folder.
struct Start {
  Line line;
  std::vector<std::string> others;
};
// Collective. `from` is the step folder whose state training goes on from, or empty: anew. The run
// goes on with the step's own when that is the last of its run in DIR; else it is a new one.
Start start_line(comm::Communicator& communicator, const std::string& dir,
                 const std::string& from = {});

// Whether a tensor's name is the pattern's, in which '#' stands for one or more decimal digits and
// everything else for itself.
bool matches_name(std::string_view pattern, std::string_view name);

// The names that a tensor may have in a file, by its name in the state; they are tried in order.
using Aliases = std::function<std::vector<std::string>(const std::string& name)>;

// Fills pieces from a plain Hugging Face folder (model.safetensors, or numbered files + index) or
// from one .safetensors file. Each rank calls it by itself. Without `rename` names are as they are.
// Unexpected names that match none of `ignored` (matches_name()) are errors.
void load_hugging_face(const std::string& source, std::vector<LogicalTensor>& tensors,
                       const std::vector<std::string>& ignored, const Aliases& rename = {});

}  // namespace tessera::checkpoint
