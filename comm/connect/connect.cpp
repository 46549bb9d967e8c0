// Selects the backend that connects a world: the first matching row.
#include <algorithm>
#include <array>

#include "base/error.h"
#include "comm/connect/nodes.h"
#include "comm/nccl.h"
#include "comm/nodes/tcp/tcp_network.h"
#include "comm/record/communicator.h"
#include "comm/shared/join/connect.h"
#include "comm/shared/join/single_process.h"
#include "comm/world.h"
#include "engine/device/backend.h"

namespace tessera::comm {
namespace {

using Connect = std::shared_ptr<Communicator>(const World&, const ConnectOptions&);

std::shared_ptr<Communicator> connect_planned(const World& world, const ConnectOptions& options) {
  const bool on_gpus = options.device == Device::planned(DeviceType::cuda);
  return connect_record({.rank = world.rank,
                         .size = world.size,
                         .device = options.device,
                         .one_memory = !on_gpus || world.size == 1,
                         .fixed_order = options.fixed_order},
                        std::make_shared<Recorder>());
}

std::shared_ptr<Communicator> connect_alone(const World& /*world*/, const ConnectOptions& options) {
  const SingleProcess process(1, options);
  return process.world_of(process.job_of(0));
}

// A new backend is a folder with its connect function, and a row before the one that matches all.
struct Row {
  bool (*takes)(const World&, const ConnectOptions&);
  Connect* connect;
};
constexpr std::array<Row, 5> rows{{
    {[](const World&, const ConnectOptions& options) { return options.device.is_planned(); },
     connect_planned},
    {[](const World& world, const ConnectOptions&) { return world.size == 1; }, connect_alone},
    {[](const World&, const ConnectOptions& options) {
       return options.device.type != DeviceType::cpu;
     },
     connect_nccl},
    {[](const World& world, const ConnectOptions&) { return world.local_size < world.size; },
     connect_nodes},
    {[](const World&, const ConnectOptions&) { return true; }, connect_shared},
}};

}  // namespace

std::shared_ptr<Communicator> connect(const World& world, const ConnectOptions& options) {
  require_device(options.device);
  TESSERA_CHECK(world.size >= 1 && world.rank >= 0 && world.rank < world.size,
                ErrorCode::configuration,
                "RANK={} is not a rank of a world of {}: ranks go from 0 to WORLD_SIZE - 1",
                world.rank, world.size);
  TESSERA_CHECK(options.hosts_backend != HostsBackend::mpi ||
                    options.device.type != DeviceType::cuda || options.device.is_planned(),
                ErrorCode::configuration,
                "backend shm+mpi is for ranks on CPUs, and rank {} is on {}: leave the backend to "
                "auto, which takes NCCL there",
                world.rank, options.device.to_string());
  // On one node no data goes between hosts.
  const bool by_nccl = options.device.type == DeviceType::cuda && !options.device.is_planned();
  TESSERA_CHECK(!encrypts_between_nodes() || !by_nccl || world.local_size == world.size,
                ErrorCode::configuration,
                "{}=1 encrypts data between hosts of ranks on CPUs, and rank {} is on {}, whose "
                "data NCCL sends as it is: unset it and keep NCCL's ports inside a network that "
                "you trust, or in a tunnel",
                encrypt_variable, world.rank, options.device.to_string());
  const auto row = std::find_if(rows.begin(), rows.end(),
                                [&](const Row& one) { return one.takes(world, options); });
  return row->connect(world, options);
}

}  // namespace tessera::comm
