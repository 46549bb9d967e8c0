// Zip archives: written archives are read again, inconsistent ones are refused.
#include "checkpoint/formats/torch/zip.h"

#include <gtest/gtest.h>

#include <cstring>

#include "checkpoint/io/crc32.h"
#include "checkpoint/support.h"

namespace tessera::checkpoint {
namespace {

using namespace testing;
using formats::ZipDirectory;
using formats::ZipPlan;
using formats::ZipRecord;

ZipDirectory directory_of(const std::string& archive) {
  return {[&](std::uint64_t offset, void* out, std::size_t bytes) {
            ASSERT_LE(offset + bytes, archive.size());
            std::memcpy(out, archive.data() + offset, bytes);
          },
          archive.size(), "'f'"};
}

std::string zip_refusal(const std::string& archive) {
  std::string message = error_of([&] { directory_of(archive); });
  EXPECT_TRUE(has(message, "'f'"));
  return message;
}

// An archive of these records, at byte `base` of a file.
std::string written(const std::vector<std::pair<std::string, std::string>>& records,
                    std::uint64_t base = 0) {
  const TemporaryFolder folder;
  std::vector<ZipPlan> plan;
  for (const auto& [name, data] : records) plan.push_back({name, data.size(), 0});
  const std::uint64_t bytes = plan_zip(plan);
  File file = File::create(folder.path() / "a");
  formats::ZipWriter zip(file, base, plan);
  for (const auto& [name, data] : records) {
    zip.append(data.substr(0, data.size() / 2));
    zip.append(data.substr(data.size() / 2));
  }
  zip.finish();
  const std::string all = read_all(folder.path() / "a");
  EXPECT_EQ(all.size(), base + bytes);
  return all.substr(base);
}

const std::vector<std::pair<std::string, std::string>> some_records{
    {"a/data.pkl", "pickle"},
    {"a/data/0", std::string(1000, 'x')},
    {"a/empty", ""},
    {"a/v", "3\n"}};

TEST(Zip, ReadsWhatItWrites) {
  for (const std::uint64_t base : {std::uint64_t{0}, std::uint64_t{1577}}) {
    const std::string archive = written(some_records, base);
    const ZipDirectory directory = directory_of(archive);
    ASSERT_EQ(directory.records().size(), some_records.size());
    for (const auto& [name, data] : some_records) {
      const ZipRecord* record = directory.find(name);
      ASSERT_NE(record, nullptr);
      EXPECT_EQ(archive.substr(record->offset, record->bytes), data);
      EXPECT_EQ(record->offset % 64, 0u);
      EXPECT_EQ(record->crc, formats::crc32(0, data.data(), data.size()));
    }
    EXPECT_EQ(directory.find("a/other"), nullptr);
  }
}

TEST(Zip, ChecksumsAreStandardCrc32) {
  EXPECT_EQ(formats::crc32(0, "123456789", 9), 0xcbf43926u);  // the check value of CRC-32
  std::string bytes(5000, '\0');
  std::mt19937 random(7);
  for (char& c : bytes) c = static_cast<char>(random());
  // In one piece or in many, by multiplication or by tables.
  const std::uint32_t whole = formats::crc32(0, bytes.data(), bytes.size());
  for (const std::size_t step : {1u, 63u, 64u, 65u, 1000u}) {
    std::uint32_t crc = 0;
    for (std::size_t at = 0; at < bytes.size(); at += step) {
      crc = formats::crc32(crc, bytes.data() + at, std::min(step, bytes.size() - at));
    }
    EXPECT_EQ(crc, whole);
  }
}

// Changes a number in the archive's directory: `at` bytes into the record of `name`.
std::string changed(std::string archive, const std::string& name, std::size_t at,
                    std::uint32_t value, std::size_t bytes) {
  const std::size_t found = archive.rfind(name);  // the directory comes last
  EXPECT_NE(found, std::string::npos);
  const std::size_t record = found - 46;
  EXPECT_EQ(archive.substr(record, 4), "PK\x01\x02");
  std::memcpy(archive.data() + record + at, &value, bytes);
  return archive;
}

TEST(Zip, CompressedRecordsAreListedAsSuch) {
  const std::string archive = written(some_records);
  const std::string compressed = changed(archive, "a/data/0", 10, 8, 2);
  EXPECT_TRUE(has(zip_refusal(compressed), "without its header"));  // which says that it is stored
  std::string both = compressed;
  both[both.find("a/data/0") - 30 + 8] = 8;
  const ZipDirectory directory = directory_of(changed(both, "a/data/0", 24, 4000, 4));
  EXPECT_TRUE(directory.find("a/data/0")->compressed);
  EXPECT_EQ(directory.find("a/data/0")->bytes, 1000);
  EXPECT_FALSE(directory.find("a/data.pkl")->compressed);
}

TEST(Zip, RefusesWhatDoesNotFit) {
  const std::string archive = written(some_records);
  EXPECT_TRUE(has(zip_refusal(""), "cut short"));
  EXPECT_TRUE(has(zip_refusal(std::string(500, 'P')), "no end"));
  for (std::size_t keep = 0; keep < archive.size(); ++keep) {
    error_of([&] { directory_of(archive.substr(0, keep)); });
  }
  const std::string name = "a/data/0";
  EXPECT_TRUE(has(zip_refusal(changed(archive, name, 8, 1, 2)), "encrypted"));
  EXPECT_TRUE(has(zip_refusal(changed(archive, name, 20, 999, 4)), "two sizes"));
  EXPECT_TRUE(
      has(zip_refusal(changed(changed(archive, name, 20, 1 << 20, 4), name, 24, 1 << 20, 4)),
          "outside"));
  EXPECT_TRUE(has(zip_refusal(changed(archive, name, 42, 0x7fffffff, 4)), "outside"));
  // Two records that share bytes: a zip bomb.
  EXPECT_TRUE(has(zip_refusal(changed(archive, "a/empty", 42, 0, 4)), "share bytes"));
  EXPECT_TRUE(has(zip_refusal(changed(archive, name, 42, 1, 4)), "share bytes"));
  EXPECT_TRUE(has(zip_refusal(changed(archive, "a/data.pkl", 42, 1, 4)), "without its header"));
  const std::string larger = changed(changed(archive, name, 20, 1100, 4), name, 24, 1100, 4);
  EXPECT_TRUE(has(zip_refusal(larger), "share bytes"));
}

TEST(Zip, RefusesNamesThatLeaveTheFolder) {
  for (const char* name : {"/etc/passwd", "a/../b", "a\\b"}) {
    EXPECT_TRUE(has(zip_refusal(written({{name, "x"}})), "the name"));
  }
  EXPECT_TRUE(has(zip_refusal(written({{"a/v", "x"}, {"a/v", "y"}})), "twice"));
}

// The same archive with all sizes and offsets in ZIP64 fields, as streaming writers produce it.
TEST(Zip, ReadsZip64) {
  const std::string data(300, 'q');
  const std::string plain = written({{"a/data/0", data}});
  const auto put = [](std::string& out, std::uint64_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) out += static_cast<char>(value >> (8 * i));
  };
  const std::size_t central = plain.rfind("PK\x01\x02");
  std::string record = plain.substr(central, 46 + 8);
  for (const std::size_t at : {20u, 24u, 42u}) record.replace(at, 4, "\xff\xff\xff\xff");
  record[30] = 28;  // bytes of the extra field
  put(record, 1, 2);
  put(record, 24, 2);
  put(record, data.size(), 8);
  put(record, data.size(), 8);
  put(record, 0, 8);
  std::string archive = plain.substr(0, central) + record;
  const std::size_t end = archive.size();
  put(archive, 0x06064b50, 4);
  put(archive, 44, 8);
  put(archive, 45, 2);
  put(archive, 45, 2);
  put(archive, 0, 8);
  put(archive, 1, 8);
  put(archive, 1, 8);
  put(archive, record.size(), 8);
  put(archive, central, 8);
  put(archive, 0x07064b50, 4);
  put(archive, 0, 4);
  put(archive, end, 8);
  put(archive, 1, 4);
  put(archive, 0x06054b50, 4);
  put(archive, 0, 4);
  put(archive, 0xffffffff, 4);
  put(archive, 0xffffffff, 4);
  put(archive, 0xffffffff, 4);
  put(archive, 0, 2);
  const ZipDirectory directory = directory_of(archive);
  ASSERT_NE(directory.find("a/data/0"), nullptr);
  EXPECT_EQ(archive.substr(directory.find("a/data/0")->offset, 300), data);
}

}  // namespace
}  // namespace tessera::checkpoint
