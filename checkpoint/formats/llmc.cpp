// llm.c's model files: 256 int32 of header, then the tensors grouped by kind over the layers, each
// product's matrix as [out, in] where Hugging Face's GPT-2 has [in, out].
#include "checkpoint/formats/llmc.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <algorithm>
#include <array>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>

#include "checkpoint/file.h"
#include "checkpoint/json.h"
#include "kernels/base/error.h"

namespace tessera::checkpoint::formats {

namespace fs = std::filesystem;

namespace {

constexpr std::int32_t llmc_magic = 20240326;
constexpr std::int32_t llmc_float = 3;  // versions
constexpr std::int32_t llmc_bfloat16 = 5;
constexpr std::size_t llmc_header_numbers = 256;
constexpr std::uint64_t llmc_header_bytes = llmc_header_numbers * 4;
constexpr std::int64_t llmc_vocabulary_multiple = 128;
constexpr std::int64_t llmc_largest = std::int64_t{1} << 24;  // of a dimension in the header
constexpr std::int64_t llmc_most_layers = 65536;
constexpr std::size_t llmc_tile_bytes = std::size_t{4} << 20;
constexpr std::uint64_t llmc_config_limit = std::uint64_t{16} << 20;

struct LlmcDimensions {
  std::int64_t positions = 0, vocabulary = 0, layers = 0, heads = 0, width = 0, padded = 0;
  DType dtype = DType::float32;
};

// A tensor with Hugging Face's name and shape, from element `first` of the file's data.
struct LlmcTensor {
  std::string name;
  std::vector<std::int64_t> shape;
  bool transposed = false;
  std::int64_t first = 0;
};

struct LlmcLayout {
  std::vector<LlmcTensor> tensors;
  std::int64_t elements = 0;
};

std::int64_t product(std::int64_t a, std::int64_t b, const char* what) {
  return element_count({a, b}, what);
}

// Of the whole file, before anything is made of it; none when there is no such number.
std::optional<std::int64_t> llmc_elements(const LlmcDimensions& d) {
  const auto sum = [](std::initializer_list<std::int64_t> factors, std::int64_t& total) {
    std::int64_t one = 1;
    bool fits = true;
    for (const std::int64_t factor : factors) {
      fits = fits && !__builtin_mul_overflow(one, factor, &one);
    }
    return fits && !__builtin_add_overflow(total, one, &total);
  };
  std::int64_t total = 0;
  const bool fits = sum({d.padded, d.width}, total) && sum({d.positions, d.width}, total) &&
                    sum({12, d.layers, d.width, d.width}, total) &&
                    sum({13, d.layers, d.width}, total) && sum({2, d.width}, total);
  return fits ? std::optional(total) : std::nullopt;
}

LlmcLayout llmc_layout(const LlmcDimensions& d) {
  struct Kind {
    const char* name;
    std::int64_t rows, columns;  // as Hugging Face has them; columns 0: a vector
    bool transposed;
  };
  const std::int64_t c = d.width;
  const std::array<Kind, 12> kinds{{{"ln_1.weight", c, 0, false},
                                    {"ln_1.bias", c, 0, false},
                                    {"attn.c_attn.weight", c, 3 * c, true},
                                    {"attn.c_attn.bias", 3 * c, 0, false},
                                    {"attn.c_proj.weight", c, c, true},
                                    {"attn.c_proj.bias", c, 0, false},
                                    {"ln_2.weight", c, 0, false},
                                    {"ln_2.bias", c, 0, false},
                                    {"mlp.c_fc.weight", c, 4 * c, true},
                                    {"mlp.c_fc.bias", 4 * c, 0, false},
                                    {"mlp.c_proj.weight", 4 * c, c, true},
                                    {"mlp.c_proj.bias", c, 0, false}}};
  LlmcLayout layout;
  const auto add = [&](std::string name, std::vector<std::int64_t> shape, bool transposed,
                       std::int64_t elements) {
    layout.tensors.push_back({std::move(name), std::move(shape), transposed, layout.elements});
    layout.elements += elements;
  };
  add("transformer.wte.weight", {d.vocabulary, c}, false, product(d.padded, c, "wte"));
  add("transformer.wpe.weight", {d.positions, c}, false, product(d.positions, c, "wpe"));
  for (const Kind& kind : kinds) {
    const std::int64_t elements = product(kind.rows, std::max<std::int64_t>(1, kind.columns), "h");
    for (std::int64_t layer = 0; layer < d.layers; ++layer) {
      std::vector<std::int64_t> shape{kind.rows};
      if (kind.columns > 0) shape.push_back(kind.columns);
      add(fmt::format("transformer.h.{}.{}", layer, kind.name), std::move(shape), kind.transposed,
          elements);
    }
  }
  add("transformer.ln_f.weight", {c}, false, c);
  add("transformer.ln_f.bias", {c}, false, c);
  return layout;
}

std::uint64_t llmc_file_bytes(const LlmcDimensions& d, std::int64_t elements) {
  return llmc_header_bytes + static_cast<std::uint64_t>(elements) * size_of(d.dtype);
}

// Elements of a size that a file can have, in few enough tensors to list.
std::int64_t check_llmc_size(const LlmcDimensions& d, const std::string& name) {
  constexpr std::int64_t most = std::int64_t{1} << 60;
  const std::optional<std::int64_t> elements = llmc_elements(d);
  TESSERA_CHECK(elements && *elements < most && d.layers <= llmc_most_layers, ErrorCode::checkpoint,
                "'{}': {} layers, {} wide, with {} tokens and {} positions are no GPT-2", name,
                d.layers, d.width, d.padded, d.positions);
  return *elements;
}

LlmcDimensions read_llmc_header(const File& file) {
  const std::string name = file.path().string();
  std::array<std::int32_t, llmc_header_numbers> header{};
  TESSERA_CHECK(file.size() >= llmc_header_bytes, ErrorCode::checkpoint,
                "'{}' has {} bytes, fewer than an llm.c header; it is truncated", name,
                file.size());
  file.read_at(0, header.data(), llmc_header_bytes);
  TESSERA_CHECK(header[0] == llmc_magic, ErrorCode::checkpoint,
                "'{}' is no model of llm.c's: its first number is {}, not {}", name, header[0],
                llmc_magic);
  TESSERA_CHECK(header[1] == llmc_float || header[1] == llmc_bfloat16, ErrorCode::checkpoint,
                "'{}': version {} of llm.c's format is unknown; this program reads {} (fp32) and "
                "{} (bf16)",
                name, header[1], llmc_float, llmc_bfloat16);
  static constexpr std::array<const char*, 6> names{
      "block size", "vocabulary", "layers", "heads", "width", "padded vocabulary"};
  for (std::size_t i = 0; i < names.size(); ++i) {
    TESSERA_CHECK(header[i + 2] > 0 && header[i + 2] <= llmc_largest, ErrorCode::checkpoint,
                  "'{}': its header has {} {}; it is damaged", name, names[i], header[i + 2]);
  }
  LlmcDimensions d{header[2],
                   header[3],
                   header[4],
                   header[5],
                   header[6],
                   header[7],
                   header[1] == llmc_float ? DType::float32 : DType::bfloat16};
  TESSERA_CHECK(d.padded >= d.vocabulary, ErrorCode::checkpoint,
                "'{}': a vocabulary of {} does not fit the padded one of {}; the file is damaged",
                name, d.vocabulary, d.padded);
  TESSERA_CHECK(d.width % d.heads == 0, ErrorCode::checkpoint,
                "'{}': {} heads do not divide a width of {}; the file is damaged", name, d.heads,
                d.width);
  return d;
}

std::string llmc_config(const LlmcDimensions& d) {
  nlohmann::json config{{"architectures", {"GPT2LMHeadModel"}},
                        {"model_type", "gpt2"},
                        {"vocab_size", d.vocabulary},
                        {"n_positions", d.positions},
                        {"n_ctx", d.positions},
                        {"n_embd", d.width},
                        {"n_layer", d.layers},
                        {"n_head", d.heads},
                        {"activation_function", "gelu_new"},
                        {"layer_norm_epsilon", 1e-5},
                        {"tie_word_embeddings", true},
                        {"torch_dtype", name_of(d.dtype)}};
  // 50257 tokens are GPT-2's own, the last of which ends a text.
  for (const char* token : {"bos_token_id", "eos_token_id"}) {
    config[token] = d.vocabulary == 50257 ? nlohmann::json(50256) : nlohmann::json(nullptr);
  }
  return config.dump(2) + '\n';
}

class LlmcSource final : public Source {
 public:
  explicit LlmcSource(const fs::path& path)
      : file_(File::open_for_reading(path)), dimensions_(read_llmc_header(file_)) {
    const std::uint64_t bytes =
        llmc_file_bytes(dimensions_, check_llmc_size(dimensions_, path.string()));
    TESSERA_CHECK(file_.size() == bytes, ErrorCode::checkpoint,
                  "'{}' has {} bytes, its header asks for {}; it is {}", path.string(),
                  file_.size(), bytes, file_.size() < bytes ? "truncated" : "damaged");
    layout_ = llmc_layout(dimensions_);
    for (const LlmcTensor& tensor : layout_.tensors) {
      contents_.tensors.push_back(
          {Part::model, tensor.name, &stored_dtype(dimensions_.dtype), tensor.shape,
           fmt::format("{}, byte {}", path.filename().string(), place_of(tensor))});
    }
    contents_.texts["config.json"] = llmc_config(dimensions_);
    contents_.aliases["lm_head.weight"] = "transformer.wte.weight";
    contents_.notes.push_back(fmt::format(
        "the products' matrices of {} layers, [out, in] in the file, are given as [in, out]",
        dimensions_.layers));
    if (dimensions_.padded > dimensions_.vocabulary) {
      contents_.notes.push_back(
          fmt::format("a vocabulary of {}: the {} rows of padding after it are left out",
                      dimensions_.vocabulary, dimensions_.padded - dimensions_.vocabulary));
    }
    contents_.notes.emplace_back("config.json is made from the header");
  }

