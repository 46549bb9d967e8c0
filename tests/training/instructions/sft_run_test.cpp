// Runs of train.task: sft: the same bits under every strategy, memory as planned, resumes on other
// worlds, evaluation by the same loss, and bad input.
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/training/strategies_testing.h"

namespace tessera::testing {
namespace {

using nlohmann::json;

// A question and an answer of a few words, which depend on the number.
std::string chat_line(int number) {
  const std::string question = sample_text(static_cast<std::size_t>(8 + number * 7 % 30));
  const std::string answer = sample_text(static_cast<std::size_t>(3 + number * 5 % 23));
  return json{{"messages",
               {{{"role", "user"}, {"content", question + std::to_string(number)}},
                {{"role", "assistant"}, {"content", answer}}}}}
             .dump() +
         "\n";
}

class SftRun : public ::testing::Test {
 protected:
  SftRun() {
    std::string lines;
    for (int i = 0; i < 60; ++i) lines += chat_line(i);
    folder_.write("chats.jsonl", lines);
    // The model's tokens are bytes; their tokenizer's file is not needed beside the template.
    std::filesystem::create_directories(folder_.path("tokenizer"));
    folder_.write("tokenizer/chat_template.jinja",
                  "{% for m in messages %}<{{ m.role[0] }}>{{ m.content }}\n{% endfor %}"
                  "{% if add_generation_prompt %}<a>{% endif %}");
    folder_.write("tokenizer/tokenizer.json", byte_tokenizer());
  }

  // Each byte is a token.
  static std::string byte_tokenizer() {
    json vocabulary;
    for (int byte = 0; byte < 256; ++byte) {
      const bool shown = (byte >= 33 && byte <= 126) || (byte >= 161 && byte != 173);
      static int next = 256;
      if (byte == 0) next = 256;
      const int code = shown ? byte : next++;
      std::string letter;
      if (code < 0x80) {
        letter = std::string(1, static_cast<char>(code));
      } else {
        letter = {static_cast<char>(0xC0 | (code >> 6)), static_cast<char>(0x80 | (code & 0x3F))};
      }
      vocabulary[letter] = byte;
    }
    return json{{"version", "1.0"},
                {"added_tokens", json::array()},
                {"normalizer", nullptr},
                {"pre_tokenizer",
                 {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}}},
                {"decoder", {{"type", "ByteLevel"}}},
                {"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", json::array()}}}}
        .dump();
  }

  [[nodiscard]] Settings small(bool packing) const {
    return folder_.small() + Settings{{"train.task", "sft"},
                                      {"data.train", folder_.path("chats.jsonl")},
                                      {"data.tokenizer", folder_.path("tokenizer")},
                                      {"data.packing", packing ? "true" : "false"}};
  }
  void expect_refused(const Settings& settings, int code, const std::string& problem) const {
    const Ended ended = run_program(train_arguments(settings));
    EXPECT_EQ(ended.code, code) << ended.err;
    EXPECT_NE(ended.err.find(problem), std::string::npos) << ended.err;
    EXPECT_EQ(std::count(ended.err.begin(), ended.err.end(), '\n'), 1) << ended.err;
  }
  TrainingFolder folder_;
};

TEST_F(SftRun, HasTheSameBitsUnderEveryStrategy) {
  for (const bool packing : {false, true}) {
    expect_equal_bits(2, {1, 2}, small(packing) + Settings{{"model.n_layer", "1"}});
  }
}

// Ranks with unequal parts of a batch, whose answers have different lengths.
TEST_F(SftRun, HasTheSameLossesWithUnequalParts) {
  for (const bool packing : {false, true}) {
    const auto curve = [&](const std::string& name, const Settings& more) {
      std::string jsonl = folder_.path(name);
      std::filesystem::remove(jsonl);
      train(2, small(packing) + more + Settings{{"data.batch_size", "4"}, {"log.jsonl", jsonl}});
      return jsonl;
    };
    const std::string equal = curve("equal.jsonl", {});
    expect_close(curve("weighted.jsonl", {{"data.rank_weights", "[1, 3]"}}), equal, 3e-6);
  }
}

