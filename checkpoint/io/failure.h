// Kinds of Error(checkpoint). A damaged step may be skipped for an older one; every other failure
// ends the load.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace tessera::checkpoint {

// A system call failed (EACCES, EIO, EMFILE, ESTALE ...). The stored data may be intact.
class SystemFailure : public Error {
 public:
  SystemFailure(int number, const std::string& message)
      : Error(ErrorCode::checkpoint, message), number_(number) {}
  [[nodiscard]] int number() const noexcept { return number_; }

 private:
  int number_;
};

// The checkpoint is intact but does not match the request: other tensors, other shapes.
class Misfit : public Error {
 public:
  explicit Misfit(const std::string& message) : Error(ErrorCode::checkpoint, message) {}
};

// Throws a SystemFailure: "cannot <action> '<path>': <call> failed: ...<way_out>".
[[noreturn]] void fail_path(std::string_view action, const std::filesystem::path& path,
                            const char* call, int error_number, std::string_view way_out = {});
// The way out of a path that cannot be read; empty if rights are not the reason.
std::string_view way_out_of_reading(int error_number);

// True if bytes are missing or differ from those that were written.
bool is_damage(const Error& error);

// Joins up to twenty items by "; ", with the number of the rest.
std::string join_some(const std::vector<std::string>& items);

}  // namespace tessera::checkpoint
