// A committed step folder opened for reading: its tensors, and verified reads of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/io/checksum.h"
#include "checkpoint/safetensors/safetensors.h"
#include "checkpoint/steps/manifest.h"

namespace tessera::checkpoint {

// A safetensors file of the folder, its header verified and read.
class VerifiedTensors {
 public:
  VerifiedTensors(const std::filesystem::path& folder, const FileRecord& record);
  [[nodiscard]] const SafetensorsHeader& header() const { return *header_; }
  VerifiedFile& file() { return file_; }

 private:
  VerifiedFile file_;
  std::shared_ptr<const SafetensorsHeader> header_;
};

// Elements [first, first + count) of a tensor, which lie in the file under the name `key`.
struct Extent {
  std::string file;
  std::string key;
  std::int64_t first = 0;
  std::int64_t count = 0;
};

struct StoredTensor {
  const StoredDType* stored = nullptr;
  std::vector<std::int64_t> shape;
  std::vector<Extent> extents;  // by rising first, covering the tensor
};
using Catalogue = std::map<std::string, StoredTensor>;

Catalogue read_catalogue(const std::filesystem::path& folder, const Manifest& manifest,
                         const Section& section);

// Verifies every chunk of the parts whose number is `share` modulo `shares`. Share 0 also verifies
// the headers against the manifest.
void verify_share(const std::filesystem::path& folder, std::size_t share, std::size_t shares,
                  LoadParts parts = LoadParts::everything);

}  // namespace tessera::checkpoint
