// How a program ends after an error: one line and an exit code. Ranks under `tessera launch` pass
// their line to the launcher, which prints a line that several ranks report only once.
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

// The exception being handled, as a failure; no value when it only reports that the reader of our
// output has left. `before_logic_errors` precedes the text of a std::logic_error: in a program
// whose user calls no API such an error is a bug of the program.
std::optional<Failure> current_failure(std::string_view before_logic_errors = "");

// Sends the failure to the launcher if there is one; else prints it to stderr as "tessera: error:
// ...", with the rank when there are several.
void report_failure(const Failure& failure);

// For the exception being handled in a destructor, which cannot pass it on: a ts::run() that would
// return 0 returns the failure's code. Prints "tessera: error: ..." if `prints`, which one rank
// does; `doing` precedes the exception's text.
void report_from_destructor(std::string_view doing, bool prints);
// The code of such a failure since the last call, or 0.
int take_code_of_destructors();

// The message as it is printed: the report of the ranks' calls gets separate lines.
std::string in_lines(std::string message);

// The launcher stores the rank's failure pipe here: DESCRIPTOR:INODE.
inline constexpr const char* failure_pipe_variable = "TESSERA_FAILURE_PIPE";

}  // namespace tessera
