// Embeddings as .npy and .safetensors. The size of the header does not depend on the number of
// rows.
#include "cli/commands/encoders/embedding_file.h"

#include <fmt/format.h>

#include <bit>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "checkpoint/io/removal.h"
#include "engine/interop/npy.h"
#include "engine/storage/output_file.h"

namespace tessera::cli {
namespace {

constexpr std::size_t header_bytes = 256;
static_assert(std::endian::native == std::endian::little,
              "both formats are written from memory without changes");

bool is_npy(const std::filesystem::path& path) {
  return path.extension() == ".npy";
}

std::string npy_header(std::int64_t rows, std::int64_t dimension) {
  return tessera::npy_header(float32, Shape{rows, dimension}, header_bytes);
}

// The length of the JSON, then the JSON, padded with spaces.
std::string safetensors_header(std::int64_t rows, std::int64_t dimension) {
  std::string json = fmt::format(
      R"({{"__metadata__":{{"format":"pt"}},"embeddings":{{"dtype":"F32","shape":[{},{}],)"
      R"("data_offsets":[0,{}]}}}})",
      rows, dimension, rows * dimension * static_cast<std::int64_t>(sizeof(float)));
  json.resize(header_bytes - sizeof(std::uint64_t), ' ');
  const std::uint64_t length = json.size();
  std::string header(sizeof length, '\0');
  std::memcpy(header.data(), &length, sizeof length);
  return header + json;
}

}  // namespace

void EmbeddingFile::check_name(const std::filesystem::path& path) {
  require_file_name("--out " + path.string(), path);
  TESSERA_CHECK(is_npy(path) || path.extension() == ".safetensors", ErrorCode::usage,
                "--out {}: the name must end in .npy or .safetensors", path.string());
}

// By the header of its own size: NumPy and others write shorter ones.
bool EmbeddingFile::is_one(std::string_view beginning) {
  for (const std::string& header : {npy_header(0, 0), safetensors_header(0, 0)}) {
    constexpr std::size_t same_bytes = 10;  // magic and length, or length and the first letters
    if (beginning.substr(0, same_bytes) == header.substr(0, same_bytes)) {
      return beginning.find("'descr': '<f4'") != std::string_view::npos ||
             beginning.find(R"(,"embeddings":{"dtype":"F32")") != std::string_view::npos;
    }
  }
  return false;
}

EmbeddingFile::EmbeddingFile(std::filesystem::path path, std::int64_t dimension,
                             const Context& context)
    : path_(std::move(path)), partial_(path_), dimension_(dimension), context_(context) {
  check_name(path_);
  partial_ += ".partial";
  if (context_.is_main()) file_ = checkpoint::File::create_or_truncate(partial_);
  context_.barrier();
  if (!context_.is_main()) file_ = checkpoint::File::open_for_writing(partial_);
}

EmbeddingFile::~EmbeddingFile() {
  if (file_ && context_.is_main()) checkpoint::try_remove_tree(partial_);
}

void EmbeddingFile::write_row(std::int64_t row, std::span<const float> values) {
  TESSERA_REQUIRE(static_cast<std::int64_t>(values.size()) == dimension_,
                  "a row of {} numbers in a file of {}", values.size(), dimension_);
  const std::size_t bytes = values.size_bytes();
  file_->write_at(header_bytes + static_cast<std::uint64_t>(row) * bytes, values.data(), bytes);
}

void EmbeddingFile::finish(std::int64_t rows) {
  if (!context_.is_main()) file_->sync();
  context_.barrier();
  if (context_.is_main()) {
    const std::string text = header(rows);
    file_->write_at(0, text.data(), text.size());
    file_->sync();
    checkpoint::rename_path(partial_, path_);
  }
  file_.reset();
  context_.barrier();
}

std::string EmbeddingFile::header(std::int64_t rows) const {
  return is_npy(path_) ? npy_header(rows, dimension_) : safetensors_header(rows, dimension_);
}

}  // namespace tessera::cli
