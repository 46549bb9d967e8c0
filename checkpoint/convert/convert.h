// Converts a checkpoint from any format to any other, in a stream with bounded memory.
// docs/convert.md.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "checkpoint/formats/format.h"
#include "checkpoint/narrow/layer_tensors.h"
#include "checkpoint/narrow/moments_source.h"

namespace tessera::checkpoint {

struct ConvertProgress {
  const char* doing = "";  // "converting", "verifying"
  std::uint64_t done = 0;  // bytes of tensors
  std::uint64_t total = 0;
};

struct ConvertOptions {
  std::string to = {};              // a format's name
  int world_size = 1;               // number of files, for formats with one file for each rank
  std::uint64_t max_file_size = 0;  // bytes of tensors in a file; 0: no limit
  std::optional<DType> dtype = {};  // of the model's floating tensors
  std::string type = {};  // of elements, for formats with types of their own (gguf): "q8_0"
  bool weights_only = false;
  // Bytes that the conversion may add to the memory of the process or, with `whole_process`, bytes
  // that the whole process may use. If the list of tensors alone leaves no room, throws
  // Error(out_of_memory) before anything is written.
  std::uint64_t max_memory = 256'000'000;
  bool whole_process = false;
  // The source is PEFT's folder of an adapter. The conversion writes the weights of its base with
  // the adapter multiplied in. `base` is the base's place if adapter_config.json's is not right.
  bool merge = false;
  std::filesystem::path base = {};
  // Given the text of the base's config.json, returns the names of its linear layers' weights, and
  // true for those stored as [in, out]. For a layer that is missing there the shapes decide, and if
  // these are equal, the adapter's fan_in_fan_out.
  std::function<std::map<std::string, bool>(const std::string& config)> lies_in_out = {};
  // More checkpoints of the same model: the conversion writes the mean of the source's weights and
  // theirs (averaged_source.h), without training state.
  std::vector<std::filesystem::path> average = {};
  // Leaves attention heads and feed-forward columns out (narrow/narrowed_source.h), without
  // training state.
  NarrowOptions narrow = {};
  bool verify = false;  // read the result again and compare
  // The report has its tensors' checksums. Without them, and without `verify`, xxh3 is 0, and a
  // format that rounds elements need not decode them.
  bool checksums = true;
  bool force = false;  // replace a checkpoint at the target
  std::function<void(const ConvertProgress&)> progress = {};
  std::function<bool()> stop = {};  // asked often; true ends it with Error(runtime)
  // Linear layers' weights become 8-bit integers (int8_source.h), which need `lies_in_out`. For hf.
  bool int8 = false;
  // The moments of AdamW become 8-bit codes or fp32 numbers (narrow/moments_source.h).
  std::optional<Moments> moments = {};
};

struct ConvertedTensor {
  formats::Part part = formats::Part::model;
  std::string name;
  const StoredDType* stored = nullptr;
  std::vector<std::int64_t> shape;
  std::uint64_t bytes = 0;
  std::uint64_t xxh3 = 0;  // of its elements as the result gives them back, row-major
};

struct ConvertReport {
  std::string source, source_format;  // the step folder if a folder of steps was given
  std::string target, target_format;
  std::vector<ConvertedTensor> tensors;
  std::uint64_t bytes_read = 0;     // of tensors
  std::uint64_t bytes_written = 0;  // likewise
  std::vector<std::string> notes;   // what was dropped, renamed, compared, narrowed
  double seconds = 0;
  bool verified = false;
};

// Runs in one process. The target appears whole, by one rename, or not at all. An existing target
// is an Error(checkpoint) unless `force`; it stays unchanged until the new one is durable.
ConvertReport convert(const std::filesystem::path& source, const std::filesystem::path& target,
                      const ConvertOptions& options);

// The step folders in `path` in any state, the newest first; none if `path` is itself a step or is
// not a folder of steps.
std::vector<std::filesystem::path> steps_of_run(const std::filesystem::path& path);
// `path`, or its newest committed step when it is a folder of steps.
std::filesystem::path step_of_run(const std::filesystem::path& path);

// Resident memory of this process, now and at its peak.
struct ResidentBytes {
  std::uint64_t now = 0;
  std::uint64_t peak = 0;
};
ResidentBytes resident_memory();

}  // namespace tessera::checkpoint
