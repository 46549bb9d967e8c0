// Numbers that compare rows with each other, and the table on the terminal.
#pragma once

#include <string>

#include "bench/harness/result.h"

namespace tessera::bench {

// This node.
BenchMachine bench_machine(const std::string& device);

// Sets the members of the first `asked` rows that depend on other rows: speed-up and efficiency
// over one rank, MFU and the share of products, and the comparison of a peer's row. The rows after
// them, which were not requested, keep theirs.
void derive(BenchReport& report, std::size_t asked);

// The rows, followed by the failures.
std::string bench_text(const BenchReport& report);

// 0, or the code of the first of the `asked` first rows that was not measured, or that failed
// later.
int bench_exit_code(const BenchReport& report, std::size_t asked);

}  // namespace tessera::bench
