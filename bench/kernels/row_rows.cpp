// Kernels that work row by row: norms, softmax and its loss, tables, pooling, rotary positions.
#include "bench/kernels/rows.h"

namespace tessera::bench {
namespace {

using namespace tessera::kernels;

constexpr std::int64_t tokens = 2048, hidden = 384, vocabulary = 30522, loss_rows = 256;

double bytes_of(std::int64_t numbers, DType dtype) {
  return static_cast<double>(numbers) * static_cast<double>(size_of(dtype));
}

// 128 sequences of 1 to 31 tokens.
struct Packed {
  std::vector<std::int32_t> starts, lengths;
  std::int64_t rows = 0;

  Packed() {
    for (std::int32_t i = 0; i < 128; ++i) {
      starts.push_back(static_cast<std::int32_t>(rows));
      lengths.push_back(1 + i * 7 % 31);
      rows += lengths.back();
    }
  }
};

}  // namespace

void rows_of_norm_forward(Rows& to) {
  for (const bool rms : {false, true}) {
    for (const bool residual : {false, true}) {
      const std::string name = std::string(rms ? "rms" : "layer") + (residual ? "_residual" : "");
      add_dtypes(to, name, [=](Memory& memory, DType dtype) {
        constexpr std::int64_t n = tokens * hidden;
        const NormForward norm{.x = memory.random(n, dtype),
                               .residual = residual ? memory.random(n, dtype) : nullptr,
                               .gamma = memory.random(hidden, dtype),
                               .beta = rms ? nullptr : memory.random(hidden, dtype),
                               .sum = residual ? memory.random(n, dtype) : nullptr,
                               .out = memory.random(n, dtype),
                               .mean = memory.random(tokens, float32),
                               .rstd = memory.random(tokens, float32),
                               .rows = tokens,
                               .dim = hidden,
                               .eps = 1e-5f,
                               .rms = rms,
                               .dtype = dtype};
        return Work{[=] { cpu::norm_forward(norm); }, (residual ? 4 : 2) * bytes_of(n, dtype)};
      });
    }
  }
}

void rows_of_norm_backward(Rows& to) {
  for (const bool rms : {false, true}) {
    add_dtypes(to, rms ? "rms" : "layer", [=](Memory& memory, DType dtype) {
      constexpr std::int64_t n = tokens * hidden;
      const NormBackward norm{.dout = memory.random(n, dtype),
                              .dresidual = memory.random(n, dtype),
                              .x = memory.random(n, dtype),
                              .gamma = memory.random(hidden, dtype),
                              .mean = memory.random(tokens, float32),
                              .rstd = memory.random(tokens, float32),
                              .dx = memory.random(n, dtype),
                              .dgamma = memory.random(hidden, dtype),
                              .dbeta = rms ? nullptr : memory.random(hidden, dtype),
                              .rows = tokens,
                              .dim = hidden,
                              .rms = rms,
                              .dtype = dtype};
      return Work{[=] { cpu::norm_backward(norm); }, 4 * bytes_of(n, dtype)};
    });
  }
}

void rows_of_cross_entropy_forward(Rows& to) {
  add_dtypes(to, "", [](Memory& memory, DType dtype) {
    const CrossEntropyForward loss{.logits = memory.random(loss_rows * vocabulary, dtype),
                                   .targets = memory.ids(loss_rows, vocabulary),
                                   .target_dtype = int32,
                                   .loss = memory.random(loss_rows, float32),
                                   .log_sum_exp = memory.random(loss_rows, float32),
                                   .rows = loss_rows,
                                   .vocabulary = vocabulary,
                                   .stride = vocabulary,
                                   .ignore = -100,
                                   .dtype = dtype};
    return Work{[=] { cpu::cross_entropy_forward(loss); }, bytes_of(loss_rows * vocabulary, dtype)};
  });
}

void rows_of_cross_entropy_backward(Rows& to) {
  add_dtypes(to, "", [](Memory& memory, DType dtype) {
    const CrossEntropyBackward loss{.logits = memory.random(loss_rows * vocabulary, dtype),
                                    .targets = memory.ids(loss_rows, vocabulary),
                                    .target_dtype = int32,
                                    .log_sum_exp = memory.random(loss_rows, float32),
                                    .dloss = &memory.keep(1.0f),
                                    .inverse_count = &memory.keep(1.0 / loss_rows),
                                    .dlogits = memory.random(loss_rows * vocabulary, dtype),
                                    .rows = loss_rows,
                                    .vocabulary = vocabulary,
                                    .stride = vocabulary,
                                    .ignore = -100,
                                    .dtype = dtype};
    return Work{[=] { cpu::cross_entropy_backward(loss); },
                2 * bytes_of(loss_rows * vocabulary, dtype)};
  });
}

void rows_of_mean_loss(Rows& to) {
  to.add("float32", [](Memory& memory) {
    constexpr std::int64_t n = 1 << 20;
    const MeanLoss loss{.losses = memory.random(n, float32),
                        .targets = memory.ids(n, vocabulary),
                        .target_dtype = int32,
                        .mean = memory.random(1, float32),
                        .inverse_count = &memory.keep(0.0),
                        .rows = n,
                        .ignore = -100,
                        .dtype = float32};
    return Work{[=] { cpu::mean_loss(loss); }, bytes_of(n, float32) + bytes_of(n, int32)};
  });
}

void rows_of_softmax_forward(Rows& to) {
  add_dtypes(to, "", [](Memory& memory, DType dtype) {
    const SoftmaxForward softmax{memory.random(loss_rows * vocabulary, dtype),
                                 memory.random(loss_rows * vocabulary, dtype), loss_rows,
                                 vocabulary, dtype};
    return Work{[=] { cpu::softmax_forward(softmax); },
                2 * bytes_of(loss_rows * vocabulary, dtype)};
  });
}

void rows_of_softmax_backward(Rows& to) {
  add_dtypes(to, "", [](Memory& memory, DType dtype) {
    constexpr std::int64_t n = loss_rows * vocabulary;
    const SoftmaxBackward softmax{memory.random(n, dtype),
                                  memory.random(n, dtype),
                                  memory.random(n, dtype),
                                  loss_rows,
                                  vocabulary,
                                  dtype};
    return Work{[=] { cpu::softmax_backward(softmax); }, 3 * bytes_of(n, dtype)};
  });
}

void rows_of_embedding_forward(Rows& to) {
  add_dtypes(to, "", [](Memory& memory, DType dtype) {
    const EmbeddingForward table{memory.ids(tokens, vocabulary),
                                 int32,
                                 memory.random(vocabulary * hidden, dtype),
                                 memory.random(tokens * hidden, dtype),
                                 tokens,
                                 vocabulary,
                                 hidden,
                                 dtype};
    return Work{[=] { cpu::embedding_forward(table); }, 2 * bytes_of(tokens * hidden, dtype)};
  });
}

// Adds into an existing gradient, as a tied head leaves it: rows without an id are not touched.
void rows_of_embedding_backward(Rows& to) {
  add_dtypes(to, "accumulate", [](Memory& memory, DType dtype) {
    const EmbeddingBackward table{.ids = memory.ids(tokens, vocabulary),
                                  .id_dtype = int32,
                                  .dout = memory.random(tokens * hidden, dtype),
                                  .dtable = memory.zeros(vocabulary * hidden * 4),
                                  .rows = tokens,
                                  .entries = vocabulary,
                                  .dim = hidden,
                                  .dtype = dtype,
                                  .accumulate = true};
    return Work{[=] { cpu::embedding_backward(table); }, 3 * bytes_of(tokens * hidden, dtype)};
  });
}

void rows_of_rotary(Rows& to) {
  add_dtypes(to, "", [](Memory& memory, DType dtype) {
    constexpr std::int64_t sequence = 256, turned = 6, head = 64, width = turned * head;
    const Rotary rotary{.x = memory.random(tokens * width, dtype),
                        .out = memory.random(tokens * width, dtype),
                        .cosine = static_cast<float*>(memory.random(sequence * head / 2, float32)),
                        .sine = static_cast<float*>(memory.random(sequence * head / 2, float32)),
                        .rows = tokens,
                        .sequence = sequence,
                        .heads = turned,
                        .head_dim = head,
                        .first_position = 0,
                        .x_stride = width,
                        .out_stride = width,
                        .inverse = false,
                        .dtype = dtype};
    return Work{[=] { cpu::rotary(rotary); }, 2 * bytes_of(tokens * width, dtype)};
  });
}

void rows_of_pool_forward(Rows& to) {
  add_dtypes(to, "mean", [](Memory& memory, DType dtype) {
    const auto& packed = memory.keep(Packed());
    const auto sequences = static_cast<std::int64_t>(packed.starts.size());
    const PoolForward pool{.x = memory.random(packed.rows * hidden, dtype),
                           .starts = packed.starts.data(),
                           .lengths = packed.lengths.data(),
                           .out = memory.random(sequences * hidden, float32),
                           .sequences = sequences,
                           .rows = packed.rows,
                           .dim = hidden,
                           .out_stride = hidden,
                           .mode = PoolingMode::mean,
                           .dtype = dtype};
    return Work{[=] { cpu::pool_forward(pool); },
                bytes_of(packed.rows * hidden, dtype) + bytes_of(sequences * hidden, float32)};
  });
}

void rows_of_pool_backward(Rows& to) {
  add_dtypes(to, "mean", [](Memory& memory, DType dtype) {
    const auto& packed = memory.keep(Packed());
    const auto sequences = static_cast<std::int64_t>(packed.starts.size());
    const PoolBackward pool{.dout = memory.random(sequences * hidden, float32),
                            .x = nullptr,
                            .starts = packed.starts.data(),
                            .lengths = packed.lengths.data(),
                            .dx = memory.random(packed.rows * hidden, dtype),
                            .sequences = sequences,
                            .rows = packed.rows,
                            .dim = hidden,
                            .out_stride = hidden,
                            .mode = PoolingMode::mean,
                            .dtype = dtype};
    return Work{[=] { cpu::pool_backward(pool); },
                bytes_of(packed.rows * hidden, dtype) + bytes_of(sequences * hidden, float32)};
  });
}

void rows_of_normalize_rows(Rows& to) {
  to.add("float32", [](Memory& memory) {
    const NormalizeRows rows{memory.random(tokens * hidden, float32),
                             memory.random(tokens * hidden, float32),
                             memory.random(tokens, float32),
                             tokens,
                             hidden,
                             1e-12,
                             float32};
    return Work{[=] { cpu::normalize_rows(rows); }, 2 * bytes_of(tokens * hidden, float32)};
  });
}

void rows_of_normalize_rows_backward(Rows& to) {
  to.add("float32", [](Memory& memory) {
    void* norms = memory.random(tokens, float32);
    cpu::fill({norms, tokens, float32, 2.0});
    const NormalizeRowsBackward rows{memory.random(tokens * hidden, float32),
                                     memory.random(tokens * hidden, float32),
                                     norms,
                                     memory.random(tokens * hidden, float32),
                                     tokens,
                                     hidden,
                                     1e-12,
                                     float32};
    return Work{[=] { cpu::normalize_rows_backward(rows); },
                3 * bytes_of(tokens * hidden, float32)};
  });
}

}  // namespace tessera::bench
