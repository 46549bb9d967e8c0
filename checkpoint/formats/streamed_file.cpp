// Sequential writes: positions, hashes, few open files.
#include "checkpoint/formats/streamed_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/xxh3.h"
#include "checkpoint/load/hugging_face.h"
#include "checkpoint/save/model_files.h"
#include "checkpoint/steps/manifest.h"

namespace tessera::checkpoint::formats {

namespace fs = std::filesystem;

namespace {

constexpr std::size_t copy_block = std::size_t{1} << 20;
constexpr std::uint64_t writing_block = std::uint64_t{32} << 20;

// `name` is the end of the path `from`: the rest is the folder that the file may not leave.
void copy_small_file(const std::string& name, const fs::path& from, const fs::path& to) {
  const bool in_module = name.find('/') != std::string::npos;
  const fs::path folder = in_module ? from.parent_path().parent_path() : from.parent_path();
  const File in = open_member(folder.empty() ? fs::path(".") : folder, name);
  File out = File::create(to, in.mode());
  const std::uint64_t bytes = in.size();
  std::vector<std::byte> block(
      static_cast<std::size_t>(std::min<std::uint64_t>(copy_block, bytes)));
  for (std::uint64_t done = 0; done < bytes;) {
    const auto part = static_cast<std::size_t>(std::min<std::uint64_t>(copy_block, bytes - done));
    in.read_at(done, block.data(), part);
    out.write_at(done, block.data(), part);
    done += part;
  }
  out.sync();
  out.close();
}

std::uint64_t bytes_of_spec(const TensorSpec& spec) {
  return static_cast<std::uint64_t>(element_count(spec.shape, spec.name)) * size_of(spec.dtype);
}

}  // namespace

void StreamedFile::FreeState::operator()(XXH3_state_s* state) const {
  XXH3_freeState(state);
}

StreamedFile::StreamedFile(const fs::path& path, std::uint64_t bytes)
    : path_(path), state_(XXH3_createState()) {
  if (state_ == nullptr) throw std::bad_alloc();
  record_.name = path.filename().string();
  record_.bytes = bytes;
  record_.chunk_bytes = chunk_bytes_of(bytes);
  record_.chunks.resize(static_cast<std::size_t>(chunk_count(bytes, record_.chunk_bytes)));
  hashed_.resize(record_.chunks.size());
  file_.emplace(File::create(path));
  file_->resize(bytes);
  XXH3_64bits_reset(state_.get());
}

StreamedFile::StreamedFile(StreamedFile&&) noexcept = default;
StreamedFile& StreamedFile::operator=(StreamedFile&&) noexcept = default;
StreamedFile::~StreamedFile() = default;

void StreamedFile::open() {
  if (!file_) file_.emplace(File::open_for_writing(path_));
}

void StreamedFile::release() {
  if (!file_) return;
  file_->close();
  file_.reset();
}

void StreamedFile::write_at(std::uint64_t offset, const void* data, std::size_t bytes) {
  TESSERA_REQUIRE(offset <= record_.bytes && bytes <= record_.bytes - offset,
                  "bytes [{}, {}) are not in '{}'", offset, offset + bytes, path_.string());
  if (bytes == 0) return;
  open();
  file_->write_at(offset, data, bytes);
  if (offset != next_) dirty_ = 0;
  hash(offset, static_cast<const std::byte*>(data), bytes);
  dirty_ += bytes;
  if (dirty_ >= writing_block) {
    file_->start_writing(next_ - dirty_, dirty_);
    dirty_ = 0;
  }
}

void StreamedFile::hash(std::uint64_t offset, const std::byte* data, std::size_t bytes) {
  if (offset != next_) {
    XXH3_64bits_reset(state_.get());
    next_ = offset;
    from_start_ = offset % record_.chunk_bytes == 0;
  }
  while (bytes > 0) {
    const std::uint64_t chunk = next_ / record_.chunk_bytes;
    const std::uint64_t end = std::min((chunk + 1) * record_.chunk_bytes, record_.bytes);
    const auto part = static_cast<std::size_t>(std::min<std::uint64_t>(bytes, end - next_));
    if (from_start_) XXH3_64bits_update(state_.get(), data, part);
    next_ += part;
    data += part;
    bytes -= part;
    if (next_ != end) return;
    if (from_start_) {
      record_.chunks[static_cast<std::size_t>(chunk)] = XXH3_64bits_digest(state_.get());
      hashed_[static_cast<std::size_t>(chunk)] = true;
    }
    XXH3_64bits_reset(state_.get());
    from_start_ = true;
  }
}

FileRecord StreamedFile::finish() {
  open();
  std::vector<std::byte> buffer;
  for (std::size_t chunk = 0; chunk < hashed_.size(); ++chunk) {
    if (hashed_[chunk]) continue;
    const std::uint64_t begin = chunk * record_.chunk_bytes;
    buffer.resize(static_cast<std::size_t>(std::min(record_.chunk_bytes, record_.bytes - begin)));
    file_->read_at(begin, buffer.data(), buffer.size());
    record_.chunks[chunk] = checksum(buffer.data(), buffer.size());
  }
  file_->sync();
  release();
  return record_;
}

std::size_t StreamedFiles::add(const fs::path& path, std::uint64_t bytes) {
  files_.emplace_back(path, bytes);
  open_.push_back(files_.size() - 1);
  if (open_.size() > most_open) {
    files_[open_.front()].release();
    open_.pop_front();
  }
  return files_.size() - 1;
}

void StreamedFiles::write_at(std::size_t file, std::uint64_t offset, const void* data,
                             std::size_t bytes) {
  if (!files_[file].is_open()) {
    if (open_.size() >= most_open) {
      files_[open_.front()].release();
      open_.pop_front();
    }
    open_.push_back(file);
  }
  files_[file].write_at(offset, data, bytes);
}

std::vector<FileRecord> StreamedFiles::finish() {
  std::vector<FileRecord> records;
  for (StreamedFile& file : files_) records.push_back(file.finish());
  open_.clear();
  return records;
}

namespace {

// The folder among these that a tensor belongs to; empty: none.
std::string folder_of_tensor(const std::string& name, const std::set<std::string>& folders) {
  const std::string first = name.substr(0, name.find('.'));
  return first.size() < name.size() && folders.contains(first) ? first : std::string();
}

}  // namespace

PlannedTensors plan_tensor_files(const std::string& stem, const std::vector<TensorSpec>& specs,
                                 std::uint64_t max_file_size,
                                 const std::set<std::string>& folders) {
  std::vector<std::vector<std::size_t>> groups(1);
  std::map<std::string, std::vector<std::size_t>> apart;
  std::uint64_t filled = 0;
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const std::string folder = folder_of_tensor(specs[i].name, folders);
    if (!folder.empty()) {
      apart[folder].push_back(i);
      continue;
    }
    const std::uint64_t bytes = bytes_of_spec(specs[i]);
    if (max_file_size > 0 && !groups.back().empty() && filled + bytes > max_file_size) {
      groups.emplace_back();
      filled = 0;
    }
    groups.back().push_back(i);
    filled += bytes;
  }
  PlannedTensors plan;
  plan.places.resize(specs.size());
  const auto add = [&](const std::vector<std::size_t>& group, std::string name,
                       std::size_t of_folder) {
    std::vector<TensorSpec> of_file;
    for (const std::size_t i : group) {
      of_file.push_back(specs[i]);
      of_file.back().name.erase(0, of_folder);
    }
    ComposedHeader header = compose_safetensors_header(of_file);
    for (std::size_t k = 0; k < group.size(); ++k) {
      plan.places[group[k]] = {plan.files.size(), header.offsets[k]};
    }
    plan.files.push_back({std::move(name), std::move(header.bytes), header.file_bytes});
  };
  for (std::size_t g = 0; g < groups.size(); ++g) {
    add(groups[g],
        groups.size() == 1
            ? stem + ".safetensors"
            : fmt::format("{}-{:05}-of-{:05}.safetensors", stem, g + 1, groups.size()),
        0);
  }
  for (const auto& [folder, group] : apart) {
    add(group, fmt::format("{}/{}.safetensors", folder, stem), folder.size() + 1);
  }
  return plan;
}

