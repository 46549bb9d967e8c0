// Opens a plain Hugging Face folder: one model.safetensors, or numbered files with an index that is
// checked against the files.
#include "checkpoint/load/hugging_face.h"

#include <fmt/format.h>
#include <algorithm>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "base/error.h"
#include "checkpoint/io/file.h"
#include "checkpoint/io/json.h"
#include "checkpoint/load/quantized.h"
#include "checkpoint/safetensors/safetensors.h"
#include "checkpoint/steps/commit.h"
#include "checkpoint/steps/manifest.h"

namespace tessera::checkpoint {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::uint64_t index_limit = std::uint64_t{64} << 20;

// The file of each name, and the total of bytes as the index has it.
struct Index {
  std::map<std::string, std::string> file_of;
  json total_bytes;
};

Index read_index(const fs::path& path) {
  const json whole = parse_json(read_file(path, index_limit), path.string());
  TESSERA_CHECK(whole.is_object() && whole.contains("weight_map") &&
                    whole.at("weight_map").is_object() && !whole.at("weight_map").empty(),
                ErrorCode::checkpoint, "'{}' has no weight_map, or an empty one", path.string());
  Index index;
  for (const auto& [name, file] : whole.at("weight_map").items()) {
    TESSERA_CHECK(name.size() <= tensor_name_limit, ErrorCode::checkpoint,
                  "'{}': a tensor's name has {} bytes, the limit is {}", path.string(), name.size(),
                  tensor_name_limit);
    TESSERA_CHECK(file.is_string() && is_plain_name(file.get<std::string>()), ErrorCode::checkpoint,
                  "'{}': the file of tensor '{}' is {}, not a plain file name", path.string(), name,
                  file.dump());
    index.file_of[name] = file.get<std::string>();
  }
  if (!whole.contains("metadata")) return index;
  const json& metadata = whole.at("metadata");
  TESSERA_CHECK(metadata.is_object(), ErrorCode::checkpoint, "'{}': metadata is not an object",
                path.string());
  const auto total = metadata.find("total_size");
  if (total != metadata.end()) index.total_bytes = *total;
  return index;
}

void open_indexed(const fs::path& folder, HuggingFaceFolder& opened) {
  const fs::path path = folder / hugging_face_index;
  const Index index = read_index(path);
  std::set<std::string> names;
  for (const auto& [tensor, file] : index.file_of) names.insert(file);
  std::uint64_t total = 0;
  for (const std::string& name : names) {
    std::error_code error;
    TESSERA_CHECK(fs::exists(folder / name, error), ErrorCode::checkpoint,
                  "'{}' names '{}', which is not there; download it again", path.string(), name);
    const SafetensorsFile& file = opened.add(folder / name);
    for (const TensorEntry& entry : file.header().tensors()) {
      total += entry.end - entry.begin;
      const auto it = index.file_of.find(entry.name);
      TESSERA_CHECK(it != index.file_of.end() && it->second == name, ErrorCode::checkpoint,
                    "'{}' has tensor '{}', which '{}' does not list there", file.path().string(),
                    entry.name, path.string());
    }
  }
  for (const auto& [tensor, file] : index.file_of) {
    TESSERA_CHECK(opened.tensors.contains(tensor), ErrorCode::checkpoint,
                  "'{}' says that '{}' has tensor '{}', which it does not", path.string(), file,
                  tensor);
  }
  // Some writers store a float, and some count tied weights twice. weight_map is the proof that
  // nothing is missing, and other readers do not look at the total.
  if (index.total_bytes.is_null() || index.total_bytes == json(total)) return;
  opened.notes.push_back(
      fmt::format("{} says total_size {}, and the files have {} bytes of tensors; all tensors that "
                  "it lists are there",
                  hugging_face_index, index.total_bytes.dump(-1, ' ', true), total));
}

}  // namespace

void StoredWeight::read(std::int64_t first, std::int64_t count, std::byte* data) const {
  if (decoder != nullptr) {
    decoder->read(first, count, data);
    return;
  }
  const std::size_t size = entry->stored->bits / 8;
  file->read(*entry, static_cast<std::uint64_t>(first) * size, data,
             static_cast<std::size_t>(count) * size);
}

const SafetensorsFile& HuggingFaceFolder::add(const fs::path& path) {
  files.push_back(std::make_unique<SafetensorsFile>(path));
  for (const TensorEntry& entry : files.back()->header().tensors()) {
    const auto [it, added] = tensors.emplace(entry.name, StoredWeight{files.back().get(), &entry});
    TESSERA_CHECK(added, ErrorCode::checkpoint, "tensor '{}' is in '{}' and in '{}'", entry.name,
                  it->second.file->path().string(), path.string());
  }
  return *files.back();
}

HuggingFaceFolder open_hugging_face(const fs::path& folder, WeightsRead form) {
  HuggingFaceFolder opened;
  std::error_code error;
  if (fs::exists(folder / hugging_face_file, error)) {
    opened.add(folder / hugging_face_file);
  } else {
    TESSERA_CHECK(fs::exists(folder / hugging_face_index, error), ErrorCode::checkpoint,
                  "'{}' has neither {} nor {}; tessera convert {} NEW_FOLDER --to hf writes them "
                  "from other weights, such as pytorch_model.bin",
                  folder.string(), hugging_face_file, hugging_face_index, folder.string());
    open_indexed(folder, opened);
  }
  if (form == WeightsRead::decoded) decode_quantized(opened, folder);
  return opened;
}

HuggingFaceFolder open_weights(const fs::path& source) {
  std::error_code error;
  if (!fs::is_regular_file(source, error)) {
    TESSERA_CHECK(
        source.extension() != ".safetensors" || fs::exists(source, error), ErrorCode::checkpoint,
        "'{}' does not exist; give the path of a .safetensors file, or of a folder with {}",
        source.string(), hugging_face_file);
    return open_hugging_face(source);
  }
  TESSERA_CHECK(source.extension() == ".safetensors", ErrorCode::checkpoint,
                "'{}' is not a .safetensors file; tessera convert reads other formats",
                source.string());
  HuggingFaceFolder opened;
  opened.add(source);
  decode_quantized(opened, {});
  return opened;
}

bool has_weights_alone(const fs::path& source) {
  std::error_code error;
  if (fs::is_regular_file(source, error)) return true;
  // A file that is missing is not taken for a folder of steps.
  if (source.extension() == ".safetensors" && !fs::exists(source, error)) return true;
  if (path_exists(source / manifest_name)) return false;
  const std::string name = (source / "").parent_path().filename();
  const bool of_a_step = parse_step_name(name.substr(0, name.find('.'))).has_value();
  return !of_a_step &&
         (path_exists(source / hugging_face_file) || path_exists(source / hugging_face_index));
}

}  // namespace tessera::checkpoint
