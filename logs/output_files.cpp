// Outputs are compared with inputs, with one another and with the files that exist.
#include "logs/output_files.h"

#include <fstream>
#include <iterator>
#include <system_error>

#include "base/error.h"
#include "checkpoint/steps/manifest.h"
#include "engine/storage/output_file.h"

namespace tessera::logs {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t beginning_bytes = 4096;

std::string beginning_of(const fs::path& path) {
  std::ifstream stream(path, std::ios::binary);
  std::string beginning(beginning_bytes, '\0');
  stream.read(beginning.data(), static_cast<std::streamsize>(beginning.size()));
  beginning.resize(static_cast<std::size_t>(stream.gcount()));
  return beginning;
}

// The file need not exist yet.
fs::path place_of(const fs::path& path) {
  std::error_code error;
  const fs::path target = fs::absolute(written_path(path), error);
  const fs::path place = fs::weakly_canonical(target, error);
  return error ? target.lexically_normal() : place;
}

bool is_same_file(const fs::path& one, const fs::path& other) {
  std::error_code absent;
  return fs::equivalent(one, other, absent) || place_of(one) == place_of(other);
}

// Also of a checkpoint that is damaged. Other programs have files of this name as well.
bool is_step_folder(const fs::path& folder) {
  std::ifstream stream(folder / checkpoint::manifest_name, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(stream), {}};
  return text.find(checkpoint::manifest_format) != std::string::npos;
}

// The folder of a committed step above the file, or nothing.
fs::path step_folder_around(const fs::path& path) {
  const fs::path place = place_of(path);
  for (fs::path folder = place.parent_path(); folder != folder.root_path();
       folder = folder.parent_path()) {
    if (is_step_folder(folder)) return folder;
  }
  return {};
}

}  // namespace

IsEarlierOutput begins_as(std::string start, std::string mark) {
  return [start = std::move(start), mark = std::move(mark)](std::string_view beginning) {
    return beginning.starts_with(start) && beginning.find(mark) != std::string_view::npos;
  };
}

void OutputFiles::add_input(const fs::path& path) {
  if (!path.empty()) inputs_.push_back(path);
}

void OutputFiles::add_checked(const std::string& what, const fs::path& path) {
  require_file_name(what, path);
  if (path.empty() || is_stream(path)) return;
  for (const fs::path& input : inputs_) {
    TESSERA_CHECK(!is_same_file(path, input), ErrorCode::usage,
                  "{}: would replace {}, which this command reads; name another file", what,
                  input.string());
  }
  for (const auto& [other, place] : outputs_) {
    TESSERA_CHECK(!is_same_file(path, place), ErrorCode::configuration,
                  "{}: is the same file as {}; name another file", what, other);
  }
  const fs::path step = step_folder_around(path);
  TESSERA_CHECK(step.empty(), ErrorCode::configuration,
                "{}: lies in the checkpoint {}, which stays as it was saved; name another file",
                what, step.string());
  outputs_.emplace_back(what, path);
}

void OutputFiles::add(const std::string& what, const fs::path& path,
                      const IsEarlierOutput& is_earlier_output) {
  if (path.empty() || is_stream(path)) return;
  add_checked(what, path);
  check_output(what, path);
  const std::string beginning = beginning_of(path);
  TESSERA_CHECK(beginning.empty() || is_earlier_output(beginning), ErrorCode::configuration,
                "{}: exists and has another format; name another file", what);
}

void require_regular_output(const std::string& what, const fs::path& path) {
  TESSERA_CHECK(!is_stream(path), ErrorCode::configuration,
                "{}: is a device or a pipe, and this output needs a regular file; name one", what);
}

}  // namespace tessera::logs
