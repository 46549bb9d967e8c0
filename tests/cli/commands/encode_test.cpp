// `tessera encode`: each sentence gets the embedding that it gets alone, whatever the batches, the
// ranks and the format; lines that are not sentences are refused.
#include <cmath>
#include <memory>

#include "tests/cli/commands/encoder_testing.h"

namespace tessera::cli {
namespace {

using testing::Ended;
using testing::launched;
using testing::run_program;

using Rows = std::vector<std::vector<float>>;

class EncodeCommandTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = std::make_unique<testing::TrainingFolder>();
    testing::make_encoder_folder(folder_->path("encoder"));
    texts_ = testing::sentences(70, 3);
    folder_->write("texts.txt", testing::lines_of(texts_));
    expected_ = testing::embeddings_of(folder_->path("encoder"), texts_);
  }
  static void TearDownTestSuite() { folder_.reset(); }

  static std::string path(const std::string& name) { return folder_->path(name); }
  static std::vector<std::string> arguments(const std::string& out,
                                            const std::vector<std::string>& options = {}) {
    std::vector<std::string> all = {"encode", path("encoder"), "--input",  path("texts.txt"),
                                    "--out",  path(out),       "--device", "cpu"};
    all.insert(all.end(), options.begin(), options.end());
    return all;
  }
  // The rows of a file in either format. Both have a header of 256 bytes.
  static Rows rows_in(const std::string& name, std::size_t rows = 70, std::size_t dimension = 32) {
    const std::string bytes = testing::read_text(path(name));
    EXPECT_EQ(bytes.size(), 256 + rows * dimension * sizeof(float));
    if (bytes.size() != 256 + rows * dimension * sizeof(float)) return {};
    Rows all(rows, std::vector<float>(dimension));
    for (std::size_t i = 0; i < rows; ++i) {
      std::memcpy(all[i].data(), bytes.data() + 256 + i * dimension * sizeof(float),
                  dimension * sizeof(float));
    }
    return all;
  }

  static std::unique_ptr<testing::TrainingFolder> folder_;
  static std::vector<std::string> texts_;
  static Rows expected_;
};
std::unique_ptr<testing::TrainingFolder> EncodeCommandTest::folder_;
std::vector<std::string> EncodeCommandTest::texts_;
Rows EncodeCommandTest::expected_;

TEST_F(EncodeCommandTest, RowsAreTheEmbeddingsOfTheLines) {
  for (const std::string out : {"e.npy", "e.safetensors"}) {
    const Ended ended = run_program(arguments(out));
    ASSERT_EQ(ended.code, 0) << ended.err;
    EXPECT_NE(ended.out.find("70 sentences as rows of 32 numbers"), std::string::npos) << ended.out;
    EXPECT_EQ(rows_in(out), expected_) << out;
  }
  EXPECT_EQ(testing::read_text(path("e.npy")).substr(0, 80),
            std::string("\x93NUMPY\x01\x00\xf6\x00", 10) +
                "{'descr': '<f4', 'fortran_order': False, 'shape': (70, 32), }         ");
  // As the format's own reader reads it.
  const auto file = checkpoint::File::open_for_reading(path("e.safetensors"));
  const auto header = checkpoint::read_safetensors_header(
      [&](std::uint64_t offset, void* data, std::size_t bytes) {
        file.read_at(offset, data, bytes);
      },
      file.size(), "e.safetensors");
  ASSERT_NE(header.find("embeddings"), nullptr);
  EXPECT_EQ(header.find("embeddings")->shape, (std::vector<std::int64_t>{70, 32}));
  EXPECT_EQ(header.find("embeddings")->begin, 256u);
}

// A folder of Sentence Transformers with a default prompt and shorter embeddings.
void write_prompted(const testing::TrainingFolder& folder, const std::string& of_encoding,
                    const std::string& of_pooling = "") {
  std::filesystem::remove_all(folder.path("prompted"));
  std::filesystem::copy(folder.path("encoder"), folder.path("prompted"),
                        std::filesystem::copy_options::recursive);
  folder.write(
      "prompted/1_Pooling/config.json",
      R"({"word_embedding_dimension": 32, "pooling_mode_mean_tokens": true)" + of_pooling + "}");
  folder.write("prompted/config_sentence_transformers.json", "{" + of_encoding + "}");
}

