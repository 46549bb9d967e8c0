// GPT-2's tensors in llm.c's order.
#include "checkpoint/formats/llmc/llmc_layout.h"

#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <initializer_list>
#include <optional>
#include <utility>

#include "base/error.h"
#include "checkpoint/safetensors/safetensors.h"

namespace tessera::checkpoint::formats {

namespace {

std::int64_t product(std::int64_t a, std::int64_t b, const char* what) {
  return element_count({a, b}, what);
}

// Elements of the whole file, computed before anything is allocated; none on overflow.
std::optional<std::int64_t> llmc_elements(const LlmcDimensions& d) {
  const auto sum = [](std::initializer_list<std::int64_t> factors, std::int64_t& total) {
    std::int64_t one = 1;
    bool fits = true;
    for (const std::int64_t factor : factors) {
      fits = fits && !__builtin_mul_overflow(one, factor, &one);
    }
    return fits && !__builtin_add_overflow(total, one, &total);
  };
  std::int64_t total = 0;
  const bool fits = sum({d.padded, d.width}, total) && sum({d.positions, d.width}, total) &&
                    sum({12, d.layers, d.width, d.width}, total) &&
                    sum({13, d.layers, d.width}, total) && sum({2, d.width}, total);
  return fits ? std::optional(total) : std::nullopt;
}

}  // namespace

LlmcLayout llmc_layout(const LlmcDimensions& d) {
  struct Kind {
    const char* name;
    std::int64_t rows, columns;  // as Hugging Face has them; columns 0: a vector
    bool transposed;
  };
  const std::int64_t c = d.width;
  const std::array<Kind, 12> kinds{{{"ln_1.weight", c, 0, false},
                                    {"ln_1.bias", c, 0, false},
                                    {"attn.c_attn.weight", c, 3 * c, true},
                                    {"attn.c_attn.bias", 3 * c, 0, false},
                                    {"attn.c_proj.weight", c, c, true},
                                    {"attn.c_proj.bias", c, 0, false},
                                    {"ln_2.weight", c, 0, false},
                                    {"ln_2.bias", c, 0, false},
                                    {"mlp.c_fc.weight", c, 4 * c, true},
                                    {"mlp.c_fc.bias", 4 * c, 0, false},
                                    {"mlp.c_proj.weight", 4 * c, c, true},
                                    {"mlp.c_proj.bias", c, 0, false}}};
  LlmcLayout layout;
  const auto add = [&](std::string name, std::vector<std::int64_t> shape, bool transposed,
                       std::int64_t elements) {
    layout.tensors.push_back({std::move(name), std::move(shape), transposed, layout.elements});
    layout.elements += elements;
  };
  add("transformer.wte.weight", {d.vocabulary, c}, false, product(d.padded, c, "wte"));
  add("transformer.wpe.weight", {d.positions, c}, false, product(d.positions, c, "wpe"));
  for (const Kind& kind : kinds) {
    const std::int64_t elements = product(kind.rows, std::max<std::int64_t>(1, kind.columns), "h");
    for (std::int64_t layer = 0; layer < d.layers; ++layer) {
      std::vector<std::int64_t> shape{kind.rows};
      if (kind.columns > 0) shape.push_back(kind.columns);
      add(fmt::format("transformer.h.{}.{}", layer, kind.name), std::move(shape), kind.transposed,
          elements);
    }
  }
  add("transformer.ln_f.weight", {c}, false, c);
  add("transformer.ln_f.bias", {c}, false, c);
  return layout;
}

std::uint64_t llmc_file_bytes(const LlmcDimensions& d, std::int64_t elements) {
  return llmc_header_bytes + static_cast<std::uint64_t>(elements) * size_of(d.dtype);
}

std::int64_t check_llmc_size(const LlmcDimensions& d, const std::string& name) {
  constexpr std::int64_t most = std::int64_t{1} << 60;
  const std::optional<std::int64_t> elements = llmc_elements(d);
  TESSERA_CHECK(elements && *elements < most && d.layers <= llmc_most_layers, ErrorCode::checkpoint,
                "'{}': {} layers, {} wide, with {} tokens and {} positions are not a GPT-2", name,
                d.layers, d.width, d.padded, d.positions);
  return *elements;
}

}  // namespace tessera::checkpoint::formats
