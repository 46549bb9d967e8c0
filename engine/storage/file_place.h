// Where state lies that is offloaded to files: folders, and places in the files there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "engine/device/device.h"

namespace tessera {

class StateFile;

// Where files of state are made, and for whom.
struct StateFolder {
  std::string path;
  std::string owner;  // "rank 3", for messages
  Device device = Device::cpu();
  // Transfers go in pieces of this many bytes: a multiple of 8192. A window has four.
  std::size_t piece_bytes = std::size_t{4} << 20;
  bool direct = true;  // tries to go past the page cache
};

// A place in a file.
struct FilePlace {
  std::shared_ptr<StateFile> file;
  std::uint64_t offset = 0;
  explicit operator bool() const { return file != nullptr; }
};

}  // namespace tessera
