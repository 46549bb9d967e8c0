// A file that is made at once, from a text: readers find the old one or the new one, whole.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace tessera {

// In messages the file is `what`: the option or key and the path, as in "--json plan.json".

// Throws Error(configuration) where write_output() could not write. Changes nothing.
void check_output(const std::string& what, const std::filesystem::path& path);
// Replaces what is there by a rename; through a link, what it points to. A file that was there
// keeps its mode, and its owner where this user may give it away. What is no regular file (a pipe,
// a device) gets the text as it is. Throws Error(configuration) where no file can be made,
// an Error of full_disk_or_runtime() when the file system refuses its bytes, and leaves what was
// there.
void write_output(const std::string& what, const std::filesystem::path& path,
                  std::string_view text);
// Whether it is something that takes text and is not replaced.
bool is_stream(const std::filesystem::path& path);
// The file that write_output() replaces: where `path` is a link, its target, which need not exist.
// Throws Error(configuration) for a loop of links.
std::filesystem::path written_path(const std::filesystem::path& path);

}  // namespace tessera
