// Construction, access and copies of tensors.
#include "engine/tensor.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/low_precision.h"
#include "engine/autograd.h"
#include "engine/device/launch.h"
#include "engine/device/queue.h"
#include "engine/recompute_region.h"

namespace tessera {

namespace {

// Memory whose addresses the host cannot dereference: a GPU's, and planned memory.
bool off_host(Device device) {
  return device.type == DeviceType::cuda || device.is_planned();
}

// Draws on the CPU and writes into a GPU's memory in parts, so that no full copy is made.
void fill_from_host(const Initializer& initializer, std::byte* out, DType dtype, std::int64_t first,
                    std::int64_t n, Device device) {
  constexpr std::int64_t part = 1 << 20;
  Tensor host = Tensor::empty({std::min(n, part)}, dtype, Device::cpu());
  for (std::int64_t done = 0; done < n; done += part) {
    const std::int64_t count = std::min(part, n - done);
    initializer.fill(host.data(), dtype, first + done, count);
    current_queue(device).copy_from_host(out + static_cast<std::size_t>(done) * size_of(dtype),
                                         host.data(),
                                         static_cast<std::size_t>(count) * size_of(dtype));
  }
}

double element_as_double(const std::byte* element, DType dtype) {
  const auto read = [element]<class T>(T value) {
    std::memcpy(&value, element, sizeof(T));
    return value;
  };
  switch (dtype) {
    case DType::float32:
      return read(0.0f);
    case DType::float64:
      return read(0.0);
    case DType::bfloat16:
      return to_float(read(BFloat16{}));
    case DType::float16:
      return to_float(read(Float16{}));
    case DType::int32:
      return read(std::int32_t{});
    case DType::int64:
      return static_cast<double>(read(std::int64_t{}));
    case DType::uint8:
    case DType::boolean:
      return read(std::uint8_t{});
  }
  return 0;
}

// Converts dtypes on the source's device. Copies between GPUs go through the host.
void copy_between_devices(const Tensor& source, const Tensor& destination) {
  if (source.dtype() != destination.dtype()) {
    Tensor converted = Tensor::empty(source.shape(), destination.dtype(), source.device());
    converted.copy_from(source);
    copy_between_devices(converted, destination);
  } else if (!off_host(source.device())) {
    current_queue(destination.device())
        .copy_from_host(destination.raw_data(), source.data(), source.bytes());
  } else if (!off_host(destination.device())) {
    current_queue(source.device())
        .copy_to_host(destination.raw_data(), source.data(), source.bytes());
  } else {
    copy_between_devices(source.to(Device::cpu()), destination);
  }
}

}  // namespace

void detail::DataHandle::fail_undefined(const char* method) {
  misuse(
      "{} an undefined tensor: it was default-constructed or moved from, and has no shape, values "
      "or gradient; assign a tensor to it first",
      method == nullptr ? std::string("use of") : std::string(method) + "() of");
}

void Initializer::fill(void* out, DType dtype, std::int64_t first, std::int64_t n,
                       Device device) const {
  if (kind == Kind::constant) {
    TESSERA_LAUNCH(device, fill, {out, n, dtype, a});
    return;
  }
  if (device.type == DeviceType::cuda) {
    fill_from_host(*this, static_cast<std::byte*>(out), dtype, first, n, device);
    return;
  }
  const auto distribution =
      kind == Kind::uniform ? kernels::Distribution::uniform : kernels::Distribution::normal;
  TESSERA_LAUNCH(device, random_fill, {out, n, first, dtype, {seed, stream}, distribution, a, b});
}

Tensor Tensor::empty(const Shape& shape, DType dtype, Device device) {
  const auto bytes = static_cast<std::size_t>(shape.elements()) * size_of(dtype);
  return over(Storage::allocate(bytes, device), 0, shape, dtype);
}

Tensor Tensor::zeros(const Shape& shape, DType dtype, Device device) {
  return full(shape, 0, dtype, device);
}

Tensor Tensor::full(const Shape& shape, double value, DType dtype, Device device) {
  Tensor out = empty(shape, dtype, device);
  TESSERA_LAUNCH(device, fill, {out.data(), out.elements(), dtype, value});
  return out;
}

template <class T>
Tensor Tensor::from(std::span<const T> values, const Shape& shape) {
  TESSERA_REQUIRE(static_cast<std::int64_t>(values.size()) == shape.elements(),
                  "{} values do not fill a tensor of shape {}", values.size(), shape.to_string());
  Tensor out = empty(shape, dtype_of<T>, Device::cpu());
  if (!values.empty()) std::memcpy(out.data(), values.data(), values.size_bytes());
  return out;
}

template Tensor Tensor::from(std::span<const float>, const Shape&);
template Tensor Tensor::from(std::span<const double>, const Shape&);
template Tensor Tensor::from(std::span<const std::int32_t>, const Shape&);
template Tensor Tensor::from(std::span<const std::int64_t>, const Shape&);
template Tensor Tensor::from(std::span<const std::uint8_t>, const Shape&);

Tensor Tensor::scalar(double value, DType dtype) {
  return full({}, value, dtype, Device::cpu());
}

Tensor Tensor::view_of(std::shared_ptr<Storage> storage, std::size_t offset, const Shape& shape,
                       DType dtype) {
  TESSERA_REQUIRE(storage != nullptr, "a view of shape {} of no storage", shape.to_string());
  const auto bytes = static_cast<std::size_t>(shape.elements()) * size_of(dtype);
  TESSERA_REQUIRE(offset + bytes <= storage->bytes(),
                  "a view of shape {} at byte {} reaches beyond a storage of {} bytes",
                  shape.to_string(), offset, storage->bytes());
  autograd::note_read();  // reads through the view are not tracked
  return over(std::move(storage), offset, shape, dtype);
}

Tensor Tensor::over(std::shared_ptr<Storage> storage, std::size_t offset, const Shape& shape,
                    DType dtype) {
  auto data = std::make_shared<detail::TensorData>();
  data->storage = std::move(storage);
  data->offset = offset;
  data->shape = shape;
  data->dtype = dtype;
  return Tensor(std::move(data));
}

template <class T>
const T* Tensor::data_as() const& {
  TESSERA_REQUIRE(dtype() == dtype_of<T>, "tensor holds {}, {} asked for", name_of(dtype()),
                  name_of(dtype_of<T>));
  return reinterpret_cast<const T*>(data());
}

template <class T>
T* Tensor::data_as() & {
  TESSERA_REQUIRE(dtype() == dtype_of<T>, "tensor holds {}, {} asked for", name_of(dtype()),
                  name_of(dtype_of<T>));
  return reinterpret_cast<T*>(data());
}

#define TESSERA_DATA_AS(T)                       \
  template const T* Tensor::data_as<T>() const&; \
  template T* Tensor::data_as<T>()&;
TESSERA_DATA_AS(float)
TESSERA_DATA_AS(double)
TESSERA_DATA_AS(BFloat16)
TESSERA_DATA_AS(Float16)
TESSERA_DATA_AS(std::int32_t)
TESSERA_DATA_AS(std::int64_t)
TESSERA_DATA_AS(std::uint8_t)
#undef TESSERA_DATA_AS

std::vector<double> Tensor::to_vector() const {
  const detail::TensorData& values_of = data_.in();
  autograd::note_read();
  std::vector<std::byte> fetched;
  values_of.storage->require_present();
  const std::byte* source = data();
  if (off_host(device())) {
    fetched.resize(bytes());
    current_queue(device()).copy_to_host(fetched.data(), source, fetched.size());
    source = fetched.data();
  }
  std::vector<double> values(static_cast<std::size_t>(elements()));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = element_as_double(source + i * size_of(dtype()), dtype());
  }
  return values;
}