TEST_F(EncodeCommandTest, ThePromptAndTheWidthOfAFolderHold) {
  const std::string prompts = R"("prompts": {"query": "and the ", "other": "no"}, )";
  write_prompted(*folder_, prompts + R"("default_prompt_name": "query", "truncate_dim": 8)");
  const auto encode = [&](const std::vector<std::string>& options) {
    std::vector<std::string> all = arguments("p.npy", options);
    all[1] = path("prompted");
    return run_program(all);
  };
  const auto expected = [&](const std::string& prompt) {
    std::vector<std::string> texts = texts_;
    for (std::string& text : texts) text.insert(0, prompt);
    Rows rows = testing::embeddings_of(path("encoder"), texts);
    for (std::vector<float>& row : rows) row.resize(8);
    return rows;
  };
  const Ended first = encode({});
  ASSERT_EQ(first.code, 0) << first.err;
  EXPECT_EQ(rows_in("p.npy", 70, 8), expected("and the "));
  ASSERT_EQ(encode({"--prompt", "no "}).code, 0);
  EXPECT_EQ(rows_in("p.npy", 70, 8), expected("no "));
  ASSERT_EQ(encode({"--prompt", ""}).code, 0);
  EXPECT_EQ(rows_in("p.npy", 70, 8), expected(""));

  const auto refusal = [&](const std::string& of_encoding, const std::string& of_pooling) {
    write_prompted(*folder_, of_encoding, of_pooling);
    const Ended ended = encode({});
    EXPECT_EQ(ended.code, 3) << ended.err;
    return ended.err;
  };
  EXPECT_NE(refusal(prompts + R"("default_prompt_name": "none")", "")
                .find("default_prompt_name is \"none\", and prompts has no text of that name"),
            std::string::npos);
  EXPECT_NE(refusal(prompts + R"("default_prompt_name": "query")", R"(, "include_prompt": false)")
                .find("the prompt 'and the ': the model's Pooling has include_prompt false"),
            std::string::npos);
  EXPECT_EQ(encode({"--prompt", ""}).code, 0);  // no tokens to leave out
  EXPECT_EQ(encode({"--prompt", "x"}).code, 3);
  EXPECT_NE(refusal(R"("truncate_dim": 0)", "").find("truncate_dim"), std::string::npos);
}

TEST_F(EncodeCommandTest, NoBitDependsOnBatchesOrRanks) {
  for (const std::string batch : {"1", "7", "1000"}) {
    const Ended ended = run_program(arguments("b.npy", {"--batch-size", batch}));
    ASSERT_EQ(ended.code, 0) << ended.err;
    EXPECT_EQ(rows_in("b.npy"), expected_) << batch;
  }
  for (const int ranks : {2, 3}) {
    const Ended ended = run_program(launched(ranks, arguments("r.npy", {"--batch-size", "4"})));
    ASSERT_EQ(ended.code, 0) << ended.err;
    EXPECT_EQ(rows_in("r.npy"), expected_) << ranks;
    EXPECT_FALSE(std::filesystem::exists(path("r.npy.partial")));
  }
}

TEST_F(EncodeCommandTest, RowsOfLengthOne) {
  ASSERT_EQ(run_program(arguments("n.npy", {"--normalize"})).code, 0);
  const Rows rows = rows_in("n.npy");
  for (std::size_t i = 0; i < rows.size(); ++i) {
    double squares = 0, along = 0, length = 0;
    for (std::size_t k = 0; k < rows[i].size(); ++k) {
      squares += static_cast<double>(rows[i][k]) * rows[i][k];
      along += static_cast<double>(rows[i][k]) * expected_[i][k];
      length += static_cast<double>(expected_[i][k]) * expected_[i][k];
    }
    EXPECT_NEAR(squares, 1, 1e-6);
    EXPECT_NEAR(along, std::sqrt(length), 1e-5);
  }
}

TEST_F(EncodeCommandTest, LowPrecisionIsClose) {
  ASSERT_EQ(run_program(arguments("h.npy", {"--dtype", "bf16"})).code, 0);
  const Rows rows = rows_in("h.npy");
  double furthest = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    for (std::size_t k = 0; k < rows[i].size(); ++k) {
      furthest = std::max<double>(furthest, std::abs(rows[i][k] - expected_[i][k]));
    }
  }
  EXPECT_GT(furthest, 0);
  EXPECT_LT(furthest, 0.1);
}

TEST_F(EncodeCommandTest, ReadsStdinAndWindowsLineEndings) {
  folder_->write("windows.txt", "one line\r\nand another");
  std::vector<std::string> from_file = arguments("w.npy");
  from_file[3] = path("windows.txt");
  ASSERT_EQ(run_program(from_file).code, 0);
  EXPECT_EQ(rows_in("w.npy", 2),
            testing::embeddings_of(path("encoder"), {"one line", "and another"}));
  std::vector<std::string> from_stdin = arguments("s.npy");
  from_stdin[3] = "-";
  const std::string command = "head -n 5 " + path("texts.txt") + " | " + testing::program_path();
  std::string shell = command;
  for (const std::string& word : from_stdin) shell += " " + word;
  ASSERT_EQ(std::system((shell + " > /dev/null").c_str()), 0);
  EXPECT_EQ(rows_in("s.npy", 5), Rows(expected_.begin(), expected_.begin() + 5));
}

