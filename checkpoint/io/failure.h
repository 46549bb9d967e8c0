// Kinds of Error(checkpoint): what is damaged may be passed over for an older step; everything else
// stops.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "base/error.h"

namespace tessera::checkpoint {

// A system call failed (EACCES, EIO, EMFILE, ESTALE ...). That says nothing about what is stored.
class SystemFailure : public Error {
 public:
  SystemFailure(int number, const std::string& message)
      : Error(ErrorCode::checkpoint, message), number_(number) {}
  [[nodiscard]] int number() const noexcept { return number_; }

 private:
  int number_;
};

// The checkpoint is sound and not what was asked for: other tensors, other shapes.
class Misfit : public Error {
 public:
  explicit Misfit(const std::string& message) : Error(ErrorCode::checkpoint, message) {}
};

// Bytes that are missing or not those that were written.
bool is_damage(const Error& error);

// Joined by "; ", the first twenty of them and the number of the rest.
std::string join_some(const std::vector<std::string>& items);

}  // namespace tessera::checkpoint
