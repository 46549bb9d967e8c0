// Reads GGUF files into Hugging Face's names, order and shapes. Quantised tensors become fp32.
#include "checkpoint/formats/gguf/gguf.h"

#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <utility>

#include "base/counted.h"
#include "base/error.h"
#include "base/text/printable.h"
#include "checkpoint/formats/known_formats.h"
#include "checkpoint/io/file.h"
#include "checkpoint/safetensors/safetensors.h"

namespace tessera::checkpoint::formats {

namespace fs = std::filesystem;

namespace {

constexpr std::int64_t decoded_elements = std::int64_t{1} << 18;  // at a time
constexpr std::size_t gguf_verify_block = std::size_t{4} << 20;
constexpr std::int64_t most_rope_divisors = 65536;

class GgufSource final : public Source {
 public:
  explicit GgufSource(const fs::path& path)
      : file_(File::open_for_reading(path)), header_(read_gguf_header(file_)) {
    const std::string name = path.string();
    const auto found = header_.metadata.find("general.architecture");
    TESSERA_CHECK(found != header_.metadata.end() && found->second.is_string(),
                  ErrorCode::checkpoint, "'{}' has no general.architecture; it is damaged", name);
    const GgufFamily& family = gguf_family_of_architecture(found->second.get<std::string>(), name);
    const nlohmann::json config =
        config_of_gguf(header_, family, rope_divisors(name), name, heads_);
    contents_.texts["config.json"] = config.dump(2) + '\n';
    for (const GgufTensor& tensor : header_.tensors) {
      if (tensor.name != gguf_rope_tensor) add(family, tensor, name);
    }
    write_notes(family, config);
  }

  [[nodiscard]] const Contents& contents() const override { return contents_; }

  void read(std::size_t index, std::int64_t first, std::int64_t count, std::byte* data) override {
    const Place& place = places_[index];
    if (place.transposed) {
      read_transposed(place, first, count, data);
      return;
    }
    if (place.head_rows == 0) {
      read_run(*place.tensor, first, count, data);
      return;
    }
    const std::vector<std::int64_t>& shape = place.tensor->shape;
    const std::int64_t row_size = shape.size() == 2 ? shape[1] : 1;
    for (std::int64_t at = first; at < first + count;) {
      const std::int64_t column = at % row_size;
      const std::int64_t part = std::min(row_size - column, first + count - at);
      const std::int64_t row = gguf_row(at / row_size, place.head_rows);
      read_run(*place.tensor, row * row_size + column, part, data);
      data += static_cast<std::size_t>(part) * size_of(place.tensor->type->dtype);
      at += part;
    }
  }

  // There are no checksums: verification reads every byte.
  std::vector<std::string> verify(const std::function<void(std::uint64_t)>& progress) override {
    std::vector<std::byte> block(gguf_verify_block);
    for (std::uint64_t done = 0; done < file_.size();) {
      const std::uint64_t part = std::min<std::uint64_t>(block.size(), file_.size() - done);
      try {
        file_.read_at(done, block.data(), static_cast<std::size_t>(part));
      } catch (const Error& error) {
        return {error.what()};
      }
      done += part;
      if (progress) progress(part);
    }
    return {};
  }

 private:
  struct Place {
    const GgufTensor* tensor = nullptr;
    bool transposed = false;
    std::int64_t head_rows = 0;  // of one head; 0: rows stay in their order
  };

  std::vector<float> rope_divisors(const std::string& file) {
    std::vector<float> divisors;
    for (const GgufTensor& tensor : header_.tensors) {
      if (tensor.name != gguf_rope_tensor) continue;
      TESSERA_CHECK(
          tensor.shape.size() == 1 && tensor.shape[0] <= most_rope_divisors && tensor.type->id == 0,
          ErrorCode::checkpoint, "'{}': {} is not a vector of f32", file, tensor.name);
      divisors.resize(static_cast<std::size_t>(tensor.shape[0]));
      if (!divisors.empty()) {
        file_.read_at(tensor.begin, divisors.data(), divisors.size() * sizeof(float));
      }
    }
    return divisors;
  }

  void add(const GgufFamily& family, const GgufTensor& tensor, const std::string& file) {
    const std::optional<GgufName> name = hugging_face_name(family, tensor.name);
    TESSERA_CHECK(name.has_value(), ErrorCode::checkpoint,
                  "'{}' has a tensor '{}', which is not one of {}'s", file, printable(tensor.name),
                  family.model_class);
    const std::string what = fmt::format("'{}': tensor '{}'", file, printable(tensor.name));
    Place place{&tensor, is_transposed(*name), 0};
    std::vector<std::int64_t> shape = tensor.shape;
    TESSERA_CHECK(shape.size() == 2 || (shape.size() == 1 && !place.transposed),
                  ErrorCode::checkpoint, "{} has the shape {}", what, describe_shape(shape));
    TESSERA_CHECK(std::find(shape.begin(), shape.end(), 0) == shape.end(), ErrorCode::checkpoint,
                  "{} has no elements", what);
    if (is_permuted(*name)) {
      place.head_rows = gguf_head_rows(*name->module, heads_, shape[0], what);
    }
    if (place.transposed) std::swap(shape[0], shape[1]);
    if (tensor.type->is_quantised()) ++quantised_[tensor.type->name];
    contents_.tensors.push_back(
        {Part::model, name->name, &stored_dtype(tensor.type->dtype), std::move(shape),
         fmt::format("{}, byte {}", file_.path().filename().string(), tensor.begin)});
    places_.push_back(place);
  }

