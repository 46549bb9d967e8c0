// Which names are those of a head.
#include "engine/nn/output_head.h"

#include <gtest/gtest.h>

namespace tessera::nn {
namespace {

TEST(OutputHead, IsANameOrItsEndAfterADot) {
  for (const char* name : {"lm_head", "model.lm_head", "classifier", "a.b.classifier"}) {
    EXPECT_TRUE(is_output_head(name)) << name;
  }
  for (const char* name :
       {"", "xlm_head", "lm_head.0", "lm_heads", "h.0.mlp.c_fc", "classifier.", "preclassifier"}) {
    EXPECT_FALSE(is_output_head(name)) << name;
  }
}

}  // namespace
}  // namespace tessera::nn
