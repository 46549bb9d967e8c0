#include "engine/optim/matrices/matrix_owners.h"

#include <algorithm>
#include <numeric>

namespace tessera::optim {

double SharedMatrix::cost() const {
  const auto smaller = static_cast<double>(smaller_side());
  const auto larger = static_cast<double>(rows < columns ? columns : rows);
  return smaller * smaller * (2 * larger + smaller);
}

bool SharedMatrix::is_whole_everywhere() const {
  return std::all_of(parts.begin(), parts.end(),
                     [this](const ElementRange& part) { return part.count == elements(); });
}

std::vector<std::vector<OwnedMatrix>> share_matrices(const std::vector<SharedMatrix>& matrices,
                                                     int ranks) {
  std::vector<std::size_t> order(matrices.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return matrices[a].cost() > matrices[b].cost();
  });
  std::vector<std::vector<OwnedMatrix>> rounds;
  std::vector<bool> taken;
  for (const std::size_t matrix : order) {
    if (rounds.empty() || rounds.back().size() == static_cast<std::size_t>(ranks)) {
      rounds.emplace_back();
      taken.assign(static_cast<std::size_t>(ranks), false);
    }
    const std::vector<ElementRange>& parts = matrices[matrix].parts;
    std::size_t owner = taken.size();
    for (std::size_t rank = 0; rank < taken.size(); ++rank) {
      if (taken[rank]) continue;
      if (owner == taken.size() || parts[rank].count > parts[owner].count) owner = rank;
    }
    taken[owner] = true;
    rounds.back().push_back({matrix, static_cast<int>(owner)});
  }
  return rounds;
}

}  // namespace tessera::optim
