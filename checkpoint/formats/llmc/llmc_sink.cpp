// Writes model files of llm.c.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <algorithm>
#include <array>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_map>

#include "base/error.h"
#include "checkpoint/formats/llmc/llmc_layout.h"
#include "checkpoint/io/file.h"
#include "checkpoint/io/json.h"

namespace tessera::checkpoint::formats {

namespace fs = std::filesystem;

namespace {

constexpr std::uint64_t llmc_config_limit = std::uint64_t{16} << 20;

// Writes rows of [in, out] into the columns of [out, in], many rows at a time.
class TransposedWriter {
 public:
  TransposedWriter(std::uint64_t place, std::int64_t rows, std::int64_t columns, std::size_t size)
      : place_(place), rows_(rows), columns_(columns), size_(size) {}

  void append(File& file, const std::byte* data, std::size_t bytes) {
    while (bytes > 0) {
      const std::size_t whole =
          row_bytes() * std::max<std::size_t>(1, llmc_tile_bytes / row_bytes());
      const std::size_t part = std::min(bytes, whole - pending_.size());
      pending_.insert(pending_.end(), data, data + part);
      data += part;
      bytes -= part;
      if (pending_.size() == whole || done_ + pending_.size() == row_bytes() * count_rows()) {
        flush(file);
      }
    }
  }

 private:
  [[nodiscard]] std::size_t row_bytes() const { return static_cast<std::size_t>(columns_) * size_; }
  [[nodiscard]] std::size_t count_rows() const { return static_cast<std::size_t>(rows_); }

  void flush(File& file) {
    const std::size_t rows = pending_.size() / row_bytes();
    std::vector<std::byte> column(rows * size_);
    for (std::size_t c = 0; c < static_cast<std::size_t>(columns_); ++c) {
      for (std::size_t r = 0; r < rows; ++r) {
        std::memcpy(column.data() + r * size_, pending_.data() + r * row_bytes() + c * size_,
                    size_);
      }
      const std::uint64_t first = c * count_rows() + done_ / row_bytes();
      file.write_at(place_ + first * size_, column.data(), column.size());
    }
    done_ += pending_.size();
    pending_.clear();
  }

