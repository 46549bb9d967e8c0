// Copies kept inputs to the host and back.
#include "engine/activation_offload.h"

#include <algorithm>
#include <cstdio>
#include <exception>
#include <utility>

#include "base/text/print.h"
#include "engine/device/backend.h"
#include "engine/device/memory_kind.h"

namespace tessera {
namespace {

// The same place in the graph, with other memory.
Tensor with_memory(const Tensor& tensor, std::shared_ptr<Storage> storage) {
  const detail::TensorData& from = *tensor.impl();
  auto data = std::make_shared<detail::TensorData>();
  data->storage = std::move(storage);
  data->shape = from.shape;
  data->dtype = from.dtype;
  data->requires_grad = from.requires_grad;
  data->grad_node = from.grad_node;
  data->grad_output = from.grad_output;
  return Tensor(std::move(data));
}

}  // namespace

std::shared_ptr<ActivationOffload> ActivationOffload::create(Device device) {
  return std::shared_ptr<ActivationOffload>(new ActivationOffload(device));  // private constructor
}

ActivationOffload::ActivationOffload(Device device)
    : device_(device),
      up_(backend_of(device.type).make_queue(device, "activations up", QueuePriority::normal)),
      down_(backend_of(device.type).make_queue(device, "activations down", QueuePriority::normal)) {
}

// Parameters belong to their units, and a view of another tensor's memory cannot be freed alone.
bool ActivationOffload::takes(const Tensor& tensor) const {
  return tensor.defined() && tensor.device() == device_ && tensor.impl()->grad_node &&
         tensor.bytes() > 0 && tensor.bytes() == tensor.storage()->bytes() &&
         !tensor.storage()->is_lent();
}

std::shared_ptr<ActivationOffload::Kept> ActivationOffload::keep(
    const std::vector<Tensor*>& inputs) {
  // By the time the compute queue gets here, the copies of earlier calls have finished.
  std::erase_if(calls_, [](const auto& call) { return call.expired(); });
  for (const auto& call : calls_) {
    if (const std::shared_ptr<Kept> before = call.lock()) before->leave();
  }
  auto kept = std::make_shared<Kept>(shared_from_this());
  down_->wait(current_queue(device_).record());
  for (Tensor* const place : inputs) {
    if (!takes(*place)) continue;
    const auto known =
        std::find_if(kept->inputs_.begin(), kept->inputs_.end(),
                     [&](const Kept::Input& input) { return input.own == place->storage(); });
    if (known != kept->inputs_.end()) {
      known->places.push_back({place, with_memory(*place, nullptr)});
      continue;
    }
    Kept::Input& input = kept->inputs_.emplace_back();
    input.places.push_back({place, with_memory(*place, nullptr)});
    input.own = place->storage();
    input.host = take_host_memory(place->bytes());
    down_->enqueue_copy_to_pinned(input.host->data(), input.own->data(), place->bytes());
    input.copied = down_->record();
  }
  for (const Kept::Input& input : kept->inputs_) {
    for (const Kept::Place& place : input.places) *place.of = {};
  }
  if (!kept->inputs_.empty()) calls_.push_back(kept);
  return kept;
}

std::shared_ptr<Storage> ActivationOffload::take_host_memory(std::size_t bytes) {
  const auto found = std::find_if(free_.begin(), free_.end(), [bytes](const Free& memory) {
    return memory.memory->bytes() == bytes;
  });
  if (found == free_.end()) {
    const MemoryScope kind(MemoryKind::activations);
    return Storage::pinned(bytes, device_);
  }
  const Free taken = std::move(*found);
  free_.erase(found);
  down_->wait(taken.writable);
  return taken.memory;
}

void ActivationOffload::give_back(std::shared_ptr<Storage> memory, PointHandle writable) {
  if (!memory) return;  // its allocation failed
  free_.push_back({std::move(memory), std::move(writable)});
}

// The compute queue waits for the copy, so that the memory may be reused afterwards.
void ActivationOffload::Kept::leave() {
  for (Input& input : inputs_) {
    if (!input.own || input.returns) continue;
    current_queue(owner_->device_).wait(input.copied);
    input.own.reset();
  }
}

void ActivationOffload::Kept::send_for() {
  DeviceQueue& compute = current_queue(owner_->device_);
  for (Input& input : inputs_) {
    if (input.own) continue;
    const std::size_t bytes = input.host->bytes();
    const MemoryScope kind(MemoryKind::activations);
    input.own = Storage::allocate(bytes, owner_->device_);
    input.returns = true;
    // After the last use of the memory, which was on the compute queue.
    owner_->up_->wait(compute.record());
    owner_->up_->wait(input.copied);
    owner_->up_->enqueue_copy_from_pinned(input.own->data(), input.host->data(), bytes);
    input.copied = owner_->up_->record();
  }
}

void ActivationOffload::Kept::bring_back() {
  if (inputs_.empty()) return;
  send_for();
  DeviceQueue& compute = current_queue(owner_->device_);
  for (Input& input : inputs_) {
    compute.wait(input.copied);  // either direction: later users of the memory come after the copy
    for (const Place& place : input.places) *place.of = with_memory(place.tensor, input.own);
    input.own.reset();
    owner_->give_back(std::move(input.host), std::move(input.copied));
  }
  inputs_.clear();
  // Later calls have had their backward, or will not have one.
  auto& calls = owner_->calls_;
  const auto here = std::find_if(calls.begin(), calls.end(),
                                 [this](const auto& call) { return call.lock().get() == this; });
  const auto before = std::find_if(std::make_reverse_iterator(here), calls.rend(),
                                   [](const auto& call) { return !call.expired(); });
  if (before != calls.rend()) before->lock()->send_for();
  calls.erase(here);
}

ActivationOffload::Kept::~Kept() {
  for (Input& input : inputs_) {
    try {
      if (input.own) current_queue(owner_->device_).wait(input.copied);
    } catch (const std::exception& error) {  // the next call on the failed device reports it
      print_err("dropping inputs kept for a backward: {}\n", error.what());
    }
    owner_->give_back(std::move(input.host), std::move(input.copied));
  }
}

}  // namespace tessera
