// What the processor and the libraries under the CPU kernels are, for reports.
#pragma once

#include <string>

namespace tessera::kernels::cpu {

struct Description {
  std::string onednn_version;  // of the library that runs
  std::string onednn_isa;      // the instruction sets that it will use here
  std::string highway_version;
  std::string highway_target;  // the best one that is compiled and that this processor has
  bool bf16_products = false;  // matrix products on bf16 instructions; otherwise widened to fp32
};

Description describe();

}  // namespace tessera::kernels::cpu
