// Writes headers of GGUF files.
#include <cstring>

#include "checkpoint/formats/gguf/gguf_header.h"
#include "checkpoint/safetensors/safetensors.h"

namespace tessera::checkpoint::formats {

namespace {

constexpr std::uint64_t padded_to_gguf(std::uint64_t bytes) {
  return (bytes + gguf_alignment - 1) / gguf_alignment * gguf_alignment;
}

template <class T>
void put_number(std::string& bytes, T value) {
  char raw[sizeof value];
  std::memcpy(raw, &value, sizeof value);
  bytes.append(raw, sizeof value);
}

template <class T>
void put_array(std::string& bytes, GgufValue type, std::span<const T> values) {
  put_number(bytes, static_cast<std::uint32_t>(type));
  put_number(bytes, std::uint64_t{values.size()});
  for (const T value : values) put_number(bytes, value);
}

}  // namespace

void GgufMetadata::put_text(std::string_view text) {
  put_number(bytes_, std::uint64_t{text.size()});
  bytes_ += text;
}

void GgufMetadata::key(std::string_view key, GgufValue type) {
  put_text(key);
  put_number(bytes_, static_cast<std::uint32_t>(type));
  ++count_;
}

void GgufMetadata::text(std::string_view key, std::string_view value) {
  this->key(key, GgufValue::text);
  put_text(value);
}

void GgufMetadata::number(std::string_view key, std::uint32_t value) {
  this->key(key, GgufValue::uint32);
  put_number(bytes_, value);
}

void GgufMetadata::real(std::string_view key, float value) {
  this->key(key, GgufValue::float32);
  put_number(bytes_, value);
}

void GgufMetadata::boolean(std::string_view key, bool value) {
  this->key(key, GgufValue::boolean);
  put_number(bytes_, static_cast<std::uint8_t>(value));
}

void GgufMetadata::texts(std::string_view key, const std::vector<std::string>& values) {
  this->key(key, GgufValue::array);
  put_number(bytes_, static_cast<std::uint32_t>(GgufValue::text));
  put_number(bytes_, std::uint64_t{values.size()});
  for (const std::string& value : values) put_text(value);
}

void GgufMetadata::numbers(std::string_view key, std::span<const std::int32_t> values) {
  this->key(key, GgufValue::array);
  put_array(bytes_, GgufValue::int32, values);
}

void GgufMetadata::reals(std::string_view key, std::span<const float> values) {
  this->key(key, GgufValue::array);
  put_array(bytes_, GgufValue::float32, values);
}

std::string compose_gguf_header(const GgufMetadata& metadata, std::vector<GgufTensor>& tensors) {
  std::string bytes(gguf_magic);
  put_number(bytes, gguf_version);
  put_number(bytes, std::uint64_t{tensors.size()});
  put_number(bytes, metadata.count());
  bytes += metadata.bytes();
  std::uint64_t place = 0;
  for (GgufTensor& tensor : tensors) {
    put_number(bytes, std::uint64_t{tensor.name.size()});
    bytes += tensor.name;
    put_number(bytes, static_cast<std::uint32_t>(tensor.shape.size()));
    for (std::size_t i = tensor.shape.size(); i-- > 0;) {
      put_number(bytes, static_cast<std::uint64_t>(tensor.shape[i]));
    }
    put_number(bytes, tensor.type->id);
    put_number(bytes, place);
    tensor.begin = place;
    tensor.bytes = tensor.type->bytes_of(element_count(tensor.shape, tensor.name));
    place += padded_to_gguf(tensor.bytes);
  }
  bytes.resize(padded_to_gguf(bytes.size()));
  for (GgufTensor& tensor : tensors) tensor.begin += bytes.size();
  return bytes;
}

}  // namespace tessera::checkpoint::formats
