// Ranks as threads of this process.
#include <fmt/format.h>
#include <algorithm>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/parallel.h"
#include "comm/shared/communicator.h"
#include "comm/shared/job.h"
#include "comm/shared/join/single_process.h"
#include "comm/world.h"
#include "engine/device/backend.h"

namespace tessera::comm {
namespace {

// The first exception of any rank; later exceptions of the others follow from it.
class FirstException {
 public:
  void keep(std::exception_ptr exception) {
    const std::lock_guard lock(mutex_);
    if (!exception_) exception_ = std::move(exception);
  }
  void rethrow() const {
    if (exception_) std::rethrow_exception(exception_);
  }

 private:
  std::mutex mutex_;
  std::exception_ptr exception_;
};

// Threads that are ranks share the cores, unless the environment sets the threads of a rank.
int compute_threads_of_a_rank(int ranks) {
  const bool named =
      std::getenv("TESSERA_NUM_THREADS") != nullptr || std::getenv("OMP_NUM_THREADS") != nullptr;
  return named ? compute_threads() : std::max(1, compute_threads() / ranks);
}

void run_rank(const SingleProcess& process, const std::shared_ptr<Job>& job,
              const std::function<void(const std::shared_ptr<Communicator>&)>& fn, Device device,
              FirstException& first) {
  try {
    backend_of(device.type).bind_thread(device);
    set_default_device(device);
    fn(process.world_of(job));
    current_queue(device).synchronize();  // throws the error of a kernel
    job->leave();
  } catch (const std::exception& exception) {
    first.keep(std::current_exception());
    job->abort(exception.what());
  } catch (...) {
    first.keep(std::current_exception());
    job->abort("an exception other than std::exception");
  }
}

}  // namespace

void run_local(int ranks, const std::function<void(const std::shared_ptr<Communicator>&)>& fn,
               const ConnectOptions& options) {
  TESSERA_REQUIRE(ranks >= 1, "run_local with {} ranks", ranks);
  const SingleProcess process(ranks, options);
  const int threads_of_a_rank = compute_threads_of_a_rank(ranks);
  FirstException first;
  std::vector<std::shared_ptr<Job>> jobs;
  for (int rank = 0; rank < ranks; ++rank) jobs.push_back(process.job_of(rank));
  std::vector<std::jthread> threads;
  try {
    for (const std::shared_ptr<Job>& job : jobs) {
      threads.emplace_back([&] {
        set_compute_threads(threads_of_a_rank);
        run_rank(process, job, fn, options.device, first);
      });
    }
  } catch (const std::system_error& error) {  // running ranks must not wait for one that cannot run
    first.keep(std::current_exception());
    jobs[threads.size()]->abort(fmt::format("its thread did not start: {}", error.what()));
  }
  threads.clear();  // joins
  first.rethrow();
}

}  // namespace tessera::comm
