// Ids and texts equal those of the `tokenizers` package, for every kind of tokenizer in the
// fixtures.
#include <atomic>
#include <thread>
#include <vector>

#include "tokenizers/fixtures_testing.h"

namespace tessera::tokenizers::testing {
namespace {

using nlohmann::json;

// The tokenizer of a fixture, and the lines with their expected ids.
struct Tried {
  std::string name;
  std::shared_ptr<const Tokenizer> tokenizer;
  json lines;
  json expected;
};

std::vector<Tried> all_fixtures() {
  const json cases = json_of(fixture("cases.json"));
  std::vector<Tried> all;
  for (const auto& [name, expected] : cases["expected"].items()) {
    const bool has_ending = name.find('.') != std::string::npos;
    all.push_back({name, load_tokenizer(fixture(has_ending ? name : name + ".json")),
                   expected.contains("lines") ? expected["lines"] : cases["lines"], expected});
  }
  return all;
}

TEST(PackageIds, EveryKindIsInTheFixtures) {
  EXPECT_GE(all_fixtures().size(), 14u);
}

TEST(PackageIds, Texts) {
  for (const Tried& tried : all_fixtures()) {
    for (std::size_t i = 0; i < tried.lines.size(); ++i) {
      const auto ids = tried.tokenizer->encode(tried.lines[i].get<std::string>());
      EXPECT_EQ(json(ids), tried.expected["ids"][i]) << tried.name << ": " << tried.lines[i];
    }
  }
}

TEST(PackageIds, SequencesWithTheirSpecialTokens) {
  for (const Tried& tried : all_fixtures()) {
    for (std::size_t i = 0; i < tried.lines.size(); ++i) {
      const auto ids = tried.tokenizer->encode_sequence(tried.lines[i].get<std::string>(), 0);
      EXPECT_EQ(json(ids), tried.expected["sequence"][i]) << tried.name << ": " << tried.lines[i];
    }
  }
}

TEST(PackageIds, BackToText) {
  for (const Tried& tried : all_fixtures()) {
    for (std::size_t i = 0; i < tried.lines.size(); ++i) {
      const auto ids = tried.expected["ids"][i].get<std::vector<std::int32_t>>();
      EXPECT_EQ(tried.tokenizer->decode(ids), tried.expected["text"][i].get<std::string>())
          << tried.name << ": " << tried.lines[i];
    }
  }
}

// A cached word has the same ids as from the model, and threads do not affect each other.
TEST(PackageIds, TheSameAgainAndFromManyThreads) {
  for (const Tried& tried : all_fixtures()) {
    std::atomic<int> wrong = 0;
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&] {
        for (std::size_t i = 0; i < tried.lines.size(); ++i) {
          const auto ids = tried.tokenizer->encode(tried.lines[i].get<std::string>());
          if (json(ids) != tried.expected["ids"][i]) ++wrong;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(wrong, 0) << tried.name;
  }
}

}  // namespace
}  // namespace tessera::tokenizers::testing