  [[nodiscard]] const Contents& contents() const override { return contents_; }

  void read(std::size_t index, std::int64_t first, std::int64_t count, std::byte* data) override {
    const LlmcTensor& tensor = layout_.tensors[index];
    const std::size_t size = size_of(dimensions_.dtype);
    if (!tensor.transposed) {
      file_.read_at(place_of(tensor) + static_cast<std::uint64_t>(first) * size, data,
                    static_cast<std::size_t>(count) * size);
      return;
    }
    // Rows of ours are columns of the file's: of each of its rows the few that are wanted.
    const std::int64_t rows = tensor.shape[0];
    const std::int64_t columns = tensor.shape[1];
    const std::int64_t begin = first / columns;
    const std::int64_t end = (first + count + columns - 1) / columns;
    std::vector<std::byte> run(static_cast<std::size_t>(end - begin) * size);
    for (std::int64_t column = 0; column < columns && count > 0; ++column) {
      const std::uint64_t from = static_cast<std::uint64_t>(column * rows + begin) * size;
      file_.read_at(place_of(tensor) + from, run.data(), run.size());
      for (std::int64_t row = begin; row < end; ++row) {
        const std::int64_t element = row * columns + column - first;
        if (element < 0 || element >= count) continue;
        std::memcpy(data + static_cast<std::size_t>(element) * size,
                    run.data() + static_cast<std::size_t>(row - begin) * size, size);
      }
    }
  }

