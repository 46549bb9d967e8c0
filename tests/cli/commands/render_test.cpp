// `tessera render` as a user runs it: texts, files, exit codes.
#include <gtest/gtest.h>

#include "tests/cli/training_testing.h"
#include "tests/support/temporary_folder.h"

namespace tessera::cli {
namespace {

using testing::Ended;
using testing::read_text;
using testing::run_program;

class RenderTest : public ::testing::Test {
 protected:
  RenderTest() {
    folder_.write("chat_template.jinja",
                  "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
                  "{% if add_generation_prompt %}<assistant>{% endif %}");
    folder_.write("rows.jsonl", R"({"messages": [{"role": "user", "content": "é"}]}
{"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}
{"prompt": "x", "completion": "y"}
)");
  }
  [[nodiscard]] Ended render(const std::vector<std::string>& options,
                             const std::string& rows = "rows.jsonl") const {
    std::vector<std::string> words = {"render", path(rows), "--tokenizer", folder_.path().string()};
    words.insert(words.end(), options.begin(), options.end());
    return run_program(words);
  }
  [[nodiscard]] std::string path(const std::string& name) const {
    return (folder_ / name).string();
  }
  tessera::testing::TemporaryFolder folder_;
};

TEST_F(RenderTest, EachRowBecomesItsText) {
  EXPECT_EQ(render({}).out, "<user>é\n<user>a<assistant>b\nxy\n");
  EXPECT_EQ(render({"--generation-prompt"}).out,
            "<user>é<assistant>\n<user>a<assistant>b<assistant>\nxy\n");
  const Ended file = render({"--json", path("out.jsonl")});
  EXPECT_EQ(file.code, 0) << file.err;
  EXPECT_EQ(file.out, "");
  EXPECT_EQ(read_text(path("out.jsonl")),
            "{\"text\":\"<user>é\"}\n{\"text\":\"<user>a<assistant>b\"}\n{\"text\":\"xy\"}\n");
  folder_.write("other.jinja", "{{ messages | length }}");
  folder_.write("one.jsonl", R"({"x": [{"role": "user", "content": "é"}]})");
  EXPECT_EQ(render({"--chat-template", path("other.jinja"), "--column", "x"}, "one.jsonl").out,
            "1\n");
}

TEST_F(RenderTest, MistakesEndWithTheirCode) {
  folder_.write("bad.jsonl", "{\"messages\": [{\"role\": \"user\"}]}\n[]\n");
  const Ended bad = render({}, "bad.jsonl");
  EXPECT_EQ(bad.code, 4);
  EXPECT_NE(bad.err.find("bad.jsonl, line 2: a JSON array, and not an object"), std::string::npos)
      << bad.err;
  folder_.write("rows.parquet", "PAR1" + std::string(8, '\0') + "PAR1");
  const Ended parquet = render({}, "rows.parquet");
  EXPECT_EQ(parquet.code, 4);
  EXPECT_NE(parquet.err.find("rows.parquet' is Parquet or Arrow, and tessera render takes JSON "
                             "lines; write some of its rows so, in Python: pandas.read_parquet"),
            std::string::npos)
      << parquet.err;
  folder_.write("chat_template.jinja", "a\n{{ raise_exception('no') }}");
  const Ended refused = render({});
  EXPECT_EQ(refused.code, 4);
  EXPECT_NE(refused.err.find("rows.jsonl, line 1: chat template '"), std::string::npos);
  EXPECT_NE(refused.err.find("line 2: the template refuses the conversation: no"),
            std::string::npos)
      << refused.err;
  EXPECT_EQ(run_program({"render", path("rows.jsonl"), "--tokenizer", "bytes"}).code, 3);
  EXPECT_EQ(run_program({"render", path("rows.jsonl")}).code, 2);
  EXPECT_EQ(render({"--chat-template", path("none")}).code, 3);
  EXPECT_EQ(render({}, "none.jsonl").code, 4);
  EXPECT_EQ(render({"--json", path("rows.jsonl")}).code, 2);
}

}  // namespace
}  // namespace tessera::cli
