// Numbers of frozen weights on the GPU have the CPU's bits.
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "cuda/mirrored_array.h"
#include "kernels/blocks.h"

namespace tessera::testing {
namespace {

using kernels::Dequantize;

std::vector<std::byte> codes_for(QuantizedFormat format, std::int64_t rows, std::int64_t columns) {
  const auto n = static_cast<std::size_t>(rows * columns);
  std::vector<float> values;
  for (const double value : random_values(n, float32, 9)) {
    values.push_back(static_cast<float>(value));
  }
  std::vector<std::byte> bytes(static_cast<std::size_t>(quantized_bytes(format, rows, columns)));
  if (format == QuantizedFormat::int8) {
    for (std::int64_t row = 0; row < rows; ++row) {
      const float scale = kernels::cpu::encode_int8_row(values.data() + row * columns,
                                                        bytes.data() + row * columns, columns);
      std::memcpy(bytes.data() + rows * columns + 4 * row, &scale, 4);
    }
    return bytes;
  }
  const Nf4Layout layout(rows * columns);
  std::vector<float> scales(static_cast<std::size_t>(layout.blocks));
  kernels::cpu::encode_nf4(values.data(), bytes.data(), scales.data(), layout.blocks);
  kernels::cpu::encode_nf4_scales(scales.data(), rows * columns, bytes.data() + layout.scale_codes);
  return bytes;
}

void expect_same_numbers(Dequantize call, TestContext& context) {
  MirroredArray weight(codes_for(call.format, call.rows, call.columns), uint8);
  const auto count = static_cast<std::size_t>(call.row_count * call.column_count);
  MirroredArray out(std::vector<double>(count), call.dtype);
  call.weight = weight.host();
  call.out = out.host();
  kernels::cpu::dequantize(call);
  call.weight = weight.device();
  call.out = out.device();
  kernels::cuda::dequantize(call, context.queue());
  context.synchronize();
  out.expect_same("dequantize", "numbers");
}

TEST(CudaDequantize, HasTheCpusBits) {
  TestContext context;
  for (const QuantizedFormat format : {QuantizedFormat::nf4, QuantizedFormat::int8}) {
    for (const DType dtype : {float32, bfloat16, float16}) {
      for (const auto& [rows, columns] :
           {std::pair<std::int64_t, std::int64_t>{150, 128}, {64, 67}}) {
        const Dequantize whole{.format = format,
                               .weight = nullptr,
                               .out = nullptr,
                               .rows = rows,
                               .columns = columns,
                               .first_row = 0,
                               .row_count = rows,
                               .first_column = 0,
                               .column_count = columns,
                               .dtype = dtype};
        expect_same_numbers(whole, context);
        Dequantize part = whole;
        part.first_row = 5;
        part.row_count = rows - 7;
        part.first_column = 3;
        part.column_count = columns - 8;
        expect_same_numbers(part, context);
      }
    }
  }
}

TEST(CudaDequantize, RefusesDtypesWithoutNumbers) {
  TestContext context;
  const DeviceMemory memory(std::vector<std::byte>(1024));
  EXPECT_THROW(kernels::cuda::dequantize({.format = QuantizedFormat::nf4,
                                          .weight = memory.as<std::byte>(),
                                          .out = memory.as<double>(),
                                          .rows = 1,
                                          .columns = 64,
                                          .first_row = 0,
                                          .row_count = 1,
                                          .first_column = 0,
                                          .column_count = 64,
                                          .dtype = float64},
                                         context.queue()),
               std::logic_error);
}

}  // namespace
}  // namespace tessera::testing
