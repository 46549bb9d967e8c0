// Files of a known size that are written from the beginning and whose chunks are hashed meanwhile;
// and safetensors files that are filled in this way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/formats/format.h"
#include "checkpoint/io/checksum.h"
#include "checkpoint/io/file.h"
#include "checkpoint/safetensors/safetensors.h"

struct XXH3_state_s;

namespace tessera::checkpoint::formats {

// Every byte is written once. Bytes written in order are hashed from memory; a chunk whose parts
// came out of order is read back.
class StreamedFile {
 public:
  // Creates it at its full size.
  StreamedFile(const std::filesystem::path& path, std::uint64_t bytes);
  StreamedFile(StreamedFile&&) noexcept;
  StreamedFile& operator=(StreamedFile&&) noexcept;
  ~StreamedFile();

  void write_at(std::uint64_t offset, const void* data, std::size_t bytes);
  // Closes the descriptor until the next write.
  void release();
  [[nodiscard]] bool is_open() const { return file_.has_value(); }
  // Makes the file durable and returns its record for the manifest.
  FileRecord finish();

 private:
  void hash(std::uint64_t offset, const std::byte* data, std::size_t bytes);
  void open();

  struct FreeState {
    void operator()(XXH3_state_s* state) const;
  };
  std::filesystem::path path_;
  FileRecord record_;
  std::optional<File> file_;
  std::unique_ptr<XXH3_state_s, FreeState> state_;
  std::uint64_t next_ = 0;    // where the hashed run continues
  bool from_start_ = true;    // the run began at or before the current chunk's first byte
  std::vector<bool> hashed_;  // by chunk
  std::uint64_t dirty_ = 0;   // bytes before next_ that are not yet being written to disk
};

// Several files, of which few are open at a time.
class StreamedFiles {
 public:
  std::size_t add(const std::filesystem::path& path, std::uint64_t bytes);
  void write_at(std::size_t file, std::uint64_t offset, const void* data, std::size_t bytes);
  std::vector<FileRecord> finish();

 private:
  static constexpr std::size_t most_open = 64;
  std::vector<StreamedFile> files_;
  std::deque<std::size_t> open_;  // the file opened first is in front
};

struct PlannedTensors {
  struct PlannedFile {
    std::string name;
    std::string header;
    std::uint64_t bytes = 0;
  };
  struct Place {
    std::size_t file = 0;
    std::uint64_t offset = 0;
  };
  std::vector<PlannedFile> files;
  std::vector<Place> places;  // of each spec
};

// "<stem>.safetensors", or "<stem>-00001-of-0000N.safetensors" when `max_file_size` (0: no limit)
// requires several; a larger tensor has a file of its own. The order of the specs is kept where
// possible. Tensors of `folders` ("2_Dense.linear.weight") are in the last files,
// "2_Dense/<stem>.safetensors", under their names without the folder.
PlannedTensors plan_tensor_files(const std::string& stem, const std::vector<TensorSpec>& specs,
                                 std::uint64_t max_file_size,
                                 const std::set<std::string>& folders = {});
// Hugging Face's index of such files; empty if there is only one. Excludes files in folders.
std::string index_text(const PlannedTensors& plan, const std::vector<TensorSpec>& specs);

// The specs of contents' tensors of a part, by index in contents. Refuses a dtype that Tessera
// cannot compute with; with `keeps_int8`, I8 is taken.
struct PartSpecs {
  std::vector<std::size_t> tensors;
  std::vector<TensorSpec> specs;
};
PartSpecs specs_of_part(const Contents& contents, Part part, const char* format,
                        bool keeps_int8 = false);

// The module folders of contents whose tensors have their own files: "2_Dense", with a
// configuration and tensors "2_Dense.linear.weight".
std::set<std::string> module_folders(const Contents& contents);
// Makes a planned file's folder if it has one.
void make_module_folder(const std::filesystem::path& file);

// Writes contents' small files into the folder, except those that exist there, and makes them
// durable. Returns their names, sorted.
std::vector<std::string> carry_files(const Contents& contents, const std::filesystem::path& folder);

}  // namespace tessera::checkpoint::formats
