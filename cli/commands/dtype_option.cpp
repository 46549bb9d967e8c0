// Names of dtypes on the command line.
#include "cli/commands/dtype_option.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/text/nearest.h"
#include "training/recipe/values.h"

namespace tessera::cli {
namespace {

struct DTypeName {
  std::string_view name, long_name;
  DType dtype;
};
constexpr auto dtype_names = std::to_array<DTypeName>({{"fp32", "float32", DType::float32},
                                                       {"bf16", "bfloat16", DType::bfloat16},
                                                       {"fp16", "float16", DType::float16},
                                                       {"fp64", "float64", DType::float64}});

}  // namespace

DType parse_dtype_option(const std::string& name, std::span<const DType> allowed,
                         std::string_view also) {
  const std::string word = training::lower_case(name);
  std::string list;
  std::vector<std::string> candidates;
  for (const DTypeName& one : dtype_names) {
    if (std::find(allowed.begin(), allowed.end(), one.dtype) == allowed.end()) continue;
    if (word == one.name || word == one.long_name) return one.dtype;
    list += fmt::format("{}{}", list.empty() ? "" : ", ", one.name);
    candidates.insert(candidates.end(), {std::string(one.name), std::string(one.long_name)});
  }
  if (!also.empty()) {
    list += fmt::format(", {}", also);
    candidates.emplace_back(also);
  }
  fail(ErrorCode::usage, "--dtype {}: must be one of {}{}", name, list,
       did_you_mean(word, candidates));
}

}  // namespace tessera::cli
