// What a comparison's numbers say of each other, and the table on the terminal.
#pragma once

#include <string>

#include "bench/harness/row.h"

namespace tessera::cli {

// {"processor", "cores", "memory_bytes", "device", ...} of this machine.
BenchJson bench_machine(const std::string& device);

// The members of the first `asked` rows that other rows decide: speed-up and efficiency over one
// rank, MFU and the share of products, and what a peer's row is compared with. Those behind them,
// which nobody asked for, keep theirs.
void derive(BenchJson& report, std::size_t asked);

// The rows, and under them what failed.
std::string bench_text(const BenchJson& report);

// 0, or the code of the first of the `asked` rows in front that was not measured, or failed later.
int bench_exit_code(const BenchJson& report, std::size_t asked);

}  // namespace tessera::cli