std::string index_text(const PlannedTensors& plan, const std::vector<TensorSpec>& specs) {
  nlohmann::json weight_map = nlohmann::json::object();
  std::uint64_t total = 0;
  std::set<std::size_t> files;
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const std::string& file = plan.files[plan.places[i].file].name;
    if (file.find('/') != std::string::npos) continue;
    files.insert(plan.places[i].file);
    weight_map[specs[i].name] = file;
    total += bytes_of_spec(specs[i]);
  }
  if (files.size() < 2) return {};
  const nlohmann::json index{{"metadata", {{"total_size", total}}},
                             {"weight_map", std::move(weight_map)}};
  return index.dump(2) + '\n';
}

std::set<std::string> module_folders(const Contents& contents) {
  const auto holds = [&](const std::string& file) {
    return contents.files.contains(file) || contents.texts.contains(file);
  };
  std::set<std::string> folders;
  if (!holds("modules.json")) return folders;
  for (const TensorInfo& tensor : contents.tensors) {
    const std::string first = tensor.name.substr(0, tensor.name.find('.'));
    if (tensor.part == Part::model && first.size() < tensor.name.size() &&
        is_module_folder(first) && is_plain_name(first) && holds(first + "/config.json")) {
      folders.insert(first);
    }
  }
  return folders;
}

