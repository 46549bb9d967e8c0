// Owners of matrices: each is owned once, the work is even, and parts decide between equals.
#include "engine/optim/matrices/matrix_owners.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

namespace tessera::optim {
namespace {

// Matrices one behind the other, cut into equal parts.
std::vector<SharedMatrix> cut(const std::vector<std::pair<int, int>>& shapes, int ranks) {
  std::int64_t total = 0;
  for (const auto& [rows, columns] : shapes) total += std::int64_t{rows} * columns;
  const std::int64_t share = (total + ranks - 1) / ranks;
  std::vector<SharedMatrix> matrices;
  std::int64_t first = 0;
  for (const auto& [rows, columns] : shapes) {
    SharedMatrix matrix{rows, columns, {}};
    for (int rank = 0; rank < ranks; ++rank) {
      const ElementRange part = intersect({first, matrix.elements()}, {rank * share, share});
      matrix.parts.push_back({part.count == 0 ? 0 : part.first - first, part.count});
    }
    first += matrix.elements();
    matrices.push_back(std::move(matrix));
  }
  return matrices;
}

TEST(MatrixOwners, HaveEachMatrixOnceAndEvenWork) {
  std::vector<std::pair<int, int>> shapes;
  for (int layer = 0; layer < 5; ++layer) {
    for (const auto& shape : {std::pair{96, 32}, {32, 32}, {128, 32}, {32, 128}, {8, 300}})
      shapes.push_back(shape);
  }
  for (const int ranks : {1, 2, 3, 7, 64}) {
    const std::vector<SharedMatrix> matrices = cut(shapes, ranks);
    std::set<std::size_t> seen;
    double largest = 0, total = 0, taken = 0;
    for (const SharedMatrix& matrix : matrices) {
      largest = std::max(largest, matrix.cost());
      total += matrix.cost();
    }
    for (const auto& round : share_matrices(matrices, ranks)) {
      std::set<int> owners;
      double slowest = 0;
      for (const OwnedMatrix& owned : round) {
        EXPECT_TRUE(seen.insert(owned.matrix).second);
        EXPECT_TRUE(owners.insert(owned.owner).second);
        EXPECT_LT(owned.owner, ranks);
        slowest = std::max(slowest, matrices[owned.matrix].cost());
      }
      taken += slowest;
    }
    EXPECT_EQ(seen.size(), matrices.size());
    EXPECT_LE(taken, largest + total / ranks) << ranks;
  }
}

TEST(MatrixOwners, HoldTheLargestPartWhereTheyCan) {
  const std::vector<SharedMatrix> matrices = cut({{4, 4}, {4, 4}, {4, 4}}, 3);
  const auto rounds = share_matrices(matrices, 3);
  ASSERT_EQ(rounds.size(), 1u);
  for (const OwnedMatrix& owned : rounds[0]) {
    EXPECT_EQ(static_cast<int>(owned.matrix), owned.owner);
  }
  // Rank 0 has most of both; the more expensive matrix comes first.
  const std::vector<SharedMatrix> both{{2, 8, {{0, 12}, {12, 4}}}, {8, 8, {{0, 60}, {60, 4}}}};
  const auto round = share_matrices(both, 2).at(0);
  EXPECT_EQ(round.at(0).matrix, 1u);
  EXPECT_EQ(round.at(0).owner, 0);
  EXPECT_EQ(round.at(1).owner, 1);
}

TEST(MatrixOwners, ShareWholeCopiesInOrder) {
  std::vector<SharedMatrix> matrices(3, {4, 5, {{0, 20}, {0, 20}}});
  EXPECT_TRUE(matrices[0].is_whole_everywhere());
  const auto rounds = share_matrices(matrices, 2);
  ASSERT_EQ(rounds.size(), 2u);
  EXPECT_EQ(rounds[0][0].owner, 0);
  EXPECT_EQ(rounds[0][1].owner, 1);
  EXPECT_EQ(rounds[1].size(), 1u);
  EXPECT_TRUE(share_matrices({}, 2).empty());
}

}  // namespace
}  // namespace tessera::optim
