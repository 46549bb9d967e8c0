// Reads headers of GGUF files. No size or count in a file is believed before it is
// compared with the bytes that are left.
#include "checkpoint/formats/gguf/gguf_header.h"

#include <fmt/format.h>
#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/text/printable.h"
#include "checkpoint/safetensors/safetensors.h"

namespace tessera::checkpoint::formats {

namespace {

constexpr std::uint64_t most_alignment = std::uint64_t{1} << 20;
constexpr std::size_t cursor_window = std::size_t{64} << 10;
constexpr std::uint64_t longest_key = 65535;
constexpr std::uint64_t longest_setting = 65535;  // of a text that is kept
constexpr std::uint64_t most_kept = std::uint64_t{16} << 20;
constexpr std::uint64_t most_texts = std::uint64_t{1} << 24;  // of an array
constexpr std::uint64_t most_tensors = std::uint64_t{1} << 20;
constexpr std::uint32_t most_dimensions = 4;  // ggml's limit

// Bytes of a value; 0: texts and arrays, which have a length of their own.
std::uint64_t value_bytes(GgufValue type) {
  switch (type) {
    case GgufValue::uint8:
    case GgufValue::int8:
    case GgufValue::boolean:
      return 1;
    case GgufValue::uint16:
    case GgufValue::int16:
      return 2;
    case GgufValue::uint32:
    case GgufValue::int32:
    case GgufValue::float32:
      return 4;
    case GgufValue::uint64:
    case GgufValue::int64:
    case GgufValue::float64:
      return 8;
    default:
      return 0;
  }
}

// Reads a file from its beginning, a window at a time.
class GgufCursor {
 public:
  explicit GgufCursor(const File& file) : file_(file), size_(file.size()) {}

  [[nodiscard]] std::uint64_t at() const { return at_; }
  [[nodiscard]] std::uint64_t left() const { return size_ - at_; }
  [[nodiscard]] std::uint64_t size() const { return size_; }

  template <class T>
  T number(const char* what) {
    T value{};
    require(sizeof value, what);
    if (at_ < window_at_ || at_ + sizeof value > window_at_ + window_.size()) {
      window_.resize(std::min<std::uint64_t>(cursor_window, left()));
      window_at_ = at_;
      file_.read_at(at_, window_.data(), window_.size());
    }
    std::memcpy(&value, window_.data() + (at_ - window_at_), sizeof value);
    at_ += sizeof value;
    return value;
  }

  std::string text(std::uint64_t limit, const char* what) {
    const std::uint64_t length = text_length(what);
    if (length > limit) refuse(fmt::format("{} of {} bytes", what, length));
    std::string text(static_cast<std::size_t>(length), '\0');
    if (length > 0) file_.read_at(at_, text.data(), text.size());
    at_ += length;
    return text;
  }

  // The length of a text that lies in the file.
  std::uint64_t text_length(const char* what) {
    const auto length = number<std::uint64_t>(what);
    require(length, what);
    return length;
  }

  void skip(std::uint64_t bytes, const char* what) {
    require(bytes, what);
    at_ += bytes;
  }

  [[noreturn]] void refuse(const std::string& problem) const {
    fail(ErrorCode::checkpoint, "'{}', byte {}: {}; the file is damaged", file_.path().string(),
         at_, problem);
  }

 private:
  void require(std::uint64_t bytes, const char* what) const {
    TESSERA_CHECK(bytes <= left(), ErrorCode::checkpoint,
                  "'{}' ends within {} at byte {}, which needs {} bytes more; it is truncated or "
                  "damaged",
                  file_.path().string(), what, at_, bytes - left());
  }

  const File& file_;
  std::uint64_t size_;
  std::uint64_t at_ = 0;
  std::uint64_t window_at_ = 0;
  std::vector<std::byte> window_;
};

class GgufHeaderReader {
 public:
  explicit GgufHeaderReader(const File& file) : cursor_(file), path_(file.path().string()) {}

  GgufHeader read() {
    const auto [tensors, keys] = counts();
    for (std::uint64_t i = 0; i < keys; ++i) read_pair();
    const std::uint64_t alignment = find_alignment();
    refuse_split();
    for (std::uint64_t i = 0; i < tensors; ++i) read_tensor(alignment);
    header_.bytes = (cursor_.at() + alignment - 1) / alignment * alignment;
    place_tensors();
    return std::move(header_);
  }

