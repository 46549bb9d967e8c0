// The formats that checkpoints are converted between: each is a file of this folder and a row of
// `formats()`, by which a folder or file of it is recognised, opened and written.
//
// Nothing here belongs to a world size or runs on ranks: one process reads a Source with bounded
// memory and appends to a Sink.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/safetensors/safetensors.h"
#include "checkpoint/state/scalars.h"

namespace tessera::checkpoint::formats {

enum class Part : std::uint8_t { model, optimizer };

// A tensor of an opened checkpoint.
struct TensorInfo {
  Part part = Part::model;
  // Of the model as the format has it; of the optimizer "<parameter>.exp_avg", ".exp_avg_sq" or
  // ".momentum" (other state: "<parameter>.<key>"), whatever the format calls them.
  std::string name;
  const StoredDType* stored = nullptr;
  std::vector<std::int64_t> shape;
  std::string where;  // file, and record in it, for people
};

// What a checkpoint holds beside the bytes of its tensors.
struct Contents {
  std::vector<TensorInfo> tensors;  // a name stands once in a part
  // Of training: "step" (optimizer steps done, where the format tells), and what else Tessera's
  // manifests keep. Empty: weights alone.
  Scalars scalars;
  // Small files that belong to the model, by plain name: config.json, tokenizer.json ... or in a
  // folder: 1_Pooling/config.json.
  std::map<std::string, std::filesystem::path> files;
  // Names that stand for another tensor's memory, to it (tied weights).
  std::map<std::string, std::string> aliases;
  // A line for each thing a person should know: what was dropped, joined, renamed, of which world
  // size and stage it was.
  std::vector<std::string> notes;
  // Small files as `files`, that are no files yet: name to contents.
  std::map<std::string, std::string> texts = {};
};

// What verification found wrong in one place.
struct Damage {
  std::string text;                  // with file and offset, for people
  std::uint64_t bytes = 0;           // that cannot be trusted, where the format tells
  std::vector<std::size_t> tensors;  // that have bytes there
};

// A checkpoint opened for reading. Opening reads headers and metadata only and proves what they
// say: every element of every tensor lies in a file, once, within its bounds. Foreign bytes are
// never executed or believed: Error(checkpoint) names file and cause.
class Source {
 public:
  virtual ~Source() = default;
  [[nodiscard]] virtual const Contents& contents() const = 0;
  // Elements [first, first + count) in row-major order of contents().tensors[tensor], in its stored
  // dtype and little-endian, to `data`. Memory beside it is bounded by a few MiB. Checksums that
  // the format has are verified where the bytes read suffice for that.
  virtual void read(std::size_t tensor, std::int64_t first, std::int64_t count,
                    std::byte* data) = 0;
  // Reads everything and verifies the checksums that the format has. A line for each damage, with
  // file, offset and tensor; none: sound. `progress` is told bytes as they are read.
  virtual std::vector<std::string> verify(const std::function<void(std::uint64_t)>& progress) = 0;
  // The same, with what each damage costs where a format can tell.
  virtual std::vector<Damage> examine(const std::function<void(std::uint64_t)>& progress) {
    std::vector<Damage> damages;
    for (std::string& line : verify(progress)) damages.push_back({std::move(line), 0, {}});
    return damages;
  }
};

// A checkpoint being written. Files are created in a folder (or as the one file) that the caller
// owns, fsyncs and renames into place.
class Sink {
 public:
  virtual ~Sink() = default;
  // The next elements of the tensor with this index in the contents that the sink was made with:
  // tensors in that order, each whole and in row-major order before the next.
  virtual void append(std::size_t tensor, const std::byte* data, std::int64_t count) = 0;
  // After the last element: what comes at the end of the files, and fsync of each.
  virtual void finish() = 0;
};

struct WriteOptions {
  int world_size = 1;               // files of formats that have one a rank
  std::uint64_t max_file_size = 0;  // bytes of tensors in a file of formats that split; 0: no limit
};

struct Format {
  const char* name;         // "dcp", as in --to and reports
  const char* description;  // a line for people
  bool is_file;             // written as one file, not as a folder
  // Whether `path` looks like one, by names and first bytes; cheap, and never throws for what it is
  // not.
  bool (*recognises)(const std::filesystem::path& path);
  std::unique_ptr<Source> (*open)(const std::filesystem::path& path);
  // Null: cannot be written. The contents must outlive the sink. A content that the format cannot
  // hold is Error(checkpoint) that says what to ask for instead.
  std::unique_ptr<Sink> (*create)(const std::filesystem::path& path, const Contents& contents,
                                  const WriteOptions& options);
  bool weights_alone =
      false;  // cannot hold an optimizer: a conversion leaves it behind and says so
};

// In the order in which they are tried; a path that two recognise belongs to the first.
const std::vector<Format>& formats();
// Error(checkpoint) that lists what was looked for.
const Format& recognise(const std::filesystem::path& path);

}  // namespace tessera::checkpoint::formats
