// Sentence Transformers folders: which ones are read, which are refused by name, and a step folder
// that is one.
#include "models/sentence_encoder/sentence_encoder.h"

#include <gtest/gtest.h>

#include <cmath>

#include "checkpoint/convert/convert.h"
#include "checkpoint/safetensors/safetensors.h"
#include "checkpoint/sharded_state.h"
#include "checkpoint/support.h"
#include "models/encoder_testing.h"
#include "sharding/sharding_testing.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using checkpoint::testing::error_of;
using checkpoint::testing::has;
using checkpoint::testing::read_all;
using checkpoint::testing::write_all;
using models::SentenceEncoder;
using nlohmann::json;
using testing::TemporaryFolder;

const json old_pooling = {{"word_embedding_dimension", 12},
                          {"pooling_mode_cls_token", true},
                          {"pooling_mode_mean_tokens", true},
                          {"pooling_mode_max_tokens", false}};

// The folder of a tiny BERT with pooling, a dense layer and normalisation, in the format of
// Sentence Transformers before version 5 (or from 5 on).
class EncoderFolder {
 public:
  explicit EncoderFolder(bool recent = false) {
    const std::string old = "sentence_transformers.models.";
    const std::string base = "sentence_transformers.base.modules.";
    modules = json::array();
    add("", recent ? base + "transformer.Transformer" : old + "Transformer");
    add("1_Pooling", recent ? "sentence_transformers.sentence_transformer.modules.pooling.Pooling"
                            : old + "Pooling");
    add("2_Dense", recent ? base + "dense.Dense" : old + "Dense");
    add("3_Normalize", recent ? base + "normalize.Normalize" : old + "Normalize");
    pooling = recent ? json{{"embedding_dimension", 12},
                            {"pooling_mode", {"mean", "cls"}},
                            {"include_prompt", true}}
                     : old_pooling;
    dense = {{"in_features", 24},
             {"out_features", 5},
             {"bias", true},
             {"activation_function", "torch.nn.modules.activation.Tanh"}};
    lengths = {{"max_seq_length", 9}, {"do_lower_case", true}};
    write();
  }
  void add(const std::string& path, const std::string& type) {
    modules.push_back({{"idx", modules.size()},
                       {"name", std::to_string(modules.size())},
                       {"path", path},
                       {"type", type}});
  }
  void write() const {
    put("config.json", testing::tiny_encoder("bert"));
    put("modules.json", modules);
    put("sentence_bert_config.json", lengths);
    put("1_Pooling/config.json", pooling);
    put("2_Dense/config.json", dense);
  }
  void put(const std::string& name, const json& value) const {
    const fs::path path = folder_.path() / name;
    fs::create_directories(path.parent_path());
    write_all(path, value.dump(1));
  }
  [[nodiscard]] std::string path() const { return folder_.path().string(); }
  [[nodiscard]] std::string refusal() const {
    write();
    return error_of([&] { (void)models::make_sentence_encoder(path()); }, ErrorCode::configuration);
  }

  json modules, pooling, dense, lengths;

 private:
  TemporaryFolder folder_;
};

std::vector<checkpoint::LogicalTensor> whole(const nn::Module& module) {
  std::vector<checkpoint::LogicalTensor> tensors;
  for (const auto& [name, tensor, shape] : module.named_parameters()) {
    tensors.push_back({name,
                       tensor.dtype(),
                       {shape.sizes().begin(), shape.sizes().end()},
                       {{0, tensor.elements(), tensor.raw_data()}}});
  }
  return tensors;
}

std::vector<double> embeddings(const SentenceEncoder& model) {
  return model.forward(testing::encoder_batch({4, 9, 1}, 9)).to_vector();
}

