// Writes GGUF files: the header is complete before the first tensor comes, and each tensor is
// encoded while it comes.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "base/counted.h"
#include "base/error.h"
#include "checkpoint/formats/gguf/gguf.h"
#include "checkpoint/formats/gguf/gguf_shapes.h"
#include "checkpoint/formats/gguf/gguf_tile.h"
#include "checkpoint/formats/gguf/gguf_tokenizer.h"
#include "checkpoint/io/file.h"
#include "checkpoint/io/json.h"

namespace tessera::checkpoint::formats {

namespace fs = std::filesystem;

namespace {

constexpr std::uint32_t quantisation_version = 2;  // of ggml's blocks

nlohmann::json gguf_config_json(const Contents& contents) {
  const std::optional<std::string> text = gguf_text_of(contents, "config.json");
  TESSERA_CHECK(text.has_value(), ErrorCode::checkpoint,
                "a GGUF file has the model's sizes and settings, which only config.json can tell; "
                "put the model's config.json beside the weights");
  return parse_json(*text, "config.json");
}

// The type of a model's matrices: as asked for, or as they are stored.
const GgufType& type_of_matrices(const Contents& contents, const std::string& wanted) {
  if (!wanted.empty()) {
    const GgufType* const type = find_gguf_type(wanted);
    std::vector<const char*> names;
    for (const GgufType& each : gguf_types()) names.push_back(each.name);
    TESSERA_CHECK(type != nullptr, ErrorCode::usage, "--type {}: GGUF files are written as {}",
                  wanted, fmt::join(names, ", "));
    return *type;
  }
  std::set<DType> dtypes;
  for (const TensorInfo& tensor : contents.tensors) {
    if (tensor.part == Part::model && tensor.shape.size() == 2 && tensor.stored->dtype) {
      dtypes.insert(*tensor.stored->dtype);
    }
  }
  const bool one = dtypes.size() == 1;
  for (const GgufType& type : gguf_types()) {
    if (one && !type.is_quantised() && type.dtype == *dtypes.begin()) return type;
  }
  return gguf_types().front();
}

GgufName require_gguf_name(const GgufFamily& family, const TensorInfo& tensor) {
  std::optional<GgufName> name = gguf_name(family, tensor.name);
  TESSERA_CHECK(name.has_value(), ErrorCode::checkpoint,
                "tensor '{}' is not one of {}'s, and has no place in a GGUF file", tensor.name,
                family.model_class);
  const std::size_t dimensions = tensor.shape.size();
  TESSERA_CHECK(dimensions == 2 || (dimensions == 1 && !is_transposed(*name)),
                ErrorCode::checkpoint, "tensor '{}' has the shape {}, which is not a {}'s",
                tensor.name, describe_shape(tensor.shape), family.model_class);
  return std::move(*name);
}

// Vectors, and so norms and biases, stay float32, as in llama.cpp's own converter. Rows that blocks
// of 256 do not divide become q8_0, and rows that blocks of 32 do not divide float16.
const GgufType& type_of_tensor(const TensorInfo& tensor, const GgufName& name,
                               const GgufType& wanted) {
  if (tensor.shape.size() == 1 || name.module->always_float) return *find_gguf_type("f32");
  const std::int64_t row = is_transposed(name) ? tensor.shape[0] : tensor.shape[1];
  if (row % wanted.block == 0) return wanted;
  const GgufType& wider = *find_gguf_type("q8_0");
  return row % wider.block == 0 ? wider : *find_gguf_type("f16");
}

// The name in config.json, or that of the folder of the weights.
std::string name_of_model(const nlohmann::json& config, const Contents& contents) {
  for (const char* key : {"_name_or_path", "name_or_path"}) {
    const nlohmann::json name = config.value(key, nlohmann::json());
    if (!name.is_string()) continue;
    std::string last = fs::path(name.get<std::string>()).filename().string();
    if (!last.empty()) return last;
  }
  const auto file = contents.files.find("config.json");
  std::string folder;
  if (file != contents.files.end()) {
    std::error_code error;
    folder = fs::absolute(file->second, error).parent_path().filename().string();
  }
  return folder.empty() ? std::string("model") : folder;
}

class GgufSink final : public Sink {
 public:
  GgufSink(const fs::path& path, const Contents& contents, const WriteOptions& options)
      : contents_(contents),
        wanted_(type_of_matrices(contents, options.type)),
        reads_back_(options.reads_back) {
    const nlohmann::json config = gguf_config_json(contents);
    GgufMetadata metadata;
    model_ = write_gguf_settings(config, metadata);
    report_.files.insert("config.json");
    report_.notes = model_.notes;
    const std::string name = name_of_model(config, contents);
    metadata.text("general.name", name);
    metadata.number("general.file_type", wanted_.file_type);
    metadata.number("general.quantization_version", quantisation_version);
    write_gguf_tokenizer(contents, config, name, model_.vocabulary, metadata, report_.files,
                         report_.notes);
    if (const auto text = gguf_text_of(contents, "generation_config.json")) {
      write_gguf_sampling(parse_json(*text, "generation_config.json"), metadata);
    }
    list_tensors();
    check_gguf_tensors(model_, places_);
    const std::string header = compose_gguf_header(metadata, places_);
    file_.emplace(File::create(path));
    file_->resize(places_.back().begin + places_.back().bytes);
    file_->write_at(0, header.data(), header.size());
    if (!model_.rope.empty()) {
      file_->write_at(places_.back().begin, model_.rope.data(),
                      static_cast<std::size_t>(places_.back().bytes));
    }
  }

