// Damaged, incomplete and forged step folders are refused with the names of the file and the
// tensor.
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <unistd.h>

#include "checkpoint/io/checksum.h"
#include "checkpoint/steps/manifest.h"
#include "checkpoint/support.h"

namespace tessera::checkpoint {
namespace {

using namespace testing;

// One rank, two tensors: few enough bytes to flip all bits.
fs::path save_small(const fs::path& dir, StateDictType type, std::int64_t step = 1) {
  fs::path path;
  comm::run_local(1, [&](const auto& communicator) {
    std::vector<float> w{1, 2, 3, 4, 5}, m{6, 7};
    State state;
    state.model.push_back(
        {"layer.w", DType::float32, {5}, {{0, 5, reinterpret_cast<std::byte*>(w.data())}}});
    state.optimizer.push_back(
        {"layer.w.m", DType::float32, {2}, {{0, 2, reinterpret_cast<std::byte*>(m.data())}}});
    state.scalars.set("step", step).set("lr", 1e20).set("text", "ü");
    path = save(*communicator, dir, step, state, {.type = type}).path;
  });
  return path;
}

nlohmann::json load_small(const fs::path& step) {
  nlohmann::json out;
  comm::run_local(1, [&](const auto& communicator) {
    std::vector<float> w(5), m(2);
    State state;
    state.model.push_back(
        {"layer.w", DType::float32, {5}, {{0, 5, reinterpret_cast<std::byte*>(w.data())}}});
    state.optimizer.push_back(
        {"layer.w.m", DType::float32, {2}, {{0, 2, reinterpret_cast<std::byte*>(m.data())}}});
    load(*communicator, step, state);
    out = {w, m, json_of(state.scalars)};
  });
  return out;
}

class Damage : public ::testing::TestWithParam<StateDictType> {
 protected:
  Damage() : step_(save_small(folder_.path(), GetParam())), good_(load_small(step_)) {}

  [[nodiscard]] fs::path model_file() const {
    return step_ / (GetParam() == StateDictType::full ? "model.safetensors"
                                                      : "model-rank-00000-of-00001.safetensors");
  }

  // verify and load both refuse the step and name the file.
  std::string expect_refused(const fs::path& file) {
    std::string text = error_of([&] { verify(step_); });
    EXPECT_TRUE(has(text, file.string()));
    EXPECT_TRUE(has(error_of([&] { load_small(step_); }), file.string()));
    return text;
  }

  TemporaryFolder folder_;
  fs::path step_;
  nlohmann::json good_;
};

TEST_P(Damage, EveryFlippedBitOfTheManifest) {
  const fs::path path = step_ / manifest_name;
  const std::string whole = read_all(path);
  for (std::size_t bit = 0; bit < whole.size() * 8; ++bit) {
    std::string flipped = whole;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << (bit % 8)));
    try {
      // A manifest that still parses must have the same values: 'e' and 'E' of a float are
      // equivalent.
      EXPECT_EQ(json_of(parse_manifest(flipped, path).scalars), good_[2]);
      EXPECT_EQ(to_text(parse_manifest(flipped, path)), whole);
    } catch (const Error& error) {
      EXPECT_TRUE(has(error.what(), path.string()));
    }
  }
  verify(step_);
}

TEST_P(Damage, EveryTruncationOfTheManifest) {
  const std::string whole = read_all(step_ / manifest_name);
  for (std::size_t bytes = 0; bytes + 1 < whole.size(); ++bytes) {
    const std::string text = error_of([&] { parse_manifest(whole.substr(0, bytes), "m"); });
    EXPECT_TRUE(has(text, "'m'"));
  }
}

TEST_P(Damage, EveryFlippedBitOfATensorFile) {
  const std::string whole = read_all(model_file());
  for (std::size_t bit = 0; bit < whole.size() * 8; ++bit) {
    std::string flipped = whole;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << (bit % 8)));
    write_all(model_file(), flipped);
    const std::string text = error_of([&] { verify(step_); });
    EXPECT_TRUE(has(text, model_file().string()));
    EXPECT_TRUE(has(text, "bytes 0 to"));
    const bool in_data = bit / 8 >= whole.size() - 20;
    EXPECT_TRUE(!in_data || has(text, "layer.w"));
    if (bit % 61 == 0) expect_refused(model_file());
    if (HasFailure()) return;
  }
}

TEST_P(Damage, EveryTruncationOfATensorFile) {
  const std::string whole = read_all(model_file());
  for (std::size_t bytes = whole.size(); bytes-- > 0;) {
    fs::resize_file(model_file(), bytes);
    EXPECT_TRUE(has(error_of([&] { verify(step_); }), "truncated"));
  }
  expect_refused(model_file());
}

