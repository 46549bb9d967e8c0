// Context over a communicator.
#include "sharding/context.h"

#include <cmath>
#include <cstring>

#include "engine/backend.h"
#include "kernels/base/error.h"
#include "sharding/row_gathering.h"

namespace tessera {
namespace {

std::string bytes_of(double value) {
  std::string text(sizeof(double), '\0');
  std::memcpy(text.data(), &value, sizeof(double));
  return text;
}

double number_in(const std::string& bytes) {
  double value = 0;
  std::memcpy(&value, bytes.data(), sizeof(double));
  return value;
}

constexpr comm::Tag metrics_tag{0, 0, comm::Phase::metrics};

}  // namespace

Context::Context(comm::World world, std::shared_ptr<comm::Communicator> communicator)
    : world_(std::move(world)),
      communicator_(std::move(communicator)),
      row_gathering_(std::make_shared<RowGathering>(communicator_)) {}

Tensor Context::all_gather(const Tensor& rows) const {
  return row_gathering_->gather(rows);
}

data::TensorLoader Context::prepare(const data::TensorLoader& loader) const {
  return loader.for_rank(rank(), world_size());
}

Tensor Context::gather_for_metrics(const Tensor& values, const data::TensorLoader& loader) const {
  TESSERA_REQUIRE(values.dimensions() > 0,
                  "gather_for_metrics of a scalar: give one value a sample");
  const std::int64_t rows = loader.real_samples();
  TESSERA_REQUIRE(
      values.size(0) >= rows,
      "gather_for_metrics of {} rows for a batch of {} samples: give one value a sample",
      values.size(0), rows);
  const std::size_t row_bytes =
      values.size(0) == 0 ? 0 : values.bytes() / static_cast<std::size_t>(values.size(0));
  const Device device = values.device();
  std::string mine(static_cast<std::size_t>(rows) * row_bytes, '\0');
  if (!mine.empty()) current_queue(device).copy_to_host(mine.data(), values.data(), mine.size());
  std::string all;
  for (const std::string& part : communicator_->exchange(mine, metrics_tag)) all += part;
  Shape shape = values.shape();
  shape[0] = row_bytes == 0 ? 0 : static_cast<std::int64_t>(all.size() / row_bytes);
  Tensor result = Tensor::empty(shape, values.dtype(), device);
  if (!all.empty()) current_queue(device).copy_from_host(result.data(), all.data(), all.size());
  return result;
}

double Context::sum(double value) const {
  double total = 0;
  for (const std::string& part : communicator_->exchange(bytes_of(value), metrics_tag))
    total += number_in(part);
  return total;
}

double Context::max(double value) const {
  double largest = value;
  for (const std::string& part : communicator_->exchange(bytes_of(value), metrics_tag)) {
    const double other = number_in(part);
    if (std::isnan(other) || other > largest) largest = other;  // NaN wins, on every rank alike
    if (std::isnan(largest)) break;
  }
  return largest;
}

void Context::barrier() const {
  communicator_->barrier(metrics_tag);
}

Context init(Device device, const comm::ConnectOptions& options) {
  const comm::World world = comm::world_from_environment();
  comm::ConnectOptions on_device = options;
  on_device.device = device;
  require_device(device);
  backend_of(device.type).bind_thread(device);
  auto communicator = comm::connect(world, on_device);
  set_default_device(device);
  return {world, std::move(communicator)};
}

void launch(int ranks, const std::function<void(Context&)>& fn, Device device) {
  const auto run_rank = [&](const std::shared_ptr<comm::Communicator>& communicator) {
    comm::World world;
    world.rank = world.local_rank = communicator->rank();
    world.size = world.local_size = communicator->size();
    Context context(world, communicator);
    fn(context);
  };
  comm::run_local(ranks, run_rank, {.device = device});
}

}  // namespace tessera