  void append(std::size_t tensor, const std::byte* data, std::int64_t count) override {
    const GgufTensor& place = places_[tensor];
    if (tensor != current_) {
      current_ = tensor;
      done_ = 0;
      tile_.reset();
    }
    bool fits = true;
    if (is_transposed(names_[tensor])) {
      back_.clear();
      if (!tile_) tile_.emplace(contents_.tensors[tensor], place);
      fits =
          tile_->append(*file_, data, static_cast<std::size_t>(count) * size_of(place.type->dtype),
                        reads_back_ ? &back_ : nullptr);
    } else if (place.type->is_quantised()) {
      fits = encode(*place.type, data, count);
      write_rows(tensor, encoded_.data(), count);
    } else {
      write_rows(tensor, data, count);
    }
    TESSERA_CHECK(fits, ErrorCode::checkpoint,
                  "tensor '{}' has values that {} cannot hold (not finite, or too large); use "
                  "--type f32 or bf16",
                  contents_.tensors[tensor].name, place.type->name);
    done_ += count;
  }

  [[nodiscard]] std::optional<std::span<const std::byte>> read_back() const override {
    if (!places_[current_].type->is_quantised()) return std::nullopt;
    return std::span<const std::byte>(back_);
  }

  void finish() override {
    file_->sync();
    file_->close();
  }

  [[nodiscard]] SinkReport report() const override { return report_; }

 private:
  void list_tensors() {
    std::map<std::string, std::size_t> wider;  // tensors by type
    for (const TensorInfo& tensor : contents_.tensors) {
      TESSERA_CHECK(tensor.part == Part::model, ErrorCode::checkpoint,
                    "a GGUF file holds weights alone; ask for --weights-only");
      names_.push_back(require_gguf_name(*model_.family, tensor));
      const GgufName& name = names_.back();
      const GgufType& type = type_of_tensor(tensor, name, wanted_);
      if (tensor.shape.size() == 2 && &type != &wanted_ && !name.module->always_float) {
        ++wider[type.name];
      }
      std::vector<std::int64_t> shape = tensor.shape;
      if (is_transposed(name)) std::swap(shape[0], shape[1]);
      head_rows_.push_back(is_permuted(name) ? gguf_head_rows(*name.module, model_.heads, shape[0],
                                                              "tensor '" + tensor.name + "'")
                                             : 0);
      places_.push_back({name.name, &type, std::move(shape), 0, 0});
    }
    for (const auto& [type, count] : wider) {
      report_.notes.push_back(fmt::format("{} stored as {}: {} needs rows of a multiple of {}",
                                          counted(count, "tensor"), type, wanted_.name,
                                          wanted_.block));
    }
    if (!model_.rope.empty()) {
      places_.push_back({gguf_rope_tensor,
                         find_gguf_type("f32"),
                         {static_cast<std::int64_t>(model_.rope.size())},
                         0,
                         0});
    }
  }