 private:
  std::pair<std::uint64_t, std::uint64_t> counts() {
    const auto magic = cursor_.number<std::uint32_t>("the magic number");
    TESSERA_CHECK(std::memcmp(&magic, gguf_magic.data(), gguf_magic.size()) == 0,
                  ErrorCode::checkpoint, "'{}' is not a GGUF file: it does not begin with {}",
                  path_, gguf_magic);
    const auto version = cursor_.number<std::uint32_t>("the version");
    TESSERA_CHECK(version == 0 || (version & 0xffffU) != 0, ErrorCode::checkpoint,
                  "'{}' is big-endian; only little-endian GGUF files are read: convert it with "
                  "gguf_convert_endian.py of llama.cpp",
                  path_);
    TESSERA_CHECK(version == 2 || version == gguf_version, ErrorCode::checkpoint,
                  "'{}': version {} of GGUF is not read; this program reads 2 and {}", path_,
                  version, gguf_version);
    const auto tensors = cursor_.number<std::uint64_t>("the number of tensors");
    const auto keys = cursor_.number<std::uint64_t>("the number of keys");
    constexpr std::uint64_t least_pair = 8 + 1 + 4 + 1;
    constexpr std::uint64_t least_tensor = 8 + 1 + 4 + 8 + 4 + 8;
    if (keys > cursor_.left() / least_pair) {
      cursor_.refuse(fmt::format("{} keys in {} bytes", keys, cursor_.left()));
    }
    if (tensors > std::min(most_tensors, cursor_.left() / least_tensor)) {
      cursor_.refuse(fmt::format("{} tensors in {} bytes", tensors, cursor_.left()));
    }
    return {tensors, keys};
  }

  void keep(std::uint64_t bytes) {
    kept_ += bytes;
    if (kept_ > most_kept) cursor_.refuse("more than 16 MiB of keys and settings");
  }

  void read_pair() {
    std::string key = cursor_.text(longest_key, "a key");
    keep(key.size() + sizeof(nlohmann::json));
    if (key.empty()) cursor_.refuse("a key without a name");
    const auto type = value_type(key);
    nlohmann::json value = type == GgufValue::array  ? skip_array(key)
                           : type == GgufValue::text ? read_text()
                                                     : read_number(type);
    const std::string shown = printable(key);
    if (!header_.metadata.emplace(std::move(key), std::move(value)).second) {
      cursor_.refuse(fmt::format("the key '{}' comes twice", shown));
    }
  }

  GgufValue value_type(const std::string& key) {
    const auto number = cursor_.number<std::uint32_t>("a value's type");
    if (number > static_cast<std::uint32_t>(GgufValue::float64)) {
      cursor_.refuse(fmt::format("'{}' has a value of unknown type {}", printable(key), number));
    }
    return static_cast<GgufValue>(number);
  }

  nlohmann::json read_text() {
    const std::uint64_t at_length = cursor_.text_length("a text");
    if (at_length > longest_setting) {
      cursor_.skip(at_length, "a text");
      return nullptr;
    }
    keep(at_length);
    std::string text(static_cast<std::size_t>(at_length), '\0');
    for (char& byte : text) byte = cursor_.number<char>("a text");
    return text;
  }

  nlohmann::json read_number(GgufValue type) {
    const char* const what = "a value";
    switch (type) {
      case GgufValue::uint8:
        return cursor_.number<std::uint8_t>(what);
      case GgufValue::int8:
        return cursor_.number<std::int8_t>(what);
      case GgufValue::uint16:
        return cursor_.number<std::uint16_t>(what);
      case GgufValue::int16:
        return cursor_.number<std::int16_t>(what);
      case GgufValue::uint32:
        return cursor_.number<std::uint32_t>(what);
      case GgufValue::int32:
        return cursor_.number<std::int32_t>(what);
      case GgufValue::uint64:
        return cursor_.number<std::uint64_t>(what);
      case GgufValue::int64:
        return cursor_.number<std::int64_t>(what);
      case GgufValue::float32:
        return cursor_.number<float>(what);
      case GgufValue::float64:
        return cursor_.number<double>(what);
      default:
        return cursor_.number<std::uint8_t>(what) != 0;
    }
  }

  // Arrays are the tokenizer's, which is not read.
  nlohmann::json skip_array(const std::string& key) {
    const GgufValue type = value_type(key);
    const auto count = cursor_.number<std::uint64_t>("the length of an array");
    if (type == GgufValue::array) {
      cursor_.refuse(fmt::format("'{}' is an array of arrays", printable(key)));
    }
    const std::uint64_t least = type == GgufValue::text ? 8 : value_bytes(type);
    if (count > cursor_.left() / least || (type == GgufValue::text && count > most_texts)) {
      cursor_.refuse(fmt::format("'{}' has {} elements, and {} bytes are left", printable(key),
                                 count, cursor_.left()));
    }
    if (type != GgufValue::text) {
      cursor_.skip(count * least, "an array");
      return nullptr;
    }
    for (std::uint64_t i = 0; i < count; ++i) {
      cursor_.skip(cursor_.text_length("a text of an array"), "a text of an array");
    }
    return nullptr;
  }

