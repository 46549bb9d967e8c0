// Integers of 8 bits with scales: as floating elements, or as rows for
// kernels/cpu/matmul/int8_linear.h.
#include "checkpoint/load/int8.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/low_precision.h"
#include "checkpoint/io/file.h"
#include "checkpoint/io/json.h"
#include "checkpoint/load/hugging_face.h"
#include "checkpoint/steps/manifest.h"
#include "kernels/cpu/matmul/int8_linear.h"
#include "kernels/registry.h"

namespace tessera::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t config_bytes_limit = std::size_t{16} << 20;
constexpr std::int64_t int8_read = std::int64_t{1} << 18;  // elements at a time
// A matrix may have so many: 64 MiB of memory.
constexpr std::int64_t most_int8_scales = std::int64_t{1} << 24;

enum class ScaledBy : std::uint8_t { row, column, all };

// The scales as fp32.
std::vector<float> read_int8_scales(const FileTensor& weight, const FileTensor& scales) {
  const auto count =
      static_cast<std::size_t>(element_count(scales.entry->shape, scales.entry->name));
  std::vector<std::byte> raw(count * scales.entry->stored->bits / 8);
  scales.file->read(*scales.entry, 0, raw.data(), raw.size());
  std::vector<float> values(count);
  kernels::cpu::cast({.in = raw.data(),
                      .out = reinterpret_cast<std::byte*>(values.data()),
                      .n = static_cast<std::int64_t>(count),
                      .in_dtype = *scales.entry->stored->dtype,
                      .out_dtype = float32});
  for (std::size_t i = 0; i < count; ++i) {
    TESSERA_CHECK(
        std::isfinite(values[i]), ErrorCode::checkpoint,
        "'{}': scale {} of '{}' is {}, so '{}' has no values; the file is damaged, or was "
        "written by a failed quantisation",
        scales.file->path().string(), i, scales.entry->name, values[i], weight.entry->name);
  }
  return values;
}

ScaledBy kind_of_scales(const FileTensor& weight, const FileTensor& scales) {
  const std::vector<std::int64_t>& shape = weight.entry->shape;
  const std::vector<std::int64_t>& of_scales = scales.entry->shape;
  const auto dtype = scales.entry->stored->dtype;
  if (shape.size() == 2 && dtype && is_floating(*dtype) && *dtype != float64 &&
      element_count(of_scales, scales.entry->name) <= most_int8_scales) {
    const std::int64_t rows = shape[0], columns = shape[1];
    if (of_scales == std::vector{rows, std::int64_t{1}} || of_scales == std::vector{rows}) {
      return ScaledBy::row;
    }
    if (of_scales == std::vector{std::int64_t{1}, columns}) return ScaledBy::column;
    if (of_scales.empty() || of_scales == std::vector<std::int64_t>{1}) return ScaledBy::all;
  }
  fail(ErrorCode::checkpoint,
       "'{}': the scales '{}' {} {} do not fit '{}' {} {}: a matrix of 8-bit integers has F32, F16 "
       "or BF16 scales, one for each row, for each column or for the whole",
       scales.file->path().string(), scales.entry->name, scales.entry->stored->name,
       describe_shape(of_scales), weight.entry->name, weight.entry->stored->name,
       describe_shape(shape));
}

// The base of both decoders: reads the integers, and has the scales.
class Int8Elements : public WeightDecoder {
 protected:
  Int8Elements(FileTensor weight, FileTensor scales, ScaledBy by, std::string name, DType dtype,
               std::vector<std::int64_t> shape, std::shared_ptr<DecodeBuffers> buffers)
      : WeightDecoder(std::move(name), dtype, std::move(shape), {weight, scales},
                      std::move(buffers)),
        by_(by),
        columns_(weight.entry->shape[1]) {}

