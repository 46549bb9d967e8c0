// The formats that checkpoints are converted between. Each is a file of this folder and a row of
// `formats()`, which recognises, opens and writes a folder or file of it.
//
// Nothing here uses ranks: one process reads a Source with bounded memory and appends to a Sink.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
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
  // Tensors of the model have the format's own names. Optimizer state is "<parameter>.exp_avg",
  // ".exp_avg_sq" or ".momentum" (other state: "<parameter>.<key>") in every format.
  std::string name;
  const StoredDType* stored = nullptr;
  std::vector<std::int64_t> shape;
  std::string where;  // file, and record in it, for messages
};

// The contents of a checkpoint, without the bytes of its tensors.
struct Contents {
  std::vector<TensorInfo> tensors;  // a name occurs once in a part
  // Training state: "step" (optimizer steps done, if the format has it), and other values that
  // Tessera's manifests keep. Empty: weights alone.
  Scalars scalars;
  // Small files that belong to the model, by plain name: config.json, tokenizer.json ... or in a
  // folder: 1_Pooling/config.json.
  std::map<std::string, std::filesystem::path> files;
  // Names that share another tensor's memory (tied weights), with that tensor's name.
  std::map<std::string, std::string> aliases;
  // One line for each thing that the user should know: tensors that were dropped, joined or
  // renamed, the world size and the stage of the checkpoint.
  std::vector<std::string> notes;
  // Small files like `files` that do not exist as files yet: name to contents.
  std::map<std::string, std::string> texts = {};
  // The source of an optimizer's state that is not read, such as a file beside the weights; empty:
  // there is none. A conversion that should keep such state is refused.
  std::string unread_state = {};
  // The modes of files that texts were made from.
  std::map<std::string, mode_t> text_modes = {};
};

// Damage that verification found in one place.
struct Damage {
  std::string text;                  // with file and offset, for the user
  std::uint64_t bytes = 0;           // that cannot be trusted, if the format has this
  std::vector<std::size_t> tensors;  // that have bytes there
};

// A checkpoint opened for reading. Opening reads headers and metadata only and checks them: every
// element of every tensor lies in a file, once, within its bounds. Foreign bytes are never executed
// or trusted: Error(checkpoint) names file and cause.
class Source {
 public:
  virtual ~Source() = default;
  [[nodiscard]] virtual const Contents& contents() const = 0;
  // Reads elements [first, first + count) in row-major order of contents().tensors[tensor], in its
  // stored dtype and little-endian, into `data`. Needs at most a few MiB of memory besides.
  // Verifies the format's checksums where the bytes read suffice for that.
  virtual void read(std::size_t tensor, std::int64_t first, std::int64_t count,
                    std::byte* data) = 0;
  // Reads everything and verifies the format's checksums. Returns a line for each damage, with
  // file, offset and tensor; empty: intact. Calls `progress` with the bytes of each part that it
  // read.
  virtual std::vector<std::string> verify(const std::function<void(std::uint64_t)>& progress) = 0;
  // The same, with the cost of each damage if the format can tell.
  virtual std::vector<Damage> examine(const std::function<void(std::uint64_t)>& progress) {
    std::vector<Damage> damages;
    for (std::string& line : verify(progress)) damages.push_back({std::move(line), 0, {}});
    return damages;
  }
};

// The small files that a sink stored in its result, and notes for the user.
struct SinkReport {
  std::set<std::string> files = {};  // names of files whose contents the result has in itself
  std::vector<std::string> notes = {};
};

// A checkpoint being written. Files are created in a folder (or as the one file) that the caller
// owns, fsyncs and renames into place.
class Sink {
 public:
  virtual ~Sink() = default;
  // Appends the next elements of the tensor with this index in the contents that the sink was made
  // with. Tensors come in that order, each whole and in row-major order before the next.
  virtual void append(std::size_t tensor, const std::byte* data, std::int64_t count) = 0;
  // If the format rounds elements: those that the last append() completed, row-major, as a reader
  // of the result will get them. Valid until the next append(). None: elements stay as they came.
  [[nodiscard]] virtual std::optional<std::span<const std::byte>> read_back() const { return {}; }
  // Call after the last element. Writes the ends of the files and fsyncs each.
  virtual void finish() = 0;
  [[nodiscard]] virtual SinkReport report() const { return {}; }
};

struct WriteOptions {
  int world_size = 1;               // number of files, for formats with one file for each rank
  std::uint64_t max_file_size = 0;  // bytes of tensors in a file of formats that split; 0: no limit
  std::string type = {};            // of elements, for formats with encodings; empty: the default
  bool reads_back = true;           // Sink::read_back is called
};

// How a format with types of its own stores a tensor.
struct Encoding {
  const StoredDType* stored;  // of the elements, for the sink and for a reader of the result
  std::uint64_t bytes;        // in the result
};
struct Encodings {
  std::string type;               // that was asked for, or the default
  std::vector<Encoding> tensors;  // of the contents, in their order
};

struct Format {
  const char* name;         // "dcp", as in --to and reports
  const char* description;  // one line for the user
  bool is_file;             // written as one file, not as a folder
  // True if `path` looks like this format, by names and first bytes. Cheap; does not throw for
  // other formats.
  bool (*recognises)(const std::filesystem::path& path);
  std::unique_ptr<Source> (*open)(const std::filesystem::path& path);
  // Null: cannot be written. The contents must outlive the sink. Contents that the format cannot
  // hold are an Error(checkpoint) that names the option to use instead.
  std::unique_ptr<Sink> (*create)(const std::filesystem::path& path, const Contents& contents,
                                  const WriteOptions& options);
  bool weights_alone =
      false;  // cannot hold an optimizer: a conversion leaves it behind and says so
  // Formats that store elements in types of their own, by the name that WriteOptions has. Null: a
  // tensor is stored in its dtype.
  Encodings (*encodings)(const Contents& contents, const std::string& type) = nullptr;
};

// In the order in which they are tried; the first that recognises a path takes it.
const std::vector<Format>& formats();
// Throws Error(checkpoint) that lists the known formats.
const Format& recognise(const std::filesystem::path& path);

}  // namespace tessera::checkpoint::formats
