// How a program ends when something went wrong: one line and an exit code. Ranks under `tessera
// launch` hand their line to the launcher, which prints what several ranks say alike once.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace tessera {

struct Failure {
  int code = 1;
  std::string message;
  int rank = 0;
};

// The exception being handled as a failure; none when it only says that nobody reads our output any
// more. `before_logic_errors` comes before the text of a std::logic_error: in a program whose user
// calls no API it is an error of the program.
std::optional<Failure> current_failure(std::string_view before_logic_errors = "");

// To the launcher if there is one, else to stderr as "tessera: error: ...", with the rank where
// there are several.
void report_failure(const Failure& failure);

// The message as it is printed: the report of what the ranks have called gets lines of its own.
std::string in_lines(std::string message);

// Where the launcher says which pipe of the rank's leads to it: DESCRIPTOR:INODE.
inline constexpr const char* failure_pipe_variable = "TESSERA_FAILURE_PIPE";

}  // namespace tessera
