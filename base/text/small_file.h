// Reads a whole file that a person wrote, up to a size limit.
#pragma once

#include <filesystem>
#include <string>

namespace tessera {

// The limit is 1 MiB. Throws an Error(configuration) that begins with `what` and the path: "recipe
// x.yaml does not exist".
std::string read_small_file(const std::filesystem::path& path, const std::string& what);

}  // namespace tessera
