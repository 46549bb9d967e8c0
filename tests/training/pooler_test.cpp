// The pooler of a BERT, which sentence embeddings do not use, is kept in saved folders, so that
// transformers finds it when it loads one.
#include "checkpoint/load/hugging_face.h"
#include "tests/cli/commands/encoder_testing.h"
#include "tests/training/sentence_testing.h"

namespace tessera::training {
namespace {

namespace fs = std::filesystem;
using testing::Ended;
using testing::losses_in;
using testing::Settings;
using testing::train_sentences;

// The folder's tensors with "pooler" in their names, by name.
std::map<std::string, std::string> pooler_in(const std::string& folder) {
  std::map<std::string, std::string> found;
  const checkpoint::HuggingFaceFolder opened = checkpoint::open_hugging_face(folder);
  for (const auto& [name, place] : opened.tensors) {
    if (name.find("pooler") == std::string::npos) continue;
    std::string& bytes = found[name];
    std::size_t elements = 1;
    for (const std::int64_t size : place.entry->shape) elements *= static_cast<std::size_t>(size);
    bytes.resize(elements * sizeof(float));
    place.read(0, static_cast<std::int64_t>(elements), reinterpret_cast<std::byte*>(bytes.data()));
  }
  return found;
}

class KeptPooler : public ::testing::Test {
 protected:
  // Weights with a pooler, as transformers saves them for a BertModel.
  void add_pooler(const std::string& name) const {
    manual_seed(31);
    const auto model = models::make_sentence_encoder(path(name));
    (void)testing::load_encoder(path(name), *model);
    model->keep_pooler();
    const std::string file = path(name + "/model.safetensors");
    fs::remove(file);
    checkpoint::write_safetensors(file, testing::tensors_of(*model));
  }
  [[nodiscard]] std::string path(const std::string& name) const { return folder_.path(name); }
  [[nodiscard]] Settings into(const std::string& name, int steps) const {
    return folder_.small() + Settings{{"checkpoint.dir", path(name)},
                                      {"checkpoint.every", "100"},
                                      {"train.steps", std::to_string(steps)},
                                      {"log.jsonl", path(name + ".jsonl")}};
  }

  testing::SentenceFolder folder_;
};

TEST_F(KeptPooler, IsInEveryStepAndExportUnchanged) {
  testing::make_encoder_folder(path("base"));
  const Settings base = {{"model.pretrained", path("base")}, {"data.tokenizer", path("base")}};
  train_sentences(2, into("without", 4) + base);
  EXPECT_TRUE(pooler_in(path("without/step-4")).empty());
  add_pooler("base");
  const auto pooler = pooler_in(path("base"));
  ASSERT_EQ(pooler.size(), 2u);
  train_sentences(2, into("with", 2) + base + Settings{{"checkpoint.export", path("exported")}});
  EXPECT_EQ(pooler_in(path("with/step-2")), pooler);
  EXPECT_EQ(pooler_in(path("exported")), pooler);
  // A resumed run keeps it, also in files of the ranks and on another world, and trains as before.
  train_sentences(
      2, into("with", 4) + base + Settings{{"checkpoint.state_dict_type", "SHARDED_STATE_DICT"}});
  EXPECT_EQ(losses_in(path("with.jsonl")), losses_in(path("without.jsonl")));
  train_sentences(
      1, into("with", 5) + base +
             Settings{{"data.batch_size", "8"}, {"sharding.sharding_strategy", "NO_SHARD"}});
  EXPECT_EQ(pooler_in(path("with/step-5")), pooler);
  // It does not change embeddings.
  folder_.write("lines.txt", "a wide mosaic\nthe tile\n");
  for (const char* step : {"with/step-4", "with/step-5"}) {
    const Ended ended = testing::run_program({"encode", path(step), "--input", path("lines.txt"),
                                              "--out", path("e.npy"), "--device", "cpu"});
    EXPECT_EQ(ended.code, 0) << step << ": " << ended.err;
  }
}

// A step of a version that dropped the pooler gets that of the pretrained folder.
TEST_F(KeptPooler, OfAStepWithoutOneIsThePretrainedFolders) {
  for (const char* type : {"FULL_STATE_DICT", "SHARDED_STATE_DICT"}) {
    const std::string name = type;
    folder_.write_encoder("encoder", "bert", 0.1);
    train_sentences(2, into(name, 2) + Settings{{"checkpoint.state_dict_type", type}});
    add_pooler("encoder");
    const Ended resumed = train_sentences(2, into(name, 4));
    EXPECT_NE(resumed.err.find("resumed from " + path(name + "/step-2")), std::string::npos)
        << resumed.err;
    EXPECT_EQ(pooler_in(path(name + "/step-4")), pooler_in(path("encoder")));
  }
  EXPECT_EQ(losses_in(path("FULL_STATE_DICT.jsonl")), losses_in(path("SHARDED_STATE_DICT.jsonl")));
}

TEST_F(KeptPooler, OfAnMpnetToo) {
  folder_.write_encoder("encoder", "mpnet", 0.1);
  add_pooler("encoder");
  train_sentences(1, into("mpnet", 2));
  EXPECT_EQ(pooler_in(path("mpnet/step-2")), pooler_in(path("encoder")));
}

}  // namespace
}  // namespace tessera::training
