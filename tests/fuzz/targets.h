// The parsers of untrusted bytes, each as a function that accepts any bytes and must return.
#pragma once

#include <string_view>
#include <vector>

namespace tessera::fuzz {

struct FuzzTarget {
  const char* name;  // also the name of its folder in corpus/
  // Refusals (tessera::Error) are caught; any other exception of a parser is a finding.
  void (*run)(std::string_view bytes);
};

const std::vector<FuzzTarget>& fuzz_targets();

}  // namespace tessera::fuzz
