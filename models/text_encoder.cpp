// Converts batches of padded sequences to rows without padding, and back.
#include "models/text_encoder.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "base/error.h"

namespace tessera::models {
namespace {

// The lengths in a batch; on a planned device, which has no values, every sequence counts as full.
struct BatchLayout {
  std::int64_t batch, length;
  std::vector<std::int32_t> ids, lengths, starts;
  std::int64_t rows = 0, longest = 0;
};

std::vector<std::int32_t> host_values(const Tensor& tensor) {
  const Tensor here = tensor.to(Device::cpu());
  const auto* const data = here.data_as<std::int32_t>();
  return {data, data + here.elements()};
}

BatchLayout layout_of(const TokenBatch& tokens, bool with_ids) {
  TESSERA_REQUIRE(tokens.ids.dimensions() == 2 && tokens.ids.dtype() == int32 &&
                      tokens.lengths.dtype() == int32 &&
                      tokens.lengths.elements() == tokens.ids.size(0),
                  "a token batch is int32 [batch, length] with int32 [batch] lengths; given {} {} "
                  "and {} {}",
                  name_of(tokens.ids.dtype()), tokens.ids.shape().to_string(),
                  name_of(tokens.lengths.dtype()), tokens.lengths.shape().to_string());
  BatchLayout layout{tokens.ids.size(0), tokens.ids.size(1), {}, {}, {}};
  const Device device = tokens.ids.device();
  if (device.is_meta() || device.is_planned()) {
    layout.lengths.assign(static_cast<std::size_t>(layout.batch),
                          static_cast<std::int32_t>(layout.length));
    layout.ids.assign(static_cast<std::size_t>(tokens.ids.elements()), 0);
  } else {
    layout.lengths = host_values(tokens.lengths);
    if (with_ids) layout.ids = host_values(tokens.ids);
  }
  for (const std::int32_t length : layout.lengths) {
    TESSERA_REQUIRE(length >= 1 && length <= layout.length,
                    "a sequence of {} tokens in a batch padded to {}", length, layout.length);
    layout.starts.push_back(static_cast<std::int32_t>(layout.rows));
    layout.rows += length;
    layout.longest = std::max<std::int64_t>(layout.longest, length);
  }
  return layout;
}

Tensor on_device(const std::vector<std::int32_t>& values, Device device) {
  return Tensor::from(values, {static_cast<std::int64_t>(values.size())}).to(device);
}

// The position of each of a sequence's tokens: counts up from first_position. Padding tokens have
// their own position and are not counted.
TokenRows make_rows(const BatchLayout& layout, std::int32_t first_position,
                    std::optional<std::int32_t> padding, std::int64_t capacity, Device device) {
  TESSERA_REQUIRE(layout.longest <= capacity, "a sequence of {} tokens; the model takes at most {}",
                  layout.longest, capacity);
  std::vector<std::int32_t> ids, positions, slots;
  for (std::int64_t b = 0; b < layout.batch; ++b) {
    std::int32_t position = first_position;
    for (std::int32_t t = 0; t < layout.lengths[static_cast<std::size_t>(b)]; ++t) {
      const std::int32_t id = layout.ids[static_cast<std::size_t>(b * layout.length + t)];
      ids.push_back(id);
      positions.push_back(id == padding ? *padding : position++);
      slots.push_back(static_cast<std::int32_t>(b * capacity + t));
    }
  }
  return {on_device(ids, device),
          on_device(positions, device),
          {on_device(layout.starts, device), on_device(layout.lengths, device),
           on_device(slots, device), layout.longest, capacity}};
}

Tensor row_of_each_place(const BatchLayout& layout, Device device) {
  std::vector<std::int32_t> rows;
  for (std::int64_t b = 0; b < layout.batch; ++b) {
    const std::int32_t start = layout.starts[static_cast<std::size_t>(b)];
    for (std::int32_t t = 0; t < layout.length; ++t) {
      rows.push_back(start + (t < layout.lengths[static_cast<std::size_t>(b)] ? t : 0));
    }
  }
  return Tensor::from(rows, {layout.batch, layout.length}).to(device);
}

}  // namespace

TokenRows numbered_rows(const TokenBatch& tokens, std::int32_t first_position,
                        std::int64_t capacity) {
  return make_rows(layout_of(tokens, true), first_position, {}, capacity, tokens.ids.device());
}

TokenRows padded_rows(const TokenBatch& tokens, std::int32_t padding, std::int64_t capacity) {
  return make_rows(layout_of(tokens, true), padding + 1, padding, capacity, tokens.ids.device());
}

Tensor TextEncoder::forward(const TokenBatch& tokens) {
  return padded_states(forward(rows_of(tokens)), tokens);
}

Tensor padded_states(const Tensor& states, const TokenBatch& tokens) {
  return embedding(row_of_each_place(layout_of(tokens, false), states.device()), states);
}

PaddedRows rows_and_places(const TokenBatch& tokens, std::int64_t capacity) {
  const BatchLayout layout = layout_of(tokens, true);
  const Device device = tokens.ids.device();
  std::vector<std::uint8_t> mask;
  for (const std::int32_t length : layout.lengths) {
    for (std::int64_t t = 0; t < layout.length; ++t) mask.push_back(t < length ? 1 : 0);
  }
  return {make_rows(layout, 0, {}, capacity, device), row_of_each_place(layout, device),
          Tensor::from(mask, {layout.batch, layout.length}).to(device)};
}

Sequences equal_sequences(std::int64_t batch, std::int64_t length, std::int64_t capacity,
                          Device device) {
  std::vector<std::int32_t> starts, lengths, slots;
  for (std::int64_t b = 0; b < batch; ++b) {
    starts.push_back(static_cast<std::int32_t>(b * length));
    lengths.push_back(static_cast<std::int32_t>(length));
    for (std::int64_t t = 0; t < length; ++t) {
      slots.push_back(static_cast<std::int32_t>(b * capacity + t));
    }
  }
  return {on_device(starts, device), on_device(lengths, device), on_device(slots, device), length,
          capacity};
}

}  // namespace tessera::models
