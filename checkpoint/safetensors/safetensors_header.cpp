// Reads safetensors headers. The JSON is parsed as events, so that a hostile header needs no more
// memory than its entries, and every value is checked against the file's size before it is used.
#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <unordered_set>
#include <utility>

#include "base/error.h"
#include "checkpoint/io/json.h"
#include "checkpoint/safetensors/safetensors.h"

namespace tessera::checkpoint {

namespace {

using nlohmann::json;

constexpr std::array<StoredDType, 22> stored_dtypes{{
    {"BOOL", 8, DType::boolean},      {"F4", 4, std::nullopt},
    {"F6_E2M3", 6, std::nullopt},     {"F6_E3M2", 6, std::nullopt},
    {"U8", 8, DType::uint8},          {"I8", 8, std::nullopt},
    {"F8_E5M2", 8, std::nullopt},     {"F8_E4M3", 8, std::nullopt},
    {"F8_E8M0", 8, std::nullopt},     {"F8_E4M3FNUZ", 8, std::nullopt},
    {"F8_E5M2FNUZ", 8, std::nullopt}, {"I16", 16, std::nullopt},
    {"U16", 16, std::nullopt},        {"F16", 16, DType::float16},
    {"BF16", 16, DType::bfloat16},    {"I32", 32, DType::int32},
    {"U32", 32, std::nullopt},        {"F32", 32, DType::float32},
    {"C64", 64, std::nullopt},        {"F64", 64, DType::float64},
    {"I64", 64, DType::int64},        {"U64", 64, std::nullopt},
}};

// Shortens foreign text to a length that fits a message.
std::string shortened(const std::string& text) {
  constexpr std::size_t shown = 200;
  return text.size() <= shown ? text : text.substr(0, shown) + "...";
}

std::string in_quotes(const std::string& text) {
  return json(shortened(text)).dump(-1, ' ', false, json::error_handler_t::replace);
}

// Follows the events of a header and keeps its contents; offsets are still relative to the data.
class HeaderEvents final : public json::json_sax_t {
 public:
  std::vector<TensorEntry> tensors;
  std::map<std::string, std::string> metadata;
  std::string problem;

  bool null() override {
    // As in the package: no metadata.
    if (place_ == Place::root && tensor_.name == "__metadata__") return true;
    return refuse_value("null");
  }
  bool boolean(bool) override { return refuse_value("a boolean"); }
  bool number_integer(number_integer_t) override { return refuse_value("a negative number"); }
  bool number_float(number_float_t, const string_t&) override {
    return refuse_value("a number that is not a 64-bit integer");
  }
  bool binary(binary_t&) override { return refuse_value("binary"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (place_ == Place::shape) {
      if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
        return refuse(fmt::format("{}: dimension {} is too large", where(), value));
      }
      tensor_.shape.push_back(static_cast<std::int64_t>(value));
      return true;
    }
    if (place_ != Place::offsets) return refuse_value("a number");
    offsets_.push_back(value);
    return true;
  }

  bool string(string_t& value) override {
    if (place_ == Place::metadata) {
      metadata[key_] = std::move(value);
      return true;
    }
    if (place_ != Place::tensor || key_ != "dtype") return refuse_value("a string");
    tensor_.stored = find_stored_dtype(value);
    return tensor_.stored != nullptr ||
           refuse(fmt::format("{}: unknown dtype {}", where(), in_quotes(value)));
  }

  bool key(string_t& name) override {
    if (name.size() > tensor_name_limit) {
      return refuse(fmt::format("the name {} has {} bytes, the limit is {}", in_quotes(name),
                                name.size(), tensor_name_limit));
    }
    if (place_ == Place::root) {
      if (name.find('\0') != std::string::npos) {
        return refuse(fmt::format("the name {} has a NUL character", in_quotes(name)));
      }
      if (!names_.insert(name).second) return refuse(fmt::format("{} twice", in_quotes(name)));
      tensor_ = TensorEntry{};
      tensor_.name = std::move(name);
      return true;
    }
    if (place_ == Place::metadata && metadata.contains(name)) {
      return refuse(fmt::format("__metadata__ has key {} twice", in_quotes(name)));
    }
    if (place_ == Place::tensor) {
      const unsigned field = name == "dtype"          ? 1u
                             : name == "shape"        ? 2u
                             : name == "data_offsets" ? 4u
                                                      : 0u;
      if (field == 0) return refuse(fmt::format("{}: unknown field {}", where(), in_quotes(name)));
      if ((fields_ & field) != 0) {
        return refuse(fmt::format("{}: field {} twice", where(), in_quotes(name)));
      }
      fields_ |= field;
    }
    key_ = std::move(name);
    return true;
  }

