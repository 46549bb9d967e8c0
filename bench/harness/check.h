// Whether a file's rows are whole, before anything reads their members.
#pragma once

#include <string>

#include "bench/harness/row.h"

namespace tessera::cli {

// Gives each row the members that it lacks, as unknown ones. Throws Error(configuration), which
// begins with `where`, for a member of another kind than this version writes.
void check_bench_report(const std::string& where, BenchJson& report);

}  // namespace tessera::cli
