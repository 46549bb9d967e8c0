// Decodes quantised weights of safetensors files to bfloat16 while they are read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "checkpoint/safetensors/safetensors.h"

namespace tessera::checkpoint {

struct FileTensor {
  const SafetensorsFile* file = nullptr;
  const TensorEntry* entry = nullptr;
};

// Memory that all decoders of a folder share: a few MiB, for MXFP4 up to 64 MiB more, whatever the
// tensors' sizes. Used by one thread.
struct DecodeBuffers {
  const void* owner = nullptr;  // the decoder that filled `scales` and `strip`
  std::vector<std::byte> raw;
  std::vector<float> scales;  // a run of the owner's scales, from `first_scale` on
  std::int64_t first_scale = 0;
  std::vector<std::uint16_t> strip;  // decoded elements, bits of bfloat16
  std::int64_t first_row = 0;        // of the rows in `strip`
  std::int64_t end_row = 0;
};

// One weight, whose elements and scales are tensors of open files, which must outlive it.
class WeightDecoder {
 public:
  virtual ~WeightDecoder() = default;
  // Name, dtype and shape of the decoded weight. It has no place in a file.
  [[nodiscard]] const TensorEntry& entry() const { return entry_; }
  // The tensors of the files: the elements, then their scales.
  [[nodiscard]] const std::vector<FileTensor>& parts() const { return parts_; }
  // Decodes elements [first, first + count) in row-major order to `out`.
  virtual void read(std::int64_t first, std::int64_t count, std::byte* out) const = 0;
  // For 8-bit integers: decodes to the rows of kernels/cpu/matmul/int8_linear.h, uint8 [outputs,
  // bytes of a row]. Null for other weights.
  [[nodiscard]] virtual std::shared_ptr<const WeightDecoder> as_int8_rows() const { return {}; }

 protected:
  WeightDecoder(std::string name, DType dtype, std::vector<std::int64_t> shape,
                std::vector<FileTensor> parts, std::shared_ptr<DecodeBuffers> buffers)
      : entry_{std::move(name), &stored_dtype(dtype), std::move(shape), 0, 0},
        parts_(std::move(parts)),
        buffers_(std::move(buffers)) {}
  // buffers_, without what another decoder left there.
  [[nodiscard]] DecodeBuffers& own_buffers() const;

 private:
  TensorEntry entry_;
  std::vector<FileTensor> parts_;
  std::shared_ptr<DecodeBuffers> buffers_;
};

// How scales lie over the last two dimensions [rows, columns] of a weight: one for each block of
// `block_rows` x `block_columns`. The last blocks of a row or column may be smaller.
struct ScaleGrid {
  std::int64_t block_rows = 1, block_columns = 1;
};

// fp8 (E4M3 of OCP, without infinities, or E5M2): an element times its block's scale in fp32,
// rounded once. Scales are F32, F16, BF16, or exponents of 2 with a bias of 127 (F8_E8M0, U8);
// their number must be that of the grid's blocks.
std::unique_ptr<WeightDecoder> make_fp8_decoder(FileTensor weight, FileTensor scales,
                                                const ScaleGrid& grid,
                                                std::shared_ptr<DecodeBuffers> buffers);
// True for element types of the two arguments.
bool is_fp8(const StoredDType& stored);
bool is_scale(const StoredDType& stored);

// MXFP4 of OCP: `blocks` is U8 [experts, rows, groups, 16], two E2M1 elements a byte, the lower
// half first; `scales` is U8 or F8_E8M0 [experts, rows, groups], exponents of 2 with a bias of 127
// (255: not a number). The decoded weight has transformers' layout [experts, groups * 32, rows].
// Error(checkpoint) for other shapes.
std::unique_ptr<WeightDecoder> make_mxfp4_decoder(std::string name, FileTensor blocks,
                                                  FileTensor scales,
                                                  std::shared_ptr<DecodeBuffers> buffers);

}  // namespace tessera::checkpoint