  bool start_object(std::size_t) override {
    if (place_ == Place::document) {
      place_ = Place::root;
    } else if (place_ == Place::root) {
      place_ = tensor_.name == "__metadata__" ? Place::metadata : Place::tensor;
      fields_ = 0;
      offsets_.clear();
    } else {
      return refuse_value("an object");
    }
    return true;
  }

  bool end_object() override {
    if (place_ == Place::tensor) {
      for (const auto& [field, name] :
           {std::pair{1u, "dtype"}, {2u, "shape"}, {4u, "data_offsets"}}) {
        if ((fields_ & field) == 0) return refuse(fmt::format("{}: no {}", where(), name));
      }
      if (offsets_.size() != 2) {
        return refuse(
            fmt::format("{}: data_offsets has {} numbers, not 2", where(), offsets_.size()));
      }
      tensor_.begin = offsets_[0];
      tensor_.end = offsets_[1];
      tensors.push_back(std::move(tensor_));
    }
    place_ = place_ == Place::root ? Place::document : Place::root;
    return true;
  }

  bool start_array(std::size_t) override {
    if (place_ != Place::tensor || key_ == "dtype") return refuse_value("an array");
    place_ = key_ == "shape" ? Place::shape : Place::offsets;
    return true;
  }

  bool end_array() override {
    place_ = Place::tensor;
    return true;
  }

  bool parse_error(std::size_t byte, const std::string& token, const json::exception&) override {
    return refuse(fmt::format("not valid JSON at byte {}{}{}", byte, token.empty() ? "" : ", near ",
                              shortened(token)));
  }

 private:
  enum class Place : std::uint8_t { document, root, metadata, tensor, shape, offsets };

  [[nodiscard]] std::string where() const {
    return fmt::format("tensor {}", in_quotes(tensor_.name));
  }

  bool refuse(std::string text) {
    problem = std::move(text);
    return false;
  }

  bool refuse_value(std::string_view found) {
    switch (place_) {
      case Place::document:
        return refuse(fmt::format("is {}, not an object", found));
      case Place::root:
        return refuse(fmt::format("{} is {}, not an object", where(), found));
      case Place::metadata:
        return refuse(fmt::format("__metadata__ {} is {}, not a string", in_quotes(key_), found));
      case Place::tensor:
        return refuse(fmt::format("{}: {} cannot be {}", where(), key_, found));
      case Place::shape:
        return refuse(fmt::format("{}: {} in shape", where(), found));
      case Place::offsets:
        return refuse(fmt::format("{}: {} in data_offsets", where(), found));
    }
    return false;
  }

