// Tensors: dense, row-major, possibly a view of a larger storage, possibly with a gradient.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "engine/device/device.h"
#include "engine/hook_list.h"
#include "engine/shape.h"
#include "engine/storage/storage.h"

namespace tessera {

namespace autograd {
class Node;
}

class Tensor;

// The initial values of a parameter. Element i of parameter `stream` draws from (seed, stream, i),
// so a shard of a parameter gets the values that the whole would have, on any number of ranks.
struct Initializer {
  enum class Kind : std::uint8_t { constant, uniform, normal };
  Kind kind = Kind::constant;
  double a = 0;  // constant's value; uniform's lower bound; normal's mean
  double b = 0;  // uniform's upper bound; normal's deviation
  std::uint64_t seed = 0;
  std::uint64_t stream = 0;

  // Writes elements [first, first + n) of the parameter into memory of `device`. The CPU draws the
  // values for every device.
  void fill(void* out, DType dtype, std::int64_t first, std::int64_t n,
            Device device = Device::cpu()) const;
};

namespace detail {

struct TensorData {
  std::shared_ptr<Storage> storage;
  std::size_t offset = 0;  // bytes into the storage
  Shape shape;
  DType dtype = DType::float32;
  bool requires_grad = false;
  std::shared_ptr<autograd::Node> grad_node;  // the node that computed it; null for a leaf
  int grad_output = 0;                        // index among the node's outputs

  // A leaf's gradient. Its memory may exist beforehand (a view of a communication buffer);
  // `grad_ready` tells whether it holds a gradient.
  std::shared_ptr<TensorData> grad;
  bool grad_ready = false;

  std::shared_ptr<Initializer> initializer;  // of a parameter

  // Computes the same values again, if that is cheaper than saving them for backward (a norm's
  // output). Must not refer to this tensor.
  std::shared_ptr<const std::function<Tensor()>> recompute;

  // The number of writes since the first request for it; null: never requested. Tensors over the
  // same values share it.
  std::shared_ptr<std::uint64_t> version;
};

// A tensor's data. Access to missing data is a logic_error.
class DataHandle {
 public:
  DataHandle() = default;
  explicit DataHandle(std::shared_ptr<TensorData> data) : data_(std::move(data)) {}
  TensorData* operator->() const { return &in(nullptr); }
  // `method` is the caller's name.
  [[nodiscard]] TensorData& in(const char* method = __builtin_FUNCTION()) const {
    if (data_ == nullptr) [[unlikely]]
      fail_undefined(method);
    return *data_;
  }
  [[nodiscard]] const std::shared_ptr<TensorData>& pointer() const { return data_; }

 private:
  [[noreturn]] static void fail_undefined(const char* method);

  std::shared_ptr<TensorData> data_;
};

}  // namespace detail

// A handle; copies refer to the same tensor. Not thread-safe: a tensor belongs to one rank's
// compute stream.
class Tensor {
 public:
  Tensor() = default;
  explicit Tensor(std::shared_ptr<detail::TensorData> data) : data_(std::move(data)) {}

  // The contents are undefined.
  static Tensor empty(const Shape& shape, DType dtype = float32, Device device = default_device());
  static Tensor zeros(const Shape& shape, DType dtype = float32, Device device = default_device());
  static Tensor full(const Shape& shape, double value, DType dtype = float32,
                     Device device = default_device());
  // Copies the values. T is float, double, int32_t, int64_t or uint8_t, and determines the dtype:
  // {1.f, 2.f} is float32, {1.0, 2.0} float64.
  template <class T>
  static Tensor from(std::span<const T> values, const Shape& shape);
  template <class T>
  static Tensor from(const std::vector<T>& values, const Shape& shape) {
    return from(std::span<const T>(values), shape);
  }
  template <class T>
  static Tensor from(std::initializer_list<T> values, const Shape& shape) {
    return from(std::span<const T>(values.begin(), values.size()), shape);
  }
  static Tensor scalar(double value, DType dtype = float32);
  // A view of `storage` at a byte offset.
  static Tensor view_of(std::shared_ptr<Storage> storage, std::size_t offset, const Shape& shape,
                        DType dtype);

  // A default-constructed or moved-from tensor is undefined: everything except this, impl() and
  // assignment throws a logic_error.
  [[nodiscard]] bool defined() const { return data_.pointer() != nullptr; }
  explicit operator bool() const { return defined(); }

