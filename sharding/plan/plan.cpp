// Runs a rank whose memory and traffic are only counted.
#include "sharding/plan/plan.h"

#include <algorithm>
#include <exception>
#include <map>
#include <optional>
#include <thread>
#include <tuple>

#include "base/error.h"
#include "comm/record/communicator.h"
#include "engine/autograd.h"
#include "engine/device/memory.h"
#include "engine/device/memory_step.h"
#include "engine/places/step_statistics.h"
#include "engine/planned/backend.h"
#include "engine/planned/work_log.h"
#include "sharding/fully_shard.h"
#include "sharding/plan/plan_time.h"
#include "sharding/profiler/step_position.h"

namespace tessera {
namespace {

bool moves_data(comm::Op op) {
  return op == comm::Op::all_gather || op == comm::Op::reduce_scatter ||
         op == comm::Op::all_reduce || op == comm::Op::all_to_all || op == comm::Op::send;
}

// Adds up the calls of all units.
std::vector<PlannedCollective> collectives_of(const comm::Recorder& recorder) {
  std::map<std::tuple<comm::Phase, comm::Op, int>, PlannedCollective> sums;
  for (const auto& [call, traffic] : recorder.calls()) {
    if (!moves_data(call.op)) continue;
    PlannedCollective& sum = sums[{call.phase, call.op, call.ranks}];
    sum.op = name_of(call.op);
    sum.phase = name_of(call.phase);
    sum.ranks = call.ranks;
    sum.calls += traffic.calls;
    sum.bytes += traffic.bytes;
  }
  std::vector<PlannedCollective> list;
  for (const auto& entry : sums) list.push_back(entry.second);
  return list;
}

comm::RecordedWorld recorded_world(const PlanWorld& world) {
  TESSERA_CHECK(world.ranks >= 1 && world.ranks <= most_planned_ranks, ErrorCode::configuration,
                "a world of {} ranks cannot be planned; plans are made for 1 to {}", world.ranks,
                most_planned_ranks);
  TESSERA_REQUIRE(world.device == DeviceType::cpu || world.device == DeviceType::cuda,
                  "plans are made for cpu and cuda");
  const bool on_one_host = world.device == DeviceType::cpu || world.ranks == 1;
  return {.rank = 0,
          .size = world.ranks,
          .device = Device::planned(world.device),
          .one_memory = world.one_memory.value_or(on_one_host),
          .ranks_per_host = world.ranks_per_host,
          .fixed_order = world.fixed_reduction_order};
}

Context context_of(const comm::RecordedWorld& world,
                   const std::shared_ptr<comm::Recorder>& recorder) {
  comm::World described;
  described.size = described.local_size = world.size;
  return {described, comm::connect_record(world, recorder)};
}

// A separate thread has its own generator, pools, queues and default device: the caller's do not
// change.
void run_on_own_thread(const std::function<void()>& work) {
  std::exception_ptr failure;
  std::thread thread([&] {
    try {
      work();
    } catch (...) {
      failure = std::current_exception();
    }
  });
  thread.join();
  if (failure) std::rethrow_exception(failure);
}

RankMemory peak_memory(const Context& context) {
  const MemoryStats stats = MemoryPool::current(context.device())->stats();
  RankMemory memory;
  memory.use = stats.at_peak;
  memory.placed = context.communicator().held_bytes();
  memory.use[MemoryKind::communication] += memory.placed;
  memory.in_files = stats.in_files;
  memory.on_host = stats.host_peak;
  memory.cached = stats.peak_held - std::min(stats.peak_held, stats.peak_in_use);
  return memory;
}

// `memory.placed` has the collective memory.
void add_places(Device device, RankMemory& memory) {
  const StepNeeds step = MemoryPool::current(device)->step_needs();
  memory.step_live = step.live_bytes;
  memory.step_placed = step.placed_bytes;
  memory.placed += step.placed_bytes + step.outside_bytes;
}

}  // namespace

struct Planning::State {
  State(const comm::RecordedWorld& world, std::shared_ptr<comm::Recorder> calls)
      : recorder(std::move(calls)), device(world.device), context(context_of(world, recorder)) {}

  std::shared_ptr<comm::Recorder> recorder;
  Device device;
  Context context;
  std::optional<MemoryPlan> plan;  // since the end of the last step
  std::string peak_unit;
  comm::Phase peak_phase = comm::Phase::setup;

