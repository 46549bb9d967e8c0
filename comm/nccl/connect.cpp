// Connects a world over NCCL.
#include "comm/nccl/connect.h"

#include <cstdlib>

#include "base/error.h"
#include "base/home_process.h"
#include "comm/nccl.h"
#include "comm/nccl/communicator.h"
#include "comm/nccl/nccl_library.h"
#include "comm/timeout.h"
#include "engine/device/backend.h"

namespace tessera::comm {
namespace {

// The control plane names the ranks that do not come: NCCL's own waits end after that.
constexpr std::chrono::milliseconds control_lead{10'000};

}  // namespace

void keep_nccl_ports_on_this_node(const World& world) {
  const bool here = world.local_size == world.size && control::is_loopback(world.master_address);
  constexpr int keep = 0;
  if (here && std::getenv("NCCL_COMM_ID") == nullptr) setenv("NCCL_SOCKET_IFNAME", "=lo", keep);
}

NcclStatus nccl_status() {
  const cuda::NcclLibrary& library = cuda::nccl_library();
  return {.in_build = true, .available = library.loaded, .text = library.text};
}

std::shared_ptr<Communicator> connect_nccl(const World& world, const ConnectOptions& options) {
  const cuda::NcclLibrary& library = cuda::nccl_library();
  TESSERA_CHECK(library.loaded, ErrorCode::configuration,
                "ranks on {} need NCCL, and it cannot be used: {}; install it, or use the CPU",
                options.device.to_string(), library.text);
  return connect_nccl_with(library.functions, world, options);
}

std::shared_ptr<Communicator> connect_nccl_with(const cuda::NcclFunctions& functions,
                                                const World& world, const ConnectOptions& options) {
  TESSERA_REQUIRE(options.device.type == DeviceType::cuda, "NCCL on {}",
                  options.device.to_string());
  require_device(options.device);
  keep_nccl_ports_on_this_node(world);
  backend_of(options.device.type).bind_thread(options.device);
  const auto timeout = collective_timeout(options);
  const std::chrono::milliseconds standstill = standstill_timeout(options);
  control::ControlPlane plane = control::connect_control_plane(
      world,
      {.rendezvous = options.rendezvous_timeout, .collective = timeout, .standstill = standstill});
  std::vector<std::int32_t> members;
  for (int rank = 0; rank < world.size; ++rank) members.push_back(rank);
  // Declared first, so destroyed last: the job ends the hub, which waits for all connections to
  // end.
  const auto job = std::make_shared<NcclJob>(std::move(plane), options.device, timeout);
  control::HubGroup group(job->shared_control(), std::move(members), 1, "world");
  try {
    const std::string made = world.rank == 0 ? NcclChannel::make_id(functions) : std::string();
    const std::string id =
        group.exchange(Call(Op::broadcast, {.phase = Phase::setup}), made).front();
    // The control plane finds ranks that do not come to NCCL's own meeting.
    const auto look = [control = job->shared_control()] {
      control->check(Call(Op::split, {.phase = Phase::setup}));
    };
    std::shared_ptr<NcclChannel> channel =
        NcclChannel::open(functions, id, world.size, world.rank, timeout + control_lead, look);
    return make_shared_at_home<NcclCommunicator>(job, std::move(group), std::move(channel),
                                                 options.fixed_order);
  } catch (const Error& error) {
    job->control().abort(error.what());
    throw;
  }
}

}  // namespace tessera::comm
