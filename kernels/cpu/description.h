// Describes the processor, and the libraries under the CPU kernels, for reports.
#pragma once

#include <string>

namespace tessera::kernels::cpu {

struct Description {
  std::string onednn_version;  // of the library in use
  std::string onednn_isa;      // the instruction sets that it will use here
  std::string highway_version;
  std::string highway_target;  // the best compiled target that this processor supports
  bool bf16_products = false;  // matrix products on bf16 instructions; otherwise widened to fp32
};

Description describe();

}  // namespace tessera::kernels::cpu
