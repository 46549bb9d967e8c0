// Kernels of the ops on shapes, with broadcasting, over dimensions and at ids.
#include "bench/kernels/rows.h"

namespace tessera::bench {
namespace {

using namespace tessera::kernels;

constexpr std::int64_t tensor_rows = 2048, tensor_columns = 1536;
constexpr std::int64_t tensor_count = tensor_rows * tensor_columns;

double tensor_bytes(std::int64_t numbers, DType dtype) {
  return static_cast<double>(numbers) * static_cast<double>(size_of(dtype));
}

void add_copy(Rows& to, const std::string& variant, const StridedShape<2>& shape) {
  add_dtypes(to, variant, [shape](Memory& memory, DType dtype) {
    const void* in = memory.random(2 * shape.elements(), dtype);
    void* out = memory.random(shape.elements(), dtype);
    return Work{[=] {
                  cpu::strided_copy({in, out, shape, dtype});
                },
                2 * tensor_bytes(shape.elements(), dtype)};
  });
}

}  // namespace

void rows_of_strided_copy(Rows& to) {
  // 50 MB of 16 bits each: no cache has it, so that the rows show the memory's rate.
  constexpr std::int64_t rows = 4 * tensor_rows, columns = 2 * tensor_columns;
  add_copy(to, "transpose", {2, {columns, rows}, {{1, columns}, {rows, 1}}});
  // [batch, length, heads, 64] to [batch, heads, length, 64].
  add_copy(to, "heads",
           {4, {32, 24, 512, 64}, {{512 * 1536, 64, 1536, 1}, {512 * 1536, 512 * 64, 64, 1}}});
  // Half of the columns of a wider tensor.
  add_copy(to, "slice", {2, {2 * rows, tensor_columns}, {{columns, 1}, {tensor_columns, 1}}});
}

void rows_of_pointwise(Rows& to) {
  add_dtypes(to, "multiply", [](Memory& memory, DType dtype) {
    const void* a = memory.random(tensor_count, dtype);
    const void* b = memory.random(tensor_count, dtype);
    void* out = memory.random(tensor_count, dtype);
    return Work{[=] {
                  cpu::pointwise({.op = PointwiseOp::multiply,
                                  .in = {a, b},
                                  .out = out,
                                  .shape = {1, {tensor_count}, {{1}, {1}}},
                                  .dtype = dtype});
                },
                3 * tensor_bytes(tensor_count, dtype)};
  });
  add_dtypes(to, "subtract_column", [](Memory& memory, DType dtype) {
    const void* a = memory.random(tensor_count, dtype);
    const void* b = memory.random(tensor_rows, dtype);
    void* out = memory.random(tensor_count, dtype);
    return Work{[=] {
                  cpu::pointwise(
                      {.op = PointwiseOp::subtract,
                       .in = {a, b},
                       .out = out,
                       .shape = {2, {tensor_rows, tensor_columns}, {{tensor_columns, 1}, {1, 0}}},
                       .dtype = dtype});
                },
                2 * tensor_bytes(tensor_count, dtype)};
  });
  add_dtypes(to, "softplus", [](Memory& memory, DType dtype) {
    const void* x = memory.random(tensor_count, dtype);
    void* out = memory.random(tensor_count, dtype);
    return Work{[=] {
                  cpu::pointwise({.op = PointwiseOp::softplus,
                                  .in = {x},
                                  .number = {0, 1, 20},
                                  .out = out,
                                  .shape = {1, {tensor_count}, {{1}}},
                                  .dtype = dtype});
                },
                2 * tensor_bytes(tensor_count, dtype)};
  });
}

void rows_of_reduce(Rows& to) {
  const std::pair<const char*, ReduceOp> operations[] = {{"sum", ReduceOp::sum},
                                                         {"maximum", ReduceOp::maximum}};
  for (const auto& [name, op] : operations) {
    for (const bool last : {false, true}) {
      add_dtypes(to, std::string(name) + (last ? "_rows" : "_columns"),
                 [op = op, last](Memory& memory, DType dtype) {
                   const void* x = memory.random(tensor_count, dtype);
                   void* out = memory.random(tensor_rows, dtype);
                   const Reduce call =
                       last ? Reduce{op, x, out, tensor_rows, tensor_columns, 1, dtype}
                            : Reduce{op, x, out, 1, tensor_rows, tensor_columns, dtype};
                   return Work{[=] { cpu::reduce(call); }, tensor_bytes(tensor_count, dtype)};
                 });
    }
  }
}

void rows_of_cumulative_sum(Rows& to) {
  add_dtypes(to, "", [](Memory& memory, DType dtype) {
    const void* x = memory.random(tensor_count, dtype);
    void* out = memory.random(tensor_count, dtype);
    return Work{[=] {
                  cpu::cumulative_sum({x, out, tensor_rows, tensor_columns, 1, dtype});
                },
                2 * tensor_bytes(tensor_count, dtype)};
  });
}

void rows_of_gather(Rows& to) {
  add_dtypes(to, "rows", [](Memory& memory, DType dtype) {
    const void* x = memory.random(tensor_count, dtype);
    void* out = memory.random(tensor_count, dtype);
    const std::int32_t* ids = memory.ids(tensor_rows, tensor_rows);
    return Work{
        [=] {
          cpu::gather(
              {{ids, int32, 1, tensor_rows, tensor_rows, tensor_columns, true}, x, out, dtype});
        },
        2 * tensor_bytes(tensor_count, dtype)};
  });
}

void rows_of_scatter_add(Rows& to) {
  add_dtypes(to, "rows", [](Memory& memory, DType dtype) {
    const void* x = memory.random(tensor_count, dtype);
    void* out = memory.random(tensor_count, dtype);
    const std::int32_t* ids = memory.ids(tensor_rows, tensor_rows);
    return Work{
        [=] {
          cpu::scatter_add(
              {{ids, int32, 1, tensor_rows, tensor_rows, tensor_columns, true}, x, out, dtype});
        },
        3 * tensor_bytes(tensor_count, dtype)};
  });
}

namespace {

// 3x3 windows of 64 channels of 8 samples, and the patches of a vision transformer.
const std::pair<const char*, WindowShape> window_shapes[] = {
    {"3x3", {8 * 64, {32, 32}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, {32, 32}}},
    {"patches", {16 * 3, {224, 224}, {16, 16}, {16, 16}, {0, 0}, {1, 1}, {14, 14}}}};

}  // namespace

void rows_of_unfold(Rows& to) {
  for (const auto& [name, shape] : window_shapes) {
    add_dtypes(to, name, [s = shape](Memory& memory, DType dtype) {
      const void* x = memory.random(s.elements(), dtype);
      void* columns = memory.random(s.columns(), dtype);
      return Work{[=] {
                    cpu::unfold({s, x, columns, dtype});
                  },
                  tensor_bytes(s.elements() + s.columns(), dtype)};
    });
  }
}

void rows_of_fold(Rows& to) {
  for (const auto& [name, shape] : window_shapes) {
    add_dtypes(to, name, [s = shape](Memory& memory, DType dtype) {
      const void* columns = memory.random(s.columns(), dtype);
      void* out = memory.random(s.elements(), dtype);
      return Work{[=] {
                    cpu::fold({s, columns, out, dtype});
                  },
                  tensor_bytes(s.elements() + s.columns(), dtype)};
    });
  }
}

void rows_of_sort_order(Rows& to) {
  add_dtypes(to, "", [](Memory& memory, DType dtype) {
    constexpr std::int64_t rows = 64, length = 4096;
    const void* x = memory.random(rows * length, dtype);
    auto* order = static_cast<std::int64_t*>(memory.random(rows * length, float64));
    return Work{[=] {
                  cpu::sort_order({x, order, rows, length, dtype});
                },
                tensor_bytes(rows * length, dtype) + tensor_bytes(rows * length, int64)};
  });
}

}  // namespace tessera::bench