TEST(SentenceEncoders, FoldersOfBothFormats) {
  for (const bool recent : {false, true}) {
    const EncoderFolder folder(recent);
    ASSERT_TRUE(models::is_sentence_encoder_folder(folder.path()));
    const auto model = models::make_sentence_encoder(folder.path());
    EXPECT_EQ(model->dimension(), 5);
    EXPECT_EQ(model->max_seq_length(), 9);
    EXPECT_TRUE(model->do_lower_case());
    EXPECT_EQ(model->tensor_folders(), std::set<std::string>{"2_Dense"});
    EXPECT_EQ(model->layer_class(), "BertLayer");
    const auto parameters = model->named_parameters();
    EXPECT_EQ(parameters.front().name, "embeddings.word_embeddings.weight");
    EXPECT_EQ(parameters.back().name, "2_Dense.linear.bias");
    EXPECT_EQ(parameters[parameters.size() - 2].shape, (Shape{5, 24}));
    model->eval();
    const Tensor out = model->forward(testing::encoder_batch({4, 9}, 9));
    ASSERT_EQ(out.shape(), (Shape{2, 5}));
    const auto values = out.to_vector();
    double square = 0;
    for (std::size_t i = 0; i < 5; ++i) square += values[i] * values[i];
    EXPECT_NEAR(square, 1.0, 1e-6);
    for (const auto& [name, text] : model->files()) {
      EXPECT_EQ(text, read_all(fs::path(folder.path()) / name)) << name;
    }
    EXPECT_EQ(model->files().size(), 4u);
  }
}

// The older spelling has no order: cls comes before mean; the newer one has an order.
TEST(SentenceEncoders, PooledPartsAreInOrder) {
  const auto pooled = [](bool recent) {
    EncoderFolder folder(recent);
    folder.modules.erase(folder.modules.begin() + 2, folder.modules.end());
    folder.write();
    manual_seed(3);
    const auto model = models::make_sentence_encoder(folder.path());
    model->eval();
    return embeddings(*model);
  };
  const auto old = pooled(false), recent = pooled(true);
  ASSERT_EQ(old.size(), 3u * 24u);
  EXPECT_NE(old, recent);
  for (std::size_t i = 0; i < 12; ++i) {
    EXPECT_EQ(old[i], recent[12 + i]);
    EXPECT_EQ(old[12 + i], recent[i]);
  }
}

TEST(SentenceEncoders, ABareFolderGetsMeanPooling) {
  const EncoderFolder folder;
  for (const char* name : {"modules.json", "sentence_bert_config.json"}) {
    fs::remove(fs::path(folder.path()) / name);
  }
  folder.put("tokenizer_config.json", {{"model_max_length", 11}});
  const auto model = models::make_sentence_encoder(folder.path());
  EXPECT_EQ(model->dimension(), 12);
  EXPECT_EQ(model->max_seq_length(), 11);
  EXPECT_TRUE(model->tensor_folders().empty());
  folder.put("tokenizer_config.json", {{"model_max_length", 1e30}});
  EXPECT_EQ(models::make_sentence_encoder(folder.path())->max_seq_length(), 16);
  EXPECT_EQ(models::make_sentence_encoder(folder.path(), {{"max_position_embeddings", 8}})
                ->max_seq_length(),
            8);
  // Saving it gives a folder with the same results.
  EncoderFolder saved;
  for (const auto& [name, text] : model->files()) {
    fs::create_directories((fs::path(saved.path()) / name).parent_path());
    write_all(fs::path(saved.path()) / name, text);
  }
  const auto again = models::make_sentence_encoder(saved.path());
  EXPECT_EQ(again->dimension(), 12);
  EXPECT_EQ(again->max_seq_length(), 11);
}

