// The value of --dtype, by either of its names.
#pragma once

#include <span>
#include <string>

#include "base/dtype.h"

namespace tessera::cli {

// "fp32" or "float32", and so on, in any case. Error(usage) for what is not one of `allowed`.
DType parse_dtype_option(const std::string& name, std::span<const DType> allowed);

}  // namespace tessera::cli
