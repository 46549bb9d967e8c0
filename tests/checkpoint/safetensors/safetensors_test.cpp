// Tests the safetensors reader with the format's own vectors and with all files that it must
// refuse.
#include "checkpoint/safetensors/safetensors.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <sys/stat.h>

#include <array>

#include "checkpoint/support.h"

namespace tessera::checkpoint {
namespace {

using namespace testing;

std::string little_endian(std::uint64_t value) {
  std::string bytes;
  for (int shift = 0; shift < 64; shift += 8) bytes += static_cast<char>((value >> shift) & 0xff);
  return bytes;
}

// A file with this header and so many zero bytes of data.
std::string file_of(const std::string& header, std::size_t data_bytes) {
  return little_endian(header.size()) + header + std::string(data_bytes, '\0');
}

SafetensorsHeader parse(const std::string& file) {
  return read_safetensors_header(
      [&](std::uint64_t offset, void* out, std::size_t bytes) {
        ASSERT_LE(offset + bytes, file.size());
        std::memcpy(out, file.data() + offset, bytes);
      },
      file.size(), "'f'");
}

std::string refusal(const std::string& file) {
  std::string text = error_of([&] { parse(file); });
  EXPECT_TRUE(has(text, "'f'"));
  return text;
}

std::string entry(const std::string& fields) {
  return R"({"a":{)" + fields + "}}";
}

TEST(SafetensorsRead, TheFormatsOwnVectors) {
  const SafetensorsHeader empty = parse(std::string("\x08\0\0\0\0\0\0\0{}      ", 16));
  EXPECT_TRUE(empty.tensors().empty());

  const std::string text = R"({"attn.0":{"dtype":"F32","shape":[1,2,3],"data_offsets":[0,24]}})";
  const SafetensorsHeader one = parse(file_of(text + std::string(64 - text.size(), ' '), 24));
  ASSERT_NE(one.find("attn.0"), nullptr);
  EXPECT_EQ(one.find("attn.0")->shape, (std::vector<std::int64_t>{1, 2, 3}));
  EXPECT_EQ(one.find("attn.0")->begin, 72u);
  EXPECT_EQ(one.find("attn.0")->end, 96u);
  EXPECT_EQ(one.find("attn.1"), nullptr);
}

TEST(SafetensorsRead, AcceptsValidFiles) {
  // Leading and trailing white space, metadata, 0-d and empty tensors, any order of entries and
  // fields.
  const std::string text =
      " \n{\"b\":{\"shape\":[2],\"data_offsets\":[4,6],\"dtype\":\"I8\"},\"__metadata__\":{\"k\":"
      "\"v\"},\"scalar\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]},\"none\":{"
      "\"dtype\""
      ":\"F64\",\"shape\":[0,7],\"data_offsets\":[4,4]}}\t\r\n ";
  const SafetensorsHeader header = parse(file_of(text, 6));
  ASSERT_EQ(header.tensors().size(), 3u);
  EXPECT_EQ(header.tensors()[0].name, "scalar");
  EXPECT_EQ(header.tensors()[1].name, "none");
  EXPECT_EQ(header.metadata().at("k"), "v");
  EXPECT_FALSE(header.find("b")->stored->dtype.has_value());
  // Four-bit elements in whole bytes.
  parse(file_of(entry(R"("dtype":"F4","shape":[2,3],"data_offsets":[0,3])"), 3));
}

TEST(SafetensorsRead, RefusesBadLengths) {
  EXPECT_TRUE(has(refusal(""), "too few"));
  EXPECT_TRUE(has(refusal("1234567"), "too few"));
  EXPECT_TRUE(has(refusal(little_endian(100'000'001) + "{}"), "over the limit"));
  EXPECT_TRUE(has(refusal(little_endian(~0ull) + "{}"), "over the limit"));
  EXPECT_TRUE(has(refusal(little_endian(3) + "{}"), "past the end"));
  EXPECT_TRUE(has(refusal(little_endian(0)), "not valid JSON"));
}

struct Refused {
  const char* name;
  std::string header;
  std::size_t data_bytes;
  std::string expected;
};

TEST(Safetensors, NullMetadataIsNone) {
  const std::string header =
      R"({"__metadata__":null,"a":{"dtype":"I8","shape":[2],"data_offsets":[0,2]}})";
  const SafetensorsHeader parsed = parse(file_of(header, 2));
  EXPECT_TRUE(parsed.metadata().empty());
  EXPECT_EQ(parsed.tensors().size(), 1u);
}

class SafetensorsRefuses : public ::testing::TestWithParam<Refused> {};

TEST_P(SafetensorsRefuses, ByName) {
  const Refused& bad = GetParam();
  EXPECT_TRUE(has(refusal(file_of(bad.header, bad.data_bytes)), bad.expected));
}

std::vector<Refused> refused_headers() {
  const std::string good = R"({"dtype":"F32","shape":[1],"data_offsets":[0,4]})";
  return {
      {"InvalidUtf8", "{\"\xff\":" + good + "}", 4, "not valid JSON"},
      {"LoneSurrogate", "{\"\\ud800\":" + good + "}", 4, "not valid JSON"},
      {"NulInName", "{\"a\\u0000\":" + good + "}", 4, "NUL character"},
      {"RawNul", std::string("{}\0\0", 4), 0, "NUL byte"},
      {"ByteOrderMark", "\xEF\xBB\xBF{}", 0, "byte order mark"},
      {"NotJson", "{]", 0, "not valid JSON"},
      {"TrailingText", "{}x", 0, "not valid JSON"},
      {"Array", "[]", 0, "not an object"},
      {"Number", "7", 0, "not an object"},
      {"DuplicateTensor", "{\"a\":" + good + ",\"a\":" + good + "}", 4, "\"a\" twice"},
      {"DuplicateField", entry(R"("dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4])"),
       4, "\"dtype\" twice"},
      {"DuplicateMetadata", R"({"__metadata__":{"k":"v","k":"v"}})", 0, "\"k\" twice"},
      {"MetadataNumber", R"({"__metadata__":{"k":1}})", 0, "not a string"},
      {"MetadataNested", R"({"__metadata__":{"k":{}}})", 0, "not a string"},
      {"TensorNull", R"({"a":null})", 0, "not an object"},
      {"TensorNumber", R"({"a":1})", 0, "not an object"},
      {"UnknownField", entry(R"("dtype":"F32","shape":[1],"data_offsets":[0,4],"x":1)"), 4,
       "unknown field \"x\""},
      {"UnknownDType", entry(R"("dtype":"F31","shape":[1],"data_offsets":[0,4])"), 4,
       "unknown dtype \"F31\""},
      {"DTypeNumber", entry(R"("dtype":1,"shape":[1],"data_offsets":[0,4])"), 4, "dtype cannot be"},
      {"NoDType", entry(R"("shape":[1],"data_offsets":[0,4])"), 4, "no dtype"},
      {"NoShape", entry(R"("dtype":"F32","data_offsets":[0,4])"), 4, "no shape"},
      {"NoOffsets", entry(R"("dtype":"F32","shape":[1])"), 4, "no data_offsets"},
      {"ThreeOffsets", entry(R"("dtype":"F32","shape":[1],"data_offsets":[0,4,4])"), 4,
       "3 numbers"},
      {"OneOffset", entry(R"("dtype":"F32","shape":[1],"data_offsets":[0])"), 4, "1 numbers"},
      {"NegativeOffset", entry(R"("dtype":"F32","shape":[1],"data_offsets":[-4,0])"), 4,
       "negative number in data_offsets"},
      {"FloatOffset", entry(R"("dtype":"F32","shape":[1],"data_offsets":[0,4.0])"), 4,
       "not a 64-bit integer in data_offsets"},
      {"NegativeDimension", entry(R"("dtype":"F32","shape":[-1],"data_offsets":[0,4])"), 4,
       "negative number in shape"},
      {"FloatDimension", entry(R"("dtype":"F32","shape":[1e0],"data_offsets":[0,4])"), 4,
       "not a 64-bit integer in shape"},
      {"HugeDimension",
       entry(R"("dtype":"F32","shape":[9223372036854775808],"data_offsets":[0,4])"), 4,
       "too large"},
      {"OverflowingShape",
       entry(R"("dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,4])"), 4,
       "overflows"},
      {"NestedShape", entry(R"("dtype":"F32","shape":[[1]],"data_offsets":[0,4])"), 4,
       "an array in shape"},
      {"Hole", entry(R"("dtype":"F32","shape":[1],"data_offsets":[4,8])"), 8, "do not follow"},
      {"Backwards", entry(R"("dtype":"F32","shape":[1],"data_offsets":[4,0])"), 4, "do not follow"},
      {"Overlap", "{\"a\":" + good + ",\"b\":" + good + "}", 4, "do not follow"},
      {"WrongSize", entry(R"("dtype":"F32","shape":[2],"data_offsets":[0,4])"), 4,
       "has 8 bytes, data_offsets hold 4"},
      {"HalfBytes", entry(R"("dtype":"F4","shape":[3],"data_offsets":[0,2])"), 2,
       "not whole bytes"},
      {"MissingData", "{\"a\":" + good + "}", 3, "truncated"},
      {"TrailingData", "{\"a\":" + good + "}", 5, "damaged"},
      {"Deep", std::string(1000, '['), 0, "not an object"},
      {"DeepInside", "{\"a\":" + std::string(1000, '{'), 0, "not valid JSON"},
  };
}

