// The program's streams and their shared state.
#include "emulator/runtime/runtime.h"

#include <algorithm>
#include <exception>
#include <iterator>

#include "emulator/runtime/report.h"
#include "emulator/runtime/settings.h"

namespace tessera::emulator {

Runtime::Runtime()
    : memory_(settings().memory),
      executor_(make_executor(settings(), [this](const Stream& stream, StreamOperation& operation) {
        run(stream, operation);
      })) {
  for (int device = 0; device < settings().devices; ++device) devices_.emplace_back();
}

// Called on a thread of the executor's choice. After a failure no work runs on the device, but
// marks are still reached, so waiting always ends.
void Runtime::run(const Stream& stream, StreamOperation& operation) {
  const int device = stream.options().device;
  if (failure(device) != cudaSuccess) return;
  try {
    operation.work();
  } catch (const std::exception& error) {
    print_line("{} on stream {} failed: {}", operation.what, *stream.name(), error.what());
    set_failure(device, cudaErrorLaunchFailure);
  }
}

cudaError_t Runtime::failure(int device) const {
  return devices_[device].failure.load(std::memory_order_relaxed);
}

void Runtime::set_failure(int device, cudaError_t error) {
  devices_[device].failure.store(error, std::memory_order_relaxed);
}

std::shared_ptr<Stream> Runtime::make_stream(const StreamOptions& options,
                                             const std::string* name) {
  auto stream = std::make_shared<Stream>(options, name, *executor_, checker_);
  executor_->start(*stream);
  return stream;
}

cudaStream_t Runtime::create_stream(const StreamOptions& options) {
  end_idle_retired_streams();
  const std::lock_guard lock(streams_mutex_);
  const auto stream = make_stream(options, intern(std::to_string(++streams_named_)));
  const auto handle = reinterpret_cast<cudaStream_t>(stream.get());
  streams_.emplace(handle, stream);
  return handle;
}

std::shared_ptr<Stream> Runtime::find(cudaStream_t handle, int device) {
  if (handle == nullptr || handle == cudaStreamLegacy) return default_stream(device);
  const std::shared_lock lock(streams_mutex_);
  const auto found = streams_.find(handle);
  return found != streams_.end() ? found->second : nullptr;
}

std::shared_ptr<Stream> Runtime::default_stream(int device) {
  {
    const std::shared_lock lock(streams_mutex_);
    if (devices_[device].default_stream) return devices_[device].default_stream;
  }
  const std::lock_guard lock(streams_mutex_);
  std::shared_ptr<Stream>& stream = devices_[device].default_stream;
  if (!stream) stream = make_stream({device, cudaStreamDefault}, intern("default"));
  return stream;
}

bool Runtime::destroy_stream(cudaStream_t handle) {
  std::shared_ptr<Stream> stream;
  {
    const std::lock_guard lock(streams_mutex_);
    const auto found = streams_.find(handle);
    if (found == streams_.end()) return false;
    stream = std::move(found->second);
    streams_.erase(found);
    retired_.push_back(stream);
  }
  Device& device = devices_[stream->options().device];
  {
    const std::lock_guard lock(device.order_mutex);
    device.seen.erase(stream.get());
  }
  stream.reset();
  end_idle_retired_streams();
  return true;
}

void Runtime::end_idle_retired_streams() {
  std::vector<std::shared_ptr<Stream>> ended;
  {
    const std::lock_guard lock(streams_mutex_);
    // Another host thread that still holds a stream may be about to add to it.
    const auto used = std::partition(retired_.begin(), retired_.end(), [](const auto& stream) {
      return stream.use_count() > 1 || !stream->is_idle();
    });
    ended.assign(std::make_move_iterator(used), std::make_move_iterator(retired_.end()));
    retired_.erase(used, retired_.end());
  }
  for (const auto& stream : ended) executor_->end(*stream);
  const std::lock_guard lock(streams_mutex_);
  for (const auto& stream : ended) retired_marks_.push_back(stream->release_marks());
  std::erase_if(retired_marks_, [](const auto& marks) { return marks->is_unused(); });
}

void Runtime::order_with_default(Stream& stream) {
  if ((stream.options().flags & cudaStreamNonBlocking) != 0) return;
  const int index = stream.options().device;
  Device& device = devices_[index];
  const std::lock_guard lock(device.order_mutex);
  const std::shared_ptr<Stream> default_stream = used_default_stream(index);
  if (!default_stream) return;
  if (default_stream.get() != &stream) {
    Device::Seen& seen = device.seen[&stream];
    if (seen.of_default == default_stream->added()) return;
    stream.wait(default_stream->record());
    seen.of_default = default_stream->added();
    return;
  }
  for (const auto& other : streams_of(index)) {
    const bool blocking = (other->options().flags & cudaStreamNonBlocking) == 0;
    if (!blocking || other.get() == &stream) continue;
    Device::Seen& seen = device.seen[other.get()];
    if (seen.of_stream == other->added()) continue;
    stream.wait(other->record());
    seen.of_stream = other->added();
  }
}

std::shared_ptr<Stream> Runtime::used_default_stream(int device) {
  const std::shared_lock lock(streams_mutex_);
  return devices_[device].default_stream;
}

std::vector<std::shared_ptr<Stream>> Runtime::streams_of(int device) {
  std::vector<std::shared_ptr<Stream>> streams;
  const auto add = [&](const std::shared_ptr<Stream>& stream) {
    if (stream && stream->options().device == device) streams.push_back(stream);
  };
  const std::shared_lock lock(streams_mutex_);
  for (const auto& [handle, stream] : streams_) add(stream);
  for (const auto& stream : retired_) add(stream);
  add(devices_[device].default_stream);
  return streams;
}

void Runtime::synchronize(int device) {
  std::vector<MarkReference> marks;
  for (const auto& stream : streams_of(device)) marks.push_back(stream->record());
  for (const MarkReference& mark : marks) wait(mark);
  end_idle_retired_streams();
}

void Runtime::wait(const MarkReference& mark) {
  executor_->wait(*mark);
  checker_.host_waited(mark->known);
}

const std::string* Runtime::intern(const std::string& text) {
  const std::lock_guard lock(names_mutex_);
  return &*names_.insert(text).first;
}

Runtime& runtime() {
  static Runtime& the_runtime = *std::make_unique<Runtime>().release();
  return the_runtime;
}

}  // namespace tessera::emulator
