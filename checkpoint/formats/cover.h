// Proof that boxes cover an array exactly once.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::checkpoint::formats {

// A part of an array: its first element and its extent in each dimension.
struct Box {
  std::vector<std::int64_t> offsets;
  std::vector<std::int64_t> sizes;
};

// Empty if every element of the array lies in exactly one box and no box leaves the array;
// otherwise the problem and its place. Takes time of boxes x log(boxes) for any arrangement.
std::string cover_problem(const std::vector<std::int64_t>& shape, const std::vector<Box>& boxes);

}  // namespace tessera::checkpoint::formats
