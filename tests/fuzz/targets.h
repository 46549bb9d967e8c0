// The parsers of foreign bytes, each as a function that takes any bytes: it returns, or the parser
// is wrong.
#pragma once

#include <string_view>
#include <vector>

namespace tessera::fuzz {

struct FuzzTarget {
  const char* name;  // of its folder in corpus/ too
  // Refusals (tessera::Error) are swallowed; everything else that a parser throws is a finding.
  void (*run)(std::string_view bytes);
};

const std::vector<FuzzTarget>& fuzz_targets();

}  // namespace tessera::fuzz
