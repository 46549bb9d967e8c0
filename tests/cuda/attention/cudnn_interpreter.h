// Interprets operations of cuDNN's backend interface on host memory, in double precision with the
// rounding of each tensor's type.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include "cuda/kernel_testing.h"

namespace tessera::testing::cudnn {

// The types of descriptors and the attributes, with cuDNN's numbers.
enum Type {
  plan = 5,
  pointwise = 13,
  graph = 15,
  pack = 16,
  tensor = 17,
  matmul = 19,
  reduction = 22,
  reshape = 31
};
enum Attribute {
  pointwise_mode = 0,
  pointwise_axis = 9,
  heuristics_graph = 201,
  heuristics_results = 202,
  plan_handle = 400,
  plan_configuration = 401,
  plan_workspace = 402,
  operation_pointwise = 750,
  operation_x = 751,
  operation_b = 752,
  operation_y = 753,
  operation_condition = 758,
  graph_handle = 800,
  graph_operations = 801,
  alignment = 900,
  data_type = 901,
  dimensions = 902,
  strides = 903,
  unique_id = 906,
  is_virtual = 907,
  by_value = 908,
  pack_ids = 1000,
  pack_addresses = 1001,
  pack_workspace = 1003,
  matmul_a = 1520,
  matmul_b = 1521,
  matmul_c = 1522,
  reduction_operator = 1600,
  reduction_x = 1610,
  reduction_y = 1611,
  reduction_descriptor = 1612,
  reshape_x = 2200,
  reshape_y = 2201
};

struct Descriptor {
  int type;
  bool finalized = false;
  std::map<int, std::vector<std::byte>> attributes;

  [[nodiscard]] bool has(int attribute) const { return attributes.contains(attribute); }
  template <class T>
  [[nodiscard]] std::vector<T> all(int attribute) const {
    const auto found = attributes.find(attribute);
    if (found == attributes.end()) {
      ADD_FAILURE() << "a descriptor of type " << type << " lacks the attribute " << attribute;
      return std::vector<T>(4);
    }
    std::vector<T> values(found->second.size() / sizeof(T));
    std::memcpy(values.data(), found->second.data(), found->second.size());
    return values;
  }
  template <class T>
  [[nodiscard]] T get(int attribute) const {
    return all<T>(attribute).at(0);
  }
  [[nodiscard]] const Descriptor& child(int attribute) const {
    return *get<const Descriptor*>(attribute);
  }
};

// Runs the operations of a graph, in their order.
class Interpreter {
 public:
  explicit Interpreter(const Descriptor& pack_descriptor) {
    const auto ids = pack_descriptor.all<std::int64_t>(pack_ids);
    const auto addresses = pack_descriptor.all<void*>(pack_addresses);
    EXPECT_EQ(ids.size(), addresses.size());
    for (std::size_t i = 0; i < ids.size(); ++i) addresses_[ids[i]] = addresses[i];
  }

  void run(const Descriptor& operation) {
    switch (operation.type) {
      case pointwise:
        return run_pointwise(operation);
      case reduction:
        return run_reduction(operation);
      case matmul:
        return run_matmul(operation);
      case reshape:
        return run_reshape(operation);
      default:
        ADD_FAILURE() << "no operation: " << operation.type;
    }
  }

 private:
  using Index = std::array<std::int64_t, 4>;

  // The elements of a tensor, the last dimension innermost.
  struct Values {
    Index sizes{};
    std::vector<double> elements;
    [[nodiscard]] std::size_t place(const Index& index) const {
      std::int64_t place = 0;
      for (std::size_t i = 0; i < 4; ++i) {
        // A dimension of one element is repeated.
        place = place * sizes[i] + (sizes[i] == 1 ? 0 : index[i]);
      }
      return static_cast<std::size_t>(place);
    }
    [[nodiscard]] double at(const Index& index) const { return elements.at(place(index)); }
  };

  static Index index_of(const Descriptor& t, int attribute) {
    const auto values = t.all<std::int64_t>(attribute);
    EXPECT_EQ(values.size(), 4u);
    return {values.at(0), values.at(1), values.at(2), values.at(3)};
  }
  static void for_each(const Index& sizes, const std::function<void(const Index&)>& body) {
    Index i{};
    for (i[0] = 0; i[0] < sizes[0]; ++i[0]) {
      for (i[1] = 0; i[1] < sizes[1]; ++i[1]) {
        for (i[2] = 0; i[2] < sizes[2]; ++i[2]) {
          for (i[3] = 0; i[3] < sizes[3]; ++i[3]) body(i);
        }
      }
    }
  }
  static DType dtype_of(const Descriptor& t) {
    switch (t.get<int>(data_type)) {
      case 2:
        return float16;
      case 9:
        return bfloat16;
      default:
        return float32;  // also whole numbers and conditions, which it holds without error
    }
  }

  std::byte* address_of(const Descriptor& t) {
    EXPECT_EQ(t.get<std::int64_t>(alignment), 16);
    const auto found = addresses_.find(t.get<std::int64_t>(unique_id));
    if (found == addresses_.end()) {
      ADD_FAILURE() << "tensor " << t.get<std::int64_t>(unique_id) << " is not bound";
      return nullptr;
    }
    if (!t.has(by_value)) {
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(found->second) % 16, 0u);
    }
    return static_cast<std::byte*>(found->second);
  }