// Conversations are divided by their lengths: another split of the same batch.
TEST_F(SftRun, HasTheSameLossesDealtByCost) {
  const auto curve = [&](const std::string& name, int world, const Settings& more) {
    std::string jsonl = folder_.path(name);
    std::filesystem::remove(jsonl);
    train(world, small(false) + more +
                     Settings{{"log.jsonl", jsonl},
                              {"log.summary", folder_.path(name + ".summary")},
                              {"log.memory", folder_.path(name + ".memory")}});
    return jsonl;
  };
  const Settings dealt{{"data.deal_by_cost", "true"}, {"data.batch_size", "4"}};
  const std::string equal = curve("equal.jsonl", 3, {{"data.batch_size", "4"}});
  const std::string by_cost = curve("dealt.jsonl", 3, dealt);
  expect_close(by_cost, equal, 3e-6);
  for (const json& step : metrics_in(by_cost)) EXPECT_GE(step.at("imbalance").get<double>(), 0);
  EXPECT_FALSE(metrics_in(equal).back().contains("imbalance"));
  const json summary = json::parse(read_text(folder_.path("dealt.jsonl.summary")));
  EXPECT_GE(summary.at("imbalance").get<double>(), 0);
  EXPECT_FALSE(summary.contains("rank_samples"));
  const json memory = json::parse(read_text(folder_.path("dealt.jsonl.memory")));
  EXPECT_GE(memory["planned"]["total"], memory["measured"]["total"]);
  // Two blocks of two ranks, and a teacher's loss over the same labels.
  expect_close(curve("blocks.jsonl", 4,
                     dealt + Settings{{"data.batch_size", "6"},
                                      {"model.n_head", "4"},
                                      {"sharding.context_parallel", "2"}}),
               curve("one.jsonl", 1, {{"data.batch_size", "12"}, {"model.n_head", "4"}}), 3e-6);
  expect_equal_bits(2, {1, 2}, small(false) + dealt + Settings{{"model.n_layer", "1"}});
}

// Ranks that hold each row together.
TEST_F(SftRun, HasTheSameLossesOverContextParallel) {
  for (const bool packing : {false, true}) {
    const auto curve = [&](int world, int ranks, const std::string& name, const Settings& more) {
      std::string jsonl = folder_.path(name);
      std::filesystem::remove(jsonl);
      train(world, small(packing) +
                       Settings{{"model.n_head", "4"},
                                {"data.batch_size", std::to_string(4 * ranks / world)},
                                {"sharding.context_parallel", std::to_string(ranks)},
                                {"log.jsonl", jsonl}} +
                       more);
      return jsonl;
    };
    expect_close(curve(4, 2, "four.jsonl", {}), curve(1, 1, "one.jsonl", {}), 3e-6);
    const auto valid_loss = [&](int world, int ranks) {
      const Settings valid{{"data.valid", folder_.path("chats.jsonl")}, {"train.eval_every", "3"}};
      return metrics_in(curve(world, ranks, "valid.jsonl", valid))
          .back()
          .at("valid_loss")
          .get<double>();
    };
    EXPECT_NEAR(valid_loss(4, 2), valid_loss(1, 1), 2e-5);
  }
  const Settings undivided =
      small(true) +
      Settings{{"model.n_head", "4"}, {"model.seq_len", "66"}, {"sharding.context_parallel", "3"}};
  const Ended ended = run_program(launched(3, train_arguments(undivided)));
  EXPECT_EQ(ended.code, 3) << ended.err;
  EXPECT_NE(ended.err.find("sharding.context_parallel: packed rows need a number of ranks that "
                           "divides the 4 heads"),
            std::string::npos)
      << ended.err;
}

// A teacher of the same shape from another seed, and the plan of both models' memory.
TEST_F(SftRun, LearnsFromATeacherWithTheSameBitsAsPlanned) {
  train(1, small(false) + Settings{{"train.steps", "2"},
                                   {"train.seed", "7"},
                                   {"checkpoint.dir", folder_.path("teacher")}});
  const Settings taught = small(true) + Settings{{"train.teacher", folder_.path("teacher")},
                                                 {"train.distill_weight", "0.7"}};
  expect_equal_bits(2, {2}, taught);
  const auto loss = [&](const Settings& settings) {
    const std::string file = folder_.path("m.jsonl");
    std::filesystem::remove(file);
    train(2, settings + Settings{{"log.jsonl", file}, {"log.memory", folder_.path("m.json")}});
    return losses_in(file).front();
  };
  const std::string alone = loss(small(true));
  EXPECT_NE(loss(taught), alone);  // the memory is that of the run with a teacher
  const json memory = json::parse(read_text(folder_.path("m.json")));
  EXPECT_EQ(memory.at("planned"), memory.at("measured"));
}