  void write_notes(const GgufFamily& family, const nlohmann::json& config) {
    if (config.at("tie_word_embeddings") == true) {
      contents_.aliases["lm_head.weight"] =
          hugging_face_name(family, "token_embd.weight").value().name;
    }
    for (const auto& [type, number] : quantised_) {
      contents_.notes.push_back(
          fmt::format("{} of {} become fp32", counted(number, "tensor"), type));
    }
    contents_.notes.emplace_back(
        "config.json is made from the settings; the tokenizer is not read: copy its files from the "
        "model's Hugging Face folder");
  }

  // Elements [first, first + count) in the file's order, decoded.
  void read_run(const GgufTensor& tensor, std::int64_t first, std::int64_t count, std::byte* data) {
    const GgufType& type = *tensor.type;
    if (!type.is_quantised()) {
      if (count > 0) {
        file_.read_at(tensor.begin + type.bytes_of(first), data,
                      static_cast<std::size_t>(type.bytes_of(count)));
      }
      return;
    }
    for (const std::int64_t end = first + count; first < end;) {
      const std::int64_t begin_block = first / type.block;
      const std::int64_t end_block = std::min((end + type.block - 1) / type.block,
                                              begin_block + decoded_elements / type.block);
      const std::int64_t blocks = end_block - begin_block;
      encoded_.resize(static_cast<std::size_t>(blocks) * type.bytes);
      decoded_.resize(static_cast<std::size_t>(blocks * type.block));
      file_.read_at(tensor.begin + type.bytes_of(begin_block * type.block), encoded_.data(),
                    encoded_.size());
      type.decode(encoded_.data(), decoded_.data(), blocks);
      const std::int64_t part = std::min(end, end_block * type.block) - first;
      std::memcpy(data, decoded_.data() + (first - begin_block * type.block),
                  static_cast<std::size_t>(part) * sizeof(float));
      data += static_cast<std::size_t>(part) * sizeof(float);
      first += part;
    }
  }

  // Rows here are columns in the file: each row of the file has a few of the elements.
  void read_transposed(const Place& place, std::int64_t first, std::int64_t count,
                       std::byte* data) {
    if (count == 0) return;
    const std::int64_t columns = place.tensor->shape[0];
    const std::int64_t rows = place.tensor->shape[1];
    const std::int64_t begin = first / columns;
    const std::int64_t end = (first + count + columns - 1) / columns;
    const std::size_t size = size_of(place.tensor->type->dtype);
    run_.resize(static_cast<std::size_t>(end - begin) * size);
    for (std::int64_t column = 0; column < columns; ++column) {
      read_run(*place.tensor, column * rows + begin, end - begin, run_.data());
      for (std::int64_t row = begin; row < end; ++row) {
        const std::int64_t element = row * columns + column - first;
        if (element < 0 || element >= count) continue;
        std::memcpy(data + static_cast<std::size_t>(element) * size,
                    run_.data() + static_cast<std::size_t>(row - begin) * size, size);
      }
    }
  }

  File file_;
  GgufHeader header_;
  GgufHeads heads_;
  Contents contents_;
  std::vector<Place> places_;  // of contents_.tensors
  std::map<std::string, std::size_t> quantised_;
  std::vector<std::byte> encoded_, run_;
  std::vector<float> decoded_;
};

bool recognises_gguf(const fs::path& path) {
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return false;
  if (path.extension() == ".gguf") return true;  // a damaged one is refused with its damage
  try {
    const File file = File::open_for_reading(path);
    std::array<char, gguf_magic.size()> head{};
    if (file.size() < head.size()) return false;
    file.read_at(0, head.data(), head.size());
    return std::string_view(head.data(), head.size()) == gguf_magic;
  } catch (const Error&) {
    return false;
  }
}

std::unique_ptr<Source> open_gguf(const fs::path& path) {
  return std::make_unique<GgufSource>(path);
}

}  // namespace

const Format& gguf_format() {
  static const Format format{.name = "gguf",
                             .description = "a GGUF file of llama.cpp (.gguf)",
                             .is_file = true,
                             .recognises = recognises_gguf,
                             .open = open_gguf,
                             .create = create_gguf,
                             .weights_alone = true,
                             .encodings = gguf_encodings};
  return format;
}

}  // namespace tessera::checkpoint::formats
