// Safetensors files: the table of contents, composed headers, reads of ranges and small files.
#include "checkpoint/safetensors/safetensors.h"

#include <fmt/format.h>
#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "base/error.h"

namespace tessera::checkpoint {

SafetensorsHeader::SafetensorsHeader(std::vector<TensorEntry> tensors,
                                     std::map<std::string, std::string> metadata)
    : tensors_(std::move(tensors)), metadata_(std::move(metadata)) {
  by_name_.reserve(tensors_.size());
  for (std::size_t i = 0; i < tensors_.size(); ++i) by_name_.emplace(tensors_[i].name, i);
}

const TensorEntry* SafetensorsHeader::find(const std::string& name) const {
  const auto it = by_name_.find(name);
  return it == by_name_.end() ? nullptr : &tensors_[it->second];
}

std::string SafetensorsHeader::describe_range(std::uint64_t begin, std::uint64_t end) const {
  const TensorEntry* first = nullptr;
  const TensorEntry* last = nullptr;
  for (const TensorEntry& tensor : tensors_) {
    if (tensor.begin >= end || tensor.end <= begin) continue;
    if (first == nullptr) first = &tensor;
    last = &tensor;
  }
  if (first == nullptr) return "the header";
  const std::string header = begin < tensors_.front().begin ? "the header and " : "";
  if (first == last) return fmt::format("{}tensor '{}'", header, first->name);
  return fmt::format("{}tensors '{}' to '{}'", header, first->name, last->name);
}

std::int64_t element_count(const std::vector<std::int64_t>& shape, std::string_view what) {
  bool is_empty = false;
  std::int64_t count = 1;  // without the zeros: strides must be valid numbers for every shape
  for (const std::int64_t dimension : shape) {
    is_empty = is_empty || dimension == 0;
    TESSERA_CHECK(
        dimension >= 0 && (dimension == 0 || !__builtin_mul_overflow(count, dimension, &count)),
        ErrorCode::checkpoint, "{}: shape {} does not give a valid number of elements", what,
        describe_shape(shape));
  }
  return is_empty ? 0 : count;
}

std::string describe_shape(const std::vector<std::int64_t>& shape) {
  constexpr std::size_t shown = 16;
  if (shape.size() <= shown) return fmt::format("[{}]", fmt::join(shape, ", "));
  return fmt::format("[{}, ... of {} dimensions]",
                     fmt::join(shape.begin(), shape.begin() + shown, ", "), shape.size());
}

namespace {

const StoredDType& stored_of(const TensorSpec& spec) {
  return spec.stored != nullptr ? *spec.stored : stored_dtype(spec.dtype);
}

}  // namespace

ComposedHeader compose_safetensors_header(const std::vector<TensorSpec>& specs,
                                          std::map<std::string, std::string> metadata) {
  std::vector<std::size_t> order(specs.size());
  for (std::size_t i = 0; i < order.size(); ++i) {
    order[i] = i;
    TESSERA_CHECK(specs[i].name.size() <= tensor_name_limit, ErrorCode::checkpoint,
                  "the name of tensor {}... has {} bytes, the limit is {}",
                  specs[i].name.substr(0, 40), specs[i].name.size(), tensor_name_limit);
  }
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    const auto rank = [&](std::size_t i) { return &stored_of(specs[i]); };
    if (rank(a) != rank(b)) return rank(a) > rank(b);  // the table is in ascending alignment
    return specs[a].name < specs[b].name;
  });
  metadata.emplace("format", "pt");

  ComposedHeader header;
  header.offsets.resize(specs.size());
  std::uint64_t next = 0;
  try {
    std::string text = fmt::format(R"({{"__metadata__":{})", nlohmann::json(metadata).dump());
    std::set<std::string_view> names;
    for (const std::size_t i : order) {
      const TensorSpec& spec = specs[i];
      TESSERA_REQUIRE(spec.name != "__metadata__" && spec.name.find('\0') == std::string::npos,
                      "a tensor cannot be named '{}'", spec.name);
      TESSERA_REQUIRE(names.insert(spec.name).second, "two tensors are named '{}'", spec.name);
      const auto elements = static_cast<std::uint64_t>(element_count(spec.shape, spec.name));
      const std::uint64_t end = next + elements * size_of(spec.dtype);
      text += fmt::format(R"(,{}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                          nlohmann::json(spec.name).dump(), stored_of(spec).name,
                          fmt::join(spec.shape, ","), next, end);
      header.offsets[i] = next;
      next = end;
    }
    text += '}';
    text.append((8 - text.size() % 8) % 8, ' ');
    TESSERA_CHECK(text.size() <= safetensors_header_limit, ErrorCode::checkpoint,
                  "{} tensors need a safetensors header of {} bytes, over the limit of {}",
                  specs.size(), text.size(), safetensors_header_limit);
    for (int shift = 0; shift < 64; shift += 8) {
      header.bytes += static_cast<char>((static_cast<std::uint64_t>(text.size()) >> shift) & 0xff);
    }
    header.bytes += text;
  } catch (const nlohmann::json::exception& error) {
    misuse("a tensor name or metadata value is not UTF-8: {}", error.what());
  }
  for (std::uint64_t& offset : header.offsets) offset += header.bytes.size();
  header.file_bytes = header.bytes.size() + next;
  return header;
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path)
    : file_(File::open_for_reading(path)),
      header_(
          read_safetensors_header([this](std::uint64_t offset, void* data,
                                         std::size_t bytes) { file_.read_at(offset, data, bytes); },
                                  file_.size(), fmt::format("'{}'", path.string()))) {}

void SafetensorsFile::read(const TensorEntry& tensor, std::uint64_t first, void* data,
                           std::size_t bytes) const {
  TESSERA_REQUIRE(first <= tensor.end - tensor.begin && bytes <= tensor.end - tensor.begin - first,
                  "bytes [{}, {}) are not in tensor '{}'", first, first + bytes, tensor.name);
  file_.read_at(tensor.begin + first, data, bytes);
}

void write_safetensors(const std::filesystem::path& path, const std::vector<TensorToWrite>& tensors,
                       const std::map<std::string, std::string>& metadata) {
  std::vector<TensorSpec> specs;
  specs.reserve(tensors.size());
  for (const TensorToWrite& tensor : tensors) specs.push_back(tensor.spec);
  const ComposedHeader header = compose_safetensors_header(specs, metadata);

  std::filesystem::path fresh = path;
  fresh += ".partial";
  File file = File::create_or_truncate(fresh);
  file.write_at(0, header.bytes.data(), header.bytes.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto elements = element_count(specs[i].shape, specs[i].name);
    file.write_at(header.offsets[i], tensors[i].data,
                  static_cast<std::size_t>(elements) * size_of(specs[i].dtype));
  }
  file.sync();
  file.close();
  rename_path(fresh, path);
  const auto folder = path.parent_path();
  sync_folder(folder.empty() ? "." : folder);
}

}  // namespace tessera::checkpoint
