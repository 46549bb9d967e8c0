// Removal of files and folders. Nothing else in the tree removes a folder with its contents: other
// processes may exchange names meanwhile, and a removal must stay in the folder that it was given.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace tessera::checkpoint {

// Removes a file, a link, or a folder with all below it. Has no effect if nothing is there. A link
// is removed and never followed, also one that another process puts in a folder's place meanwhile.
// In the folder, the file `first` is removed before all others.
void remove_tree(const std::filesystem::path& path, std::string_view first = {});

// For destructors: ignores a failure.
void try_remove_tree(const std::filesystem::path& path) noexcept;

// Removes like remove_tree() what a process that died has left behind. Things of other users stay,
// and so do the folders that they are in. Returns a line for the user about the first of them, or
// empty.
std::string remove_leftover(const std::filesystem::path& path, std::string_view first = {});
// The line that remove_leftover() would return if the path itself belongs to another user.
std::string describe_other_owner(const std::filesystem::path& path);

}  // namespace tessera::checkpoint
