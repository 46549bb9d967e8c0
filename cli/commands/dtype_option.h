// The value of --dtype, by either of its names.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "base/dtype.h"

namespace tessera::cli {

// "fp32" or "float32", and so on, in any case. Error(usage) for what is not one of `allowed`; its
// message has `also`, too: a name that the caller takes before.
DType parse_dtype_option(const std::string& name, std::span<const DType> allowed,
                         std::string_view also = {});

}  // namespace tessera::cli