TEST_P(Damage, AFileThatIsMissingLongerOrOfAnotherKind) {
  const std::string whole = read_all(model_file());
  write_all(model_file(), whole + "x");
  EXPECT_TRUE(has(expect_refused(model_file()), "damaged"));
  fs::remove(model_file());
  EXPECT_TRUE(has(expect_refused(model_file()), "ENOENT"));
  fs::create_directory(model_file());
  EXPECT_TRUE(has(expect_refused(model_file()), "not a regular file"));
  fs::remove(model_file());
  fs::create_symlink("/dev/zero", model_file());
  EXPECT_TRUE(has(expect_refused(model_file()), "not a regular file"));
}

TEST_P(Damage, AFileOfAnotherSave) {
  const fs::path other = save_small(folder_.path(), GetParam(), 2);
  fs::copy_file(step_ / manifest_name, other / manifest_name, fs::copy_options::overwrite_existing);
  verify(other);  // the same tensors: the same files
  std::string changed = read_all(model_file());
  changed[changed.size() - 1] ^= 1;
  write_all(other / model_file().filename(), changed);
  EXPECT_TRUE(has(error_of([&] { verify(other); }), "do not match their checksum"));
}

TEST_P(Damage, UnlistedFilesAreLeftAlone) {
  write_all(step_ / "README", "mine");
  write_all(step_ / "model-rank-00007-of-00008.safetensors", "not ours");
  verify(step_);
  EXPECT_EQ(load_small(step_), good_);
}

INSTANTIATE_TEST_SUITE_P(Types, Damage,
                         ::testing::Values(StateDictType::full, StateDictType::sharded),
                         [](const auto& type) {
                           return type.param == StateDictType::full ? "full" : "sharded";
                         });

