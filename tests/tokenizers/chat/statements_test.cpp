// Statements, scopes and white space are Jinja's with trim_blocks and lstrip_blocks.
#include "tokenizers/chat/chat_testing.h"

namespace tessera::tokenizers {
namespace {

TEST(ChatStatements, LoopsHaveTheirVariable) {
  EXPECT_EQ(render_text("{% for m in messages %}{{ loop.index }}{{ loop.index0 }}{{ loop.first }}"
                        "{{ loop.last }}{{ loop.length }}{{ m.role }};{% endfor %}"),
            "10TrueFalse2user;21FalseTrue2assistant;");
  EXPECT_EQ(render_text("{% for i in range(5) if i % 2 %}{{ i }}{{ loop.length }} {% endfor %}"),
            "12 32 ");
  EXPECT_EQ(render_text("{% for i in [] %}x{% else %}none{% endfor %}"), "none");
  EXPECT_EQ(render_text("{% for i in range(9) %}{% if i == 1 %}{% continue %}{% endif %}"
                        "{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}"),
            "02");
  EXPECT_EQ(render_text("{% for k, v in {'a': 1, 'b': 2}.items() %}{{ k }}{{ v }}"
                        "{{ loop.previtem is defined }}{{ loop.cycle('x', 'y') }}{% endfor %}"),
            "a1Falsexb2Truey");
  EXPECT_EQ(render_text("{% for x in [1, [2, [3]]] recursive %}"
                        "{{ loop(x) if x is iterable else x }}{{ loop.depth }}{% endfor %}"),
            "11223321");
}

TEST(ChatStatements, ScopesAreJinjas) {
  EXPECT_EQ(
      render_text("{% set x = 1 %}{% for i in [1] %}{% set x = 2 %}{{ x }}{% endfor %}{{ x }}"),
      "21");
  EXPECT_EQ(render_text("{% if true %}{% set x = 3 %}{% endif %}{{ x }}"), "3");
  EXPECT_EQ(render_text("{% set n = namespace(a=1) %}{% for i in [1, 2] %}{% set n.a = n.a + i %}"
                        "{% endfor %}{{ n.a }}"),
            "4");
  EXPECT_EQ(render_text("{% with a = 1, b = 2 %}{{ a }}{{ b }}{% endwith %}{{ a is defined }}"),
            "12False");
  EXPECT_EQ(
      render_text("{% set a, b = 1, 2 %}{{ b }}{% set c | upper %}x{{ a }}{% endset %}{{ c }}"),
      "2X1");
}

TEST(ChatStatements, MacrosHaveParametersAndCallers) {
  EXPECT_EQ(render_text("{% macro f(a, b='y') %}[{{ a }}{{ b }}]{% endmacro %}"
                        "{{ f(1) }}{{ f(1, b=2) }}{{ f() }}"),
            "[1y][12][y]");
  EXPECT_EQ(render_text("{% macro f(x) %}{{ caller(x) }}!{% endmacro %}"
                        "{% call(y) f(3) %}<{{ y }}>{% endcall %}"),
            "<3>!");
  EXPECT_EQ(render_text("{% macro f() %}{{ varargs | length }}{{ kwargs }}{% endmacro %}"
                        "{{ f(1, 2, a=3) }}"),
            "2{'a': 3}");
  EXPECT_NE(render_error("{% macro f(a) %}{% endmacro %}{{ f(1, 2) }}").find("takes 1 arguments"),
            std::string::npos);
  EXPECT_EQ(render_text("{% filter upper %}a{{ bos_token }}{% endfilter %}"), "A<S>");
}

TEST(ChatStatements, WhiteSpaceIsTrimmedAsByTransformers) {
  EXPECT_EQ(render_text("a\n  {% if true %}\n b\n  {% endif %}\nc\n"), "a\n b\nc");
  EXPECT_EQ(render_text("a\n  {%+ if true %}b{% endif +%}\nc"), "a\n  b\nc");
  EXPECT_EQ(render_text("a \n {%- if true -%} \n b {{- 'x' -}} \n c{% endif %}"), "abxc");
  EXPECT_EQ(render_text("a {# note #}\n  {# note #}\nb"), "a b");
  EXPECT_EQ(render_text("  {{ 'x' }}\n\n"), "  x\n");
  EXPECT_EQ(render_text("{% raw %}{{ x }}{% endraw %}\ny"), "{{ x }}y");
  EXPECT_EQ(render_text("a\r\nb\rc{{ 'd\\te' }}"), "a\nb\ncd\te");
  EXPECT_EQ(render_text("{{ {'a': {'b': 1}}.a.b }}{{ '}}' }}{{ \"%}\" }}"), "1}}%}");
}

TEST(ChatStatements, GenerationsAreFound) {
  const ChatTemplate parsed(
      "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}"
      "{% generation %}{{ m.content }}é{% endgeneration %}{% else %}{{ m.content }}{% endif %}"
      "{% endfor %}",
      "template");
  EXPECT_TRUE(parsed.marks_generations());
  const RenderedChat chat =
      parsed.render({.messages = two_messages()}, {.finds_generations = true});
  EXPECT_EQ(chat.text, "<user>Hi<assistant>Yes?é");
  ASSERT_EQ(chat.generations.size(), 1U);
  EXPECT_EQ(chat.text.substr(chat.generations[0].first), "Yes?é");
  EXPECT_EQ(chat.generations[0].second, chat.text.size());
}

TEST(ChatStatements, VariablesAreThoseOfTransformers) {
  EXPECT_EQ(render_text("{{ bos_token }}{{ tools is none }}{{ add_generation_prompt }}"),
            "<s>TrueFalse");
  EXPECT_EQ(render_text("{{ bos_token }}{{ n }}", R"({"bos_token": "B", "n": [1]})"), "B[1]");
  const auto messages = nlohmann::ordered_json::parse(
      R"([{"role": "assistant", "content": null, "reasoning": "r"}])");
  EXPECT_EQ(render_text("{{ messages[0] }}", "{}", messages),
            "{'thinking': 'r', 'role': 'assistant', 'reasoning': 'r', 'reasoning_content': 'r'}");
  const ChatTemplate dated("{{ strftime_now('%d %b %Y') }}", "template");
  EXPECT_EQ(dated.render({.messages = two_messages()}, {.now = 86'400}).text, "02 Jan 1970");
}

TEST(ChatStatements, MistakesNameTheirLine) {
  EXPECT_EQ(render_error("a\n{% if x %}"), "template, line 2: endif is missing");
  EXPECT_EQ(render_error("\n\n{{ 1 + }}"),
            "template, line 3: an expression is expected, and the end of the tag is there");
  EXPECT_NE(render_error("{% include 'x' %}").find("include is not supported"), std::string::npos);
  EXPECT_NE(render_error("{% break %}").find("break is outside a loop"), std::string::npos);
  EXPECT_NE(render_error("{{ f(*x) }}").find("arguments with '*' are not supported"),
            std::string::npos);
  EXPECT_NE(render_error("{% do x %}").find("do is not supported"), std::string::npos);
  EXPECT_NE(render_error("{{ 'a").find("a text has no end"), std::string::npos);
  EXPECT_NE(render_error("\xff").find("not UTF-8"), std::string::npos);
  EXPECT_NE(render_error("{% set n = namespace(_x=1) %}").find("underscore"), std::string::npos);
}

TEST(ChatStatements, ARefusalIsPrintedAsItsAuthorWroteIt) {
  const auto refusal = [](const std::string& text) {
    return render_error("\n{{ raise_exception('" + text + "') }}");
  };
  const std::string start = "template, line 2: the template refuses the conversation: ";
  const std::string alternate =
      "Les rôles doivent alterner : 用户/助手/用户/助手, and so on and so on…";
  EXPECT_EQ(refusal(alternate), start + alternate);
  EXPECT_EQ(refusal("No\nsystem\x1b[2J"), start + "No\\x0asystem\\x1b[2J");
  std::string most, more;
  for (int i = 0; i < 333; ++i) most += "中";
  for (int i = 0; i < 400; ++i) more += "中";
  EXPECT_EQ(refusal(more), start + most + "...");
}

// Each of them would take minutes or gigabytes, or the stack.
TEST(ChatStatements, HostileTemplatesEndSoon) {
  std::string deep = "1";
  std::string chain = "1";
  for (int i = 0; i < 100'000; ++i) chain += "+1";
  deep = std::string(100'000, '(') + deep + std::string(100'000, ')');
  EXPECT_NE(render_error("{{ " + deep + " }}").find("nested more than"), std::string::npos);
  EXPECT_NE(render_error("{{ " + chain + " }}").find("nested more than"), std::string::npos);
  EXPECT_NE(render_error("{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}"
                         "{% endfor %}")
                .find("steps"),
            std::string::npos);
  EXPECT_NE(render_error("{{ 'x' * 100000000000 }}").find("longer than"), std::string::npos);
  EXPECT_NE(render_error("{% set n = namespace(s='x') %}{% for i in range(99) %}"
                         "{% set n.s = n.s ~ n.s %}{% endfor %}")
                .find("longer than"),
            std::string::npos);
  EXPECT_NE(render_error("{% set n = namespace(s=[1]) %}{% for i in range(99) %}"
                         "{% set n.s = n.s + n.s %}{% endfor %}")
                .find("steps"),
            std::string::npos);
  EXPECT_NE(render_error("{% set n = namespace(s=1) %}{% for i in range(999) %}"
                         "{% set n.s = [n.s] %}{% endfor %}")
                .find("nested too deep"),
            std::string::npos);
  // Values that hold one value many times: their comparison, and their text.
  EXPECT_NE(render_error("{% set n = namespace(s=[1]) %}{% for i in range(60) %}"
                         "{% set n.s = [n.s, n.s] %}{% endfor %}{{ n.s == n.s }}")
                .find("too many values"),
            std::string::npos);
  EXPECT_NE(render_error("{% set a = 'x' * 60000000 %}{{ [a] * 1000 }}").find("too many values"),
            std::string::npos);
  EXPECT_NE(render_error("{% set a = range(100000) | list %}{% set b = range(100000) | list %}"
                         "{% for i in range(100000) %}{% if a == b %}{% endif %}{% endfor %}")
                .find("steps"),
            std::string::npos);
  EXPECT_NE(render_error("{{ ('b' * 1000000).join(['a'] * 100000) }}").find("longer than"),
            std::string::npos);
  EXPECT_NE(render_error("{{ (['a'] * 100000) | join('b' * 1000000) }}").find("longer than"),
            std::string::npos);
  EXPECT_NE(render_error("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}").find("too deep"),
            std::string::npos);
  EXPECT_NE(
      render_error("{% for a in range(100000) %}{{ 'x' * 1000 }}{% endfor %}").find("longer than"),
      std::string::npos);
}

}  // namespace
}  // namespace tessera::tokenizers