  Place place_ = Place::document;
  TensorEntry tensor_;
  std::string key_;
  unsigned fields_ = 0;
  std::vector<std::uint64_t> offsets_;
  std::unordered_set<std::string> names_;
};

// Bytes of a tensor; throws if the number is not valid.
std::uint64_t tensor_bytes(const TensorEntry& tensor, const std::string& where) {
  std::uint64_t bits = tensor.stored->bits;
  for (const std::int64_t dimension : tensor.shape) {
    TESSERA_CHECK(!__builtin_mul_overflow(bits, static_cast<std::uint64_t>(dimension), &bits),
                  ErrorCode::checkpoint, "{}: shape {} overflows", where,
                  describe_shape(tensor.shape));
  }
  TESSERA_CHECK(bits % 8 == 0, ErrorCode::checkpoint, "{}: {} bits of {} are not whole bytes",
                where, bits, tensor.stored->name);
  return bits / 8;
}

// Data must be contiguous from the header to the end of the file: no holes, no overlaps, and no
// bytes missing or left over.
void place_tensors(std::vector<TensorEntry>& tensors, std::uint64_t data_start,
                   std::uint64_t file_bytes, const std::string& source) {
  std::sort(tensors.begin(), tensors.end(), [](const TensorEntry& a, const TensorEntry& b) {
    return std::tie(a.begin, a.end) < std::tie(b.begin, b.end);
  });
  std::uint64_t next = 0;
  for (TensorEntry& tensor : tensors) {
    const std::string where = fmt::format("{}: tensor {}", source, in_quotes(tensor.name));
    TESSERA_CHECK(tensor.begin == next && tensor.end >= tensor.begin, ErrorCode::checkpoint,
                  "{}: data_offsets [{}, {}] do not follow byte {} of the data", where,
                  tensor.begin, tensor.end, next);
    const std::uint64_t bytes = tensor_bytes(tensor, where);
    TESSERA_CHECK(tensor.end - tensor.begin == bytes, ErrorCode::checkpoint,
                  "{}: {} of shape {} has {} bytes, data_offsets hold {}", where,
                  tensor.stored->name, describe_shape(tensor.shape), bytes,
                  tensor.end - tensor.begin);
    next = tensor.end;
  }
  TESSERA_CHECK(next == file_bytes - data_start, ErrorCode::checkpoint,
                "{}: the header promises {} bytes of data, the file has {}; it is {}", source, next,
                file_bytes - data_start, next > file_bytes - data_start ? "truncated" : "damaged");
  for (TensorEntry& tensor : tensors) {
    tensor.begin += data_start;
    tensor.end += data_start;
  }
}

}  // namespace

const StoredDType* find_stored_dtype(std::string_view name) {
  const auto* it = std::find_if(stored_dtypes.begin(), stored_dtypes.end(),
                                [&](const StoredDType& stored) { return stored.name == name; });
  return it == stored_dtypes.end() ? nullptr : it;
}

const StoredDType& stored_dtype(DType dtype) {
  const auto* it = std::find_if(stored_dtypes.begin(), stored_dtypes.end(),
                                [&](const StoredDType& stored) { return stored.dtype == dtype; });
  TESSERA_REQUIRE(it != stored_dtypes.end(), "safetensors has no {}", name_of(dtype));
  return *it;
}

SafetensorsHeader read_safetensors_header(const ReadBytes& read, std::uint64_t file_bytes,
                                          const std::string& source) {
  TESSERA_CHECK(file_bytes >= 8, ErrorCode::checkpoint,
                "{}: {} bytes are too few for a safetensors file; it is truncated", source,
                file_bytes);
  std::array<unsigned char, 8> prefix{};
  read(0, prefix.data(), prefix.size());
  std::uint64_t length = 0;
  for (std::size_t i = 8; i-- > 0;) length = (length << 8) | prefix[i];
  TESSERA_CHECK(length <= safetensors_header_limit, ErrorCode::checkpoint,
                "{}: a header of {} bytes is over the limit of {}; this is not a safetensors file",
                source, length, safetensors_header_limit);
  TESSERA_CHECK(length <= file_bytes - 8, ErrorCode::checkpoint,
                "{}: the header's {} bytes go past the end of the file's {}; it is truncated",
                source, length, file_bytes);
  std::string text(static_cast<std::size_t>(length), '\0');
  read(8, text.data(), text.size());

  const std::string text_problem = json_text_problem(text);
  TESSERA_CHECK(text_problem.empty(), ErrorCode::checkpoint, "{}: the safetensors header {}",
                source, text_problem);
  HeaderEvents events;
  TESSERA_CHECK(json::sax_parse(text, &events), ErrorCode::checkpoint, "{}: safetensors header: {}",
                source, events.problem);
  place_tensors(events.tensors, 8 + length, file_bytes, source);
  return SafetensorsHeader(std::move(events.tensors), std::move(events.metadata));
}

}  // namespace tessera::checkpoint
