// Checksums are those of the ranks' memory: a bit that changes on its way to the disk is damage.
// Where the parts of two ranks meet in a file, a new chunk begins.
#include <gtest/gtest.h>

#include <atomic>

#include "checkpoint/steps/manifest.h"
#include "checkpoint/support.h"

namespace tessera::checkpoint {
namespace {

using namespace testing;

// Changes a bit of the first write of at least `least` bytes.
class FlippingDisk final : public SystemCalls {
 public:
  explicit FlippingDisk(std::size_t least) : least_(least) {}
  ssize_t pwrite(int fd, const void* data, std::size_t bytes, off_t offset) override {
    if (bytes < least_ || flipped_.exchange(true)) {
      return SystemCalls::pwrite(fd, data, bytes, offset);
    }
    std::string changed(static_cast<const char*>(data), bytes);
    changed.back() = static_cast<char>(changed.back() ^ 1);
    return SystemCalls::pwrite(fd, changed.data(), bytes, offset);
  }

 private:
  std::size_t least_;
  std::atomic<bool> flipped_{false};
};

TEST(WrittenBytes, ChangedOnTheWayToDiskAreDamage) {
  for (const StateDictType type : {StateDictType::full, StateDictType::sharded}) {
    const TemporaryFolder folder;
    FlippingDisk disk(500);
    comm::run_local(2, [&](const auto& communicator) {
      std::optional<ScopedSystemCalls> scope;
      if (communicator->rank() == 1) scope.emplace(disk);
      save_version(*communicator, folder.path(), 1, {.type = type});
    });
    EXPECT_TRUE(has(error_of([&] { verify(folder.path() / "step-1"); }), "do not match"));
  }
}

TEST(WrittenBytes, ANewChunkBeginsWhereRanksMeet) {
  const TemporaryFolder folder;
  save_version(folder.path(), 1, {}, 3);
  const Manifest manifest = read_manifest(folder.path() / "step-1");
  const FileRecord& file = manifest.file("model.safetensors");
  EXPECT_FALSE(file.cuts.empty());
  EXPECT_EQ(file.chunks.size(), file.cuts.size() + 1);  // all are small
  // A file of one rank has no cuts, nor has the part of one rank: such steps are as in version 1 of
  // the format.
  save_version(folder.path(), 2, {.type = StateDictType::sharded}, 3);
  save_version(folder.path(), 3, {}, 1);
  for (const int step : {2, 3}) {
    for (const FileRecord& record :
         read_manifest(folder.path() / ("step-" + std::to_string(step))).files) {
      EXPECT_TRUE(record.cuts.empty()) << record.name;
    }
  }
}

std::string with_checksum(const nlohmann::json& body) {
  return nlohmann::json{{"manifest", body}, {"xxh3", to_hex(checksum(body.dump()))}}.dump();
}

TEST(WrittenBytes, StepsOfTheFirstVersionAreRead) {
  const TemporaryFolder folder;
  save_version(folder.path(), 4, {.type = StateDictType::sharded}, 2);
  const fs::path path = folder.path() / "step-4" / manifest_name;
  auto body = nlohmann::json::parse(read_all(path)).at("manifest");
  body["version"] = 1;
  write_all(path, with_checksum(body));
  expect_version(folder.path() / "step-4", 4);
}

TEST(WrittenBytes, WrongCutsAreRefused) {
  const TemporaryFolder folder;
  save_version(folder.path(), 1, {}, 2);
  const auto good = nlohmann::json::parse(read_all(folder.path() / "step-1" / manifest_name));
  const auto refusal = [&](const nlohmann::json& cuts) {
    nlohmann::json body = good.at("manifest");
    body["files"]["model.safetensors"]["cuts"] = cuts;
    return error_of([&] { parse_manifest(with_checksum(body), "m"); });
  };
  EXPECT_TRUE(has(refusal({100, 50}), "begin anew at byte 50, after byte 100"));
  EXPECT_TRUE(has(refusal({std::uint64_t{1} << 60}), "begin anew at byte"));
  EXPECT_TRUE(has(refusal({1, 2, 3}), "hexadecimal digits of checksums for 4 chunks"));
  EXPECT_TRUE(has(refusal({"x"}), "found string instead of"));
}

}  // namespace
}  // namespace tessera::checkpoint