  std::uint64_t find_alignment() {
    const auto found = header_.metadata.find("general.alignment");
    if (found == header_.metadata.end()) return gguf_alignment;
    const std::uint64_t alignment =
        found->second.is_number_unsigned() ? found->second.get<std::uint64_t>() : 0;
    if (!std::has_single_bit(alignment) || alignment > most_alignment) {
      cursor_.refuse("general.alignment is not a power of two up to 1 MiB");
    }
    return alignment;
  }

  void refuse_split() const {
    const auto found = header_.metadata.find("split.count");
    const bool split = found != header_.metadata.end() &&
                       !(found->second.is_number_integer() && found->second <= 1);
    TESSERA_CHECK(!split, ErrorCode::checkpoint,
                  "'{}' is one of several files of a model, which are not read; join them with "
                  "llama-gguf-split --merge",
                  path_);
  }

  void read_tensor(std::uint64_t alignment) {
    GgufTensor tensor;
    tensor.name = cursor_.text(tensor_name_limit, "the name of a tensor");
    keep(tensor.name.size() + sizeof(GgufTensor));
    const std::string shown = printable(tensor.name);
    if (!names_.insert(tensor.name).second) {
      cursor_.refuse(fmt::format("the tensor '{}' comes twice", shown));
    }
    const auto dimensions = cursor_.number<std::uint32_t>("a tensor's shape");
    if (dimensions > most_dimensions) {
      cursor_.refuse(fmt::format("tensor '{}' has {} dimensions", shown, dimensions));
    }
    for (std::uint32_t i = 0; i < dimensions; ++i) {
      const auto size = cursor_.number<std::uint64_t>("a tensor's shape");
      if (!std::in_range<std::int64_t>(size)) {
        cursor_.refuse(fmt::format("tensor '{}' has a dimension of {}", shown, size));
      }
      tensor.shape.insert(tensor.shape.begin(), static_cast<std::int64_t>(size));
    }
    const auto type = cursor_.number<std::uint32_t>("a tensor's type");
    tensor.type = find_gguf_type(type);
    TESSERA_CHECK(tensor.type != nullptr, ErrorCode::checkpoint,
                  "'{}': tensor '{}' is {}, which is not read (f32, f16, bf16, q8_0 and q4_0 are); "
                  "llama-quantize makes f16 of it",
                  path_, shown, gguf_type_name(type));
    tensor.begin = cursor_.number<std::uint64_t>("a tensor's place");
    if (tensor.begin % alignment != 0) {
      cursor_.refuse(fmt::format("tensor '{}' is not at a multiple of {}", shown, alignment));
    }
    const std::int64_t elements =
        element_count(tensor.shape, fmt::format("'{}': tensor '{}'", path_, shown));
    const std::int64_t row = tensor.shape.empty() ? 1 : tensor.shape.back();
    if (row % tensor.type->block != 0) {
      cursor_.refuse(
          fmt::format("tensor '{}' is {} with rows of {} elements", shown, tensor.type->name, row));
    }
    constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max() / 4;
    if (elements > most) cursor_.refuse(fmt::format("tensor '{}' is too large", shown));
    tensor.bytes = tensor.type->bytes_of(elements);
    header_.tensors.push_back(std::move(tensor));
  }

  void place_tensors() {
    std::vector<GgufTensor*> order;
    for (GgufTensor& tensor : header_.tensors) {
      const std::uint64_t data = cursor_.size() - std::min(cursor_.size(), header_.bytes);
      TESSERA_CHECK(tensor.begin <= data && tensor.bytes <= data - tensor.begin,
                    ErrorCode::checkpoint,
                    "'{}' ends before the end of tensor '{}'; it is truncated or damaged", path_,
                    printable(tensor.name));
      tensor.begin += header_.bytes;
      order.push_back(&tensor);
    }
    std::sort(order.begin(), order.end(), [](const GgufTensor* a, const GgufTensor* b) {
      return std::pair(a->begin, a->bytes) < std::pair(b->begin, b->bytes);
    });
    for (std::size_t i = 1; i < order.size(); ++i) {
      TESSERA_CHECK(order[i - 1]->begin + order[i - 1]->bytes <= order[i]->begin,
                    ErrorCode::checkpoint,
                    "'{}': the tensors '{}' and '{}' share bytes; the file is damaged", path_,
                    printable(order[i - 1]->name), printable(order[i]->name));
    }
  }

  GgufCursor cursor_;
  std::string path_;
  GgufHeader header_;
  std::set<std::string> names_;
  std::uint64_t kept_ = 0;
};

}  // namespace

GgufHeader read_gguf_header(const File& file) {
  return GgufHeaderReader(file).read();
}

}  // namespace tessera::checkpoint::formats
