// Pickles are data: opcodes that build values are read; calls are refused by their name.
#include "checkpoint/formats/pickle/pickle.h"

#include <gtest/gtest.h>

#include "checkpoint/support.h"

namespace tessera::checkpoint {
namespace {

using namespace testing;
using formats::Pickle;
using formats::PickleKind;
using formats::PickleRules;
using formats::PickleValue;

const PickleRules rules{[](std::string_view global) {
                          return global == "collections.OrderedDict" || global == "torch.Size";
                        },
                        "a test", "Save it again."};

// Makes text with NULs from a literal.
template <std::size_t n>
std::string text(const char (&literal)[n]) {
  return {literal, n - 1};
}

Pickle read(const std::string& bytes) {
  return Pickle(bytes, "'f'", rules);
}

std::string pickle_refusal(const std::string& bytes) {
  std::string message = error_of([&] { read(bytes); });
  EXPECT_TRUE(has(message, "'f'"));
  EXPECT_TRUE(has(message, "nothing of it was executed"));
  return message;
}

TEST(Pickle, ReadsPlainValues) {
  // pickle.dumps({"a": [1, -2, 2**40, 1.5, None, True], "b": ("x", b"\x00")}, protocol) of CPython.
  const std::string of_2 = text(
      "\x80\x02}q\x00(X\x01\x00\x00\x00"
      "aq\x01]q\x02(K\x01J\xfe\xff\xff\xff\x8a\x06\x00\x00\x00\x00\x00\x01G?\xf8\x00\x00\x00\x00"
      "\x00\x00N\x88"
      "eX\x01\x00\x00\x00"
      "bq\x03X\x01\x00\x00\x00xq\x04"
      "C\x01\x00\x86q\x05u.");
  const Pickle pickle = read(of_2);
  const PickleValue list = pickle.root().require("a");
  ASSERT_EQ(list.size(), 6u);
  EXPECT_EQ(list.at(0).integer(), 1);
  EXPECT_EQ(list.at(1).integer(), -2);
  EXPECT_EQ(list.at(2).integer(), std::int64_t{1} << 40);
  EXPECT_EQ(list.at(3).number(), 1.5);
  EXPECT_TRUE(list.at(4).is(PickleKind::none));
  EXPECT_TRUE(list.at(5).boolean());
  EXPECT_EQ(pickle.root().require("b").at(0).text(), "x");
  EXPECT_TRUE(pickle.root().require("b").at(1).is(PickleKind::bytes));
  EXPECT_TRUE(has(error_of([&] { (void)list.at(0).text(); }), "an integer where a string"));
  EXPECT_TRUE(has(error_of([&] { (void)pickle.root().require("c"); }), "no 'c'"));
}

TEST(Pickle, ReadsWhatItWrites) {
  formats::PickleWriter writer;
  writer.empty_dict();
  for (const std::int64_t value :
       {std::int64_t{0}, std::int64_t{255}, std::int64_t{256}, std::int64_t{-1},
        std::int64_t{1} << 31, std::numeric_limits<std::int64_t>::min()}) {
    writer.text(std::to_string(value)).integer(value).set_item();
  }
  for (int i = 0; i < 300; ++i) {  // past the short memo opcodes
    writer.text("key" + std::to_string(i)).text("shared").set_item();
  }
  writer.text("size").global("torch", "Size").mark().tuple_of({3, 4}).tuple().reduce().set_item();
  writer.text("pi").real(3.25).set_item();
  const Pickle pickle = read(writer.finish());
  for (const char* value : {"0", "255", "256", "-1", "2147483648", "-9223372036854775808"}) {
    EXPECT_EQ(std::to_string(pickle.root().require(value).integer()), value);
  }
  EXPECT_EQ(pickle.root().require("key299").text(), "shared");
  EXPECT_TRUE(pickle.root().require("size").is_object_of("torch.Size"));
  EXPECT_EQ(pickle.root().require("size").argument(0).at(1).integer(), 4);
  EXPECT_EQ(pickle.root().require("pi").number(), 3.25);
}

TEST(Pickle, RefusesByName) {
  // os.system("true"), in all ways in which a pickle can express it.
  EXPECT_TRUE(has(pickle_refusal(text("\x80\x02"
                                      "cos\nsystem\nX\x04\x00\x00\x00true\x85R.")),
                  R"("os.system")"));
  EXPECT_TRUE(has(pickle_refusal(text("\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c\x04true\x85R.")),
                  R"("posix.system")"));
  EXPECT_TRUE(has(pickle_refusal(text("\x80\x02"
                                      "cbuiltins\neval\nX\x01\x00\x00\x00"
                                      "1\x85R.")),
                  R"("builtins.eval")"));
  EXPECT_TRUE(has(pickle_refusal(text("\x80\x04\x8c\x05torch\x8c\x12serialization.load\x93.")),
                  "Save it again."));
  EXPECT_TRUE(has(pickle_refusal(text("\x80\x02(S'true'\nios\nsystem\n.")), "opcode"));
  EXPECT_TRUE(has(pickle_refusal(text("\x80\x02(ios\nsystem\n.")), "INST"));
  EXPECT_TRUE(has(pickle_refusal(text("\x80\x02(cos\nsystem\no.")), "os.system"));
  EXPECT_TRUE(has(pickle_refusal(text("\x80\x02\x82\x01.")), "EXT"));
  EXPECT_TRUE(has(pickle_refusal(text("\x80\x02Pid\n.")), "PERSID"));
  // Control characters in a name are escaped for the terminal.
  const std::string bell =
      pickle_refusal(text("\x80\x02"
                          "cos\n\x1b[2J\n."));
  EXPECT_EQ(bell.find('\x1b'), std::string::npos);
}

TEST(Pickle, CallsNothingButWhatIsListed) {
  EXPECT_TRUE(has(pickle_refusal(text("\x80\x02K\x01K\x02\x85R.")), "not a known function"));
  EXPECT_TRUE(has(pickle_refusal(text("\x80\x02"
                                      "ctorch\nSize\nK\x01R.")),
                  "not a known function"));
  // An object is not a function, whatever it is made of.
  EXPECT_TRUE(has(pickle_refusal(text("\x80\x02"
                                      "ctorch\nSize\n)R)R.")),
                  "not a known function"));
  EXPECT_TRUE(has(pickle_refusal(text("\x80\x02]}b.")), "BUILD"));
  EXPECT_TRUE(has(pickle_refusal(text("\x80\x02"
                                      "ctorch\nSize\n}b.")),
                  "BUILD"));
  EXPECT_TRUE(has(pickle_refusal(text("\x80\x02"
                                      "ctorch\nSize\n)R}b}b.")),
                  "two states"));
  EXPECT_TRUE(has(pickle_refusal(text("\x80\x02]K\x01K\x02s.")), "SETITEM"));
  EXPECT_TRUE(has(pickle_refusal(text("\x80\x02}K\x01"
                                      "a.")),
                  "APPEND"));
}

TEST(Pickle, RefusesDamage) {
  EXPECT_TRUE(has(error_of([] { read(""); }), "not a pickle"));
  EXPECT_TRUE(has(error_of([] { read("(dp0\n."); }), "protocol 2 to 5"));
  EXPECT_TRUE(has(pickle_refusal(text("\x80\x02")), "cut short"));
  EXPECT_TRUE(has(pickle_refusal(text("\x80\x02N")), "cut short"));
  EXPECT_TRUE(has(pickle_refusal(text("\x80\x02N.N")), "behind"));
  EXPECT_TRUE(has(pickle_refusal(text("\x80\x02NN.")), "left over"));
  EXPECT_TRUE(has(pickle_refusal(text("\x80\x02(N.")), "left over"));
  EXPECT_TRUE(has(pickle_refusal(text("\x80\x02.")), "left over"));
  EXPECT_TRUE(has(pickle_refusal(text("\x80\x02\x85.")), "empty stack"));
  EXPECT_TRUE(has(pickle_refusal(text("\x80\x02](\x85.")), "empty stack"));
  EXPECT_TRUE(has(pickle_refusal(text("\x80\x02Nt.")), "never opened"));
  EXPECT_TRUE(has(pickle_refusal(text("\x80\x02h\x05.")), "memo entry that it never wrote"));
  EXPECT_TRUE(has(pickle_refusal(text("\x80\x02Nr\xff\xff\xff\xff.")), "memo index"));
  EXPECT_TRUE(has(pickle_refusal(text("\x80\x02X\xff\xff\xff\x7fx.")), "cut short"));
  EXPECT_TRUE(has(pickle_refusal(text("\x80\x02X\x01\x00\x00\x00\xff.")), "UTF-8"));
  for (const char* wrong : {"\xed\xa0\x80", "\xe0\x80\x80", "\xf4\x90\x80\x80", "\xc0\x80"}) {
    const std::string bytes = wrong;
    const std::string length{static_cast<char>(bytes.size()), '\0', '\0', '\0'};
    EXPECT_TRUE(has(pickle_refusal("\x80\x02X" + length + bytes + "."), "UTF-8"));
  }
  EXPECT_TRUE(has(pickle_refusal(text("\x80\x02}]Ns.")), "key"));
  EXPECT_TRUE(has(pickle_refusal(text("\x80\x02}(Nu.")), "without a value"));
}

TEST(Pickle, BombsStayWithinTheirSize) {
  // A list that contains the previous one twice, fifty times over: 2^50 leaves, read quickly.
  std::string doubled = text("\x80\x02]q\x00");
  for (int i = 0; i < 50; ++i) {
    const std::string level{'q', static_cast<char>(i + 1)};
    doubled += "](h" + std::string(1, static_cast<char>(i)) + "h" +
               std::string(1, static_cast<char>(i)) + "e" + level;
  }
  std::string kept = doubled;
  for (int i = 0; i < 50; ++i) kept += "\x86";  // pop the lists below, so that one value remains
  EXPECT_EQ(read(kept + ".").root().size(), 2u);

  EXPECT_TRUE(has(pickle_refusal("\x80\x02" + std::string(100000, '(')), "nested too deep"));
  // Deep nesting without marks: a list in a list in a list. Reading and freeing it needs no deep
  // stack.
  const std::size_t depth = 1000000;
  const Pickle deep =
      read("\x80\x02" + std::string(depth, ']') + std::string(depth - 1, 'a') + ".");
  EXPECT_EQ(deep.root().size(), 1u);
  // A thousand calls copy one large dict.
  std::string copies = text("\x80\x02}q\x00(");
  for (int i = 0; i < 2000; ++i) copies += text("K\x01N");
  copies += "u";
  for (int i = 0; i < 2000; ++i) copies += text("ccollections\nOrderedDict\nh\x00\x85R0");
  EXPECT_TRUE(has(pickle_refusal(copies + "."), "copies more"));
}

}  // namespace
}  // namespace tessera::checkpoint
