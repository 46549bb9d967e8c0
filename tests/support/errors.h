// The errors that a test expects.
#pragma once

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

#include "base/error.h"

namespace tessera::testing {

// Runs `call` and returns the message of the Error that it must throw, one line.
template <class Call>
std::string error_of(Call&& call, ErrorCode code) {
  try {
    (void)call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no Error was thrown";
  return {};
}

// The same for the std::logic_error of a misuse of the API.
template <class Call>
std::string misuse_of(Call&& call) {
  try {
    (void)call();
  } catch (const std::logic_error& error) {
    return error.what();
  }
  ADD_FAILURE() << "no std::logic_error was thrown";
  return {};
}

}  // namespace tessera::testing