INSTANTIATE_TEST_SUITE_P(Headers, SafetensorsRefuses, ::testing::ValuesIn(refused_headers()),
                         [](const auto& bad) { return bad.param.name; });

TEST(SafetensorsRead, MessagesStayShortWhateverTheFileContains) {
  const auto entry = [](const std::string& name, const std::string& shape) {
    return fmt::format(R"({{"{}":{{"dtype":"F32","shape":[{}],"data_offsets":[0,4]}}}})", name,
                       shape);
  };
  std::string ones = "2";
  for (int i = 0; i < 100'000; ++i) ones += ",1";
  const std::string long_name = refusal(file_of(entry(std::string(5'000, 'n'), "1"), 4));
  EXPECT_TRUE(has(long_name, "has 5000 bytes, the limit is 4096"));
  const std::string many_dimensions = refusal(file_of(entry("n", ones), 4));
  EXPECT_TRUE(has(many_dimensions, "of 100001 dimensions"));
  const std::string dtype = refusal(file_of(
      R"({"n":{"dtype":")" + std::string(100'000, 'F') + R"(","shape":[1],"data_offsets":[0,4]}})",
      4));
  EXPECT_TRUE(has(dtype, "unknown dtype"));
  for (const std::string& text : {long_name, many_dimensions, dtype}) EXPECT_LT(text.size(), 600u);
}

TEST(SafetensorsRead, AHundredThousandOverlappingEntriesAreRefusedQuickly) {
  std::string header = "{";
  for (int i = 0; i < 100'000; ++i) {
    header += fmt::format(R"("t{}":{{"dtype":"U8","shape":[4],"data_offsets":[0,4]}},)", i);
  }
  header.back() = '}';
  EXPECT_TRUE(has(refusal(file_of(header, 4)), "do not follow"));
}

std::vector<TensorToWrite> two_tensors(const std::array<float, 6>& a, const std::uint8_t& b) {
  return {{{"byte", DType::uint8, {}}, &b}, {{"wide", DType::float32, {2, 3}}, a.data()}};
}

TEST(SafetensorsWrite, TheBytesAreKnown) {
  TemporaryFolder folder;
  const std::array<float, 6> a{1, 2, 3, 4, 5, 6};
  const std::uint8_t b = 9;
  write_safetensors(folder.path() / "f", two_tensors(a, b));
  std::string text =
      R"({"__metadata__":{"format":"pt"},"wide":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
      R"("byte":{"dtype":"U8","shape":[],"data_offsets":[24,25]}})";
  text.append((8 - text.size() % 8) % 8, ' ');
  std::string expected = little_endian(text.size()) + text;
  expected.append(reinterpret_cast<const char*>(a.data()), 24);
  expected += '\x09';
  EXPECT_EQ(read_all(folder.path() / "f"), expected);
  EXPECT_FALSE(fs::exists(folder.path() / "f.partial"));

  const SafetensorsFile file(folder.path() / "f");
  std::array<float, 2> part{};
  file.read(*file.find("wide"), 8, part.data(), 8);
  EXPECT_EQ(part, (std::array<float, 2>{3, 4}));
  EXPECT_THROW(file.read(*file.find("wide"), 20, part.data(), 8), std::logic_error);
}

TEST(SafetensorsWrite, RefusesTensorsThatItCannotStore) {
  const auto compose = [](const std::string& first, const std::string& second) {
    compose_safetensors_header({{first, DType::float32, {1}}, {second, DType::float32, {1}}});
  };
  EXPECT_THROW(compose("a", "a"), std::logic_error);
  EXPECT_THROW(compose("a", "__metadata__"), std::logic_error);
  EXPECT_THROW(compose("a", "\xff"), std::logic_error);
}

TEST(SafetensorsRead, EveryTruncationIsRefused) {
  TemporaryFolder folder;
  const std::array<float, 6> a{};
  const std::uint8_t b = 0;
  write_safetensors(folder.path() / "f", two_tensors(a, b));
  const std::string whole = read_all(folder.path() / "f");
  for (std::size_t bytes = 0; bytes < whole.size(); ++bytes) refusal(whole.substr(0, bytes));
}

TEST(SafetensorsRead, EveryFlippedHeaderBitIsRefusedOrStaysInsideTheFile) {
  TemporaryFolder folder;
  const std::array<float, 6> a{};
  const std::uint8_t b = 0;
  write_safetensors(folder.path() / "f", two_tensors(a, b));
  const std::string whole = read_all(folder.path() / "f");
  for (std::size_t bit = 0; bit < (whole.size() - 25) * 8; ++bit) {
    std::string flipped = whole;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << (bit % 8)));
    try {
      const SafetensorsHeader header = parse(flipped);
      for (const TensorEntry& tensor : header.tensors()) {
        EXPECT_LE(tensor.begin, tensor.end);
        EXPECT_LE(tensor.end, whole.size());
      }
    } catch (const Error& error) {
      EXPECT_TRUE(has(error.what(), "'f'"));
    }
  }
}

TEST(SafetensorsRead, OnlyRegularFiles) {
  TemporaryFolder folder;
  ASSERT_EQ(::mkfifo((folder.path() / "fifo").c_str(), 0600), 0);
  EXPECT_TRUE(has(error_of([&] { SafetensorsFile file(folder.path() / "fifo"); }), "regular file"));
  EXPECT_TRUE(has(error_of([&] { SafetensorsFile file(folder.path()); }), "regular file"));
  EXPECT_TRUE(has(error_of([] { SafetensorsFile file("/dev/zero"); }), "regular file"));
  EXPECT_TRUE(has(error_of([&] { SafetensorsFile file(folder.path() / "none"); }), "ENOENT"));
  EXPECT_TRUE(has(error_of([&] { SafetensorsFile file(folder.path() / std::string(5000, 'x')); }),
                  "ENAMETOOLONG"));
}

}  // namespace
}  // namespace tessera::checkpoint