  std::uint64_t place_;
  std::int64_t rows_, columns_;
  std::size_t size_;
  std::size_t done_ = 0;  // bytes written
  std::vector<std::byte> pending_;
};

std::string config_text(const Contents& contents) {
  if (const auto text = contents.texts.find("config.json"); text != contents.texts.end()) {
    return text->second;
  }
  const auto file = contents.files.find("config.json");
  TESSERA_CHECK(file != contents.files.end(), ErrorCode::checkpoint,
                "an llm.c file says how many heads the model has, which only config.json can tell; "
                "put the model's config.json beside the weights");
  return read_file(file->second, llmc_config_limit);
}

// The properties of a GPT-2 that llm.c assumes.
void check_llmc_config(const nlohmann::json& config, std::int64_t width) {
  const auto refuse = [&](const char* key, const char* wanted) {
    fail(ErrorCode::checkpoint, "config.json: {} is {}; llm.c computes with {} only", key,
         config.at(key).dump(), wanted);
  };
  const auto given = [&](const char* key) {
    return config.contains(key) && !config[key].is_null();
  };
  if (given("model_type") && config["model_type"] != "gpt2") refuse("model_type", "gpt2");
  if (given("n_inner") && config["n_inner"] != 4 * width) refuse("n_inner", "4 x n_embd");
  if (given("activation_function") && config["activation_function"] != "gelu_new" &&
      config["activation_function"] != "gelu_pytorch_tanh") {
    refuse("activation_function", "gelu_new");
  }
  if (given("layer_norm_epsilon") && config["layer_norm_epsilon"] != 1e-5) {
    refuse("layer_norm_epsilon", "1e-05");
  }
  for (const char* key : {"scale_attn_by_inverse_layer_idx", "add_cross_attention"}) {
    if (given(key) && config[key] != false) refuse(key, "false");
  }
}

bool is_attention_buffer(std::string_view name) {
  return name.starts_with("transformer.h.") &&
         (name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias"));
}

class LlmcSink final : public Sink {
 public:
  LlmcSink(const fs::path& path, const Contents& contents) : contents_(contents) {
    index_tensors();
    find_dimensions();
    layout_ = llmc_layout(dimensions_);
    place_tensors();
    file_.emplace(File::create(path));
    file_->resize(llmc_file_bytes(dimensions_, layout_.elements));  // the padding's rows are zeros
    const std::array<std::int32_t, 8> start{
        llmc_magic,
        dimensions_.dtype == DType::float32 ? llmc_float : llmc_bfloat16,
        static_cast<std::int32_t>(dimensions_.positions),
        static_cast<std::int32_t>(dimensions_.vocabulary),
        static_cast<std::int32_t>(dimensions_.layers),
        static_cast<std::int32_t>(dimensions_.heads),
        static_cast<std::int32_t>(dimensions_.width),
        static_cast<std::int32_t>(dimensions_.padded)};
    file_->write_at(0, start.data(), sizeof start);
    done_.resize(contents.tensors.size());
  }

  void append(std::size_t tensor, const std::byte* data, std::int64_t count) override {
    const LlmcTensor* place = places_[tensor];
    if (place == nullptr) return;  // an attention mask, which llm.c computes
    const std::size_t size = size_of(dimensions_.dtype);
    const std::size_t bytes = static_cast<std::size_t>(count) * size;
    const std::uint64_t begin = llmc_header_bytes + static_cast<std::uint64_t>(place->first) * size;
    if (!place->transposed) {
      file_->write_at(begin + done_[tensor], data, bytes);
    } else {
      if (done_[tensor] == 0) writer_.emplace(begin, place->shape[0], place->shape[1], size);
      writer_->append(*file_, data, bytes);
    }
    done_[tensor] += bytes;
  }

  void finish() override {
    file_->sync();
    file_->close();
  }

 private:
  void index_tensors() {
    for (std::size_t i = 0; i < contents_.tensors.size(); ++i) {
      const TensorInfo& tensor = contents_.tensors[i];
      TESSERA_CHECK(tensor.part == Part::model, ErrorCode::checkpoint,
                    "an llm.c file holds weights alone; ask for --weights-only");
      // The Hub's gpt2 was saved without its head, so its names have no prefix.
      const bool prefixed =
          tensor.name.starts_with("transformer.") || tensor.name == "lm_head.weight";
      by_name_[prefixed ? tensor.name : "transformer." + tensor.name] = i;
    }
  }

  [[nodiscard]] const TensorInfo& matrix(const std::string& name) const {
    const auto it = by_name_.find(name);
    TESSERA_CHECK(it != by_name_.end() && contents_.tensors[it->second].shape.size() == 2,
                  ErrorCode::checkpoint,
                  "the checkpoint has no matrix '{}': llm.c's files hold GPT-2 and nothing else",
                  name);
    return contents_.tensors[it->second];
  }

  void find_dimensions() {
    const TensorInfo& tokens = matrix("transformer.wte.weight");
    LlmcDimensions& d = dimensions_;
    d.vocabulary = tokens.shape[0];
    d.width = tokens.shape[1];
    d.positions = matrix("transformer.wpe.weight").shape[0];
    while (by_name_.contains(fmt::format("transformer.h.{}.ln_1.weight", d.layers))) ++d.layers;
    d.padded = (d.vocabulary + llmc_vocabulary_multiple - 1) / llmc_vocabulary_multiple *
               llmc_vocabulary_multiple;
    const nlohmann::json config = parse_json(config_text(contents_), "config.json");
    TESSERA_CHECK(
        config.is_object() && config.contains("n_head") && config["n_head"].is_number_integer() &&
            config["n_head"] > 0 && config["n_head"] <= d.width &&
            d.width % config["n_head"].get<std::int64_t>() == 0,
        ErrorCode::checkpoint, "config.json has no n_head that divides a width of {}", d.width);
    d.heads = config["n_head"].get<std::int64_t>();
    check_llmc_config(config, d.width);
    for (const std::int64_t size : {d.vocabulary, d.width, d.positions, d.layers}) {
      TESSERA_CHECK(size > 0 && size <= llmc_largest, ErrorCode::checkpoint,
                    "a GPT-2 of {} layers, {} wide, with {} tokens and {} positions does not fit "
                    "llm.c's format",
                    d.layers, d.width, d.vocabulary, d.positions);
    }
    check_llmc_size(d, tokens.name);
    TESSERA_CHECK(tokens.stored->dtype == DType::float32 || tokens.stored->dtype == DType::bfloat16,
                  ErrorCode::checkpoint,
                  "llm.c's files hold fp32 or bf16, and these weights are {}; add --dtype fp32 or "
                  "--dtype bf16",
                  tokens.stored->name);
    d.dtype = *tokens.stored->dtype;
  }

  void place_tensors() {
    places_.resize(contents_.tensors.size());
    std::vector<std::string> problems;
    for (const LlmcTensor& tensor : layout_.tensors) {
      const auto it = by_name_.find(tensor.name);
      if (it == by_name_.end()) {
        problems.push_back(fmt::format("missing tensor '{}'", tensor.name));
        continue;
      }
      const TensorInfo& found = contents_.tensors[it->second];
      if (found.shape != tensor.shape) {
        problems.push_back(fmt::format("tensor '{}' has shape {}, wanted {}", found.name,
                                       describe_shape(found.shape), describe_shape(tensor.shape)));
      } else if (found.stored->dtype != dimensions_.dtype) {
        problems.push_back(fmt::format("tensor '{}' is {} (add --dtype {})", found.name,
                                       found.stored->name,
                                       dimensions_.dtype == DType::float32 ? "fp32" : "bf16"));
      }
      places_[it->second] = &tensor;
    }
    for (const auto& [name, index] : by_name_) {
      if (places_[index] != nullptr || is_attention_buffer(name)) continue;
      problems.push_back(fmt::format(
          "unexpected tensor '{}'{}", name,
          name == "lm_head.weight" ? " (llm.c's head is tied to the token table)" : ""));
    }
    std::sort(problems.begin(), problems.end());
    TESSERA_CHECK(problems.empty(), ErrorCode::checkpoint,
                  "llm.c's format cannot hold this model: {}", fmt::join(problems, "; "));
  }

  const Contents& contents_;
  std::unordered_map<std::string, std::size_t> by_name_;  // with the prefix
  LlmcDimensions dimensions_;
  LlmcLayout layout_;
  std::vector<const LlmcTensor*> places_;  // of each tensor; null: left out
  std::optional<File> file_;
  std::optional<TransposedWriter> writer_;  // of the tensor that is coming
  std::vector<std::uint64_t> done_;         // bytes of each tensor
};

}  // namespace

std::unique_ptr<Sink> create_llmc(const fs::path& path, const Contents& contents,
                                  const WriteOptions&) {
  return std::make_unique<LlmcSink>(path, contents);
}

}  // namespace tessera::checkpoint::formats
