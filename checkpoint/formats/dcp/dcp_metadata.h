// .metadata of a DCP folder: its description of the files.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/formats/cover.h"
#include "checkpoint/formats/torch/state_names.h"
#include "checkpoint/safetensors/safetensors.h"

namespace tessera::checkpoint::formats {

// A part of a file.
struct DcpPlace {
  std::string file;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

struct DcpChunk {
  Box box;
  DcpPlace place;
};

struct DcpTensor {
  std::string key;  // the flat one
  StatePath path;
  const StoredDType* stored = nullptr;
  std::vector<std::int64_t> shape;
  std::vector<DcpChunk> chunks;
};

struct DcpBytes {
  std::string key;
  StatePath path;
  DcpPlace place;
};

struct DcpMetadata {
  std::vector<DcpTensor> tensors;
  std::vector<DcpBytes> values;  // pickled by themselves
};

// Throws Error(checkpoint) that begins with `source` if the parts do not fit together, or if a file
// name contains a folder.
DcpMetadata parse_dcp_metadata(std::string_view pickle, const std::string& source);

// The .metadata in version 1.0.0 of the format.
std::string compose_dcp_metadata(const DcpMetadata& metadata);

}  // namespace tessera::checkpoint::formats