TEST(SentenceEncoders, UnsupportedModulesAreRefusedByName) {
  const auto refused = [](const std::function<void(EncoderFolder&)>& edit) {
    EncoderFolder folder;
    edit(folder);
    return folder.refusal();
  };
  EXPECT_TRUE(has(refused([](auto& f) { f.pooling["pooling_mode_weightedmean_tokens"] = true; }),
                  "weightedmean"));
  EXPECT_TRUE(
      has(refused([](auto& f) { f.pooling["pooling_mode_lasttoken"] = true; }), "lasttoken"));
  EXPECT_TRUE(has(refused([](auto& f) { f.pooling["pooling_mode"] = "lasttoken"; }), "lasttoken"));
  EXPECT_TRUE(has(refused([](auto& f) {
                    f.pooling["pooling_mode_mean_tokens"] = false;
                    f.pooling["pooling_mode_cls_token"] = false;
                  }),
                  "no pooling mode is true"));
  EXPECT_TRUE(has(refused([](auto& f) { f.pooling["word_embedding_dimension"] = 13; }), "13"));
  EXPECT_TRUE(has(refused([](auto& f) { f.dense["in_features"] = 23; }), "in_features = 23"));
  EXPECT_TRUE(has(refused([](auto& f) { f.dense["activation_function"] = "my.Own"; }), "my.Own"));
  EXPECT_TRUE(has(refused([](auto& f) { f.dense["use_residual"] = true; }), "use_residual"));
  EXPECT_TRUE(has(refused([](auto& f) { f.add("4_CNN", "sentence_transformers.models.CNN"); }),
                  "models.CNN"));
  EXPECT_TRUE(has(refused([](auto& f) { f.modules.erase(1); }), "Pooling"));
  EXPECT_TRUE(
      has(refused([](auto& f) { f.modules[0]["path"] = "0_Transformer"; }), "0_Transformer"));
  EXPECT_TRUE(has(refused([](auto& f) { f.modules[2]["path"] = "../other"; }), "../other"));
  EXPECT_TRUE(has(refused([](auto& f) { f.modules[2]["path"] = "1_Pooling"; }), "1_Pooling"));
  EXPECT_TRUE(has(refused([](auto& f) { f.modules = json::object(); }), "list of modules"));
  const EncoderFolder folder;
  fs::remove(fs::path(folder.path()) / "2_Dense/config.json");
  EXPECT_TRUE(has(error_of([&] { (void)models::make_sentence_encoder(folder.path()); },
                           ErrorCode::configuration),
                  "2_Dense/config.json"));
}

// Two ranks save; one loads, as a plain folder and as a step.
TEST(SentenceEncoders, AFullStepFolderIsASentenceTransformersFolder) {
  const EncoderFolder folder;
  const TemporaryFolder out;
  std::vector<double> saved;
  launch(2, [&](Context& context) {
    const testing::OneThread one_thread;
    manual_seed(17);
    const auto net = models::make_sentence_encoder(folder.path());
    ShardedModel model = fully_shard(
        *net, context,
        {.strategy = Strategy::full_shard, .wrap = WrapPolicy::transformer({net->layer_class()})});
    optim::AdamW optimizer(model.parameters(), {.lr = 1e-2});
    begin_batch({.step = 1, .first_sample = 3 * context.rank(), .samples = 3});
    mean(square(net->forward(testing::encoder_batch({4, 9, 1}, 9)) + 1.0)).backward();
    optimizer.step();
    SaveOptions options;
    options.step = 1;
    options.files = net->files();
    options.files["config.json"] = net->config().dump();
    options.tensor_folders = net->tensor_folders();
    (void)save(context, out.path().string(), model, optimizer, options);
    net->eval();
    const NoGradGuard no_grad;
    const auto mine = embeddings(*net);
    if (context.is_main()) saved = mine;
    // Back into a model with other values, in a world of two again.
    manual_seed(18);
    const auto other = models::make_sentence_encoder(folder.path());
    other->eval();
    ShardedModel reloaded = fully_shard(*other, context, {.strategy = Strategy::no_shard});
    (void)load(context, (out.path() / "step-1").string(), reloaded);
    EXPECT_EQ(embeddings(*other), mine);
  });
  const std::string step = (out.path() / "step-1").string();
  checkpoint::verify(step);
  ASSERT_TRUE(models::is_sentence_encoder_folder(step));
  const checkpoint::SafetensorsFile dense(step + "/2_Dense/model.safetensors");
  EXPECT_NE(dense.header().find("linear.weight"), nullptr);
  EXPECT_NE(dense.header().find("linear.bias"), nullptr);
  EXPECT_EQ(dense.header().tensors().size(), 2u);
  const checkpoint::SafetensorsFile transformer(step + "/model.safetensors");
  EXPECT_NE(transformer.header().find("embeddings.word_embeddings.weight"), nullptr);
  for (const char* name : {"modules.json", "1_Pooling/config.json", "2_Dense/config.json"}) {
    EXPECT_EQ(read_all(fs::path(step) / name), read_all(fs::path(folder.path()) / name)) << name;
  }
  const auto model = models::make_sentence_encoder(step);
  auto tensors = whole(*model);
  models::load_sentence_encoder(step, *model, tensors);
  model->eval();
  EXPECT_EQ(embeddings(*model), saved);
}