// Memory is as planned: what is packed to the byte, what is padded at most so much.
TEST_F(SftRun, SaysWhatItDidWithTheDataAndNeedsThePlannedMemory) {
  for (const bool packing : {false, true}) {
    const Ended ended = train(2, small(packing) + Settings{{"log.memory", folder_.path("m.json")},
                                                           {"log.summary", folder_.path("s.json")},
                                                           {"model.seq_len", "48"}});
    EXPECT_EQ(ended.err.find("warning"), std::string::npos) << ended.err;
    EXPECT_NE(ended.err.find("data: conversations 60, left out without loss 0, cut at seq len "),
              std::string::npos)
        << ended.err;
    const json data = json::parse(read_text(folder_.path("s.json"))).at("data");
    EXPECT_EQ(data.at("conversations"), 60);
    EXPECT_GT(data.at("tokens_cut_off"), 0);
    EXPECT_EQ(data.contains("packed_rows"), packing);
    const json memory = json::parse(read_text(folder_.path("m.json")));
    if (packing) {
      EXPECT_EQ(memory.at("planned"), memory.at("measured"));
    }
    std::filesystem::remove(folder_.path("m.json"));
    std::filesystem::remove(folder_.path("s.json"));
  }
}

TEST_F(SftRun, GoesOnWithTheSameConversationsOnAnotherWorld) {
  for (const bool packing : {false, true}) {
    const std::string name = packing ? "packed" : "padded";
    const auto settings = [&](const std::string& run, int steps) {
      return small(packing) + Settings{{"train.steps", std::to_string(steps)},
                                       {"train.lr", "1e-3"},
                                       {"data.batch_size", "6"},
                                       {"data.split_batches", "true"},
                                       {"checkpoint.dir", folder_.path(name + run)},
                                       {"checkpoint.every", "4"},
                                       {"log.jsonl", folder_.path(name + run + ".jsonl")}};
    };
    train(1, settings("one", 12));
    train(2, settings("more", 4));
    train(3, settings("more", 12));
    expect_close(folder_.path(name + "more.jsonl"), folder_.path(name + "one.jsonl"), 1e-5);
  }
  const Ended other = run_program(
      train_arguments(small(false) + Settings{{"train.steps", "20"},
                                              {"checkpoint.dir", folder_.path("packedone")}}));
  EXPECT_EQ(other.code, 3) << other.err;
  EXPECT_NE(other.err.find("the run there has data.packing true, not false: the data order"),
            std::string::npos)
      << other.err;
}

// Blank lines, a name that does not say what the file is, and an answer of a role that no template
// knows as the assistant.
TEST_F(SftRun, TakesJsonLinesOfAnyNameAndNamesUnknownRoles) {
  const std::string unknown = json{{"messages",
                                    {{{"role", "user"}, {"content", "a question"}},
                                     {{"role", "bot"}, {"content", "an answer"}}}}}
                                  .dump();
  std::string lines = "\n";
  for (int i = 0; i < 20; ++i) lines += chat_line(i) + "  \n" + (i == 4 ? unknown + "\n" : "");
  folder_.write("chats.txt", lines);
  const std::string file = folder_.path("chats.txt");
  const Ended ended =
      train(2, small(false) + Settings{{"data.train", "{file: " + file + ", format: jsonl}"}});
  EXPECT_NE(ended.err.find("data: conversations 21, left out without loss 1"), std::string::npos)
      << ended.err;
  const std::string note =
      "data.train: 1 conversation without an answer (a message with the role assistant, or a "
      "completion) is left out; the first is text " +
      file + ", line 12, with the roles user, bot\n";
  EXPECT_NE(ended.err.find(note), std::string::npos) << ended.err;
  EXPECT_EQ(ended.err.find(note), ended.err.rfind(note));
}

// `tessera evaluate` has the run's validation loss.
TEST_F(SftRun, IsEvaluatedByTheSameLoss) {
  std::string lines;
  for (int i = 100; i < 111; ++i) lines += chat_line(i);
  folder_.write("valid.jsonl", lines);
  for (const bool packing : {false, true}) {
    const std::string out = folder_.path(packing ? "packed" : "padded");
    const std::string metrics = folder_.path("metrics.jsonl");
    std::filesystem::remove(metrics);
    train(2, small(packing) + Settings{{"data.valid", folder_.path("valid.jsonl")},
                                       {"checkpoint.export", out},
                                       {"log.jsonl", metrics}});
    const double expected = metrics_in(metrics).back().at("valid_loss");
    const Ended ended =
        run_program({"evaluate", out, "--task", "sft", "--data", folder_.path("valid.jsonl"),
                     "--seq-len", "64", "--batch-size", "4", "--json", folder_.path("e.json")});
    ASSERT_EQ(ended.code, 0) << ended.err;
    const json found = json::parse(read_text(folder_.path("e.json")));
    EXPECT_NEAR(found.at("loss").get<double>(), expected, 1e-5 * expected);
    EXPECT_EQ(found.at("samples"), 11);
    EXPECT_EQ(found.at("data").at("conversations"), 11);
    EXPECT_EQ(found.at("data").at("cut_at_seq_len"), 0);
  }
}