  bool encode(const GgufType& type, const std::byte* data, std::int64_t count) {
    TESSERA_REQUIRE(count % type.block == 0 && done_ % type.block == 0,
                    "{} elements after {} do not end at a block", count, done_);
    encoded_.resize(static_cast<std::size_t>(type.bytes_of(count)));
    const std::int64_t blocks = count / type.block;
    if (!encode_blocks(type, reinterpret_cast<const float*>(data), encoded_.data(), blocks)) {
      return false;
    }
    if (reads_back_) {
      back_.resize(static_cast<std::size_t>(count) * sizeof(float));
      type.decode(encoded_.data(), reinterpret_cast<float*>(back_.data()), blocks);
    }
    return true;
  }

  // Elements [done_, done_ + count), in the file's encoding.
  void write_rows(std::size_t tensor, const std::byte* encoded, std::int64_t count) {
    const GgufTensor& place = places_[tensor];
    const GgufType& type = *place.type;
    if (head_rows_[tensor] == 0) {
      file_->write_at(place.begin + type.bytes_of(done_), encoded,
                      static_cast<std::size_t>(type.bytes_of(count)));
      return;
    }
    const std::int64_t row_size = place.shape.size() == 2 ? place.shape[1] : 1;
    for (std::int64_t at = done_; at < done_ + count;) {
      const std::int64_t column = at % row_size;
      const std::int64_t part = std::min(row_size - column, done_ + count - at);
      const std::int64_t row = gguf_row(at / row_size, head_rows_[tensor]);
      file_->write_at(place.begin + type.bytes_of(row * row_size + column), encoded,
                      static_cast<std::size_t>(type.bytes_of(part)));
      encoded += type.bytes_of(part);
      at += part;
    }
  }

  const Contents& contents_;
  const GgufType& wanted_;
  bool reads_back_;
  GgufModel model_;
  SinkReport report_;
  std::vector<GgufName> names_;          // of each tensor of the contents
  std::vector<std::int64_t> head_rows_;  // likewise; 0: rows stay in their order
  std::vector<GgufTensor> places_;       // likewise; one more with the divisors of rope
  std::optional<File> file_;
  std::size_t current_ = 0;       // the tensor that is coming
  std::int64_t done_ = 0;         // its elements that came
  std::optional<GgufTile> tile_;  // of a transposed one
  std::vector<std::byte> encoded_, back_;
};

}  // namespace

std::int64_t gguf_head_rows(const GgufModule& module, const GgufHeads& heads, std::int64_t rows,
                            const std::string& what) {
  const std::int64_t count = module.order == GgufOrder::query_heads ? heads.query : heads.key;
  TESSERA_CHECK(rows % (2 * count) == 0, ErrorCode::checkpoint,
                "{} has {} rows, which {} heads do not divide into pairs", what, rows, count);
  return rows / count;
}

Encodings gguf_encodings(const Contents& contents, const std::string& type) {
  const GgufFamily& family = gguf_family_of_config(gguf_config_json(contents));
  const GgufType& wanted = type_of_matrices(contents, type);
  Encodings encodings{wanted.name, {}};
  for (const TensorInfo& tensor : contents.tensors) {
    const auto dtype = tensor.stored->dtype;
    TESSERA_CHECK(dtype && is_floating(*dtype), ErrorCode::checkpoint,
                  "tensor '{}' is {}, and GGUF files are written of floating-point weights",
                  tensor.name, tensor.stored->name);
    const GgufType& own = type_of_tensor(tensor, require_gguf_name(family, tensor), wanted);
    encodings.tensors.push_back(
        {&stored_dtype(own.dtype), own.bytes_of(element_count(tensor.shape, tensor.name))});
  }
  return encodings;
}

std::unique_ptr<Sink> create_gguf(const fs::path& path, const Contents& contents,
                                  const WriteOptions& options) {
  return std::make_unique<GgufSink>(path, contents, options);
}

}  // namespace tessera::checkpoint::formats
