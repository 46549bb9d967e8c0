// Weights alone as a plain Hugging Face folder.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "base/dtype.h"
#include "checkpoint/state/state.h"
#include "comm/communicator.h"

namespace tessera::checkpoint {

struct ExportOptions {
  DType dtype = DType::float32;                   // of floating tensors
  std::uint64_t max_file_size = 0;                // as SaveOptions::max_file_size
  std::map<std::string, std::string> files = {};  // config.json ..., from rank 0
  std::map<std::string, mode_t> file_modes = {};  // as SaveOptions::file_modes
  std::set<std::string> tensor_folders = {};      // as SaveOptions::tensor_folders
  std::chrono::milliseconds stall_timeout{300'000};
};

// Collective. Writes `model`'s tensors and `files` to `folder`, which AutoModel can open:
// model.safetensors, or numbered files and their index. Afterwards the folder is complete, or
// unchanged. An existing folder is replaced if it holds only what an export writes; otherwise it is
// refused. The errors are those of save(). Returns a line for each leftover beside it that was
// removed or stays.
std::vector<std::string> export_model(comm::Communicator& communicator, const std::string& folder,
                                      const std::vector<LogicalTensor>& model,
                                      const ExportOptions& options);

// Throws Error(checkpoint) if export_model would refuse the folder because of its contents.
void check_export_folder(const std::string& folder);
// Makes the parent folder. Throws Error(checkpoint) if it cannot be written, or has no room for an
// export of so many bytes.
void check_room_for_export(const std::string& folder, std::uint64_t bytes);

}  // namespace tessera::checkpoint
