// manifest.json: the contents of a committed step folder, with a checksum of itself.
// docs/checkpoint-format.md.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/io/checksum.h"
#include "checkpoint/safetensors/safetensors.h"
#include "checkpoint/steps/lineage.h"

namespace tessera::checkpoint {

inline constexpr const char* manifest_name = "manifest.json";
inline constexpr const char* manifest_format = "tessera-checkpoint";

// A run of a tensor's elements that one file of a sharded checkpoint holds.
struct PieceRecord {
  std::size_t tensor = 0;  // index into Section::tensors
  std::int64_t first = 0;
  std::int64_t count = 0;
};

// The model's or the optimizer's part of a checkpoint.
struct Section {
  std::vector<std::string> files;
  // Only in sharded checkpoints; a full one's files contain them.
  std::vector<TensorSpec> tensors;
  std::vector<std::vector<PieceRecord>> pieces;  // for each file
};

struct Manifest {
  std::string save_id;
  std::int64_t step = 0;
  int world_size = 1;
  StateDictType type = StateDictType::full;
  std::vector<FileRecord> files;  // every file of the folder but the manifest
  Section model, optimizer;
  Scalars scalars;
  Lineage lineage;              // without one in the manifest: commit 0 of the unnamed run
  std::optional<double> score;  // validation loss: lower is better

  [[nodiscard]] const FileRecord& file(const std::string& name) const;
};

// Throws Error(checkpoint) if it would be larger than a reader accepts.
std::string to_text(const Manifest& manifest);
// Throws Error(checkpoint) that begins with `source`.
Manifest parse_manifest(std::string_view text, const std::string& source);
// SystemFailure when the file cannot be read.
Manifest read_manifest(const std::filesystem::path& step_folder);

// The name of a piece in a sharded file.
std::string piece_name(const std::string& tensor, std::int64_t first);
// A file's own name, without folders, not "." or "..".
bool is_plain_name(const std::string& name);
// A file of a step folder: a plain name, or one in a folder of it ("1_Pooling/config.json").
bool is_member_name(const std::string& name);
// The prefix of the names of a file's tensors: empty, or "2_Dense." for the files of the folder
// 2_Dense.
std::string tensor_prefix(const std::string& file);

}  // namespace tessera::checkpoint
