// The memory of a sequence, and decoding of several sequences at a time.
#include "models/key_value_cache.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"

namespace tessera::models {

KeyValueCache::KeyValueCache(std::int64_t layers, std::int64_t capacity, Widths widths, DType dtype,
                             Device device)
    : capacity_(capacity) {
  for (std::int64_t i = 0; i < layers; ++i) {
    Layer layer;
    layer.keys = Tensor::empty({capacity, widths.key}, dtype, device);
    layer.values =
        widths.value == 0 ? layer.keys : Tensor::empty({capacity, widths.value}, dtype, device);
    layers_.push_back(std::move(layer));
  }
}

CachedRows KeyValueCache::append(std::int64_t layer, const Tensor& keys, const Tensor& values) {
  const std::int64_t tokens = keys.size(1);
  TESSERA_REQUIRE(length_ + tokens <= capacity_, "a cache of {} tokens holds {}; {} more came",
                  capacity_, length_, tokens);
  const Layer& rows = layers_.at(static_cast<std::size_t>(layer));
  rows_of(rows.keys, length_, tokens).copy_from(keys);
  if (values.defined()) rows_of(rows.values, length_, tokens).copy_from(values);
  return {.keys = rows.keys, .values = rows.values, .length = length_ + tokens};
}

void KeyValueCache::advance(std::int64_t tokens) {
  length_ += tokens;
}

Tensor rows_of(const Tensor& x, std::int64_t first, std::int64_t count) {
  const std::int64_t width = x.size(-1);
  const std::size_t offset =
      x.impl()->offset + static_cast<std::size_t>(first * width) * size_of(x.dtype());
  return Tensor::view_of(x.storage(), offset, {1, count, width}, x.dtype());
}

DecodingBatch::DecodingBatch(const Tensor& ids, std::vector<KeyValueCache*> caches)
    : ids_(ids), caches_(std::move(caches)) {
  TESSERA_REQUIRE(ids.dimensions() == 2 && !caches_.empty() && ids.size(1) >= 1 &&
                      ids.size(0) == static_cast<std::int64_t>(caches_.size()) &&
                      (caches_.size() == 1 || ids.size(1) == 1),
                  "ids of shape {} for {} sequences; several take one token each at a time",
                  ids.shape().to_string(), caches_.size());
}

std::int64_t DecodingBatch::longest() const {
  std::int64_t longest = 0;
  for (const KeyValueCache* cache : caches_) longest = std::max(longest, cache->length());
  return longest + tokens();
}

Tensor DecodingBatch::positions(Device device) const {
  std::vector<std::int32_t> places;
  for (const KeyValueCache* cache : caches_) {
    const std::size_t first = places.size();
    places.resize(first + static_cast<std::size_t>(tokens()));
    std::iota(places.begin() + static_cast<std::ptrdiff_t>(first), places.end(),
              static_cast<std::int32_t>(cache->length()));
  }
  return Tensor::from(places, ids_.shape()).to(device);
}

Tensor DecodingBatch::last_rows(const Tensor& x) const {
  return tokens() == 1 ? x : rows_of(x, tokens() - 1, 1);
}

void DecodingBatch::advance() const {
  for (KeyValueCache* cache : caches_) cache->advance(tokens());
}

}  // namespace tessera::models