void expect_encode_refused(const Ended& ended, int code, const std::string& part) {
  EXPECT_EQ(ended.code, code) << ended.err;
  EXPECT_NE(ended.err.find(part), std::string::npos) << ended.err;
  EXPECT_EQ(std::count(ended.err.begin(), ended.err.end(), '\n'), 1) << ended.err;
}

TEST_F(EncodeCommandTest, InvalidSentencesAreRefused) {
  const auto encode = [&](const std::string& text) {
    folder_->write("bad.txt", text);
    std::vector<std::string> all = arguments("bad.npy");
    all[3] = path("bad.txt");
    return run_program(all);
  };
  expect_encode_refused(encode("good\n\nempty"), 4, "bad.txt:2: an empty line");
  expect_encode_refused(encode("good\nalso\nnot \xc3\x28 so"), 4, "bad.txt:3: not UTF-8");
  expect_encode_refused(encode(""), 4, "no sentences");
  EXPECT_FALSE(std::filesystem::exists(path("bad.npy")));
  EXPECT_FALSE(std::filesystem::exists(path("bad.npy.partial")));
}

TEST_F(EncodeCommandTest, AColumnsTextsMayHaveLineBreaks) {
  const auto encode = [&](const std::string& lines) {
    folder_->write("rows.jsonl", lines);
    std::vector<std::string> all = arguments("c.npy");
    all[3] = path("rows.jsonl");
    all.insert(all.end(), {"--column", "s"});
    return run_program(all);
  };
  const auto ended = encode("{\"s\": \"one\\nline\"}\n{\"s\": \"and another\"}\n");
  ASSERT_EQ(ended.code, 0) << ended.err;
  EXPECT_EQ(rows_in("c.npy", 2),
            testing::embeddings_of(path("encoder"), {"one\nline", "and another"}));
  std::filesystem::remove(path("c.npy"));
  expect_encode_refused(encode("{\"s\": \"a\"}\n{\"s\": 1}\n"), 4, "rows.jsonl:2: no text 's'");
  expect_encode_refused(encode("{\"s\": \"\"}\n"), 4, "rows.jsonl:1: an empty line");
  EXPECT_FALSE(std::filesystem::exists(path("c.npy")));
}

TEST_F(EncodeCommandTest, BadArgumentsAreRefused) {
  const auto with = [&](std::size_t place, const std::string& value) {
    std::vector<std::string> all = arguments("x.npy");
    all[place] = value;
    return run_program(all);
  };
  expect_encode_refused(with(1, path("nowhere")), 5, "no such folder");
  expect_encode_refused(with(3, path("nothing.txt")), 4, "cannot be read");
  expect_encode_refused(with(5, path("x.csv")), 2, ".npy or .safetensors");
  expect_encode_refused(with(7, "tpu"), 2, "auto, cpu and cuda");
  expect_encode_refused(run_program(arguments("x.npy", {"--dtype", "int8"})), 2, "--dtype int8");
  expect_encode_refused(run_program({"encode", path("encoder")}), 2, "--input");
  std::vector<std::string> all = arguments("x.npy");
  all[3] = "-";
  const Ended shared = run_program(launched(2, all));
  EXPECT_EQ(shared.code, 2) << shared.err;
  EXPECT_NE(shared.err.find("cannot share stdin"), std::string::npos) << shared.err;
  EXPECT_FALSE(std::filesystem::exists(path("x.npy")));
}

TEST_F(EncodeCommandTest, AnIncompleteFolderIsRefused) {
  namespace fs = std::filesystem;
  const auto encode = [&](const std::string& name) {
    std::vector<std::string> all = arguments("x.npy");
    all[1] = path(name);
    return run_program(all);
  };
  fs::copy(path("encoder"), path("other"), fs::copy_options::recursive);
  folder_->write("other/vocab.txt", testing::letters_vocabulary() + "one\nmore\n");
  expect_encode_refused(encode("other"), 3, "do not belong together");
  fs::remove(path("other/model.safetensors"));
  fs::copy(path("encoder/vocab.txt"), path("other/vocab.txt"),
           fs::copy_options::overwrite_existing);
  EXPECT_EQ(encode("other").code, 5);
  folder_->write("other/1_Pooling/config.json",
                 R"({"word_embedding_dimension": 32, "pooling_mode_lasttoken": true})");
  expect_encode_refused(encode("other"), 3, "lasttoken");
}

}  // namespace
}  // namespace tessera::cli