TEST(DamageInLargeFiles, TheChunkAndItsTensorAreNamed) {
  TemporaryFolder folder;
  std::vector<float> a(400'000, 1.0f), b(400'000, 2.0f);
  comm::run_local(1, [&](const auto& communicator) {
    State state;
    state.model.push_back({"first",
                           DType::float32,
                           {400'000},
                           {{0, 400'000, reinterpret_cast<std::byte*>(a.data())}}});
    state.model.push_back({"second",
                           DType::float32,
                           {400'000},
                           {{0, 400'000, reinterpret_cast<std::byte*>(b.data())}}});
    save(*communicator, folder.path(), 1, state, {});
    const fs::path file = folder.path() / "step-1/model.safetensors";
    std::string whole = read_all(file);
    whole[2'500'000] ^= 4;
    write_all(file, whole);
    const std::string text = error_of([&] { verify(folder.path() / "step-1"); });
    EXPECT_TRUE(has(text, "bytes 2097152 to 3145728"));
    EXPECT_TRUE(has(text, "tensor 'second'"));
    // The damage is only in the second tensor's part: every rank of the load still reports it.
    state.model[0].pieces[0].count = 10;
    error_of([&] { load(*communicator, folder.path() / "step-1", state, LoadParts::model_only); });
  });
  std::vector<std::string> errors(2);
  comm::run_local(2, [&](const auto& communicator) {
    const bool is_first = communicator->rank() == 0;
    State state;
    state.model.push_back({"first", DType::float32, {400'000}, {}});
    state.model.push_back({"second", DType::float32, {400'000}, {}});
    auto* memory = reinterpret_cast<std::byte*>(is_first ? a.data() : b.data());
    state.model[is_first ? 0 : 1].pieces.push_back({0, 400'000, memory});
    errors[is_first ? 0 : 1] = error_of(
        [&] { load(*communicator, folder.path() / "step-1", state, LoadParts::model_only); });
  });
  EXPECT_EQ(errors[0], errors[1]);
  EXPECT_TRUE(has(errors[0], "rank 1: "));
}

// A manifest that was written by hand, with a correct checksum.
std::string forged(const nlohmann::json& body) {
  return nlohmann::json{{"manifest", body}, {"xxh3", to_hex(checksum(body.dump()))}}.dump();
}

TEST(ForgedManifests, AreRefusedByName) {
  TemporaryFolder folder;
  const fs::path step = save_small(folder.path(), StateDictType::sharded);
  const auto good = nlohmann::json::parse(read_all(step / manifest_name)).at("manifest");
  const std::string file = "model-rank-00000-of-00001.safetensors";
  parse_manifest(forged(good), "m");
  const auto refusal = [&](const std::function<void(nlohmann::json&)>& spoil) {
    nlohmann::json body = good;
    spoil(body);
    return error_of([&] { parse_manifest(forged(body), "m"); });
  };
  EXPECT_TRUE(has(refusal([](auto& m) { m["format"] = "other"; }), "format is 'other'"));
  EXPECT_TRUE(has(refusal([](auto& m) { m["version"] = 3; }), "version 3 is unknown"));
  EXPECT_TRUE(has(refusal([](auto& m) { m["type"] = "half"; }), "'half'"));
  EXPECT_TRUE(has(refusal([](auto& m) { m.erase("scalars"); }), "scalars"));
  EXPECT_TRUE(has(refusal([](auto& m) { m["step"] = "1"; }), "found string instead of"));
  // Numbers that no integer holds, and those that would wrap around to one that is taken.
  const std::string no_number = "instead of a whole number";
  EXPECT_TRUE(has(refusal([](auto& m) { m["version"] = 6.6e124; }), no_number));
  EXPECT_TRUE(has(refusal([](auto& m) { m["version"] = 1.5; }), no_number));
  EXPECT_TRUE(has(refusal([](auto& m) { m["version"] = (1ull << 32) + 1; }), no_number));
  EXPECT_TRUE(has(refusal([](auto& m) { m["world_size"] = true; }), no_number));
  EXPECT_TRUE(has(refusal([](auto& m) { m["step"] = ~0ull; }), no_number));
  EXPECT_TRUE(has(refusal([&](auto& m) { m["files"][file]["bytes"] = -1; }), "from 0 on"));
  EXPECT_TRUE(has(refusal([](auto& m) { m["model"]["tensors"][0][2] = {2.5}; }), no_number));
  EXPECT_TRUE(has(refusal([](auto& m) { m["model"]["tensors"][0][2] = 3; }), "a list of whole"));
  EXPECT_TRUE(has(refusal([&](auto& m) { m["files"]["../x"] = m["files"][file]; }), "plain file"));
  EXPECT_TRUE(has(refusal([&](auto& m) { m["files"][file]["chunk_bytes"] = 0; }), "is 0"));
  EXPECT_TRUE(has(refusal([&](auto& m) { m["files"][file]["bytes"] = 1ull << 40; }), "chunks"));
  EXPECT_TRUE(has(refusal([&](auto& m) { m["files"][file]["xxh3"] = "zz34567890123456"; }),
                  "not a checksum"));
  // The digits of 2^60 checksums overflow to zero in 64 bits.
  EXPECT_TRUE(has(refusal([&](auto& m) {
                    m["files"][file]["bytes"] = 1ull << 60;
                    m["files"][file]["chunk_bytes"] = 1;
                    m["files"][file]["xxh3"] = "";
                  }),
                  "chunks"));
  EXPECT_TRUE(has(refusal([&](auto& m) { m["files"].erase(file); }), "no file"));
  EXPECT_TRUE(
      has(refusal([](auto& m) { m["model"]["pieces"][0][0][0] = 9; }), "belongs to no tensor"));
  EXPECT_TRUE(has(refusal([](auto& m) { m["model"]["pieces"][0][0][1] = 1; }), "hole or overlap"));
  EXPECT_TRUE(has(refusal([](auto& m) { m["model"]["pieces"][0][0][2] = 4; }), "4 of its 5"));
  EXPECT_TRUE(has(refusal([](auto& m) { m["model"]["pieces"][0].clear(); }), "0 of its 5"));
  EXPECT_TRUE(has(refusal([](auto& m) { m["model"]["pieces"].clear(); }), "0 lists of pieces"));
  EXPECT_TRUE(has(refusal([](auto& m) { m["model"]["tensors"][0][1] = "F99"; }), "dtype 'F99'"));
  EXPECT_TRUE(has(refusal([](auto& m) {
                    m["model"]["tensors"][0][2] = {1ll << 40, 1ll << 40};
                  }),
                  "not give a valid number of elements"));
}

TEST(ForgedManifests, MustAgreeWithTheFiles) {
  TemporaryFolder folder;
  const fs::path step = save_small(folder.path(), StateDictType::sharded);
  auto body = nlohmann::json::parse(read_all(step / manifest_name)).at("manifest");
  body["model"]["tensors"][0][1] = "I32";
  write_all(step / manifest_name, forged(body));
  EXPECT_TRUE(has(error_of([&] { verify(step); }), "does not hold 'layer.w@0'"));
}

TEST(Verify, AFolderWithoutManifestIsNotACheckpoint) {
  TemporaryFolder folder;
  EXPECT_TRUE(has(error_of([&] { verify(folder.path()); }), "not a committed checkpoint"));
  EXPECT_TRUE(
      has(error_of([&] { read_scalars(folder.path() / "none"); }), "not a committed checkpoint"));
}

}  // namespace
}  // namespace tessera::checkpoint
