// Expressions have Python's and Jinja's values. The expected texts are those of Jinja 3.1.
#include "tokenizers/chat/chat_testing.h"

namespace tessera::tokenizers {
namespace {

struct ExpressionCase {
  const char* expression;
  const char* printed;
};

void expect_all(const std::vector<ExpressionCase>& cases) {
  for (const ExpressionCase& one : cases) {
    EXPECT_EQ(render_text("{{ " + std::string(one.expression) + " }}"), one.printed)
        << one.expression;
  }
}

TEST(ChatExpressions, OperatorsHaveJinjasPrecedence) {
  expect_all({{"1 + 2 * 3", "7"},
              {"(1 + 2) * 3", "9"},
              {"2 ** 3 ** 2", "64"},
              {"-2 ** 2", "4"},
              {"-7 // 2", "-4"},
              {"-7 % 3", "2"},
              {"7 / 2", "3.5"},
              {"6 / 2", "3.0"},
              {"1 ~ 2 + 3 ~ 'x'", "123x"},
              {"not 1 == 2", "True"},
              {"1 < 2 < 3 and 3 > 2 >= 2", "True"},
              {"true or x.y.z", "True"},
              {"'a' if false else 'b' if false else 'c'", "c"},
              {"'x' if false", ""},
              {"1 in [1, 2] and 'a' not in 'bcd'", "True"},
              {"'ab' * 2 + 'c'", "ababc"},
              {"[1] + [2, 'x']", "[1, 2, 'x']"},
              {"1e3 ~ ' ' ~ 1.5e-7 ~ ' ' ~ 1e16 ~ ' ' ~ 0.1", "1000.0 1.5e-07 1e+16 0.1"}});
}

TEST(ChatExpressions, TextsHavePythonsMethodsAndSlices) {
  expect_all(
      {{"'  a b '.strip()", "a b"},
       {"'xxaxx'.strip('x') ~ 'xxa'.lstrip('x') ~ 'axx'.rstrip('x')", "aaa"},
       {"'a,b,,c'.split(',')", "['a', 'b', '', 'c']"},
       {"' a  b c '.split()", "['a', 'b', 'c']"},
       // Bytes within a character are not looked at: the dagger's 0x80 0xa0 look like a space.
       {"'a†b é 中'.split()", "['a†b', 'é', '中']"},
       {"'x é†'.split()", "['x', 'é†']"},
       {"'a b c'.split(' ', 1)", "['a', 'b c']"},
       {"'a b c'.rsplit(' ', 1)", "['a b', 'c']"},
       {"'a b c'.rsplit(none, 1)", "['a b', 'c']"},
       {"'abc'.startswith(('x', 'ab'))", "True"},
       {"'a-b'.replace('-', '+')", "a+b"},
       {"'ab'.replace('', '.')", ".a.b."},
       {"'größe'[2] ~ 'größe'[-1] ~ 'größe'[1:4]", "öeröß"},
       {"'abcdef'[::-2]", "fdb"},
       {"'abc'[5] is defined", "False"},
       {"'ǆ ΑΣ ß'.upper() ~ 'ΑΣ'.lower()", "Ǆ ΑΣ SSας"},
       {"'hELLO wORLD'.title() ~ 'hELLO'.capitalize()", "Hello WorldHello"},
       {"'a=b=c'.partition('=')", "('a', '=', 'b=c')"},
       {"'a{}b{}{x}'.format(1, 'z', x=none)", "a1bzNone"},
       {"'a\\nb\\r\\nc'.splitlines()", "['a', 'b', 'c']"},
       {"'abcabc'.find('c') ~ 'abcabc'.rfind('c') ~ 'abc'.find('x')", "25-1"},
       {"'12'.isdigit() ~ ''.isdigit() ~ 'aB'.islower()", "TrueFalseFalse"},
       {"'-'.join(['a', 'b'])", "a-b"}});
}

TEST(ChatExpressions, ValuesPrintAsInPython) {
  expect_all({{"[1, 'a', none, true, 1.0, (1,), {}]", "[1, 'a', None, True, 1.0, (1,), {}]"},
              {"{'a': \"it's\", 'b': '\"', 'c': '\\n\\x00\\u00e9'}",
               "{'a': \"it's\", 'b': '\"', 'c': '\\n\\x00é'}"},
              {"messages[0]", "{'role': 'user', 'content': 'Hi'}"},
              {"unknown", ""},
              {"none", "None"}});
}

TEST(ChatExpressions, AttributesAndItemsAreLookedForInJinjasOrder) {
  expect_all({{"{'items': 1}['items']", "1"},
              {"{'a': 1}.items() | list", "[('a', 1)]"},
              {"{'a': {'b': 2}}.a.b", "2"},
              {"{'a': 1}.get('b', 3)", "3"},
              {"{'a': 1}.b is undefined", "True"},
              {"{1: 'x'}[1] ~ {true: 'y'}[1]", "xy"},
              {"[1, 2, 3][-1] ~ ([1] [3] is defined)", "3False"},
              {"'content' in messages[0]", "True"}});
}

TEST(ChatExpressions, FiltersHaveJinjasValues) {
  expect_all(
      {{"'x' | default('y') ~ (none | default('y')) ~ (none | default('z', true))", "xNonez"},
       {"messages | map(attribute='role') | join(', ')", "user, assistant"},
       {"messages | selectattr('role', 'equalto', 'user') | list | length", "1"},
       {"messages | rejectattr('role', 'in', ['user']) | map('length') | list", "[2]"},
       {"(messages | selectattr('role', 'eq', 'x')) is sequence", "False"},
       {"1 if messages | selectattr('role', 'eq', 'x') else 2", "1"},
       {"none | map('upper') | list", "[]"},
       {"[3, 1, 2] | sort ~ [3, 1] | sort(reverse=true) | first", "[1, 2, 3]3"},
       {"['b', 'A', 'a'] | sort | join", "Aab"},
       {"['b', 'A', 'a'] | unique | join", "bA"},
       {"{'b': 1, 'a': 2} | dictsort", "[('a', 2), ('b', 1)]"},
       {"'3.7' | int ~ ('x' | int(5)) ~ ('2.5' | float) ~ (2.5 | round)", "352.52.0"},
       {"'a\\nb\\n\\nc' | indent(2)", "a\n  b\n\n  c"},
       {"'hello wORLD-x' | title", "Hello World-X"},
       {"'abc' | reverse ~ ([1, 2] | reverse | list)", "cba[2, 1]"},
       {"'a' | safe + '<' ~ '&'", "a&lt;&amp;"},
       {"[1, 2, 3] | batch(2) | list", "[[1, 2], [3]]"},
       {"[1, 5, 2] | max ~ ([] | min is undefined) ~ [1, 2] | sum", "5True3"}});
}

TEST(ChatExpressions, JsonIsThatOfPythonsDumps) {
  expect_all(
      {{"{'a': [1, 2.0, none, true], 'é': '\"\\n\\u2028<'} | tojson",
        "{\"a\": [1, 2.0, null, true], \"é\": \"\\\"\\n\u2028<\"}"},
       {"{'b': 1, 'a': []} | tojson(indent=2, sort_keys=true)", "{\n  \"a\": [],\n  \"b\": 1\n}"},
       {"{'a': 1} | tojson(separators=(',', ':'))", "{\"a\":1}"},
       {"'é🙂\\x7f' | tojson(ensure_ascii=true)", "\"\\u00e9\\ud83d\\ude42\\u007f\""}});
}

TEST(ChatExpressions, TestsHaveJinjasMeaning) {
  expect_all({{"x is not defined and none is defined", "True"},
              {"'' is string and '' is sequence and '' is iterable", "True"},
              {"{} is mapping and {} is sequence and x is sequence", "True"},
              {"true is number and true is boolean and not true is integer", "True"},
              {"4 is divisibleby 2 and 3 is odd and 2 is even", "True"},
              {"1 is in [1] and 2 is eq 2 and true is sameas true", "True"},
              {"raise_exception is callable", "True"}});
}

TEST(ChatExpressions, WhatPythonRefusesIsAnErrorWithItsLine) {
  const std::vector<ExpressionCase> cases = {
      {"1 + 'a'", "line 1: a int and a str cannot be added"},
      {"x.y", "line 1: 'x' is undefined"},
      {"messages[0].a.b", "'dict object' has no attribute 'a'"},
      {"1 / 0", "a division by zero"},
      {"none | length", "a NoneType has no length"},
      {"'a' < 1", "a str and a int have no order"},
      {"messages.append(1)", "'append' of a list changes it"},
      {"messages | select | tojson", "a generator is not JSON"},
      {"x | tojson", "'x' is undefined; it cannot become JSON"},
      {"'a' | nothing", "the filter 'nothing' is not known"},
      {"'a' is nothing", "the test 'nothing' is not known"},
      {"range(100001)", "a range of 100001 numbers"},
      {"9223372036854775807 + 1", "a number is too large"},
      {"range", "a function has no text; it cannot be printed"},
      {"'%s' % 1", "the operator % on a text is not supported"}};
  for (const ExpressionCase& one : cases) {
    const std::string error = render_error("{{ " + std::string(one.expression) + " }}");
    EXPECT_NE(error.find(one.printed), std::string::npos) << one.expression << ": " << error;
  }
}

}  // namespace
}  // namespace tessera::tokenizers
