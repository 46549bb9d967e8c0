// The files of torch.save before PyTorch 1.6 (and of _use_new_zipfile_serialization=False): five
// pickles one after the other - a magic number, the protocol's version, facts about the machine,
// the object, the keys of its storages - and then, for each key, the number of elements in 8 bytes
// and the elements. Source: torch/serialization.py, _legacy_save and _legacy_load, and
// torch/csrc/serialization.cpp.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "checkpoint/formats/pickle/pickle.h"
#include "checkpoint/formats/pieces.h"

namespace tessera::checkpoint::formats {

// How many bytes of a file's beginning is_legacy_file looks at.
inline constexpr std::size_t legacy_head_bytes = 32;
// True if a file that begins so begins with the pickled magic number.
bool is_legacy_file(std::string_view head);

struct LegacyFile {
  std::unique_ptr<Pickle> pickle;                // of the object
  std::map<std::string, StoredRecord> storages;  // by key
};

// Reads the pickles of the part [offset, offset + bytes) of a file of the table, which begins as
// is_legacy_file says, and finds its storages. The part has to end with the last storage.
// `source` begins every Error(checkpoint).
LegacyFile read_legacy_file(FileTable& files, std::size_t file, std::uint64_t offset,
                            std::uint64_t bytes, const std::string& source,
                            const PickleRules& rules);

}  // namespace tessera::checkpoint::formats
