// Boxes cover an array exactly once when their indicator functions add up to the array's. A
// function that is zero far away is determined by its differences along all dimensions, and those
// of a box are +1 and -1 at its corners: so the corners of all boxes must cancel but for the
// array's own.
#include "checkpoint/formats/cover.h"

#include <fmt/format.h>
#include <algorithm>
#include <utility>

#include "checkpoint/safetensors/safetensors.h"

namespace tessera::checkpoint::formats {

namespace {

constexpr std::size_t cut_dimensions_limit = 8;
constexpr std::size_t corners_limit = std::size_t{1} << 24;  // of some 100 bytes each

struct Corner {
  std::vector<std::int64_t> at;
  int sign = 1;
};

void add_corners(std::vector<Corner>& corners, const Box& box, const std::vector<std::size_t>& cut,
                 int sign) {
  for (std::size_t choice = 0; choice < (std::size_t{1} << cut.size()); ++choice) {
    Corner corner{std::vector<std::int64_t>(cut.size()), sign};
    for (std::size_t i = 0; i < cut.size(); ++i) {
      const bool far = ((choice >> i) & 1) != 0;
      corner.at[i] = box.offsets[cut[i]] + (far ? box.sizes[cut[i]] : 0);
      if (far) corner.sign = -corner.sign;
    }
    corners.push_back(std::move(corner));
  }
}

bool is_empty(const std::vector<std::int64_t>& sizes) {
  return std::find(sizes.begin(), sizes.end(), 0) != sizes.end();
}

std::string bounds_problem(const std::vector<std::int64_t>& shape, const Box& box) {
  if (box.offsets.size() != shape.size() || box.sizes.size() != shape.size()) {
    return fmt::format("a chunk has {} dimensions, the tensor {}", box.sizes.size(), shape.size());
  }
  for (std::size_t d = 0; d < shape.size(); ++d) {
    if (box.offsets[d] < 0 || box.sizes[d] < 0 || box.offsets[d] > shape[d] ||
        box.sizes[d] > shape[d] - box.offsets[d]) {
      return fmt::format("the chunk of shape {} at {} reaches out of the tensor's {}",
                         describe_shape(box.sizes), describe_shape(box.offsets),
                         describe_shape(shape));
    }
  }
  return {};
}

}  // namespace

std::string cover_problem(const std::vector<std::int64_t>& shape, const std::vector<Box>& boxes) {
  std::vector<bool> is_cut(shape.size(), false);
  std::vector<const Box*> full;  // those with elements
  for (const Box& box : boxes) {
    if (std::string problem = bounds_problem(shape, box); !problem.empty()) return problem;
    if (is_empty(box.sizes)) continue;
    full.push_back(&box);
    for (std::size_t d = 0; d < shape.size(); ++d) {
      if (box.sizes[d] != shape[d]) is_cut[d] = true;
    }
  }
  if (is_empty(shape)) return {};
  if (full.empty()) return "no chunk of it is there";
  std::vector<std::size_t> cut;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    if (is_cut[d]) cut.push_back(d);
  }
  if (cut.size() > cut_dimensions_limit) {
    return fmt::format("it is cut along {} dimensions, more than {}", cut.size(),
                       cut_dimensions_limit);
  }
  if (full.size() >= corners_limit >> cut.size()) {
    return fmt::format("it is cut along {} dimensions into {} chunks, too many", cut.size(),
                       full.size());
  }
  std::vector<Corner> corners;
  corners.reserve((full.size() + 1) << cut.size());
  for (const Box* box : full) add_corners(corners, *box, cut, 1);
  add_corners(corners, {std::vector<std::int64_t>(shape.size(), 0), shape}, cut, -1);
  std::sort(corners.begin(), corners.end(),
            [](const Corner& a, const Corner& b) { return a.at < b.at; });
  for (std::size_t i = 0; i < corners.size();) {
    std::int64_t sum = 0;
    std::size_t end = i;
    while (end < corners.size() && corners[end].at == corners[i].at) sum += corners[end++].sign;
    if (sum != 0) {
      // All corners before this one cancel, so the sum is the excess at this element.
      std::vector<std::int64_t> element(shape.size(), 0);
      for (std::size_t k = 0; k < cut.size(); ++k) element[cut[k]] = corners[i].at[k];
      return fmt::format("element {} lies in {}", describe_shape(element),
                         sum > 0 ? "more than one chunk" : "no chunk");
    }
    i = end;
  }
  return {};
}

}  // namespace tessera::checkpoint::formats