  [[nodiscard]] DecodeBuffers& loaded() const {
    DecodeBuffers& buffers = own_buffers();
    if (buffers.scales.empty()) buffers.scales = read_int8_scales(parts()[0], parts()[1]);
    return buffers;
  }
  void read_integers(std::int64_t first, std::int64_t count, std::byte* out) const {
    parts()[0].file->read(*parts()[0].entry, static_cast<std::uint64_t>(first), out,
                          static_cast<std::size_t>(count));
  }
  [[nodiscard]] ScaledBy by() const { return by_; }
  [[nodiscard]] std::int64_t columns() const { return columns_; }

 private:
  ScaledBy by_;
  std::int64_t columns_;
};

// The weight for kernels/cpu/matmul/int8_linear.h, uint8 [outputs, bytes of a row]. The integers of
// GPT-2's layout are transposed, a strip of outputs at a time.
class Int8RowsDecoder final : public Int8Elements {
 public:
  Int8RowsDecoder(FileTensor weight, FileTensor scales, ScaledBy by,
                  std::shared_ptr<DecodeBuffers> buffers)
      : Int8RowsDecoder(weight, scales, by, weight.entry->shape[by == ScaledBy::column ? 0 : 1],
                        weight.entry->shape[by == ScaledBy::column ? 1 : 0], std::move(buffers)) {}

  void read(std::int64_t first, std::int64_t count, std::byte* out) const override {
    const std::int64_t bytes = kernels::cpu::int8_row_bytes(inputs_);
    std::vector<std::byte> strip;
    std::int64_t strip_first = 0, strip_rows = 0;
    for (const std::int64_t end = first + count; first < end;) {
      const std::int64_t row = first / bytes;
      if (row >= strip_first + strip_rows) {
        strip_first = row;
        strip_rows = std::min(std::max<std::int64_t>(1, int8_read / bytes), outputs_ - row);
        strip.resize(static_cast<std::size_t>(strip_rows * bytes));
        load(row, strip_rows, bytes, strip.data());
      }
      const std::int64_t part = std::min(end, (strip_first + strip_rows) * bytes) - first;
      std::memcpy(out, strip.data() + (first - strip_first * bytes),
                  static_cast<std::size_t>(part));
      out += part;
      first += part;
    }
  }

 private:
  Int8RowsDecoder(FileTensor weight, FileTensor scales, ScaledBy by, std::int64_t inputs,
                  std::int64_t outputs, std::shared_ptr<DecodeBuffers> buffers)
      : Int8Elements(weight, scales, by, weight.entry->name, uint8,
                     {outputs, kernels::cpu::int8_row_bytes(inputs)}, std::move(buffers)),
        inputs_(inputs),
        outputs_(outputs) {}

  void load(std::int64_t row, std::int64_t rows, std::int64_t bytes, std::byte* out) const {
    DecodeBuffers& buffers = loaded();
    if (by() == ScaledBy::column) {
      buffers.raw.resize(static_cast<std::size_t>(rows));
      for (std::int64_t i = 0; i < inputs_; ++i) {
        read_integers(i * columns() + row, rows, buffers.raw.data());
        for (std::int64_t r = 0; r < rows; ++r) {
          out[r * bytes + i] = buffers.raw[static_cast<std::size_t>(r)];
        }
      }
    } else {
      for (std::int64_t r = 0; r < rows; ++r) {
        read_integers((row + r) * columns(), inputs_, out + r * bytes);
      }
    }
    for (std::int64_t r = 0; r < rows; ++r) {
      const std::size_t scale = by() == ScaledBy::all ? 0 : static_cast<std::size_t>(row + r);
      kernels::cpu::finish_int8_row(out + r * bytes, inputs_, buffers.scales[scale]);
    }
  }

  std::int64_t inputs_, outputs_;
};

class Int8Decoder final : public Int8Elements {
 public:
  Int8Decoder(FileTensor weight, FileTensor scales, ScaledBy by,
              std::shared_ptr<DecodeBuffers> buffers, bool rounds_activations)
      : Int8Elements(weight, scales, by, weight.entry->name, *scales.entry->stored->dtype,
                     weight.entry->shape, buffers),
        weight_(weight),
        scales_(scales),
        buffers_(std::move(buffers)),
        rounds_activations_(rounds_activations) {}