  // No checksums: every byte is read.
  std::vector<std::string> verify(const std::function<void(std::uint64_t)>& progress) override {
    std::vector<std::byte> block(llmc_tile_bytes);
    const std::uint64_t bytes = llmc_file_bytes(dimensions_, layout_.elements);
    for (std::uint64_t done = 0; done < bytes;) {
      const std::uint64_t part = std::min<std::uint64_t>(block.size(), bytes - done);
      try {
        file_.read_at(done, block.data(), static_cast<std::size_t>(part));
      } catch (const Error& error) {
        return {error.what()};
      }
      done += part;
      progress(part);
    }
    return {};
  }

 private:
  [[nodiscard]] std::uint64_t place_of(const LlmcTensor& tensor) const {
    return llmc_header_bytes +
           static_cast<std::uint64_t>(tensor.first) * size_of(dimensions_.dtype);
  }

  File file_;
  LlmcDimensions dimensions_;
  LlmcLayout layout_;
  Contents contents_;
};

// Writes what comes row by row of [in, out] into the columns of [out, in], many rows at a time.
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

// What llm.c takes for granted of a GPT-2.
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
    if (place == nullptr) return;  // a mask of the attention's, which llm.c computes
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
      // The Hub's gpt2 was saved without its head, and so without the prefix.
      const bool prefixed =
          tensor.name.starts_with("transformer.") || tensor.name == "lm_head.weight";
      by_name_[prefixed ? tensor.name : "transformer." + tensor.name] = i;
    }
  }

  [[nodiscard]] const TensorInfo& matrix(const std::string& name) const {
    const auto it = by_name_.find(name);
    TESSERA_CHECK(it != by_name_.end() && contents_.tensors[it->second].shape.size() == 2,
                  ErrorCode::checkpoint,
                  "there is no matrix '{}': llm.c's files hold GPT-2 and nothing else", name);
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
            config["n_head"] > 0 && d.width % config["n_head"].get<std::int64_t>() == 0,
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

bool recognises_llmc(const fs::path& path) {
  std::error_code error;
  if (!fs::is_regular_file(path, error) || fs::file_size(path, error) < llmc_header_bytes) {
    return false;
  }
  try {
    std::int32_t magic = 0;
    File::open_for_reading(path).read_at(0, &magic, sizeof magic);
    return magic == llmc_magic;
  } catch (const Error&) {
    return false;
  }
}

std::unique_ptr<Source> open_llmc(const fs::path& path) {
  return std::make_unique<LlmcSource>(path);
}

std::unique_ptr<Sink> create_llmc(const fs::path& path, const Contents& contents,
                                  const WriteOptions&) {
  return std::make_unique<LlmcSink>(path, contents);
}

}  // namespace

const Format& llmc_format() {
  static const Format format{.name = "llmc",
                             .description = "a model of llm.c's (.bin)",
                             .is_file = true,
                             .recognises = recognises_llmc,
                             .open = open_llmc,
                             .create = create_llmc,
                             .weights_alone = true};
  return format;
}

}  // namespace tessera::checkpoint::formats
