// Counts with their nouns, as text.
#include "base/counted.h"

#include <gtest/gtest.h>

namespace tessera {
namespace {

TEST(Counted, OneIsNotMany) {
  EXPECT_EQ(counted(1, "rank"), "1 rank");
  EXPECT_EQ(counted(0, "rank"), "0 ranks");
  EXPECT_EQ(counted(std::size_t{2}, "more rank"), "2 more ranks");
  EXPECT_EQ(counted(3, "batch"), "3 batches");
  EXPECT_EQ(counted(1, "batch"), "1 batch");
  EXPECT_EQ(counted(2, "entry"), "2 entries");
  EXPECT_EQ(counted(2, "array"), "2 arrays");
}

}  // namespace
}  // namespace tessera
