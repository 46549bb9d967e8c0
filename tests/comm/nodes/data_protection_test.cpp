// TESSERA_ENCRYPT: worlds of several hosts compute the same over encrypted connections, and what
// cannot be encrypted is refused with the way out.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/parallel.h"
#include "comm/nodes/nodes_world.h"
#include "comm/world.h"
#include "tests/comm/shared/collective_cases.h"
#include "tests/support/expect_parts.h"
#include "tests/support/processes.h"

namespace tessera::comm {
namespace {

using namespace std::chrono_literals;
using tessera::testing::expect_parts;
using tessera::testing::Hosts;
using tessera::testing::job_port;
using tessera::testing::Outcome;
using tessera::testing::Processes;
using tessera::testing::run_on_hosts;
using tessera::testing::world_on_hosts;
using Ranks = cases::Ranks;

// The variables of a test, until its end.
class EncryptionVariables {
 public:
  EncryptionVariables(const char* encrypt, const char* key) {
    setenv("TESSERA_ENCRYPT", encrypt, 1);
    setenv("TESSERA_JOB_KEY", key, 1);
  }
  ~EncryptionVariables() {
    for (const char* name : {"TESSERA_ENCRYPT", "TESSERA_JOB_KEY"}) unsetenv(name);
  }
  EncryptionVariables(const EncryptionVariables&) = delete;
  EncryptionVariables& operator=(const EncryptionVariables&) = delete;
};

constexpr const char* a_key = "a-key-of-this-test-only";

TEST(DataProtection, EncryptedWorldsComputeTheSame) {
  const EncryptionVariables variables("1", a_key);
  for (const Hosts& hosts : {Hosts{1, 1}, Hosts{2, 2}, Hosts{3, 1, 2}}) {
    run_on_hosts(hosts, [](const World&, const Ranks& ranks) {
      EXPECT_EQ(ranks->backend(), "shm+tcp");
      for (const std::size_t share : {0, 1, 4096, 700'000})
        cases::check_all_gather(ranks, share, 2);
      cases::check_gathered_ranges(ranks);
      cases::check_all_reductions(ranks, 7);
      cases::check_reductions(ranks, 300'001, {.in_dtype = float32, .wire = WireFormat::int8}, 9);
      cases::check_point_to_point(ranks);
    });
  }
}

// The frames do not fit each other then; the cause is what the ranks report.
TEST(DataProtection, CallsThatDifferAreBothNamed) {
  const EncryptionVariables variables("1", a_key);
  const int port = job_port();
  Processes processes(3, [=](int rank, std::atomic<int>&) {
    set_compute_threads(1);
    const Ranks ranks = connect(world_on_hosts({1, 2}, rank, port), {.standstill_timeout = 1s});
    auto buffer = ranks->allocate("weights", 600'000, Sharing::one_copy);
    ranks->acquire(*buffer);
    ranks->all_gather(*buffer, rank == 2 ? 300'000u : 600'000u, {.step = 7});
    ranks->barrier();
  });
  for (const Outcome& outcome : processes.wait(20s)) {
    EXPECT_EQ(outcome.exit_code, static_cast<int>(ErrorCode::rank_failed));
    expect_parts(outcome.message, {"300000 bytes", "600000 bytes", "step 7"});
  }
}

TEST(DataProtection, HostsThatDifferAreBothNamed) {
  const EncryptionVariables variables("0", a_key);
  const int port = job_port();
  Processes processes(2, [=](int rank, std::atomic<int>&) {
    if (rank == 1) setenv("TESSERA_ENCRYPT", "1", 1);
    connect(world_on_hosts({1, 1}, rank, port));
  });
  for (const Outcome& outcome : processes.wait(20s)) {
    EXPECT_EQ(outcome.exit_code, static_cast<int>(ErrorCode::configuration));
    expect_parts(outcome.message, {"rank 1 has TESSERA_ENCRYPT=1 and rank 0 does not",
                                   "the same value on all hosts"});
  }
}

std::string refusal_on_hosts(const Hosts& hosts, const ConnectOptions& options = {}) {
  try {
    connect(world_on_hosts(hosts, 0, job_port()), options);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::configuration) << error.what();
    return error.what();
  }
  return "connected";
}

TEST(DataProtection, OtherValuesAreRefusedEverywhere) {
  for (const char* wrong : {"yes", "2", "true", "01", " 1"}) {
    const EncryptionVariables variables(wrong, a_key);
    for (const Hosts& hosts : {Hosts{1, 1}, Hosts{2}, Hosts{1}}) {
      expect_parts(refusal_on_hosts(hosts),
                   {"TESSERA_ENCRYPT is '" + std::string(wrong) + "'", "use 1", "or 0"});
    }
  }
}

TEST(DataProtection, EncryptionRequiresAKey) {
  const EncryptionVariables variables("1", "none");
  expect_parts(refusal_on_hosts({1, 1}),
               {"TESSERA_ENCRYPT=1 requires a job key", "TESSERA_JOB_KEY", "openssl rand",
                "TESSERA_JOB_KEY_FILE", "unset TESSERA_ENCRYPT"});
}

TEST(DataProtection, EncryptionOverMpiIsRefused) {
  const EncryptionVariables variables("1", a_key);
  expect_parts(refusal_on_hosts({1, 1}, {.hosts_backend = HostsBackend::mpi}),
               {"shm+mpi sends it as it is", "TESSERA_BACKEND=shm+tcp", "unset TESSERA_ENCRYPT"});
}

// One host sends nothing to another: the variable may be set and needs no key.
TEST(DataProtection, OneHostNeedsNoKey) {
  const EncryptionVariables variables("1", "none");
  EXPECT_EQ(refusal_on_hosts({1}), "connected");
}

}  // namespace
}  // namespace tessera::comm