  [[nodiscard]] const Shape& shape() const { return data_.in().shape; }
  [[nodiscard]] std::int64_t size(int dimension) const { return data_.in().shape[dimension]; }
  [[nodiscard]] int dimensions() const { return data_.in().shape.dimensions(); }
  [[nodiscard]] std::int64_t elements() const { return data_.in().shape.elements(); }
  [[nodiscard]] std::size_t bytes() const {
    return static_cast<std::size_t>(elements()) * size_of(dtype());
  }
  [[nodiscard]] DType dtype() const { return data_.in().dtype; }
  [[nodiscard]] Device device() const { return data_.in().storage->device(); }
  [[nodiscard]] bool is_meta() const { return device().is_meta(); }
  [[nodiscard]] const std::shared_ptr<Storage>& storage() const { return data_.in().storage; }

  // The present address, in the device's memory. Call it at each use: a sharded parameter's memory
  // changes.
  //
  // A handle that is not const returns a pointer for writing, and taking it counts as a write.
  // Gathered copies of a sharded model's parameter are dropped, as by copy_from(), on every rank
  // that takes it (so all ranks must). Values written later through an old pointer are not detected
  // at the write; sharding throws a logic_error if it finds such a copy in use. A const or
  // temporary handle returns a pointer for reading, which does not count as a write.
  [[nodiscard]] const std::byte* data() const& {
    if (storage()->shard().pending_factor != 1.0f) [[unlikely]]
      multiply_pending_factor();
    return raw_data();
  }
  [[nodiscard]] std::byte* data() & {
    if (storage()->is_watched()) [[unlikely]]
      storage()->will_write(Storage::Write::by_pointer);
    if (storage()->shard().pending_factor != 1.0f) [[unlikely]]
      multiply_pending_factor();
    return raw_data();
  }
  // For the library's own kernels and copies, which update holders of copies themselves. The
  // address is for reading and for writing.
  [[nodiscard]] std::byte* raw_data() const { return storage()->data() + data_.in().offset; }
  // data() as T, which must match the tensor's dtype.
  template <class T>
  [[nodiscard]] const T* data_as() const&;
  template <class T>
  [[nodiscard]] T* data_as() &;

  // The value of a tensor of one element, as double. Like to_vector(), it waits for the device.
  [[nodiscard]] double item() const;
  // All values converted to double, row-major.
  [[nodiscard]] std::vector<double> to_vector() const;

  [[nodiscard]] bool requires_grad() const { return data_.in().requires_grad; }
  // Leaves only.
  Tensor& set_requires_grad(bool value);
  // The gradient, or an undefined tensor when there is none.
  [[nodiscard]] Tensor grad() const;
  void zero_grad();
  // Runs backward from this scalar with gradient 1 (or `seed`). It frees the graph on the way,
  // unless retain_graph is set because another backward will pass through parts of it.
  void backward(const Tensor& seed = {}, bool retain_graph = false) const;
  // Calls hook(gradient) whenever a backward has this tensor's whole gradient. A defined tensor
  // that the hook returns replaces the gradient. Works for results of ops; the gradient of a leaf
  // is grad(), after backward. In a function that runs again in backward (engine/recompute.h) the
  // registration in the second run counts.
  template <class Hook>
  HookHandle register_hook(Hook hook) const {
    if constexpr (std::is_void_v<std::invoke_result_t<Hook&, const Tensor&>>) {
      return add_gradient_hook([hook = std::move(hook)](const Tensor& gradient) mutable {
        hook(gradient);
        return Tensor();
      });
    } else {
      return add_gradient_hook(std::move(hook));
    }
  }

  // Shares memory, not the graph.
  [[nodiscard]] Tensor detach() const;
  // A copy in new memory, outside the graph.
  [[nodiscard]] Tensor clone() const;
  // Converts dtype; shapes must be equal. Also copies between devices. `source` may change after it
  // returns.
  void copy_from(const Tensor& source);
  // The same values on `device`: this tensor itself if it is there, else a copy outside the graph.
  [[nodiscard]] Tensor to(Device device) const;
  // Applies the storage's pending factor (ShardMetadata::pending_factor) to all tensors in it; they
  // must have this tensor's dtype.
  void multiply_pending_factor() const;

  // The number of recorded writes: copy_from() and optimizers record them. Values that a backward
  // reads must not be written after the forward (autograd::SavedValue).
  [[nodiscard]] const std::shared_ptr<std::uint64_t>& version() const;
  void count_write() const {
    if (const auto& version = data_.in().version) ++*version;
  }
  // Declares that the values are a copy of other's, or of a part of it, and follow its writes.
  void share_version(const Tensor& other) const { data_.in().version = other.version(); }

  [[nodiscard]] const std::shared_ptr<detail::TensorData>& impl() const { return data_.pointer(); }

 private:
  HookHandle add_gradient_hook(std::function<Tensor(const Tensor&)> hook) const;
  static Tensor over(std::shared_ptr<Storage> storage, std::size_t offset, const Shape& shape,
                     DType dtype);

  detail::DataHandle data_;
};

}  // namespace tessera
