// Calls of cuDNN's backend interface.
#include "kernels/cuda/cudnn/cudnn_graph.h"

#include <utility>

#include "base/error.h"

namespace tessera::kernels::cuda {
namespace {

// Values of cudnnBackendDescriptorType_t.
enum Object : int {
  pointwise_object = 0,
  engine_configuration_object = 3,
  engine_heuristics_object = 4,
  execution_plan_object = 5,
  pointwise_operation_object = 13,
  operation_graph_object = 15,
  variant_pack_object = 16,
  tensor_object = 17,
  matmul_object = 18,
  matmul_operation_object = 19,
  reduction_object = 21,
  reduction_operation_object = 22,
  reshape_operation_object = 31,
};

// Values of cudnnBackendAttributeType_t.
enum Kind : int {
  handle_kind = 0,
  data_type_kind = 1,
  boolean_kind = 2,
  int64_kind = 3,
  float_kind = 4,
  pointer_kind = 6,
  heuristics_mode_kind = 8,
  pointwise_mode_kind = 14,
  descriptor_kind = 15,
  reduction_kind = 18,
};

// Values of cudnnBackendAttributeName_t.
enum Attribute : int {
  pointwise_mode_attribute = 0,
  pointwise_precision = 1,
  pointwise_axis = 9,
  heuristics_mode = 200,
  heuristics_graph = 201,
  heuristics_results = 202,
  plan_handle = 400,
  plan_configuration = 401,
  plan_workspace_size = 402,
  pointwise_operation = 750,
  pointwise_x = 751,
  pointwise_b = 752,
  pointwise_y = 753,
  pointwise_condition = 758,
  graph_handle = 800,
  graph_operations = 801,
  tensor_alignment = 900,
  tensor_data_type = 901,
  tensor_dimensions = 902,
  tensor_strides = 903,
  tensor_id = 906,
  tensor_is_virtual = 907,
  tensor_is_by_value = 908,
  pack_ids = 1000,
  pack_addresses = 1001,
  pack_workspace = 1003,
  matmul_precision = 1500,
  matmul_a = 1520,
  matmul_b = 1521,
  matmul_c = 1522,
  matmul_operation = 1523,
  reduction_operator = 1600,
  reduction_precision = 1601,
  reduction_x = 1610,
  reduction_y = 1611,
  reduction_operation = 1612,
  reshape_x = 2200,
  reshape_y = 2201,
};

// Values of cudnnBackendHeurMode_t.
enum Heuristics : int { heuristics_fallback = 2, heuristics_best = 3 };

constexpr std::int64_t tensor_bytes_alignment = 16;

CudnnGraph::Sizes consecutive(const CudnnGraph::Sizes& sizes) {
  return {sizes[1] * sizes[2] * sizes[3], sizes[2] * sizes[3], sizes[3], 1};
}

}  // namespace

CudnnType cudnn_type_of(DType dtype) {
  switch (dtype) {
    case DType::bfloat16:
      return CudnnType::bfloat16;
    case DType::float16:
      return CudnnType::float16;
    default:
      TESSERA_REQUIRE(dtype == float32, "cuDNN: no type for {}", name_of(dtype));
      return CudnnType::float32;
  }
}

std::string cudnn_error(const Cudnn& cudnn, CudnnStatus status, const char* call) {
  std::array<char, 2048> message{};
  cudnn.cudnnGetLastErrorString(message.data(), message.size());
  message.back() = '\0';
  return fmt::format("{} failed: {} ({}): {}", call, cudnn.cudnnGetErrorString(status), status,
                     message.data());
}

void check_cudnn(const Cudnn& cudnn, CudnnStatus status, const char* call) {
  TESSERA_CHECK(status == 0, ErrorCode::runtime, "{}", cudnn_error(cudnn, status, call));
}

CudnnObject::CudnnObject(std::shared_ptr<const Cudnn> cudnn, int type)
    : cudnn_(std::move(cudnn)), descriptor_(nullptr, cudnn_->cudnnBackendDestroyDescriptor) {
  CudnnDescriptor created = nullptr;
  check_cudnn(*cudnn_, cudnn_->cudnnBackendCreateDescriptor(type, &created),
              "cudnnBackendCreateDescriptor");
  descriptor_.reset(created);
}

void CudnnObject::set(int attribute, int type, std::int64_t count, const void* values) const {
  const CudnnStatus status =
      cudnn_->cudnnBackendSetAttribute(get(), attribute, type, count, values);
  if (status == 0) return;
  check_cudnn(*cudnn_, status,
              fmt::format("cudnnBackendSetAttribute(attribute {})", attribute).c_str());
}

CudnnStatus CudnnObject::try_finalize() const {
  return cudnn_->cudnnBackendFinalize(get());
}

void CudnnObject::finalize() const {
  check_cudnn(*cudnn_, try_finalize(), "cudnnBackendFinalize");
}

CudnnPlan::CudnnPlan(std::shared_ptr<const Cudnn> cudnn, std::vector<CudnnObject> parts,
                     CudnnObject plan)
    : cudnn_(std::move(cudnn)), parts_(std::move(parts)), plan_(std::move(plan)) {
  std::int64_t bytes = 0, count = 0;
  check_cudnn(*cudnn_,
              cudnn_->cudnnBackendGetAttribute(plan_.get(), plan_workspace_size, int64_kind, 1,
                                               &count, &bytes),
              "cudnnBackendGetAttribute(WORKSPACE_SIZE)");
  workspace_bytes_ = static_cast<std::size_t>(bytes);
}

void CudnnPlan::run(CudnnHandle handle, const std::vector<Binding>& bindings,
                    void* workspace) const {
  std::vector<std::int64_t> ids;
  std::vector<void*> addresses;
  for (const Binding& binding : bindings) {
    ids.push_back(binding.id);
    addresses.push_back(binding.address);
  }
  const auto count = static_cast<std::int64_t>(bindings.size());
  const CudnnObject pack(cudnn_, variant_pack_object);
  pack.set(pack_ids, int64_kind, count, ids.data());
  pack.set(pack_addresses, pointer_kind, count, addresses.data());
  pack.set(pack_workspace, pointer_kind, 1, &workspace);
  pack.finalize();
  check_cudnn(*cudnn_, cudnn_->cudnnBackendExecute(handle, plan_.get(), pack.get()),
              "cudnnBackendExecute");
}

CudnnDescriptor CudnnGraph::keep(CudnnObject object) {
  parts_.push_back(std::move(object));
  return parts_.back().get();
}

CudnnGraph::Tensor CudnnGraph::tensor(std::optional<std::int64_t> id, CudnnType type,
                                      const Sizes& sizes, const Sizes& strides, bool by_value) {
  CudnnObject object(cudnn_, tensor_object);
  const std::int64_t number = id ? *id : next_passed_id_++;
  const bool is_virtual = !id;
  object.set(tensor_data_type, data_type_kind, 1, &type);
  object.set(tensor_dimensions, int64_kind, 4, sizes.data());
  object.set(tensor_strides, int64_kind, 4, strides.data());
  object.set(tensor_id, int64_kind, 1, &number);
  object.set(tensor_alignment, int64_kind, 1, &tensor_bytes_alignment);
  if (is_virtual) object.set(tensor_is_virtual, boolean_kind, 1, &is_virtual);
  if (by_value) object.set(tensor_is_by_value, boolean_kind, 1, &by_value);
  object.finalize();
  return {keep(std::move(object)), type, sizes};
}

CudnnGraph::Tensor CudnnGraph::stored(std::int64_t id, CudnnType type, const Sizes& sizes,
                                      const Sizes& strides) {
  return tensor(id, type, sizes, strides, false);
}

CudnnGraph::Tensor CudnnGraph::value(std::int64_t id) {
  return tensor(id, CudnnType::float32, {1, 1, 1, 1}, {1, 1, 1, 1}, true);
}

CudnnGraph::Tensor CudnnGraph::passed(CudnnType type, const Sizes& sizes) {
  return passed(type, sizes, consecutive(sizes));
}

CudnnGraph::Tensor CudnnGraph::passed(CudnnType type, const Sizes& sizes, const Sizes& strides) {
  return tensor(std::nullopt, type, sizes, strides, false);
}

void CudnnGraph::add_operation(int type,
                               const std::vector<std::pair<int, CudnnDescriptor>>& descriptors) {
  CudnnObject operation(cudnn_, type);
  for (const auto& [attribute, descriptor] : descriptors) {
    operation.set(attribute, descriptor_kind, 1, &descriptor);
  }
  operation.finalize();
  operations_.push_back(keep(std::move(operation)));
}

CudnnDescriptor CudnnGraph::pointwise_mode(CudnnPointwise mode, CudnnType precision,
                                           std::optional<int> axis) {
  CudnnObject object(cudnn_, pointwise_object);
  object.set(pointwise_mode_attribute, pointwise_mode_kind, 1, &mode);
  object.set(pointwise_precision, data_type_kind, 1, &precision);
  if (axis) {
    const std::int64_t number = *axis;
    object.set(pointwise_axis, int64_kind, 1, &number);
  }
  object.finalize();
  return keep(std::move(object));
}

void CudnnGraph::pointwise(CudnnPointwise mode, const Tensor& x, const Tensor& y) {
  add_operation(pointwise_operation_object,
                {{pointwise_operation, pointwise_mode(mode, CudnnType::float32, {})},
                 {pointwise_x, x.descriptor},
                 {pointwise_y, y.descriptor}});
}

void CudnnGraph::pointwise(CudnnPointwise mode, const Tensor& x, const Tensor& b, const Tensor& y) {
  const CudnnType precision =
      y.type == CudnnType::boolean ? CudnnType::boolean : CudnnType::float32;
  add_operation(pointwise_operation_object,
                {{pointwise_operation, pointwise_mode(mode, precision, {})},
                 {pointwise_x, x.descriptor},
                 {pointwise_y, y.descriptor},
                 {pointwise_b, b.descriptor}});
}

void CudnnGraph::index(int axis, const Tensor& x, const Tensor& y) {
  add_operation(
      pointwise_operation_object,
      {{pointwise_operation, pointwise_mode(CudnnPointwise::index, CudnnType::float32, axis)},
       {pointwise_x, x.descriptor},
       {pointwise_y, y.descriptor}});
}

void CudnnGraph::select(const Tensor& x, const Tensor& b, const Tensor& condition,
                        const Tensor& y) {
  add_operation(
      pointwise_operation_object,
      {{pointwise_operation, pointwise_mode(CudnnPointwise::select, CudnnType::float32, {})},
       {pointwise_x, x.descriptor},
       {pointwise_y, y.descriptor},
       {pointwise_b, b.descriptor},
       {pointwise_condition, condition.descriptor}});
}

void CudnnGraph::reduce(CudnnReduction reduction, const Tensor& x, const Tensor& y) {
  CudnnObject object(cudnn_, reduction_object);
  const CudnnType precision = CudnnType::float32;
  object.set(reduction_precision, data_type_kind, 1, &precision);
  object.set(reduction_operator, reduction_kind, 1, &reduction);
  object.finalize();
  add_operation(reduction_operation_object, {{reduction_operation, keep(std::move(object))},
                                             {reduction_x, x.descriptor},
                                             {reduction_y, y.descriptor}});
}

void CudnnGraph::matmul(const Tensor& a, const Tensor& b, const Tensor& c) {
  CudnnObject object(cudnn_, matmul_object);
  const CudnnType precision = CudnnType::float32;
  object.set(matmul_precision, data_type_kind, 1, &precision);
  object.finalize();
  add_operation(matmul_operation_object, {{matmul_a, a.descriptor},
                                          {matmul_b, b.descriptor},
                                          {matmul_c, c.descriptor},
                                          {matmul_operation, keep(std::move(object))}});
}

void CudnnGraph::reshape(const Tensor& x, const Tensor& y) {
  add_operation(reshape_operation_object, {{reshape_x, x.descriptor}, {reshape_y, y.descriptor}});
}

CudnnObject CudnnGraph::operation_graph(CudnnHandle handle) const {
  CudnnObject graph(cudnn_, operation_graph_object);
  graph.set(graph_operations, descriptor_kind, static_cast<std::int64_t>(operations_.size()),
            operations_.data());
  graph.set(graph_handle, handle_kind, 1, &handle);
  graph.finalize();
  return graph;
}

std::vector<CudnnObject> CudnnGraph::proposals(const CudnnObject& graph, int mode) const {
  const CudnnObject heuristics(cudnn_, engine_heuristics_object);
  const CudnnDescriptor graph_descriptor = graph.get();
  heuristics.set(heuristics_graph, descriptor_kind, 1, &graph_descriptor);
  heuristics.set(heuristics_mode, heuristics_mode_kind, 1, &mode);
  heuristics.finalize();
  std::int64_t count = 0;
  check_cudnn(*cudnn_,
              cudnn_->cudnnBackendGetAttribute(heuristics.get(), heuristics_results,
                                               descriptor_kind, 0, &count, nullptr),
              "cudnnBackendGetAttribute(ENGINEHEUR_RESULTS)");
  std::vector<CudnnObject> found;
  std::vector<CudnnDescriptor> descriptors;
  for (std::int64_t i = 0; i < count; ++i) {
    found.emplace_back(cudnn_, engine_configuration_object);
    descriptors.push_back(found.back().get());
  }
  if (count == 0) return found;
  const std::int64_t room = count;
  check_cudnn(*cudnn_,
              cudnn_->cudnnBackendGetAttribute(heuristics.get(), heuristics_results,
                                               descriptor_kind, room, &count, descriptors.data()),
              "cudnnBackendGetAttribute(ENGINEHEUR_RESULTS)");
  found.erase(found.begin() + count, found.end());  // it drops what it cannot support
  return found;
}

CudnnPlan CudnnGraph::plan(CudnnHandle handle) {
  CudnnObject graph = operation_graph(handle);
  std::string problem = "cuDNN proposes no engine";
  for (const int mode : {heuristics_best, heuristics_fallback}) {
    for (CudnnObject& proposal : proposals(graph, mode)) {
      CudnnObject plan(cudnn_, execution_plan_object);
      const CudnnDescriptor configuration = proposal.get();
      plan.set(plan_handle, handle_kind, 1, &handle);
      plan.set(plan_configuration, descriptor_kind, 1, &configuration);
      const CudnnStatus status = plan.try_finalize();
      if (status != 0) {
        problem = cudnn_error(*cudnn_, status, "cudnnBackendFinalize(plan)");
        continue;
      }
      parts_.push_back(std::move(graph));
      parts_.push_back(std::move(proposal));
      return {cudnn_, std::move(parts_), std::move(plan)};
    }
  }
  fail(ErrorCode::runtime, "{}", problem);
}

}  // namespace tessera::kernels::cuda