  void read(std::int64_t first, std::int64_t count, std::byte* out) const override {
    DecodeBuffers& buffers = loaded();
    const DType dtype = *entry().stored->dtype;
    std::vector<float> values(static_cast<std::size_t>(std::min(count, int8_read)));
    buffers.raw.resize(values.size());
    for (std::int64_t done = 0; done < count; done += int8_read) {
      const std::int64_t n = std::min(int8_read, count - done);
      read_integers(first + done, n, buffers.raw.data());
      multiply(first + done, n, buffers, values.data());
      kernels::cpu::cast({.in = reinterpret_cast<const std::byte*>(values.data()),
                          .out = out + static_cast<std::size_t>(done) * size_of(dtype),
                          .n = n,
                          .in_dtype = float32,
                          .out_dtype = dtype});
    }
  }

  [[nodiscard]] std::shared_ptr<const WeightDecoder> as_int8_rows() const override {
    const std::int64_t inputs = weight_.entry->shape[by() == ScaledBy::column ? 0 : 1];
    if (!rounds_activations_ || inputs == 0 || inputs > kernels::cpu::most_int8_inputs) return {};
    return std::make_shared<Int8RowsDecoder>(weight_, scales_, by(), buffers_);
  }

 private:
  void multiply(std::int64_t first, std::int64_t n, const DecodeBuffers& buffers,
                float* out) const {
    for (std::int64_t i = 0; i < n;) {
      const std::int64_t row = (first + i) / columns();
      const std::int64_t column = (first + i) % columns();
      const std::int64_t run = std::min(columns() - column, n - i);
      const float* const scales = buffers.scales.data();
      for (std::int64_t k = 0; k < run; ++k) {
        const std::int64_t at = by() == ScaledBy::row   ? row
                                : by() == ScaledBy::all ? 0
                                                        : column + k;
        const auto integer = static_cast<std::int8_t>(buffers.raw[static_cast<std::size_t>(i + k)]);
        out[i + k] = static_cast<float>(integer) * scales[at];
      }
      i += run;
    }
  }

  FileTensor weight_, scales_;
  std::shared_ptr<DecodeBuffers> buffers_;
  bool rounds_activations_;
};

// Without a scheme in config.json no weight is one of integers, and the files need not be opened.
bool has_scheme(const fs::path& folder) {
  if (!path_exists(folder / "config.json")) return false;
  const nlohmann::json config =
      object_or_null(read_whole(open_member(folder, "config.json"), config_bytes_limit));
  return config.is_object() &&
         (config.contains("quantization_config") || config.contains("compression_config"));
}

}  // namespace

std::unique_ptr<WeightDecoder> make_int8_decoder(FileTensor weight, FileTensor scales,
                                                 std::shared_ptr<DecodeBuffers> buffers,
                                                 bool rounds_activations) {
  const ScaledBy by = kind_of_scales(weight, scales);
  return std::make_unique<Int8Decoder>(weight, scales, by, std::move(buffers), rounds_activations);
}

std::map<std::string, std::vector<std::int64_t>> int8_weights(const fs::path& folder) {
  std::error_code error;
  std::map<std::string, std::vector<std::int64_t>> weights;
  if (!fs::is_directory(folder, error) || path_exists(folder / manifest_name) ||
      !has_weights_alone(folder) || !has_scheme(folder)) {
    return weights;
  }
  const HuggingFaceFolder opened = open_hugging_face(folder);
  for (const auto& [name, weight] : opened.tensors) {
    if (weight.decoder != nullptr && weight.decoder->as_int8_rows() != nullptr) {
      weights[name] = weight.decoder->entry().shape;
    }
  }
  return weights;
}

void refuse_int8_training(const fs::path& folder) {
  const auto weights = int8_weights(folder);
  TESSERA_CHECK(
      weights.empty(), ErrorCode::checkpoint,
      "'{}': it stores weights as 8-bit integers, as '{}', which cannot be trained; train the "
      "model that it was made from, or convert it: tessera convert {} NEW_FOLDER --to hf "
      "--dtype fp32",
      folder.string(), weights.begin()->first, folder.string());
}

}  // namespace tessera::checkpoint
