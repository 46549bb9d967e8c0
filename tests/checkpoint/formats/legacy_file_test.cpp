// Files of torch.save before PyTorch 1.6: five pickles and the storages. pytorch_formats_test.cpp
// reads whole ones; here are their parts, their damage, and hostile ones.
#include <gtest/gtest.h>

#include "checkpoint/formats/formats_testing.h"
#include "checkpoint/formats/known_formats.h"
#include "checkpoint/formats/pickle/pickle_length.h"

namespace tessera::checkpoint {
namespace {

using namespace testing;
using formats::PickleWriter;

const std::string legacy_magic("\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.");

std::string eight_bytes(std::uint64_t value) {
  std::string out;
  for (int i = 0; i < 8; ++i) out += static_cast<char>((value >> (8 * i)) & 0xff);
  return out;
}

// A file with one float32 tensor "w" of shape [2, 2] in storage "5", of four elements.
struct LegacyParts {
  std::int64_t version = 1001;
  bool little_endian = true;
  const char* storage_class = "FloatStorage";
  std::int64_t first = 0;                                // element of the storage
  std::optional<std::array<std::int64_t, 2>> view = {};  // first element and size
  std::string key = "5";                                 // in the list of keys
  std::uint64_t count = 4;
  std::string behind = {};

  [[nodiscard]] std::string bytes() const {
    PickleWriter version_pickle, machine, object, keys;
    version_pickle.integer(version);
    machine.empty_dict().text("little_endian").boolean(little_endian).set_item();
    object.empty_dict().text("w").global("torch._utils", "_rebuild_tensor_v2").mark();
    object.mark().text("storage").global("torch", storage_class).text("5").text("cpu").integer(4);
    if (view) {
      object.mark().text("6").integer((*view)[0]).integer((*view)[1]).tuple();
    } else {
      object.none();
    }
    object.tuple().persistent().integer(first).tuple_of({2, 2}).tuple_of({2, 1}).boolean(false);
    object.none().tuple().reduce().set_item();
    keys.empty_list().text(key).append();
    return legacy_magic + version_pickle.finish() + machine.finish() + object.finish() +
           keys.finish() + eight_bytes(count) + std::string(16, '\x01') + behind;
  }
};

class LegacyFiles : public ::testing::Test {
 protected:
  [[nodiscard]] std::unique_ptr<formats::Source> open(const std::string& bytes) const {
    const fs::path path = folder_.path() / "file";  // known by its beginning, not by its name
    write_all(path, bytes);
    EXPECT_TRUE(formats::torch_format().recognises(path));
    return formats::recognise(path).open(path);
  }
  [[nodiscard]] std::string refusal(const std::string& bytes) const {
    return error_of([&] { (void)open(bytes); });
  }
  TemporaryFolder folder_;
};

TEST_F(LegacyFiles, TheFileOfThisTestIsRead) {
  const auto found = tensors_of(*open(LegacyParts{}.bytes()));
  EXPECT_EQ(found.at("model/w").bytes, std::string(16, '\x01'));
  EXPECT_EQ(found.at("model/w").shape, (std::vector<std::int64_t>{2, 2}));
}

TEST_F(LegacyFiles, ViewsBeginInTheirStorage) {
  EXPECT_EQ(tensors_of(*open(LegacyParts{.view = {{0, 4}}}.bytes())).size(), 1u);
  for (const auto& view : {std::array<std::int64_t, 2>{0, 3}, {1, 4}, {-1, 4}, {0, 5}, {5, 0}}) {
    EXPECT_TRUE(has(refusal(LegacyParts{.view = view}.bytes()), "out of the view"));
  }
  EXPECT_TRUE(has(refusal(LegacyParts{.first = 1}.bytes()), "out of its record"));
}

TEST_F(LegacyFiles, ProtocolFourHasFrames) {
  std::string framed = LegacyParts{}.bytes();
  framed.replace(0, 2, "\x80\x04\x95" + eight_bytes(legacy_magic.size() - 2));
  EXPECT_EQ(tensors_of(*open(framed)).size(), 1u);
}

TEST_F(LegacyFiles, OtherMachinesAndVersionsAreRefused) {
  EXPECT_TRUE(has(refusal(LegacyParts{.little_endian = false}.bytes()), "big-endian"));
  EXPECT_TRUE(has(refusal(LegacyParts{.version = 1000}.bytes()), "another version"));
  EXPECT_TRUE(has(refusal(LegacyParts{.storage_class = "QInt8Storage"}.bytes()), "QInt8Storage"));
  EXPECT_TRUE(has(refusal(LegacyParts{.storage_class = "device"}.bytes()), "torch.device"));
}

TEST_F(LegacyFiles, StoragesThatDoNotAgreeAreRefused) {
  EXPECT_TRUE(has(refusal(LegacyParts{.key = "7"}.bytes()), "does not name"));
  EXPECT_TRUE(has(refusal(LegacyParts{.count = 5}.bytes()), "cut short"));
  EXPECT_TRUE(has(refusal(LegacyParts{.count = std::uint64_t{1} << 62}.bytes()), "cut short"));
  EXPECT_TRUE(has(refusal(LegacyParts{.count = 3}.bytes()), "behind its last storage"));
  EXPECT_TRUE(
      has(refusal(LegacyParts{.behind = LegacyParts{}.bytes()}.bytes()), "several objects"));
}

TEST_F(LegacyFiles, EveryTruncationIsRefused) {
  const std::string whole = read_all(fixture("legacy_views.pt"));
  for (std::size_t keep = 64; keep < whole.size(); keep += 37) {
    EXPECT_TRUE(has(refusal(whole.substr(0, keep)), "cut short")) << keep;
  }
}

TEST_F(LegacyFiles, NothingIsExecuted) {
  PickleWriter version, machine, object;
  version.integer(1001);
  machine.empty_dict().text("little_endian").boolean(true).set_item();
  object.global("os", "system").mark().text("true").tuple().reduce();
  const std::string bytes =
      legacy_magic + version.finish() + machine.finish() + object.finish() + std::string(40, 'x');
  EXPECT_TRUE(has(refusal(bytes), "\"os.system\""));
}

TEST(PickleLength, StopsAtTheEndOfThePickle) {
  const auto length = [](const std::string& bytes) {
    const ReadBytes read = [&](std::uint64_t at, void* data, std::size_t count) {
      bytes.copy(static_cast<char*>(data), count, at);
    };
    return formats::pickle_length(read, 0, bytes.size(), "'file'");
  };
  PickleWriter writer;
  writer.empty_dict().text(std::string(20000, '.')).global("a", "b.c").set_item();
  const std::string pickle = writer.finish();
  EXPECT_EQ(length(pickle + "more..."), pickle.size());
  EXPECT_TRUE(has(error_of([&] { length(pickle.substr(0, pickle.size() - 1)); }), "cut short"));
  EXPECT_TRUE(has(error_of([&] { length("\x80\x02\xff."); }), "0xff at byte 2"));
  EXPECT_TRUE(
      has(error_of([&] { length("\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\xff."); }), "cut short"));
  EXPECT_TRUE(has(error_of([&] { length(""); }), "cut short"));
}

}  // namespace
}  // namespace tessera::checkpoint
