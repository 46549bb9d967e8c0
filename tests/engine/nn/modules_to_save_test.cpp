// Modules that are trained whole beside adapters: which are selected, and what is frozen.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "engine/nn/lora.h"
#include "engine/nn/module_list.h"
#include "engine/random.h"
#include "support/errors.h"

namespace tessera {
namespace {

using ModuleNames = std::vector<std::string>;

constexpr std::int64_t saved_width = 4;

class SavedBlockImpl : public nn::Module {
 public:
  SavedBlockImpl() {
    q_proj_ = register_module("q_proj", nn::Linear(saved_width, saved_width));
    layernorm_ = register_module("layernorm", nn::LayerNorm(saved_width));
    drop_ = register_module("drop", nn::Dropout(0.0));
  }
  Tensor forward(const Tensor& x) const { return drop_(layernorm_(q_proj_(x))); }

 private:
  nn::Linear q_proj_;
  nn::LayerNorm layernorm_;
  nn::Dropout drop_;
};
TESSERA_MODULE(SavedBlock);

class SavedNet : public nn::Module {
 public:
  explicit SavedNet(bool tied = false) {
    tokens_ = register_module("tokens", nn::Embedding(5, saved_width));
    std::vector<SavedBlock> blocks;
    for (int i = 0; i < 2; ++i) blocks.emplace_back(std::make_shared<SavedBlockImpl>());
    layers_ = register_module("layers", nn::ModuleList<SavedBlock>(std::move(blocks)));
    norm_ = register_module("norm", nn::LayerNorm(saved_width));
    lm_head_ = register_module("lm_head", nn::Linear(saved_width, 3));
    if (tied) reads_parameter(tokens_->weight());
  }

 private:
  nn::Embedding tokens_;
  nn::ModuleList<SavedBlock> layers_;
  nn::LayerNorm norm_;
  nn::Linear lm_head_;
};

LoraOptions saving(const ModuleNames& modules) {
  return {.rank = 2, .target_modules = {"q_proj"}, .modules_to_save = modules};
}

ModuleNames selected(const ModuleNames& modules) {
  SavedNet net;
  return modules_to_save(net, saving(modules));
}

std::string refusal_of(const ModuleNames& modules, bool tied = false) {
  SavedNet net(tied);
  return testing::error_of([&] { check_modules_to_save(net, saving(modules)); },
                           ErrorCode::configuration);
}

TEST(ModulesToSave, AreMatchedAsPeftDoes) {
  EXPECT_EQ(selected({}), ModuleNames{});
  EXPECT_EQ(selected({"head"}), ModuleNames{"lm_head"});
  // The end of a name may begin inside one of its parts.
  EXPECT_EQ(selected({"norm"}), (ModuleNames{"layers.0.layernorm", "layers.1.layernorm", "norm"}));
  EXPECT_EQ(selected({"lm_head", "tokens"}), (ModuleNames{"tokens", "lm_head"}));
  // Parts of a selected module belong to it, and unknown names are passed over.
  EXPECT_EQ(selected({"layers.1", "layernorm", "classifier"}),
            (ModuleNames{"layers.0.layernorm", "layers.1"}));
}

TEST(ModulesToSave, TheNameOfAParameterDecides) {
  EXPECT_TRUE(is_in_module_to_save("lm_head.weight", {"head"}));
  EXPECT_TRUE(is_in_module_to_save("layers.1.q_proj.weight", {"layers.1"}));
  EXPECT_FALSE(is_in_module_to_save("layers.1.q_proj.weight", {"weight"}));
  EXPECT_FALSE(is_in_module_to_save("layers.1.q_proj.weight", {}));
  EXPECT_FALSE(is_in_module_to_save("weight", {"weight"}));
}

TEST(ModulesToSave, AreLeftTrainedInTheirDtype) {
  manual_seed(5);
  SavedNet net;
  const LoraOptions options = saving({"lm_head", "norm"});
  freeze(net, bfloat16, {}, modules_to_save(net, options));
  add_lora(net, options);
  for (const auto& [name, tensor, shape] : net.named_parameters()) {
    const bool saved = is_in_module_to_save(name, options.modules_to_save);
    EXPECT_EQ(tensor.requires_grad(), saved || is_lora_parameter(name)) << name;
    EXPECT_EQ(tensor.dtype(), saved || is_lora_parameter(name) ? float32 : bfloat16) << name;
  }
  // Also after a freeze of everything.
  SavedNet again;
  freeze(again);
  add_lora(again, options);
  for (const auto& [name, tensor, shape] : again.named_parameters()) {
    const bool saved = is_in_module_to_save(name, options.modules_to_save);
    EXPECT_EQ(tensor.requires_grad(), saved || is_lora_parameter(name)) << name;
  }
}

TEST(ModulesToSave, WrongNamesAreRefusedWithTheExistingOnes) {
  EXPECT_EQ(refusal_of({"lm_head", "score"}),
            "LoRA: modules_to_save: no module's name ends with \"score\"; there are layernorm, "
            "lm_head, norm, q_proj, tokens");
  EXPECT_NE(refusal_of({"drop"}).find("layers.1.drop of class Dropout has no parameters; there are "
                                      "layernorm"),
            std::string::npos);
  EXPECT_NE(refusal_of({"layers"}).find("layers is a list of modules; name the modules in it"),
            std::string::npos);
  EXPECT_NE(refusal_of({"norm", "layers.0"}).find("layers.0.layernorm is a part of layers.0"),
            std::string::npos);
  EXPECT_NE(refusal_of({""}).find("an empty name"), std::string::npos);
  EXPECT_NE(refusal_of({"q_proj"})
                .find("layers.0.q_proj is trained whole, and target_modules gives "
                      "layers.0.q_proj an adapter"),
            std::string::npos);
  EXPECT_NE(refusal_of({"layers.1"})
                .find("layers.1 is trained whole, and target_modules gives "
                      "layers.1.q_proj an adapter"),
            std::string::npos);
  SavedNet net;
  EXPECT_THROW(add_lora(net, saving({"score"})), Error);
}

TEST(ModulesToSave, ATiedTableIsRefused) {
  EXPECT_NE(refusal_of({"tokens"}, true).find("tokens.weight is also read by SavedNet"),
            std::string::npos);
  SavedNet net(true);
  EXPECT_THROW((void)modules_to_save(net, saving({"tokens"})), Error);
  EXPECT_EQ(modules_to_save(net, saving({"lm_head"})), ModuleNames{"lm_head"});
}

}  // namespace
}  // namespace tessera