void make_module_folder(const fs::path& file) {
  std::error_code error;
  if (!fs::is_directory(file.parent_path(), error)) create_folder(file.parent_path());
}

PartSpecs specs_of_part(const Contents& contents, Part part, const char* format, bool keeps_int8) {
  PartSpecs out;
  for (std::size_t i = 0; i < contents.tensors.size(); ++i) {
    const TensorInfo& tensor = contents.tensors[i];
    if (tensor.part != part) continue;
    const bool is_int8 = tensor.stored->name == "I8" && keeps_int8;
    TESSERA_CHECK(tensor.stored->dtype.has_value() || is_int8, ErrorCode::checkpoint,
                  "tensor '{}' is {}, which {} files of Tessera do not hold; convert it to another "
                  "dtype with the program that wrote it",
                  tensor.name, tensor.stored->name, format);
    out.tensors.push_back(i);
    out.specs.push_back({tensor.name, is_int8 ? uint8 : *tensor.stored->dtype, tensor.shape,
                         is_int8 ? tensor.stored : nullptr});
  }
  return out;
}

std::vector<std::string> carry_files(const Contents& contents, const fs::path& folder) {
  std::set<std::string> names;
  std::set<fs::path> folders;
  std::error_code error;
  const auto make_folder_of = [&](const std::string& name) {
    TESSERA_REQUIRE(is_member_name(name), "'{}' is not a file name of a checkpoint", name);
    const fs::path parent = (folder / name).parent_path();
    if (parent == folder || !folders.insert(parent).second) return;
    if (!fs::is_directory(parent, error)) create_folder(parent);
  };
  for (const auto& [name, text] : contents.texts) {
    make_folder_of(name);
    const auto mode = contents.text_modes.find(name);
    if (!fs::exists(fs::symlink_status(folder / name, error))) {
      write_file(folder / name, text,
                 mode == contents.text_modes.end() ? File::default_mode : mode->second);
    }
    names.insert(name);
  }
  for (const auto& [name, path] : contents.files) {
    make_folder_of(name);
    if (!fs::exists(fs::symlink_status(folder / name, error)))
      copy_small_file(name, path, folder / name);
    names.insert(name);
  }
  for (const fs::path& made : folders) sync_folder(made);
  return {names.begin(), names.end()};
}

}  // namespace tessera::checkpoint::formats
