// Whether a launcher started these ranks again, and by what name its restarts know each other.
#pragma once

#include <string>

namespace tessera::cli {

// How often this rank's launcher (tessera launch, torchrun) has started the ranks again; 0 the
// first time and without a launcher.
int restart_count();

// 16 hexadecimal digits that are the same in every restart of one launch and in no other launch:
// the launcher's own, or of torchrun's process and job. Empty without a launcher.
std::string launch_id();

// The variable that tessera launch sets.
inline constexpr const char* launch_variable = "TESSERA_LAUNCH_ID";

}  // namespace tessera::cli
