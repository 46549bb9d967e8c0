// Kernels that stream their operands, in shapes of a training step.
#include <fmt/format.h>

#include "bench/kernels/rows.h"

namespace tessera::bench {
namespace {

using namespace tessera::kernels;

constexpr std::int64_t stream_rows = 2048, stream_width = 1536;
constexpr std::int64_t stream_count = stream_rows * stream_width;

double stream_bytes(std::int64_t numbers, DType dtype) {
  return static_cast<double>(numbers) * static_cast<double>(size_of(dtype));
}

// One row for each dtype of training; `run` gets memory and a dtype.
template <class Make>
void add_both(Rows& to, const std::string& variant, const Make& make) {
  for (const DType dtype : {float32, bfloat16}) {
    const std::string name(name_of(dtype));
    to.add(variant.empty() ? name : variant + "/" + name,
           [make, dtype](Memory& memory) { return make(memory, dtype); });
  }
}

}  // namespace

void rows_of_fill(Rows& to) {
  add_both(to, "", [](Memory& memory, DType dtype) {
    void* out = memory.random(stream_count, dtype);
    return Work{[=] {
                  cpu::fill({out, stream_count, dtype, 1.5});
                },
                stream_bytes(stream_count, dtype)};
  });
}

void rows_of_cast(Rows& to) {
  for (const DType from : {float32, bfloat16, float16}) {
    for (const DType into : {float32, bfloat16, float16}) {
      if ((from == float32) == (into == float32)) continue;
      to.add(fmt::format("{}_to_{}", name_of(from), name_of(into)), [=](Memory& memory) {
        const void* in = memory.random(stream_count, from);
        void* out = memory.random(stream_count, into);
        return Work{[=] {
                      cpu::cast({in, out, stream_count, from, into});
                    },
                    stream_bytes(stream_count, from) + stream_bytes(stream_count, into)};
      });
    }
  }
}

void rows_of_dequantize(Rows& to) {
  for (const QuantizedFormat format : {QuantizedFormat::nf4, QuantizedFormat::int8}) {
    add_both(to, std::string(name_of(format)), [format](Memory& memory, DType dtype) {
      const std::int64_t bytes = quantized_bytes(format, stream_rows, stream_width);
      const Dequantize call{.format = format,
                            .weight = memory.zeros(bytes),
                            .out = memory.random(stream_count, dtype),
                            .rows = stream_rows,
                            .columns = stream_width,
                            .first_row = 0,
                            .row_count = stream_rows,
                            .first_column = 0,
                            .column_count = stream_width,
                            .dtype = dtype};
      return Work{[=] { cpu::dequantize(call); },
                  static_cast<double>(bytes) + stream_bytes(stream_count, dtype)};
    });
  }
}

void rows_of_unary(Rows& to) {
  const std::pair<const char*, UnaryOp> functions[] = {
      {"relu", UnaryOp::relu}, {"exp", UnaryOp::exp}, {"tanh", UnaryOp::tanh}};
  for (const auto& function : functions) {
    add_both(to, function.first, [op = function.second](Memory& memory, DType dtype) {
      const void* x = memory.random(stream_count, dtype);
      void* out = memory.random(stream_count, dtype);
      return Work{[=] {
                    cpu::unary({op, x, out, stream_count, dtype});
                  },
                  2 * stream_bytes(stream_count, dtype)};
    });
  }
}

void rows_of_unary_backward(Rows& to) {
  add_both(to, "silu", [](Memory& memory, DType dtype) {
    const void* dout = memory.random(stream_count, dtype);
    const void* x = memory.random(stream_count, dtype);
    void* dx = memory.random(stream_count, dtype);
    return Work{[=] {
                  cpu::unary_backward({UnaryOp::silu, dout, x, dx, stream_count, dtype});
                },
                3 * stream_bytes(stream_count, dtype)};
  });
}

void rows_of_binary(Rows& to) {
  add_both(to, "add", [](Memory& memory, DType dtype) {
    const void* a = memory.random(stream_count, dtype);
    const void* b = memory.random(stream_count, dtype);
    void* out = memory.random(stream_count, dtype);
    return Work{[=] {
                  cpu::binary({BinaryOp::add, a, b, out, 1, stream_count, dtype});
                },
                3 * stream_bytes(stream_count, dtype)};
  });
  add_both(to, "add_row", [](Memory& memory, DType dtype) {
    const void* a = memory.random(stream_count, dtype);
    const void* b = memory.random(stream_width, dtype);
    void* out = memory.random(stream_count, dtype);
    return Work{[=] {
                  cpu::binary({BinaryOp::add, a, b, out, stream_rows, stream_width, dtype});
                },
                2 * stream_bytes(stream_count, dtype)};
  });
}

void rows_of_affine(Rows& to) {
  add_both(to, "", [](Memory& memory, DType dtype) {
    const void* x = memory.random(stream_count, dtype);
    void* out = memory.random(stream_count, dtype);
    return Work{[=] {
                  cpu::affine({x, out, stream_count, dtype, 2.0, 1.0});
                },
                2 * stream_bytes(stream_count, dtype)};
  });
}

void rows_of_sum_rows(Rows& to) {
  add_both(to, "", [](Memory& memory, DType dtype) {
    const void* x = memory.random(stream_count, dtype);
    void* out = memory.random(stream_width, dtype);
    return Work{[=] {
                  cpu::sum_rows({x, out, stream_rows, stream_width, dtype});
                },
                stream_bytes(stream_count, dtype)};
  });
}

void rows_of_sum_all(Rows& to) {
  add_both(to, "", [](Memory& memory, DType dtype) {
    const void* x = memory.random(stream_count, dtype);
    void* out = memory.random(1, dtype);
    return Work{[=] {
                  cpu::sum_all({x, out, stream_count, dtype});
                },
                stream_bytes(stream_count, dtype)};
  });
}

void rows_of_sum_of_squares(Rows& to) {
  add_both(to, "", [](Memory& memory, DType dtype) {
    const void* x = memory.random(stream_count, dtype);
    ExactSum* sum = &memory.keep(ExactSum{});
    return Work{[=] {
                  cpu::sum_of_squares({x, stream_count, dtype, 1.0f, sum});
                },
                stream_bytes(stream_count, dtype)};
  });
}

void rows_of_bias_gelu(Rows& to) {
  for (const bool exact : {false, true}) {
    add_both(to, exact ? "erf" : "tanh", [exact](Memory& memory, DType dtype) {
      const void* x = memory.random(stream_count, dtype);
      const void* bias = memory.random(stream_width, dtype);
      void* out = memory.random(stream_count, dtype);
      return Work{[=] {
                    cpu::bias_gelu({x, bias, out, stream_rows, stream_width, exact, dtype});
                  },
                  2 * stream_bytes(stream_count, dtype)};
    });
  }
}

void rows_of_bias_gelu_backward(Rows& to) {
  for (const bool exact : {false, true}) {
    add_both(to, exact ? "erf" : "tanh", [exact](Memory& memory, DType dtype) {
      const void* dout = memory.random(stream_count, dtype);
      const void* x = memory.random(stream_count, dtype);
      const void* bias = memory.random(stream_width, dtype);
      void* dx = memory.random(stream_count, dtype);
      return Work{[=] {
                    cpu::bias_gelu_backward(
                        {dout, x, bias, dx, nullptr, stream_rows, stream_width, exact, dtype});
                  },
                  3 * stream_bytes(stream_count, dtype)};
    });
  }
}

void rows_of_swiglu(Rows& to) {
  add_both(to, "", [](Memory& memory, DType dtype) {
    const void* gate = memory.random(stream_count, dtype);
    const void* up = memory.random(stream_count, dtype);
    void* out = memory.random(stream_count, dtype);
    return Work{[=] {
                  cpu::swiglu({gate, up, out, stream_rows, stream_width, stream_width, stream_width,
                               dtype});
                },
                3 * stream_bytes(stream_count, dtype)};
  });
}

void rows_of_swiglu_backward(Rows& to) {
  add_both(to, "", [](Memory& memory, DType dtype) {
    const void* dout = memory.random(stream_count, dtype);
    const void* gate = memory.random(stream_count, dtype);
    const void* up = memory.random(stream_count, dtype);
    void* dgate = memory.random(stream_count, dtype);
    void* dup = memory.random(stream_count, dtype);
    return Work{[=] {
                  cpu::swiglu_backward({dout, gate, up, dgate, dup, nullptr, stream_rows,
                                        stream_width, stream_width, stream_width, dtype});
                },
                5 * stream_bytes(stream_count, dtype)};
  });
}

}  // namespace tessera::bench