// Neither an evaluation nor a run cuts or leaves out conversations without saying so.
TEST_F(SftRun, SaysWhatIsCutAndLeftOut) {
  std::string lines;
  for (int i = 100; i < 111; ++i) lines += chat_line(i);
  const std::string bot = json{{"messages", {{{"role", "bot"}, {"content", "a"}}}}}.dump();
  folder_.write("bots.jsonl", lines + bot + "\n");
  folder_.write("valid.jsonl", lines);
  const std::string out = folder_.path("out"), summary = folder_.path("summary.json");
  train(1, small(false) + Settings{{"data.valid", folder_.path("valid.jsonl")},
                                   {"checkpoint.export", out},
                                   {"log.summary", summary}});
  EXPECT_EQ(json::parse(read_text(summary)).at("data").at("valid_conversations"), 11);
  const Ended ended =
      run_program({"evaluate", out, "--task", "sft", "--data", folder_.path("valid.jsonl"),
                   "--seq-len", "30", "--json", folder_.path("e.json")});
  ASSERT_EQ(ended.code, 0) << ended.err;
  const json found = json::parse(read_text(folder_.path("e.json")));
  const json& data = found.at("data");
  EXPECT_GT(data.at("left_out_without_loss"), 0);
  EXPECT_GT(data.at("cut_at_seq_len"), 0);
  EXPECT_EQ(data.at("left_out_without_loss").get<int>() + found.at("samples").get<int>(), 11);
  EXPECT_NE(ended.out.find("data: conversations 11, left out without loss"), std::string::npos)
      << ended.out;
  const Ended bots =
      run_program({"evaluate", out, "--task", "sft", "--data", folder_.path("bots.jsonl")});
  EXPECT_NE(bots.err.find("1 conversation without an answer"), std::string::npos) << bots.err;
  EXPECT_NE(bots.err.find("bots.jsonl, line 12, with the role bot"), std::string::npos) << bots.err;
}

TEST_F(SftRun, RefusesWhatIsNoConversationInOneLine) {
  const Settings good = small(true);
  const auto with_data = [&](const std::string& lines) {
    folder_.write("bad.jsonl", lines);
    return good + Settings{{"data.train", folder_.path("bad.jsonl")}};
  };
  expect_refused(good + Settings{{"data.train", folder_.path("text.txt")}}, 4,
                 "conversations are in Parquet, Arrow or JSON lines");
  expect_refused(good + Settings{{"data.tokenizer", "bytes"}}, 3, "chat template");
  expect_refused(good + Settings{{"train.task", "next_token"}}, 3, "data.packing is for");
  expect_refused(good + Settings{{"data.packing", "false"}, {"data.loss_on", "users"}}, 3,
                 "must be one of answers | all");
  expect_refused(
      good + Settings{{"data.train", "{file: " + folder_.path("text.txt") + ", format: csv}"}}, 3,
      "the format of a language model's data is auto or jsonl");
  expect_refused(with_data(R"({"messages": []})"
                           "\n"),
                 4, "line 1: column messages is an empty");
  expect_refused(with_data(R"({"messages": [{"role": "user", "content": "a"}]})"
                           "\n"),
                 4, "none of 1 conversation has an answer: a message with the role assistant");
  expect_refused(with_data(R"({"messages": [{"role": "bot", "content": "a"}]})"
                           "\n"),
                 4, "bad.jsonl, line 1, with the role bot; name the roles so");
  expect_refused(with_data("[" + chat_line(1) + "]"), 4, "jq -c '.[]' FILE > rows.jsonl");
  expect_refused(with_data(chat_line(1)) + Settings{{"model.seq_len", "4"}}, 4,
                 "none of 1 conversation has a token in the loss within the first 5");
  expect_refused(with_data(R"({"messages": [{"role": "assistant", "content": "a"}]})"
                           "\n"),
                 4, "blocks beside the tokenizer");
}

}  // namespace
}  // namespace tessera::testing
