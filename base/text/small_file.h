// Files that people write: read whole, and no larger than such files are.
#pragma once

#include <filesystem>
#include <string>

namespace tessera::cli {

// At most 1 MiB. Throws Error(configuration) that begins with `what` and the path: "recipe x.yaml
// does not exist".
std::string read_small_file(const std::filesystem::path& path, const std::string& what);

}  // namespace tessera::cli
