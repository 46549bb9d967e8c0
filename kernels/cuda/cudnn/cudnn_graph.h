// Operation graphs of cuDNN's backend interface: tensors, operations on them, and the plan that
// cuDNN makes of a graph.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "kernels/cuda/cudnn/cudnn_library.h"

namespace tessera::kernels::cuda {

// Values of cuDNN's enumerations.
enum class CudnnType : int { float32 = 0, float16 = 2, int32 = 4, bfloat16 = 9, boolean = 11 };
enum class CudnnPointwise : int {
  add = 0,
  mul = 1,
  div = 6,
  sub = 9,
  exp = 13,
  log = 15,
  greater_or_equal = 303,
  index = 501,   // of the element along an axis
  select = 601,  // x where the condition is true, else b
};
enum class CudnnReduction : int { add = 0, max = 3 };

CudnnType cudnn_type_of(DType dtype);  // float32, float16 or bfloat16

// The status with cuDNN's own text of the last error.
std::string cudnn_error(const Cudnn& cudnn, CudnnStatus status, const char* call);
// Throws Error(runtime) with cudnn_error() unless the status is success.
void check_cudnn(const Cudnn& cudnn, CudnnStatus status, const char* call);

// Owns a descriptor of the backend interface.
class CudnnObject {
 public:
  CudnnObject(std::shared_ptr<const Cudnn> cudnn, int type);
  CudnnObject(CudnnObject&&) noexcept = default;
  CudnnObject& operator=(CudnnObject&&) noexcept = default;

  void set(int attribute, int type, std::int64_t count, const void* values) const;
  void finalize() const;
  [[nodiscard]] CudnnStatus try_finalize() const;
  [[nodiscard]] CudnnDescriptor get() const { return descriptor_.get(); }

 private:
  std::shared_ptr<const Cudnn> cudnn_;
  std::unique_ptr<void, CudnnStatus (*)(CudnnDescriptor)> descriptor_;
};

// A graph that is ready to run with the addresses of its tensors.
class CudnnPlan {
 public:
  // The address of the tensor with this identifier: in device memory, or in the host's for a value.
  struct Binding {
    std::int64_t id;
    void* address;
  };

  CudnnPlan(std::shared_ptr<const Cudnn> cudnn, std::vector<CudnnObject> parts, CudnnObject plan);
  [[nodiscard]] std::size_t workspace_bytes() const { return workspace_bytes_; }
  // Starts the graph on the handle's stream. Values are read before the call returns.
  void run(CudnnHandle handle, const std::vector<Binding>& bindings, void* workspace) const;

 private:
  std::shared_ptr<const Cudnn> cudnn_;
  std::vector<CudnnObject> parts_;  // what the plan was made of
  CudnnObject plan_;
  std::size_t workspace_bytes_ = 0;
};

// Builds a graph, operation by operation, in the order of the data. Tensors have four dimensions.
// All functions throw Error(runtime) with cuDNN's text if cuDNN refuses an operation.
class CudnnGraph {
 public:
  using Sizes = std::array<std::int64_t, 4>;
  struct Tensor {
    CudnnDescriptor descriptor;
    CudnnType type;
    Sizes sizes;
  };

  explicit CudnnGraph(std::shared_ptr<const Cudnn> cudnn) : cudnn_(std::move(cudnn)) {}

  // A tensor in memory (16-byte aligned), bound by its identifier.
  Tensor stored(std::int64_t id, CudnnType type, const Sizes& sizes, const Sizes& strides);
  // An fp32 number that the host gives with each run.
  Tensor value(std::int64_t id);
  // A result that is not stored. Its elements are consecutive, with the last dimension innermost,
  // unless strides are given.
  Tensor passed(CudnnType type, const Sizes& sizes);
  Tensor passed(CudnnType type, const Sizes& sizes, const Sizes& strides);

  void pointwise(CudnnPointwise mode, const Tensor& x, const Tensor& y);
  void pointwise(CudnnPointwise mode, const Tensor& x, const Tensor& b, const Tensor& y);
  // The index of each element of x along an axis.
  void index(int axis, const Tensor& x, const Tensor& y);
  // y = x where the condition is true, else b.
  void select(const Tensor& x, const Tensor& b, const Tensor& condition, const Tensor& y);
  // Reduces the dimensions in which y is smaller than x.
  void reduce(CudnnReduction reduction, const Tensor& x, const Tensor& y);
  void matmul(const Tensor& a, const Tensor& b, const Tensor& c);
  void reshape(const Tensor& x, const Tensor& y);

  // Makes a plan with the first of cuDNN's proposals that it can compile. Ends the use of the
  // graph.
  CudnnPlan plan(CudnnHandle handle);

 private:
  Tensor tensor(std::optional<std::int64_t> id, CudnnType type, const Sizes& sizes,
                const Sizes& strides, bool by_value);
  CudnnDescriptor keep(CudnnObject object);
  void add_operation(int type, const std::vector<std::pair<int, CudnnDescriptor>>& descriptors);
  CudnnDescriptor pointwise_mode(CudnnPointwise mode, CudnnType precision, std::optional<int> axis);
  CudnnObject operation_graph(CudnnHandle handle) const;
  std::vector<CudnnObject> proposals(const CudnnObject& graph, int mode) const;

  std::shared_ptr<const Cudnn> cudnn_;
  std::vector<CudnnObject> parts_;
  std::vector<CudnnDescriptor> operations_;
  std::int64_t next_passed_id_ = 1000;
};

}  // namespace tessera::kernels::cuda
