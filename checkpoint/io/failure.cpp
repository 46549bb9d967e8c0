// Distinguishes damage from all other failures.
#include "checkpoint/io/failure.h"

#include <fmt/format.h>
#include <algorithm>

namespace tessera::checkpoint {

void fail_path(std::string_view action, const std::filesystem::path& path, const char* call,
               int error_number) {
  throw SystemFailure(error_number, fmt::format("cannot {} '{}': {}", action, path.string(),
                                                describe_errno(call, error_number)));
}

bool is_damage(const Error& error) {
  return error.code() == ErrorCode::checkpoint &&
         dynamic_cast<const SystemFailure*>(&error) == nullptr &&
         dynamic_cast<const Misfit*>(&error) == nullptr;
}

std::string join_some(const std::vector<std::string>& items) {
  constexpr std::size_t shown = 20;
  std::string text = fmt::format(
      "{}",
      fmt::join(items.begin(),
                items.begin() + static_cast<std::ptrdiff_t>(std::min(items.size(), shown)), "; "));
  if (items.size() > shown) text += fmt::format("; and {} more", items.size() - shown);
  return text;
}

}  // namespace tessera::checkpoint
