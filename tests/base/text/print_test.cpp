// Text that would change a terminal is shown in place of being obeyed.
#include "base/text/print.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <functional>

namespace tessera {
namespace {

std::string written(const std::function<void(int)>& write) {
  int ends[2];
  EXPECT_EQ(::pipe(ends), 0);
  write(ends[1]);
  ::close(ends[1]);
  std::string text(4096, '\0');
  const ssize_t got = ::read(ends[0], text.data(), text.size());
  ::close(ends[0]);
  text.resize(static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
  return text;
}

TEST(Printable, ControlsBecomeVisible) {
  EXPECT_EQ(printable("a\x1b[31m\a\b\r\n\t\x7f"), "a\\x1b[31m\\x07\\x08\\x0d\\x0a\\x09\\x7f");
  EXPECT_EQ(printable(std::string_view("\0", 1)), "\\x00");
  for (const char* c1 : {"\xc2\x80", "\xc2\x9b", "\xc2\x9f"}) {
    EXPECT_TRUE(printable(c1).starts_with("\\xc2\\x")) << printable(c1);
  }
  for (const char* direction :
       {"\u202a", "\u202b", "\u202c", "\u202d", "\u202e", "\u2066", "\u2067", "\u2068", "\u2069",
        "\u200e", "\u200f", "\u061c", "\u2028", "\u2029"}) {
    EXPECT_TRUE(printable(direction).starts_with("\\x")) << printable(direction);
  }
}

TEST(Printable, OtherTextStays) {
  const std::string text = "plain, \u00e9, \u4e2d\u6587, \U0001f600, C:\\x1b";
  EXPECT_EQ(printable(text), text);
  EXPECT_EQ(printable(printable("\x1b")), "\\x1b");
}

TEST(Printable, BytesThatAreNotUtf8BecomeVisible) {
  // A lone continuation, a cut character, an overlong one, a surrogate, beyond Unicode.
  for (const std::string bytes :
       {"\x9b", "\xe4\xb8", "\xc0\x9b", "\xe0\x80\x9b", "\xed\xa0\x80", "\xf4\x90\x80\x80"}) {
    EXPECT_EQ(printable(bytes).size(), 4 * bytes.size()) << printable(bytes);
  }
}

TEST(Print, LinesStayInTextsOfSeveralLines) {
  EXPECT_EQ(printable_lines("a\tb\nc\r\x1b"), "a\tb\nc\\x0d\\x1b");
  EXPECT_EQ(written([](int file) { write_text(file, "one\ntwo\x1b[2J\n"); }), "one\ntwo\\x1b[2J\n");
}

TEST(Print, ANameBreaksNoLine) {
  ::testing::internal::CaptureStderr();
  print_err("passed over {:>8}: {}\n", std::string("a\nb"), 7);
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "passed over   a\\x0ab: 7\n");
  ::testing::internal::CaptureStdout();
  print_out("{} {:.1f} {}\n", "x\x1b[31m", 0.25, std::string_view("\u202e"));
  EXPECT_EQ(::testing::internal::GetCapturedStdout(), "x\\x1b[31m 0.2 \\xe2\\x80\\xae\n");
}

TEST(Print, OnlyOurOwnSequencesRedrawALine) {
  EXPECT_EQ(written([](int file) { redraw_line(file, "half\x1b[2J\n"); }),
            "\rhalf\\x1b[2J\\x0a\x1b[K");
}

TEST(Print, AResultKeepsItsBytesInAFile) {
  ::testing::internal::CaptureStdout();
  print_data("\x1b[31m");
  EXPECT_EQ(::testing::internal::GetCapturedStdout(), "\x1b[31m");
}

TEST(Print, AClosedOutputIsNotAnErrorForNotices) {
  write_text(-1, "x");
  redraw_line(-1, "x");
}

}  // namespace
}  // namespace tessera