  Values load(const Descriptor& t) {
    if (t.has(is_virtual)) {
      EXPECT_TRUE(virtual_.contains(&t)) << "read before it was computed";
      return virtual_[&t];
    }
    Values values{index_of(t, dimensions), {}};
    const Index step = index_of(t, strides);
    const DType dtype = dtype_of(t);
    const std::byte* const base = address_of(t);
    for_each(values.sizes, [&](const Index& i) {
      const auto offset = static_cast<std::size_t>(i[0] * step[0] + i[1] * step[1] +
                                                   i[2] * step[2] + i[3] * step[3]) *
                          size_of(dtype);
      values.elements.push_back(
          decode(std::vector<std::byte>(base + offset, base + offset + size_of(dtype)), dtype)[0]);
    });
    return values;
  }

  void store(const Descriptor& t, const std::function<double(const Index&)>& element) {
    Values values{index_of(t, dimensions), {}};
    const DType dtype = dtype_of(t);
    for_each(values.sizes, [&](const Index& i) { values.elements.push_back(element(i)); });
    values.elements = decode(encode(values.elements, dtype), dtype);
    if (!t.has(is_virtual)) {
      const Index step = index_of(t, strides);
      std::byte* const base = address_of(t);
      for_each(values.sizes, [&](const Index& i) {
        const auto offset = static_cast<std::size_t>(i[0] * step[0] + i[1] * step[1] +
                                                     i[2] * step[2] + i[3] * step[3]) *
                            size_of(dtype);
        const auto bytes = encode({values.at(i)}, dtype);
        std::memcpy(base + offset, bytes.data(), bytes.size());
      });
    }
    if (t.has(is_virtual)) virtual_[&t] = std::move(values);
  }

  void run_pointwise(const Descriptor& operation) {
    const Descriptor& settings = operation.child(operation_pointwise);
    const int mode = settings.get<int>(pointwise_mode);
    const Descriptor& y = operation.child(operation_y);
    const Values x = load(operation.child(operation_x));
    if (mode == 501) {
      const auto axis = static_cast<std::size_t>(settings.get<std::int64_t>(pointwise_axis));
      return store(y, [&](const Index& i) { return static_cast<double>(i.at(axis)); });
    }
    const Values b =
        operation.has(operation_b) ? load(operation.child(operation_b)) : Values{{1, 1, 1, 1}, {0}};
    const Values condition = operation.has(operation_condition)
                                 ? load(operation.child(operation_condition))
                                 : Values{{1, 1, 1, 1}, {0}};
    store(y, [&](const Index& i) { return computed(mode, x.at(i), b.at(i), condition.at(i)); });
  }

  static double computed(int mode, double x, double b, double condition) {
    switch (mode) {
      case 0:
        return x + b;
      case 1:
        return x * b;
      case 6:
        return x / b;
      case 9:
        return x - b;
      case 13:
        return std::exp(x);
      case 15:
        return std::log(x);
      case 303:
        return x >= b ? 1 : 0;
      case 601:
        return condition != 0 ? x : b;
      default:
        ADD_FAILURE() << "no pointwise mode: " << mode;
        return 0;
    }
  }

  // A dimension shrinks to one element, or by a whole number: heads of a group.
  void run_reduction(const Descriptor& operation) {
    const bool add = operation.child(reduction_descriptor).get<int>(reduction_operator) == 0;
    const Descriptor& y = operation.child(reduction_y);
    const Values x = load(operation.child(reduction_x));
    Values result{index_of(y, dimensions), {}};
    const Index& to = result.sizes;
    result.elements.assign(static_cast<std::size_t>(to[0] * to[1] * to[2] * to[3]),
                           add ? 0.0 : -std::numeric_limits<double>::infinity());
    for_each(x.sizes, [&](const Index& i) {
      Index target{};
      for (std::size_t axis = 0; axis < 4; ++axis) {
        EXPECT_EQ(x.sizes[axis] % to[axis], 0);
        target[axis] = i[axis] / (x.sizes[axis] / to[axis]);
      }
      double& element = result.elements[result.place(target)];
      element = add ? element + x.at(i) : std::max(element, x.at(i));
    });
    store(y, [&](const Index& i) { return result.at(i); });
  }

  // The heads of a group of a share a head of b.
  void run_matmul(const Descriptor& operation) {
    const Values a = load(operation.child(matmul_a)), b = load(operation.child(matmul_b));
    const Descriptor& c = operation.child(matmul_c);
    const Index sizes = index_of(c, dimensions);
    EXPECT_EQ(sizes, (Index{a.sizes[0], a.sizes[1], a.sizes[2], b.sizes[3]}));
    EXPECT_EQ(a.sizes[3], b.sizes[2]);
    EXPECT_EQ(a.sizes[0], b.sizes[0]);
    EXPECT_EQ(a.sizes[1] % b.sizes[1], 0);
    const std::int64_t group = a.sizes[1] / b.sizes[1];
    store(c, [&](const Index& i) {
      double sum = 0;
      for (std::int64_t k = 0; k < a.sizes[3]; ++k) {
        sum += a.at({i[0], i[1], i[2], k}) * b.at({i[0], i[1] / group, k, i[3]});
      }
      return sum;
    });
  }

  // In the graphs of attention, the transposition of the last two dimensions.
  void run_reshape(const Descriptor& operation) {
    const Descriptor& y = operation.child(reshape_y);
    const Values x = load(operation.child(reshape_x));
    EXPECT_EQ(index_of(y, dimensions), (Index{x.sizes[0], x.sizes[1], x.sizes[3], x.sizes[2]}));
    store(y, [&](const Index& i) { return x.at({i[0], i[1], i[3], i[2]}); });
  }

  std::map<std::int64_t, void*> addresses_;
  std::map<const Descriptor*, Values> virtual_;
};

}  // namespace tessera::testing::cudnn
