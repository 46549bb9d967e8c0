// llm.c's model files: 256 int32 of header, then the tensors grouped by kind over the layers. Each
// product's matrix is [out, in] where Hugging Face's GPT-2 has [in, out].
#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "checkpoint/formats/known_formats.h"
#include "checkpoint/formats/llmc/llmc_layout.h"
#include "checkpoint/io/file.h"

namespace tessera::checkpoint::formats {

namespace fs = std::filesystem;

namespace {

LlmcDimensions read_llmc_header(const File& file) {
  const std::string name = file.path().string();
  std::array<std::int32_t, llmc_header_numbers> header{};
  TESSERA_CHECK(file.size() >= llmc_header_bytes, ErrorCode::checkpoint,
                "'{}' has {} bytes, fewer than an llm.c header; it is truncated", name,
                file.size());
  file.read_at(0, header.data(), llmc_header_bytes);
  TESSERA_CHECK(header[0] == llmc_magic, ErrorCode::checkpoint,
                "'{}' is not a model file of llm.c: its first number is {}, not {}", name,
                header[0], llmc_magic);
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
  // A vocabulary of 50257 is GPT-2's own; its last token ends a text.
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
                  "'{}' has {} bytes, its header requires {}; it is {}", path.string(),
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
    // Rows here are columns in the file: each row of the file has a few of the elements.
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

  // There are no checksums: verification reads every byte.
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