double Tensor::item() const {
  TESSERA_REQUIRE(elements() == 1, "item() of a tensor of shape {}", shape().to_string());
  return to_vector().front();
}

Tensor& Tensor::set_requires_grad(bool value) {
  detail::TensorData& data = data_.in();
  TESSERA_REQUIRE(!data.grad_node, "requires_grad can be set on leaves only");
  TESSERA_REQUIRE(!value || is_floating(dtype()), "a tensor of {} has no gradient",
                  name_of(dtype()));
  if (value != data.requires_grad) data.storage->will_set_requires_grad(data);
  data.requires_grad = value;
  return *this;
}

Tensor Tensor::grad() const {
  const detail::TensorData& data = data_.in();
  if (!data.grad_ready) return {};
  Tensor gradient(data.grad);
  gradient.multiply_pending_factor();
  return gradient;
}

void Tensor::multiply_pending_factor() const {
  const auto& storage = data_->storage;
  if (storage->shard().pending_factor == 1.0f) return;
  const auto elements = static_cast<std::int64_t>(storage->bytes() / size_of(dtype()));
  TESSERA_LAUNCH(device(), cast,
                 {storage->data(), storage->data(), elements, dtype(), dtype(),
                  storage->shard().pending_factor, false});
  storage->edit_shard().pending_factor = 1.0f;
}

void Tensor::zero_grad() {
  detail::TensorData& data = data_.in();
  data.grad_ready = false;
  data.storage->will_zero_grad(data);
}

void Tensor::backward(const Tensor& seed, bool retain_graph) const {
  autograd::backward(*this, seed, retain_graph);
}

HookHandle Tensor::add_gradient_hook(std::function<Tensor(const Tensor&)> hook) const {
  return autograd::add_gradient_hook(*this, std::move(hook));
}

const std::shared_ptr<std::uint64_t>& Tensor::version() const {
  auto& version = data_.in().version;
  if (!version) version = std::make_shared<std::uint64_t>(0);
  return version;
}

Tensor Tensor::detach() const {
  const detail::TensorData& data = data_.in();
  Tensor view = view_of(data.storage, data.offset, data.shape, data.dtype);
  view.share_version(*this);
  return view;
}

Tensor Tensor::clone() const {
  const detail::TensorData& data = data_.in();
  Tensor copy = empty(data.shape, data.dtype, data.storage->device());
  copy.copy_from(*this);
  autograd::note_values("clone", {*this}, {copy});
  return copy;
}

void Tensor::copy_from(const Tensor& source) {
  const detail::TensorData& written = data_.in();
  TESSERA_REQUIRE(source.defined(), "copy_from() of an undefined tensor");
  TESSERA_REQUIRE(shape() == source.shape(), "copy of a tensor of shape {} into one of shape {}",
                  source.shape().to_string(), shape().to_string());
  autograd::note_read();
  if (is_meta()) return;
  source.storage()->require_present();
  written.storage->will_write();
  count_write();
  if (device() != source.device()) {
    copy_between_devices(source, *this);
  } else if (dtype() != source.dtype()) {
    TESSERA_LAUNCH(device(), cast,
                   {source.data(), raw_data(), elements(), source.dtype(), dtype(), 1.0f, false});
  } else if (off_host(device())) {
    if (raw_data() != source.data())
      current_queue(device()).copy(raw_data(), source.data(), bytes());
  } else if (source.bytes() != 0) {
    std::memcpy(raw_data(), source.data(), source.bytes());
  }
}

Tensor Tensor::to(Device device) const {
  if (device == this->device()) return *this;
  Tensor copy = empty(shape(), dtype(), device);
  copy.copy_from(*this);
  autograd::note_values("to", {*this}, {copy});
  return copy;
}

}  // namespace tessera
