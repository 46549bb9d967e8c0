// Writes a file at once from a text: readers see the old file or the complete new one.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace tessera {

// Messages name the file as `what`: the option or key and the path, as in "--json plan.json".

// Throws Error(usage) for "-", which other programs take for standard output. A command prints its
// text there.
void require_file_name(const std::string& what, const std::filesystem::path& path);
// Throws Error(configuration) if write_output() could not write. Changes nothing.
void check_output(const std::string& what, const std::filesystem::path& path);
// Replaces an existing file by a rename; if the path is a link, its target. An existing file keeps
// its mode, and its owner if this user may set it. Anything that is not a regular file (a pipe, a
// device) gets the text written into it. Throws Error(configuration) if no file can be made, and an
// Error of full_disk_or_runtime() if the file system refuses the bytes; the old file then stays.
void write_output(const std::string& what, const std::filesystem::path& path,
                  std::string_view text);
// True for /dev/stdout and the like, which name a descriptor of the process.
bool is_stream_name(const std::filesystem::path& path);
// True if the path takes text and is not replaced.
bool is_stream(const std::filesystem::path& path);
// The file that write_output() replaces: where `path` is a link, its target, which need not exist.
// Throws Error(configuration) for a loop of links, and for a link that neither this user nor root
// made: in a folder that others can write, it could name any file of the user's.
std::filesystem::path written_path(const std::filesystem::path& path);
// open(written_path(path), flags): the descriptor, or -1 with errno. For /dev/stdout and the like
// it is the process's own once more, and flags do not count.
int open_output(const std::filesystem::path& path, int flags);

}  // namespace tessera
