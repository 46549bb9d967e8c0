// Encoding, decoding and rounding on the GPU have the CPU's bits.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "cuda/mirrored_array.h"

namespace tessera::testing {
namespace {

using kernels::Wire;
using kernels::WireStep;

std::vector<double> values_for(std::int64_t n) {
  std::vector<double> values = random_values(static_cast<std::size_t>(n), float32, 5);
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = std::ldexp(values[i], static_cast<int>(i / 32 % 13) - 6);
  }
  return values;
}

void expect_same_wire(WireFormat format, DType in_dtype, DType out_dtype, std::int64_t n) {
  const std::vector<double> values = values_for(n);
  MirroredArray in(values, in_dtype);
  MirroredArray out(std::vector<double>(values.size()), out_dtype);
  const std::vector<double> zeros(wire_payload_bytes(format, n) + 1);
  MirroredArray payload(zeros, uint8);
  MirroredArray scales(std::vector<double>(wire_scale_bytes(format, n) + 1), uint8);
  TestContext context;
  const auto run = [&](WireStep step) {
    Wire wire{step,          format, in.host(), out.host(), payload.host(),
              scales.host(), n,      in_dtype,  out_dtype};
    kernels::cpu::wire(wire);
    wire.in = in.device();
    wire.out = out.device();
    wire.payload = payload.device();
    wire.scales = scales.device();
    kernels::cuda::wire(wire, context.queue());
    context.synchronize();
  };
  run(WireStep::round);
  out.expect_same("wire", "rounded");
  run(WireStep::encode);
  payload.expect_same("wire", "payload");
  scales.expect_same("wire", "scales");
  run(WireStep::decode);
  out.expect_same("wire", "decoded");
}

TEST(CudaWire, HasTheCpusBits) {
  for (const WireFormat format :
       {WireFormat::bf16, WireFormat::int8, WireFormat::fp8_e4m3, WireFormat::fp8_e5m2}) {
    for (const std::int64_t n : {0, 1, 31, 32, 33, 1000}) {
      for (const DType dtype : {float32, bfloat16, float16}) {
        expect_same_wire(format, dtype, dtype, n);
        expect_same_wire(format, float32, dtype, n);
      }
    }
  }
}

TEST(CudaWire, RefusesDtypesWithoutAWireFormat) {
  TestContext context;
  const DeviceMemory memory(std::vector<std::byte>(256));
  double* const wide = memory.as<double>();
  EXPECT_THROW(kernels::cuda::wire({WireStep::round, WireFormat::int8, wide, wide, nullptr, nullptr,
                                    32, float64, float64},
                                   context.queue()),
               std::logic_error);
}

}  // namespace
}  // namespace tessera::testing
