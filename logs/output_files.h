// The files that a command or a run writes, checked together before the first of them is written.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera::logs {

// Whether a file with this beginning (4 KiB at most) is an earlier output of the same kind.
using IsEarlierOutput = std::function<bool(std::string_view beginning)>;
// A file that begins with `start` and has `mark` in its beginning.
IsEarlierOutput begins_as(std::string start, std::string mark);

// Devices, pipes and standard output accept any output. An empty path stands for no output. In
// messages a file is `what`: the option or key and the path, as in "--json plan.json".
class OutputFiles {
 public:
  // The command reads this file or folder.
  void add_input(const std::filesystem::path& path);
  // The command writes this file. Throws Error(usage) if it is an input, or "-";
  // Error(configuration) if it is another output, lies in the folder of a checkpoint, cannot be
  // written, or exists with something else in it.
  void add(const std::string& what, const std::filesystem::path& path,
           const IsEarlierOutput& is_earlier_output);
  // The same for a file whose writer checks by itself what is in it and whether it can be written.
  void add_checked(const std::string& what, const std::filesystem::path& path);

 private:
  std::vector<std::filesystem::path> inputs_;
  std::vector<std::pair<std::string, std::filesystem::path>> outputs_;
};

// Throws Error(configuration) for a device or a pipe: for files that are not written from their
// beginning to their end.
void require_regular_output(const std::string& what, const std::filesystem::path& path);

}  // namespace tessera::logs