// From a step and to one: files that belong to a module's folder stay in it.
TEST(SentenceEncoders, ConversionsKeepTheFoldersOfModules) {
  const EncoderFolder folder;
  const TemporaryFolder out;
  const auto at = [&](const char* name) { return (out.path() / name).string(); };
  launch(2, [&](Context& context) {
    const auto net = models::make_sentence_encoder(folder.path());
    ShardedModel sharded = fully_shard(*net, context, {.strategy = Strategy::full_shard});
    optim::Sgd optimizer(sharded.parameters(), {.lr = 1e-2});
    for (const auto type : {checkpoint::StateDictType::full, checkpoint::StateDictType::sharded}) {
      SaveOptions options;
      options.type = type;
      options.step = type == checkpoint::StateDictType::full ? 1 : 2;
      options.files = net->files();
      options.files["config.json"] = net->config().dump();
      options.tensor_folders = net->tensor_folders();
      (void)save(context, at("run"), sharded, optimizer, options);
    }
  });
  const auto expect_whole = [&](const char* name) {
    const checkpoint::SafetensorsFile root(at(name) + "/model.safetensors");
    for (const auto& entry : root.header().tensors()) EXPECT_FALSE(entry.name.starts_with("2_"));
    const checkpoint::SafetensorsFile dense(at(name) + "/2_Dense/model.safetensors");
    EXPECT_EQ(dense.header().tensors().size(), 2u) << name;
    const auto loaded = models::make_sentence_encoder(at(name));
    auto tensors = whole(*loaded);
    models::load_sentence_encoder(at(name), *loaded, tensors);
    EXPECT_NE(dense.header().find("linear.bias"), nullptr);
    return loaded->dimension();
  };
  checkpoint::convert(at("run/step-1"), at("hf"), {.to = "hf", .verify = true});
  checkpoint::convert(at("run/step-2"), at("hf-of-shards"), {.to = "hf"});
  checkpoint::convert(at("hf"), at("step"), {.to = "full", .verify = true});
  checkpoint::convert(at("step"), at("again"),
                      {.to = "hf", .max_file_size = 1000, .dtype = bfloat16});
  for (const char* name : {"hf", "hf-of-shards", "step"}) EXPECT_EQ(expect_whole(name), 5);
  checkpoint::verify(at("step"));
  const checkpoint::SafetensorsFile narrow(at("again/2_Dense/model.safetensors"));
  EXPECT_EQ(narrow.header().find("linear.weight")->stored->dtype, bfloat16);
  EXPECT_EQ(read_all(out.path() / "again/model.safetensors.index.json").find("2_Dense"),
            std::string::npos);
  EXPECT_EQ(read_all(out.path() / "hf/2_Dense/model.safetensors"),
            read_all(out.path() / "hf-of-shards/2_Dense/model.safetensors"));
}

TEST(SentenceEncoders, MissingTensorsOfAFolderAreListed) {
  const EncoderFolder folder;
  const auto model = models::make_sentence_encoder(folder.path());
  auto tensors = whole(*model);
  std::vector<checkpoint::TensorToWrite> transformer, dense;
  for (const auto& tensor : tensors) {
    const bool apart = tensor.name.starts_with("2_Dense.");
    if (tensor.name.ends_with("linear.bias")) continue;  // left out
    (apart ? dense : transformer)
        .push_back({{apart ? tensor.name.substr(8) : tensor.name, tensor.dtype, tensor.shape},
                    tensor.pieces.front().data});
  }
  checkpoint::write_safetensors(fs::path(folder.path()) / "model.safetensors", transformer);
  checkpoint::write_safetensors(fs::path(folder.path()) / "2_Dense/model.safetensors", dense);
  EXPECT_TRUE(has(error_of([&] { models::load_sentence_encoder(folder.path(), *model, tensors); }),
                  "missing tensor 'linear.bias'"));
}

}  // namespace
}  // namespace tessera
