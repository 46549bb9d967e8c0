// Distinguishes damage from all other failures.
#include "checkpoint/io/failure.h"

#include <fmt/format.h>
#include <algorithm>
#include <cerrno>

namespace tessera::checkpoint {

void fail_path(std::string_view action, const std::filesystem::path& path, const char* call,
               int error_number, std::string_view way_out) {
  throw SystemFailure(error_number, fmt::format("cannot {} '{}': {}{}", action, path.string(),
                                                describe_errno(call, error_number), way_out));
}

std::string_view way_out_of_reading(int error_number) {
  const bool rights = error_number == EACCES || error_number == EPERM;
  return rights ? "; give this user the right to read it, or run as its owner" : "";
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
