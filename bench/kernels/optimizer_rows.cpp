// Kernels over flat segments: optimizers, the sum over ranks, and random numbers.
#include <fmt/format.h>

#include "base/eight_bit.h"
#include "bench/kernels/rows.h"

namespace tessera::bench {
namespace {

using namespace tessera::kernels;

constexpr std::int64_t segment = 1 << 22;

double each(double bytes) {
  return bytes * static_cast<double>(segment);
}

void* positive(Memory& memory) {
  void* values = memory.random(segment, float32);
  cpu::fill({values, segment, float32, 0.5});
  return values;
}

}  // namespace

void rows_of_adamw_step(Rows& to) {
  for (const bool copy : {false, true}) {
    to.add(copy ? "float32_bfloat16_copy" : "float32", [copy](Memory& memory) {
      const AdamWStep step{.param = memory.random(segment, float32),
                           .grad = memory.random(segment, float32),
                           .m = memory.random(segment, float32),
                           .v = positive(memory),
                           .copy = copy ? memory.random(segment, bfloat16) : nullptr,
                           .n = segment,
                           .dtype = float32,
                           .grad_dtype = float32,
                           .copy_dtype = bfloat16,
                           .lr = 1e-4,
                           .beta1 = 0.9,
                           .beta2 = 0.95,
                           .eps = 1e-8,
                           .weight_decay = 0.1,
                           .correction1 = 0.1,
                           .correction2 = 0.05,
                           .grad_scale = 1.0f};
      return Work{[=] { cpu::adamw_step(step); }, each(copy ? 30 : 28)};
    });
  }
}

void rows_of_adamw_8bit_step(Rows& to) {
  to.add("float32", [](Memory& memory) {
    constexpr std::int64_t scales = segment / eight_bit_block;
    const AdamW8BitStep step{.param = memory.random(segment, float32),
                             .grad = memory.random(segment, float32),
                             .m_codes = memory.random(segment / 4, float32),
                             .v_codes = memory.random(segment / 4, float32),
                             .m_scales = memory.random(scales, float32),
                             .v_scales = memory.random(scales, float32),
                             .n = segment,
                             .grad_dtype = float32,
                             .lr = 1e-4,
                             .beta1 = 0.9,
                             .beta2 = 0.95,
                             .eps = 1e-8,
                             .weight_decay = 0.1,
                             .correction1 = 0.1,
                             .correction2 = 0.05,
                             .grad_scale = 1.0f};
    cpu::fill({step.m_scales, scales, float32, 0.1});
    cpu::fill({step.v_scales, scales, float32, 0.1});
    return Work{[=] { cpu::adamw_8bit_step(step); }, each(16.0 + 16.0 / eight_bit_block)};
  });
}

void rows_of_adamw_rounded_step(Rows& to) {
  to.add("float32", [](Memory& memory) {
    void* const squares = memory.random(segment, bfloat16);
    cpu::fill({squares, segment, bfloat16, 0.5});
    const AdamWRoundedStep step{.param = memory.random(segment, float32),
                                .grad = memory.random(segment, float32),
                                .m = memory.random(segment, bfloat16),
                                .v = squares,
                                .n = segment,
                                .first = 0,
                                .grad_dtype = float32,
                                .key = {.seed = 1, .stream = 2},
                                .lr = 1e-4,
                                .beta1 = 0.9,
                                .beta2 = 0.95,
                                .eps = 1e-8,
                                .weight_decay = 0.1,
                                .correction1 = 0.1,
                                .correction2 = 0.05,
                                .grad_scale = 1.0f};
    return Work{[=] { cpu::adamw_rounded_step(step); }, each(20)};
  });
}

void rows_of_schedule_free_step(Rows& to) {
  to.add("float32", [](Memory& memory) {
    const ScheduleFreeStep step{.param = memory.random(segment, float32),
                                .grad = memory.random(segment, float32),
                                .z = memory.random(segment, float32),
                                .v = positive(memory),
                                .average = memory.random(segment, float32),
                                .n = segment,
                                .dtype = float32,
                                .grad_dtype = float32,
                                .lr = 1e-4,
                                .beta1 = 0.9,
                                .beta2 = 0.95,
                                .eps = 1e-8,
                                .weight_decay = 0.1,
                                .correction2 = 0.05,
                                .part = 0.01,
                                .first_step = false,
                                .grad_scale = 1.0f};
    return Work{[=] { cpu::schedule_free_step(step); }, each(36)};
  });
}

void rows_of_schedule_free_point(Rows& to) {
  to.add("float32", [](Memory& memory) {
    const ScheduleFreePoint point{.param = memory.random(segment, float32),
                                  .z = memory.random(segment, float32),
                                  .average = memory.random(segment, float32),
                                  .n = segment,
                                  .dtype = float32,
                                  .beta1 = 0.9};
    return Work{[=] { cpu::schedule_free_point(point); }, each(12)};
  });
}

void rows_of_factor_sums(Rows& to) {
  add_dtypes(to, "", [](Memory& memory, DType dtype) {
    constexpr std::int64_t columns = 2048, rows = segment / columns;
    auto* const total = static_cast<double*>(memory.zeros(sizeof(double)));
    *total = segment;
    const FactorSums sums{.grad = memory.random(segment, dtype),
                          .total = total,
                          .row_sums = static_cast<double*>(memory.zeros(16 * rows)),
                          .column_sums = static_cast<double*>(memory.zeros(16 * columns)),
                          .first = 0,
                          .n = segment,
                          .matrices = 1,
                          .rows = rows,
                          .columns = columns,
                          .dtype = dtype,
                          .grad_scale = 1.0f};
    return Work{[=] { cpu::factor_sums(sums); }, each(static_cast<double>(size_of(dtype)))};
  });
}

void rows_of_factor_update(Rows& to) {
  to.add("float32", [](Memory& memory) {
    constexpr std::int64_t side = 1 << 18;
    auto* const total = static_cast<double*>(memory.zeros(sizeof(double)));
    *total = 1;
    const FactorUpdate update{.total = total,
                              .row_sums = static_cast<const double*>(memory.zeros(16 * side)),
                              .column_sums = static_cast<const double*>(memory.zeros(16 * side)),
                              .row_var = memory.random(side, float32),
                              .column_var = memory.random(side, float32),
                              .row_factors = memory.random(side, float32),
                              .matrices = 1,
                              .rows = side,
                              .columns = side,
                              .dtype = float32,
                              .weight = 0.1,
                              .eps = 1e-7};
    return Work{[=] { cpu::factor_update(update); }, 52.0 * side};
  });
}

void rows_of_adafactor_step(Rows& to) {
  to.add("matrix/float32", [](Memory& memory) {
    constexpr std::int64_t columns = 2048, rows = segment / columns;
    auto* const totals = static_cast<double*>(memory.zeros(2 * sizeof(double)));
    const AdafactorStep step{.grad = memory.random(segment, float32),
                             .row_factors = memory.zeros(4 * rows),
                             .column_var = memory.zeros(4 * columns),
                             .variance = nullptr,
                             .direction = nullptr,
                             .param = memory.random(segment, float32),
                             .param_total = totals,
                             .direction_total = totals + 1,
                             .first = 0,
                             .n = segment,
                             .rows = rows,
                             .columns = columns,
                             .dtype = float32,
                             .grad_dtype = float32,
                             .grad_scale = 1.0f,
                             .weight = 0,
                             .eps = 1e-3,
                             .rate = 1e-3,
                             .decay = 0,
                             .least_scale = 1e-3,
                             .clip_threshold = 1,
                             .size = segment};
    return Work{[=] { cpu::adafactor_step(step); }, each(12)};
  });
}

// Few numbers: the cost is that of a call.
void rows_of_exact_limbs(Rows& to) {
  to.add("1024", [](Memory& memory) {
    auto* const sums = static_cast<const ExactSum*>(memory.zeros(1024 * sizeof(ExactSum)));
    auto* const numbers =
        static_cast<double*>(memory.zeros(1024 * ExactSum::limbs * sizeof(double)));
    return Work{[=] {
                  cpu::exact_limbs({sums, numbers, 1024});
                },
                1024.0 * 2 * ExactSum::limbs * sizeof(double)};
  });
}

void rows_of_exact_totals(Rows& to) {
  to.add("1024", [](Memory& memory) {
    auto* const numbers =
        static_cast<const double*>(memory.zeros(1024 * ExactSum::limbs * sizeof(double)));
    auto* const totals = static_cast<double*>(memory.zeros(1024 * sizeof(double)));
    return Work{[=] {
                  cpu::exact_totals({numbers, totals, 1024});
                },
                1024.0 * (ExactSum::limbs + 1) * sizeof(double)};
  });
}

void rows_of_lion_step(Rows& to) {
  to.add("float32", [](Memory& memory) {
    const LionStep step{.param = memory.random(segment, float32),
                        .grad = memory.random(segment, float32),
                        .m = memory.random(segment, float32),
                        .copy = nullptr,
                        .n = segment,
                        .dtype = float32,
                        .grad_dtype = float32,
                        .copy_dtype = float32,
                        .lr = 1e-4,
                        .beta1 = 0.9,
                        .beta2 = 0.99,
                        .weight_decay = 0.1,
                        .grad_scale = 1.0f};
    return Work{[=] { cpu::lion_step(step); }, each(20)};
  });
}

void rows_of_sgd_step(Rows& to) {
  to.add("momentum/float32", [](Memory& memory) {
    const SgdStep step{.param = memory.random(segment, float32),
                       .grad = memory.random(segment, float32),
                       .momentum_buffer = memory.random(segment, float32),
                       .copy = nullptr,
                       .n = segment,
                       .dtype = float32,
                       .grad_dtype = float32,
                       .copy_dtype = float32,
                       .lr = 1e-4,
                       .momentum = 0.9,
                       .dampening = 0,
                       .weight_decay = 0.01,
                       .nesterov = false,
                       .first_step = false,
                       .grad_scale = 1.0f};
    return Work{[=] { cpu::sgd_step(step); }, each(20)};
  });
}

void rows_of_reduce_ranks(Rows& to) {
  const auto add = [&](int ranks, DType in, bool accumulate) {
    const std::string name =
        fmt::format("{}/{}_to_float32{}", ranks, name_of(in), accumulate ? "/accumulate" : "");
    to.add(name, [=](Memory& memory) {
      auto& pointers = memory.keep(std::vector<const void*>());
      for (int rank = 0; rank < ranks; ++rank) pointers.push_back(memory.random(segment, in));
      const ReduceRanks sum{.in = pointers.data(),
                            .ranks = ranks,
                            .group = ranks,
                            .out = memory.random(segment, float32),
                            .n = segment,
                            .in_dtype = in,
                            .out_dtype = float32,
                            .accumulate = accumulate};
      const double in_bytes = ranks * static_cast<double>(size_of(in));
      return Work{[=] { cpu::reduce_ranks(sum); }, each(in_bytes + (accumulate ? 8 : 4))};
    });
  };
  for (const int ranks : {2, 3, 4, 8}) add(ranks, float32, false);
  for (const int ranks : {2, 8}) add(ranks, bfloat16, false);
  add(2, float32, true);
}

void rows_of_wire(Rows& to) {
  for (const WireFormat format : {WireFormat::bf16, WireFormat::int8, WireFormat::fp8_e4m3}) {
    const auto add = [&](WireStep step, const char* name) {
      to.add(fmt::format("{}/{}", name_of(format), name), [=](Memory& memory) {
        const Wire work{.step = step,
                        .format = format,
                        .in = memory.random(segment, float32),
                        .out = memory.random(segment, float32),
                        .payload = memory.random(segment, bfloat16),
                        .scales = memory.random(segment / wire_block, float32),
                        .n = segment,
                        .in_dtype = float32,
                        .out_dtype = float32};
        return Work{[=] { cpu::wire(work); },
                    each(step == WireStep::round
                             ? 8
                             : 4 + static_cast<double>(wire_bytes(format, segment)) / segment)};
      });
    };
    add(WireStep::encode, "encode");
    add(WireStep::decode, "decode");
    add(WireStep::round, "round");
  }
}

void rows_of_dropout(Rows& to) {
  for (const DType dtype : {float32, bfloat16}) {
    to.add(std::string(name_of(dtype)), [dtype](Memory& memory) {
      const Dropout dropout{.x = memory.random(segment, dtype),
                            .residual = nullptr,
                            .out = memory.random(segment, dtype),
                            .n = segment,
                            .first = 0,
                            .dtype = dtype,
                            .key = {.seed = 1, .stream = 2},
                            .p = 0.1f};
      return Work{[=] { cpu::dropout(dropout); }, each(2 * static_cast<double>(size_of(dtype)))};
    });
  }
}

void rows_of_sequence_dropout(Rows& to) {
  for (const DType dtype : {float32, bfloat16}) {
    to.add(std::string(name_of(dtype)), [dtype](Memory& memory) {
      constexpr std::int64_t width = 1024;
      constexpr std::int64_t rows = segment / width;
      auto& slots = memory.keep(std::vector<std::int32_t>());
      for (std::int32_t row = 0; row < rows; ++row) slots.push_back(row * 3);
      const SequenceDropout dropout{.x = memory.random(segment, dtype),
                                    .out = memory.random(segment, dtype),
                                    .slots = slots.data(),
                                    .rows = rows,
                                    .dim = width,
                                    .first = 0,
                                    .key = {.seed = 1, .stream = 2},
                                    .p = 0.1f,
                                    .dtype = dtype};
      return Work{[=] { cpu::sequence_dropout(dropout); },
                  each(2 * static_cast<double>(size_of(dtype)))};
    });
  }
}

void rows_of_random_fill(Rows& to) {
  for (const bool normal : {false, true}) {
    to.add(normal ? "normal/float32" : "uniform/float32", [normal](Memory& memory) {
      const RandomFill fill{.out = memory.random(segment, float32),
                            .n = segment,
                            .first = 0,
                            .dtype = float32,
                            .key = {.seed = 1, .stream = 2},
                            .distribution = normal ? Distribution::normal : Distribution::uniform,
                            .a = 0,
                            .b = 1};
      return Work{[=] { cpu::random_fill(fill); }, each(4)};
    });
  }
}

}  // namespace tessera::bench
