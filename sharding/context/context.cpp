// The implementation of Context over a communicator.
#include "sharding/context/context.h"

#include <fmt/format.h>

#include <cmath>

#include "base/counted.h"
#include "base/error.h"
#include "base/home_process.h"
#include "comm/exchange_values.h"
#include "engine/device/backend.h"
#include "engine/ops.h"
#include "engine/random.h"
#include "sharding/context/tensor_collectives.h"

namespace tessera {
namespace {

constexpr comm::Tag metrics_tag{0, 0, comm::Phase::metrics};

}  // namespace

Context::Context(comm::World world, std::shared_ptr<comm::Communicator> communicator)
    : world_(std::move(world)),
      communicator_(std::move(communicator)),
      collectives_(std::make_shared<TensorCollectives>(communicator_)) {}

Tensor Context::all_gather(const Tensor& rows) const {
  return collectives_->gather(rows);
}

Tensor Context::all_reduce(const Tensor& x) const {
  return collectives_->all_reduce(x, 1.0f, "all_reduce");
}

Tensor Context::mean(const Tensor& x) const {
  // A factor that fp64's sums are multiplied by has to have its precision.
  if (x.dtype() == float64) return collectives_->all_reduce(x, 1.0f, "mean") * (1.0 / world_size());
  return collectives_->all_reduce(x, 1.0f / static_cast<float>(world_size()), "mean");
}

data::TensorLoader Context::prepare(const data::TensorLoader& loader) const {
  return loader.for_rank(rank(), world_size());
}

Tensor Context::gather_for_metrics(const Tensor& values, const data::TensorLoader& loader) const {
  return gather_for_metrics(values, loader.real_samples());
}

Tensor Context::gather_for_metrics(const Tensor& values, std::int64_t samples) const {
  TESSERA_REQUIRE(values.dimensions() > 0,
                  "gather_for_metrics of a scalar: give one value a sample");
  TESSERA_REQUIRE(samples >= 0 && values.size(0) >= samples,
                  "gather_for_metrics(values, n) with n = {} on rank {}, where values of shape {} "
                  "have {}: n is a number of rows from 0 to that, one row for each sample",
                  samples, rank(), values.shape().to_string(), counted(values.size(0), "row"));
  std::vector<std::int64_t> sizes(values.shape().sizes().begin(), values.shape().sizes().end());
  sizes[0] = 1;
  const std::string row = fmt::format("{} {}", name_of(values.dtype()), Shape(sizes).to_string());
  const std::size_t row_bytes =
      static_cast<std::size_t>(Shape(sizes).elements()) * size_of(values.dtype());
  const Device device = values.device();
  std::string mine(static_cast<std::size_t>(samples) * row_bytes, '\0');
  if (!mine.empty()) current_queue(device).copy_to_host(mine.data(), values.data(), mine.size());
  sizes[0] = 0;
  std::string all;
  const std::vector<std::string> parts =
      communicator_->exchange(fmt::format("{}\n{}\n", row, samples) + mine, metrics_tag);
  for (std::size_t rank = 0; rank < parts.size(); ++rank) {
    const std::size_t end_of_row = parts[rank].find('\n');
    const std::size_t end_of_header = parts[rank].find('\n', end_of_row + 1);
    TESSERA_REQUIRE(parts[rank].compare(0, end_of_row, row) == 0,
                    "gather_for_metrics: a row of rank {} is {}, of rank {} {}; give rows of one "
                    "shape and dtype on all ranks",
                    rank, parts[rank].substr(0, end_of_row), this->rank(), row);
    sizes[0] += std::stoll(parts[rank].substr(end_of_row + 1, end_of_header - end_of_row - 1));
    all.append(parts[rank], end_of_header + 1);
  }
  Tensor result = Tensor::empty(Shape(sizes), values.dtype(), device);
  if (!all.empty()) current_queue(device).copy_from_host(result.data(), all.data(), all.size());
  return result;
}

double Context::sum(double value) const {
  double total = 0;
  for (const double part : comm::exchange_values(*communicator_, value, metrics_tag)) total += part;
  return total;
}

double Context::max(double value) const {
  double largest = value;
  for (const double other : comm::exchange_values(*communicator_, value, metrics_tag)) {
    if (std::isnan(other) || other > largest) largest = other;  // NaN wins, on every rank
    if (std::isnan(largest)) break;
  }
  return largest;
}

void Context::barrier() const {
  communicator_->barrier(metrics_tag);
}

Context init(Device device, const comm::ConnectOptions& options) {
  HomeProcess::require_unused_before_fork("ts::init()");
  const comm::World world = comm::world_from_environment();
  comm::ConnectOptions on_device = options;
  on_device.device = device;
  require_device(device);
  backend_of(device.type).bind_thread(device);
  auto communicator = comm::connect(world, on_device);
  set_default_device(device);
  set_batch_part(world.rank);
  return {world, std::move(communicator)};
}

void launch(int ranks, const std::function<void(Context&)>& fn, Device device) {
  const auto run_rank = [&](const std::shared_ptr<comm::Communicator>& communicator) {
    comm::World world;
    world.rank = world.local_rank = communicator->rank();
    world.size = world.local_size = communicator->size();
    Context context(world, communicator);
    set_batch_part(world.rank);
    fn(context);
  };
  comm::run_local(ranks, run_rank, {.device = device});
}

}  // namespace tessera
