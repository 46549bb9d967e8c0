// sharding.ignored_modules in the program: frozen and whole, as planned to the byte, the same under
// every strategy, saved and resumed, taken from Accelerate's files, refused by one line.
#include "tests/training/strategies_testing.h"

namespace tessera::training {
namespace {

using testing::Ended;
using testing::losses_in;
using testing::run_program;
using testing::Settings;
using testing::train;
using testing::train_arguments;
using testing::TrainingFolder;

// A whole layer and a module of the root; a block of width 64 has 49,984 parameters.
const Settings leaves_some = {{"sharding.ignored_modules", "[transformer.h.0, transformer.ln_f]"}};

TEST(IgnoredModulesRecipe, IsTheSameUnderEveryStrategy) {
  testing::expect_equal_bits(2, {2},
                             leaves_some + Settings{{"sharding.mixed_precision", "bf16"},
                                                    {"train.gradient_accumulation_steps", "2"}});
}

TEST(IgnoredModulesRecipe, TakesThePlannedMemoryAndResumes) {
  const TrainingFolder folder;
  const Settings six = folder.small() + leaves_some + Settings{{"train.steps", "6"}};
  const Ended whole = train(2, six + Settings{{"log.jsonl", folder.path("whole")},
                                              {"log.memory", folder.path("memory.json")}});
  EXPECT_NE(whole.err.find(", 50112 ignored: whole and frozen, FULL_SHARD"), std::string::npos)
      << whole.err;
  const auto log = nlohmann::json::parse(testing::read_text(folder.path("memory.json")));
  for (const char* kind : {"parameters", "gradients", "optimizer", "communication"}) {
    EXPECT_EQ(log["planned"][kind], log["measured"][kind]) << kind;
  }
  const Settings saving = {{"log.jsonl", folder.path("parts")},
                           {"checkpoint.dir", folder.path("out")},
                           {"checkpoint.every", "3"}};
  train(2, six + saving + Settings{{"train.steps", "3"}, {"checkpoint.async", "true"}});
  const Ended rest = train(2, six + saving +
                                  Settings{{"sharding.sharding_strategy", "SHARD_OPTIMIZER"},
                                           {"sharding.ignored_modules", "transformer.(h.0|ln_f)"}});
  EXPECT_NE(rest.err.find("resumed from "), std::string::npos) << rest.err;
  EXPECT_EQ(losses_in(folder.path("parts")), losses_in(folder.path("whole")));
}

TEST(IgnoredModulesRecipe, IsTakenFromAcceleratesFile) {
  const TrainingFolder folder;
  folder.write("a.yaml",
               "distributed_type: FSDP\nfsdp_config:\n  fsdp_ignored_modules: transformer.h.1\n");
  auto arguments = train_arguments(folder.small());
  arguments.insert(arguments.end(), {"--config-file", folder.path("a.yaml")});
  const Ended ended = run_program(arguments);
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_NE(ended.err.find("these modules are frozen here: their gradients are not reduced"),
            std::string::npos)
      << ended.err;
  EXPECT_NE(ended.err.find(", 49984 ignored: whole and frozen"), std::string::npos) << ended.err;
}

TEST(IgnoredModulesRecipe, BadValuesAreRefusedByOneLine) {
  const TrainingFolder folder;
  const std::string key = "sharding.ignored_modules";
  const std::vector<std::pair<Settings, std::string>> cases = {
      {{{key, "[]"}}, ": sharding.ignored_modules is an empty list; name modules, as [lm_head, "},
      {{{key, "'('"}}, ": sharding.ignored_modules: \"(\" is not a regular expression"},
      {{{key, "[transformer.h.9]"}},
       ": sharding.ignored_modules: no module is called \"transformer.h.9\"; transformer.h has 0, "
       "1"},
      {{{key, "head"}}, ": sharding.ignored_modules: no module's whole name matches \"head\""},
      {{{key, "transformer"}},
       ": sharding.ignored_modules: parameter transformer.wte.weight is used outside of the "
       "ignored modules as well (tied)"},
      {{{key, "[transformer.h.0.mlp.c_fc]"}, {"sharding.mixed_precision", "bf16"}},
       "ignored_modules: transformer.h.0.mlp.c_fc keeps its own dtype beside param_dtype bfloat16"},
      {{{key, "[transformer.h.0]"}, {"model.lora.target_modules", "[c_attn]"}},
       ": sharding.ignored_modules: transformer.h.0.attn.c_attn.lora_A.weight is trained beside "
       "the model (model.lora)"},
      {{{"sharding.buffer_dtype", "bf16"}},
       ": sharding.buffer_dtype is not supported: a buffer keeps its own dtype, and the models of "
       "a recipe have none; "},
  };
  for (const auto& [settings, message] : cases) {
    const Ended ended = run_program(train_arguments(folder.small() + settings));
    EXPECT_EQ(ended.code, 3) << ended.err;
    EXPECT_NE(ended.err.find(message), std::string::npos) << ended.err;
    EXPECT_EQ(std::count(ended.err.begin(), ended.err.end(), '\n'), 1) << ended.err;
    EXPECT_TRUE(ended.out.empty()) << ended.out;
  }
}

}  // namespace
}  // namespace tessera::training
