// Checks that a file's rows are complete before other code reads their members.
#pragma once

#include <string>

#include "bench/harness/row.h"

namespace tessera::cli {

// Gives each row its missing members, as unknown values. Throws Error(configuration), which begins
// with `where`, for a member of another type than this version writes.
void check_bench_report(const std::string& where, BenchJson& report);

}  // namespace tessera::cli
