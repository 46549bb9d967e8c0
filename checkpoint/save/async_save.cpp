// One thread for each save, which runs the code of the synchronous save on a copy of the state.
#include "checkpoint/save/async_save.h"

#include <atomic>
#include <chrono>
#include <cstdio>
#include <future>
#include <utility>

#include "base/error.h"
#include "base/home_process.h"
#include "base/parallel.h"
#include "base/text/print.h"
#include "checkpoint/io/file.h"
#include "checkpoint/save/writer.h"
#include "checkpoint/state/snapshot.h"
#include "engine/device/backend.h"

namespace tessera {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

}  // namespace

struct AsyncSaver::State {
  State(const Context& own_context, const ShardedModel& own_model, optim::Optimizer& own_optimizer)
      : context(own_context),
        model(own_model),
        optimizer(own_optimizer),
        communicator(own_context.communicator().duplicate("asynchronous save")) {}

  Finished run(checkpoint::SaveJob job);

  const HomeProcess home;
  Context context;
  const ShardedModel& model;
  optim::Optimizer& optimizer;
  std::shared_ptr<comm::Communicator> communicator;
  checkpoint::Snapshot snapshot;
  checkpoint::Line line;  // of the saves before
  std::atomic<bool> failed{false};
  std::atomic<bool> ended{false};
  std::future<Finished> flight;  // the first member to be destroyed, which waits for the save
};

// Runs on the save's thread.
AsyncSaver::Finished AsyncSaver::State::run(checkpoint::SaveJob job) {
  struct Ended {
    State& state;
    ~Ended() {
      state.snapshot.release()();  // in any case, the files are not read any more
      state.ended.store(true);
    }
  } const at_end{*this};
  const auto begin = Clock::now();
  failed.store(true);      // until it succeeds
  set_compute_threads(1);  // the cores belong to the training
  const Device device = context.device();
  backend_of(device.type).bind_thread(device);
  snapshot.await();
  checkpoint::Saved saved = checkpoint::run_save(*communicator, std::move(job));
  failed.store(false);
  return {std::move(saved), seconds_since(begin)};
}

AsyncSaver::AsyncSaver(const Context& context, const ShardedModel& model,
                       optim::Optimizer& optimizer)
    : state_(std::make_unique<State>(context, model, optimizer)) {}

AsyncSaver::~AsyncSaver() {
  if (in_flight() && state_->home.left()) {
    (void)state_.release();  // a forked child must not wait for the parent's thread
    return;
  }
  try {
    (void)wait();
  } catch (const std::exception& error) {
    print_err("the asynchronous save failed: {}\n", error.what());
  }
}

void AsyncSaver::reserve(const checkpoint::StateNames& names) {
  state_->snapshot.reserve(
      checkpoint::state_of(state_->model, &state_->optimizer, checkpoint::Direction::save, names),
      state_->context.device());
}

bool AsyncSaver::in_flight() const {
  return state_->flight.valid();
}

bool AsyncSaver::ended() const {
  return in_flight() && state_->ended.load();
}

bool AsyncSaver::failed() const {
  return ended() && state_->failed.load();
}

std::optional<AsyncSaver::Finished> AsyncSaver::wait() {
  if (!in_flight()) return std::nullopt;
  state_->home.require("waiting for a save");
  const comm::OutsideWait the_save(state_->context.communicator());
  Finished finished = state_->flight.get();
  state_->line = finished.saved.line;
  return finished;
}

AsyncSaver::Pause AsyncSaver::save(const std::string& folder, const SaveOptions& wanted) {
  Pause pause;
  const auto asked = Clock::now();
  (void)wait();
  pause.waited_seconds = seconds_since(asked);
  SaveOptions options = wanted;
  if (options.line.run.empty() && options.line.parent.empty()) {
    const std::string launch = std::move(options.line.launch);
    options.line = state_->line;
    if (!launch.empty()) options.line.launch = launch;
  }
  const auto begin = Clock::now();
  state_->model.compare_ignored_parameters();
  const checkpoint::State state = state_to_save(state_->model, state_->optimizer, options);
  try {
    checkpoint::SaveJob job = checkpoint::step_job(
        folder, step_of_save(state_->optimizer, options),
        state_->snapshot.take(state, state_->context.device(), options.model_dtype), options);
    job.after_reading = state_->snapshot.release();
    state_->ended.store(false);
    checkpoint::SystemCalls& calls = checkpoint::system_calls();
    state_->flight = std::async(std::launch::async,
                                [self = state_.get(), &calls, job = std::move(job)]() mutable {
                                  const checkpoint::ScopedSystemCalls same_calls(calls);
                                  return self->run(std::move(job));
                                });
  } catch (...) {
    state_->snapshot.release()();
    throw;
  }
  pause.copied_seconds = seconds_since(begin);
  return pause;
}

}  // namespace tessera