  // A backward begins with the operations after the last unit (the loss), for which no hook runs.
  void note_peak() {
    StepPosition here = step_position();
    if (autograd::in_backward() && here.phase == comm::Phase::forward) {
      here = {comm::Phase::backward, {}};
    }
    peak_phase = here.phase;
    peak_unit = here.unit;
  }
};

Planning::Planning(const PlanWorld& world)
    : state_(std::make_unique<State>(recorded_world(world), std::make_shared<comm::Recorder>())) {}

Planning::~Planning() = default;

const Context& Planning::context() const {
  return state_->context;
}

void Planning::end_step() {
  MemoryPlan& plan = state_->plan.emplace();
  plan.memory = peak_memory(state_->context);
  plan.unit = state_->peak_unit;
  plan.phase = name_of(state_->peak_phase);
  plan.collectives = collectives_of(*state_->recorder);
  if (WorkLog* const log = work_log()) {
    plan.step = std::make_shared<const PlannedStep>(
        PlannedStep{*log, planned_lane(state_->device), state_->recorder->collectives()});
    log->begin();
  }
  state_->recorder->clear();
}

RankMemory measure_memory(const Context& context) {
  RankMemory memory = peak_memory(context);
  add_places(context.device(), memory);
  return memory;
}

std::uint64_t MemoryPlan::moved_bytes() const {
  std::uint64_t bytes = 0;
  for (const PlannedCollective& collective : collectives) bytes += collective.bytes;
  return bytes;
}

MemoryPlan plan(const PlanWorld& world, const std::function<void(Planning&)>& program) {
  std::optional<MemoryPlan> result;
  run_on_own_thread([&] {
    WorkLog log;
    const WorkLogGuard logging(world.timed ? &log : nullptr);
    Planning planning(world);
    Planning::State& state = *planning.state_;
    const Device device = state.context.device();
    set_default_device(device);
    const std::shared_ptr<MemoryPool> pool = MemoryPool::current(device);
    pool->set_on_peak([&state] { state.note_peak(); });
    program(planning);
    pool->set_on_peak({});
    TESSERA_REQUIRE(state.plan.has_value(), "a plan needs a step: call end_step() after each");
    add_places(device, state.plan->memory);  // of the last step
    result = std::move(state.plan);
  });
  return std::move(*result);
}

namespace {

// Shards the module, takes two steps, and ends each.
void take_two_steps(nn::Module& module, const PlanOptions& options, Planning& planning) {
  ShardedModel model = fully_shard(module, planning.context(), options.sharding);
  const std::unique_ptr<optim::Optimizer> optimizer =
      options.optimizer ? options.optimizer(model.parameters())
                        : std::make_unique<optim::AdamW>(model.parameters(), optim::AdamWOptions{});
  const auto take_step = [&] {
    const MemoryStep memory(planning.context().device());
    for (int batch = 1; batch <= options.micro_batches; ++batch) {
      std::optional<ShardedModel::NoSync> local_only;
      const bool last = batch == options.micro_batches;
      if (options.sharding.defer_replica_sums) model.set_requires_all_reduce(last);
      if (!options.sync_each_batch && !last) local_only.emplace(model);
      options.loss(planning.context().device()).backward();
    }
    (void)model.clip_grad_norm(1.0, 1);
    optimizer->step();
    optimizer->zero_grad();
  };
  for (int step = 0; step < 2; ++step) {
    take_step();
    planning.end_step();
  }
}

// Restores the parameters and buffers of modules, and the parameters of others that they read.
class ParameterKeeper {
 public:
  explicit ParameterKeeper(nn::Module& root) {
    for (const auto& [name, module] : root.named_modules()) {
      kept_.push_back({module, parameters_of(*module), module->own_buffers()});
    }
  }
  ~ParameterKeeper() {
    for (const Kept& kept : kept_) {
      const std::vector<Tensor> present = parameters_of(*kept.module);
      for (std::size_t i = 0; i < present.size(); ++i) {
        kept.module->replace_own_parameter(present[i], kept.parameters[i]);
      }
      const std::vector<nn::NamedBuffer> buffers = kept.module->own_buffers();
      for (std::size_t i = 0; i < buffers.size(); ++i) {
        kept.module->replace_own_buffer(buffers[i].tensor, kept.buffers[i].tensor);
      }
    }
  }
  ParameterKeeper(const ParameterKeeper&) = delete;
  ParameterKeeper& operator=(const ParameterKeeper&) = delete;

 private:
  struct Kept {
    nn::Module* module;
    std::vector<Tensor> parameters;
    std::vector<nn::NamedBuffer> buffers;
  };
  static std::vector<Tensor> parameters_of(const nn::Module& module) {
    std::vector<Tensor> parameters = module.parameters_read();
    for (const auto& [name, tensor] : module.own_parameters()) parameters.push_back(tensor);
    return parameters;
  }

  std::vector<Kept> kept_;
};

}  // namespace

MemoryPlan plan(nn::Module& module, const PlanWorld& world, const PlanOptions& options) {
  TESSERA_REQUIRE(options.loss != nullptr, "a plan needs PlanOptions::loss, a forward to run");
  TESSERA_REQUIRE(options.micro_batches >= 1, "a step of {} batches", options.micro_batches);
  const ParameterKeeper keeper(module);
  return plan(world, [&](Planning& planning) { take_two_steps(module, options, planning); });
}

}  // namespace tessera
