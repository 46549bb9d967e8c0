// Saves on N ranks and loads on M, in both layouts, with cuts at awkward places.
#include <gtest/gtest.h>

#include "checkpoint/safetensors/safetensors.h"
#include "checkpoint/steps/manifest.h"
#include "checkpoint/support.h"

namespace tessera::checkpoint {
namespace {

using namespace testing;

class Reshard : public ::testing::TestWithParam<StateDictType> {};

TEST_P(Reshard, EveryWorldSizeIntoEveryOther) {
  TemporaryFolder folder;
  const std::vector<Cut> cuts{even_cut(), random_cut(3)};
  int version = 0;
  for (const int save_world : {1, 2, 3, 5}) {
    for (const Cut& save_cut : cuts) {
      ++version;
      fs::path step;
      comm::run_local(save_world, [&](const auto& communicator) {
        const auto path =
            save_version(*communicator, folder.path(), version, {.type = GetParam()}, save_cut);
        if (communicator->rank() == 0) step = path;
      });
      verify(step);
      EXPECT_EQ(read_scalars(step), scalars_of(version));
      for (const int load_world : {1, 2, 4}) {
        for (const Cut& load_cut : {even_cut(), random_cut(8), whole_cut()}) {
          comm::run_local(load_world, [&](const auto& communicator) {
            RankState own = make_state(communicator->rank(), load_world, 0, load_cut, false);
            load(*communicator, step, own.state);
            EXPECT_EQ(wrong_elements(own.state, version), 0)
                << save_world << " to " << load_world << " rank " << communicator->rank();
            EXPECT_EQ(own.state.scalars, scalars_of(version));
          });
        }
      }
    }
  }
}

TEST_P(Reshard, ConvertsFloatingDTypesBothWays) {
  TemporaryFolder folder;
  for (const DType file_dtype : {DType::float32, DType::bfloat16, DType::float16}) {
    for (const DType memory_dtype : {DType::float32, DType::bfloat16, DType::float64}) {
      comm::run_local(2, [&](const auto& communicator) {
        const int rank = communicator->rank();
        const RankState own = make_state(rank, 2, 3, even_cut(), true, memory_dtype);
        const auto step = save(*communicator, folder.path(), 3, own.state,
                               {.type = GetParam(), .model_dtype = file_dtype})
                              .path;
        RankState back = make_state(rank, 2, 0, random_cut(1), false, memory_dtype);
        load(*communicator, step, back.state);
        EXPECT_EQ(wrong_elements(back.state, 3), 0);
      });
    }
  }
}

TEST_P(Reshard, SameStateSameFiles) {
  TemporaryFolder folder;
  save_version(folder.path() / "a", 4, {.type = GetParam()}, 2);
  save_version(folder.path() / "b", 4, {.type = GetParam()}, 2);
  for (const auto& entry : fs::directory_iterator(folder.path() / "a/step-4")) {
    const auto name = entry.path().filename();
    if (name == manifest_name) continue;
    EXPECT_EQ(read_all(entry.path()), read_all(folder.path() / "b/step-4" / name)) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Types, Reshard,
                         ::testing::Values(StateDictType::full, StateDictType::sharded),
                         [](const auto& type) {
                           return type.param == StateDictType::full ? "full" : "sharded";
                         });

TEST(SaveLoad, FullFilesAreTheSameForEveryWorldSize) {
  TemporaryFolder folder;
  save_version(folder.path() / "1", 4, {}, 1);
  save_version(folder.path() / "3", 4, {}, 3);
  for (const char* name : {"model.safetensors", "optimizer.safetensors"}) {
    EXPECT_EQ(read_all(folder.path() / "1/step-4" / name),
              read_all(folder.path() / "3/step-4" / name));
  }
  const SafetensorsFile file(folder.path() / "3/step-4/model.safetensors");
  EXPECT_EQ(file.header().metadata().at("format"), "pt");
  ASSERT_NE(file.find("scale"), nullptr);
  EXPECT_TRUE(file.find("scale")->shape.empty());
}

TEST(SaveLoad, TensorsLargerThanOneMebibyteAreCutIntoChunksAndShared) {
  TemporaryFolder folder;
  const std::int64_t n = 1'300'001;  // five chunks of fp32
  const auto state_of = [&](int rank, int world, std::vector<float>& memory) {
    const std::int64_t part = (n + world - 1) / world;
    const std::int64_t first = std::min(n, part * rank);
    memory.resize(static_cast<std::size_t>(std::min(part, n - first)));
    State state;
    state.model.push_back(
        {"w",
         DType::float32,
         {n},
         {{first, std::min(part, n - first), reinterpret_cast<std::byte*>(memory.data())}}});
    return std::pair(std::move(state), first);
  };
  for (const StateDictType type : {StateDictType::full, StateDictType::sharded}) {
    comm::run_local(3, [&](const auto& communicator) {
      std::vector<float> memory;
      auto [state, first] = state_of(communicator->rank(), 3, memory);
      for (std::size_t i = 0; i < memory.size(); ++i) {
        memory[i] = static_cast<float>(first + static_cast<std::int64_t>(i));
      }
      save(*communicator, folder.path(), 1, state, {.type = type});
    });
    const Manifest manifest = read_manifest(folder.path() / "step-1");
    std::size_t chunks = 0;
    for (const FileRecord& file : manifest.files) chunks += file.chunks.size();
    EXPECT_EQ(chunks, type == StateDictType::full ? 7u : 9u);
    comm::run_local(2, [&](const auto& communicator) {
      std::vector<float> memory;
      auto [state, first] = state_of(communicator->rank(), 2, memory);
      load(*communicator, folder.path() / "step-1", state);
      std::int64_t wrong = 0;
      for (std::size_t i = 0; i < memory.size(); ++i) {
        wrong += memory[i] != static_cast<float>(first + static_cast<std::int64_t>(i));
      }
      EXPECT_EQ(wrong, 0);
    });
  }
}

TEST(SaveLoad, ListsEveryTensorThatDoesNotFit) {
  TemporaryFolder folder;
  for (const StateDictType type : {StateDictType::full, StateDictType::sharded}) {
    save_version(folder.path(), 1, {.type = type}, 2);
    std::vector<std::string> errors(2);
    comm::run_local(2, [&](const auto& communicator) {
      RankState own = make_state(communicator->rank(), 2, 0, even_cut(), false);
      own.state.model[0].name = "renamed";
      own.state.model[4].shape = {43, 3};
      own.state.model[5].dtype = DType::int32;
      own.state.optimizer.pop_back();
      errors[static_cast<std::size_t>(communicator->rank())] =
          error_of([&] { load(*communicator, folder.path() / "step-1", own.state); });
    });
    EXPECT_EQ(errors[0], errors[1]);
    for (const char* part :
         {"missing model tensor 'renamed'", "unexpected model tensor 'transformer.wte.weight'",
          "'bias' has shape [129], wanted [43, 3]", "'counts' is I64, wanted int32",
          "unexpected optimizer tensor 'bias.exp_avg'"}) {
      EXPECT_TRUE(has(errors[0], part));
    }
  }
}

// As with an adapter's run in a whole model's folder: one missing and one unexpected tensor show
// it.
TEST(SaveLoad, ACheckpointOfAnotherModelIsReportedAsSuch) {
  TemporaryFolder folder;
  save_version(folder.path(), 1);
  comm::run_local(1, [&](const auto& communicator) {
    RankState own = make_state(0, 1, 0, whole_cut(), false);
    for (LogicalTensor& tensor : own.state.model) tensor.name = "other." + tensor.name;
    const std::string error =
        error_of([&] { load(*communicator, folder.path() / "step-1", own.state); });
    EXPECT_TRUE(has(error, "model tensors ('")) << error;
    EXPECT_TRUE(has(error, ") is one of the ")) << error;
    EXPECT_FALSE(has(error, "missing model tensor")) << error;
  });
}

TEST(SaveLoad, TheModelAloneCanBeLoaded) {
  TemporaryFolder folder;
  save_version(folder.path(), 1);
  comm::run_local(1, [&](const auto& communicator) {
    RankState own = make_state(0, 1, 0, whole_cut(), false);
    own.state.optimizer.clear();
    load(*communicator, folder.path() / "step-1", own.state, LoadParts::model_only);
    EXPECT_EQ(wrong_elements(own.state, 1), 0);
  });
}

TEST(SaveLoad, RefusesMissingAndDuplicateElements) {
  TemporaryFolder folder;
  const auto attempt = [&](const std::function<void(int, State&)>& spoil) {
    std::vector<std::string> errors(2);
    comm::run_local(2, [&](const auto& communicator) {
      RankState own = make_state(communicator->rank(), 2, 1, even_cut(), true);
      spoil(communicator->rank(), own.state);
      errors[static_cast<std::size_t>(communicator->rank())] =
          error_of([&] { save(*communicator, folder.path(), 1, own.state, {}); });
    });
    EXPECT_EQ(errors[0], errors[1]);
    EXPECT_FALSE(fs::exists(folder.path() / "step-1"));
    return errors[0];
  };
  EXPECT_TRUE(has(attempt([](int rank, State& state) {
                    if (rank == 0) --state.model[4].pieces[0].count;
                  }),
                  "no rank has elements 64 to 65 of tensor 'bias'"));
  EXPECT_TRUE(has(attempt([](int rank, State& state) {
                    if (rank == 1) state.model[4].pieces.clear();
                  }),
                  "no rank has elements 65 to 129 of tensor 'bias'"));
  EXPECT_TRUE(has(attempt([](int rank, State& state) {
                    if (rank == 1) --state.optimizer[2].pieces[0].first;
                  }),
                  "ranks 0 and 1 both have element 64 of tensor 'bias.exp_avg'"));
  EXPECT_TRUE(has(attempt([](int rank, State& state) {
                    if (rank == 1) state.model[4].name = "other";
                  }),
                  "rank 1 and rank 0 do not agree on the model tensors"));
  EXPECT_TRUE(has(attempt([](int rank, State& state) {
                    if (rank == 1) state.scalars.set("step", 17);
                  }),
                  "do not agree on the scalars"));
  EXPECT_TRUE(has(attempt([](int, State& state) { state.scalars.set("best", INFINITY); }),
                  "scalar '/best' is inf"));
}

TEST(SaveLoad, APieceOutsideItsTensorIsMisuseOnAllRanks) {
  const TemporaryFolder folder;
  comm::run_local(2, [&](const auto& communicator) {
    RankState own = make_state(communicator->rank(), 2, 1, even_cut(), true);
    if (communicator->rank() == 1) own.state.model[4].pieces[0].count = 1000;
    try {
      save(*communicator, folder.path(), 1, own.state, {});
      ADD_FAILURE() << "nothing was thrown";
    } catch (const std::logic_error& error) {
      EXPECT_TRUE(has(error.what(), "rank 1: piece [65, +1000) is outside tensor 'bias'"));
    }
  });
  EXPECT_FALSE(fs::exists(folder.path() / "step-1"));
}

TEST(SaveLoad, ExtraFilesAreKeptAndVerified) {
  TemporaryFolder folder;
  save_version(folder.path(), 1, {.files = {{"config.json", "{\"a\": 1}"}, {"empty.txt", ""}}}, 2);
  const fs::path step = folder.path() / "step-1";
  EXPECT_EQ(read_all(step / "config.json"), "{\"a\": 1}");
  verify(step);
  write_all(step / "config.json", "{\"a\": 2}");
  EXPECT_TRUE(has(error_of([&] { verify(step); }), "config.json' is damaged"));
}

TEST(SaveLoad, FoldersWithSpacesAndUnicode) {
  TemporaryFolder folder;
  const fs::path dir = folder.path() / "my runs" / "größe ☃";
  save_version(dir, 1, {}, 2);
  expect_version(find_latest_alone(dir)->path, 1);
}

}  // namespace
}  // namespace tessera::checkpoint
