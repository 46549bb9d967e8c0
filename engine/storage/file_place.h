// The place of state that is offloaded to files: folders, and ranges in files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "engine/device/device.h"

namespace tessera {

class StateFile;

// The folder for files of state, and their owner.
struct StateFolder {
  std::string path;
  std::string owner;  // "rank 3", for messages
  Device device = Device::cpu();
  // The bytes of one transfer: a multiple of 8192. A window has four pieces.
  std::size_t piece_bytes = std::size_t{4} << 20;
  bool direct = true;  // tries to bypass the page cache
};

// A place in a file.
struct FilePlace {
  std::shared_ptr<StateFile> file;
  std::uint64_t offset = 0;
  explicit operator bool() const { return file != nullptr; }
};

}  // namespace tessera
