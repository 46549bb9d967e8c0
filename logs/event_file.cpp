// Writes Protocol Buffers by hand: a field is its number and type, then its value.
#include "logs/event_file.h"

#include <array>
#include <cstring>

namespace tessera::logs {
namespace {

constexpr std::array<std::uint32_t, 256> make_crc_table() {
  constexpr std::uint32_t polynomial = 0x82f63b78;  // reflected
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t value = byte;
    for (int bit = 0; bit < 8; ++bit)
      value = (value & 1) != 0 ? value >> 1 ^ polynomial : value >> 1;
    table[byte] = value;
  }
  return table;
}

// TFRecord masks CRCs because a CRC over bytes that contain CRCs is not reliable.
std::uint32_t masked_crc(std::string_view bytes) {
  const std::uint32_t crc = crc32c(bytes);
  return (crc >> 15 | crc << 17) + 0xa282ead8U;
}

// Little-endian, like the machines that this program supports.
template <class T>
void put_fixed(std::string& out, T value) {
  char bytes[sizeof value];
  std::memcpy(bytes, &value, sizeof value);
  out.append(bytes, sizeof value);
}

template <class T>
T fixed_at(std::string_view bytes) {
  T value;
  std::memcpy(&value, bytes.data(), sizeof value);
  return value;
}

enum class WireType : std::uint8_t { varint = 0, fixed64 = 1, bytes = 2, fixed32 = 5 };

void put_varint(std::string& out, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  out += static_cast<char>(value);
}

std::optional<std::uint64_t> take_varint(std::string_view& bytes) {
  std::uint64_t value = 0;
  for (int shift = 0; shift < 64 && !bytes.empty(); shift += 7) {
    const auto byte = static_cast<unsigned char>(bytes.front());
    bytes.remove_prefix(1);
    value |= static_cast<std::uint64_t>(byte & 0x7f) << shift;
    if (byte < 0x80) return value;
  }
  return std::nullopt;
}

void put_key(std::string& out, unsigned field, WireType type) {
  put_varint(out, field << 3 | static_cast<unsigned>(type));
}

void put_bytes(std::string& out, unsigned field, std::string_view bytes) {
  put_key(out, field, WireType::bytes);
  put_varint(out, bytes.size());
  out += bytes;
}

// Event: wall_time 1, step 2, file_version 3, summary 5. Summary: value 1. Value: tag 1,
// simple_value 2.
std::string event_at(double wall_time, std::int64_t step) {
  std::string event;
  put_key(event, 1, WireType::fixed64);
  put_fixed(event, wall_time);
  if (step != 0) {
    put_key(event, 2, WireType::varint);
    put_varint(event, static_cast<std::uint64_t>(step));
  }
  return event;
}

}  // namespace

std::uint32_t crc32c(std::string_view bytes) {
  static constexpr auto table = make_crc_table();
  std::uint32_t crc = 0xffffffffU;
  for (const char c : bytes) crc = crc >> 8 ^ table[(crc ^ static_cast<unsigned char>(c)) & 0xff];
  return ~crc;
}

std::string tf_record(std::string_view bytes) {
  std::string record;
  put_fixed(record, static_cast<std::uint64_t>(bytes.size()));
  put_fixed(record, masked_crc(record));
  record += bytes;
  put_fixed(record, masked_crc(bytes));
  return record;
}

std::optional<std::string> take_tf_record(std::string_view& bytes) {
  constexpr std::size_t head = 12, tail = 4;
  if (bytes.size() < head + tail) return std::nullopt;
  const auto length = fixed_at<std::uint64_t>(bytes);
  if (masked_crc(bytes.substr(0, 8)) != fixed_at<std::uint32_t>(bytes.substr(8)))
    return std::nullopt;
  if (length > bytes.size() - head - tail) return std::nullopt;
  const std::string_view content = bytes.substr(head, length);
  if (masked_crc(content) != fixed_at<std::uint32_t>(bytes.substr(head + length)))
    return std::nullopt;
  bytes.remove_prefix(head + length + tail);
  return std::string(content);
}

std::string version_event(double wall_time) {
  std::string event = event_at(wall_time, 0);
  put_bytes(event, 3, "brain.Event:2");
  return event;
}

std::string scalar_event(double wall_time, std::int64_t step,
                         const std::vector<std::pair<std::string, double>>& numbers) {
  std::string summary;
  for (const auto& [tag, number] : numbers) {
    std::string value;
    put_bytes(value, 1, tag);
    put_key(value, 2, WireType::fixed32);
    put_fixed(value, static_cast<float>(number));
    put_bytes(summary, 1, value);
  }
  std::string event = event_at(wall_time, step);
  put_bytes(event, 5, summary);
  return event;
}

std::optional<std::int64_t> step_of_event(std::string_view event) {
  std::int64_t step = 0;
  while (!event.empty()) {
    const auto key = take_varint(event);
    if (!key) return std::nullopt;
    std::uint64_t skipped = 0;
    switch (static_cast<WireType>(*key & 7)) {
      case WireType::varint: {
        const auto value = take_varint(event);
        if (!value) return std::nullopt;
        if (*key >> 3 == 2) step = static_cast<std::int64_t>(*value);
        break;
      }
      case WireType::fixed64:
        skipped = 8;
        break;
      case WireType::fixed32:
        skipped = 4;
        break;
      case WireType::bytes: {
        const auto length = take_varint(event);
        if (!length) return std::nullopt;
        skipped = *length;
        break;
      }
      default:
        return std::nullopt;
    }
    if (skipped > event.size()) return std::nullopt;
    event.remove_prefix(skipped);
  }
  return step;
}

}  // namespace tessera::logs
