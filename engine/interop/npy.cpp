// Format: the magic bytes, a version, the length of a header, the header (a Python dictionary of
// descr, fortran_order and shape), the values. numpy.lib.format documents it.
#include "engine/interop/npy.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "engine/data/data_file.h"
#include "engine/storage/output_file.h"

namespace tessera {
namespace {

constexpr std::string_view magic = "\x93NUMPY";
constexpr std::size_t alignment = 64;
// numpy.load() refuses longer headers too.
constexpr std::size_t longest_header = 10000;

struct NpyType {
  DType dtype;
  std::string_view descr;
};
constexpr NpyType npy_types[] = {{float32, "<f4"}, {float64, "<f8"}, {float16, "<f2"},
                                 {int32, "<i4"},   {int64, "<i8"},   {uint8, "|u1"},
                                 {boolean, "|b1"}};

// Reads the three entries of a header, in any order.
class HeaderReader {
 public:
  HeaderReader(const std::string& path, std::string_view text) : path_(path), rest_(text) {}

  void read() {
    expect("{");
    while (!take("}")) {
      const std::string_view key = quoted();
      expect(":");
      if (key == "descr") {
        descr = quoted();
      } else if (key == "fortran_order") {
        fortran_order = take("True");
        if (!fortran_order) expect("False");
      } else if (key == "shape") {
        read_shape();
      } else {
        damaged();
      }
      (void)take(",");
    }
  }

  std::string_view descr;
  bool fortran_order = false;
  std::optional<std::vector<std::int64_t>> shape;

 private:
  [[noreturn]] void damaged() const {
    fail(ErrorCode::data, "{}: its header is not that of a .npy file", path_);
  }
  bool take(std::string_view token) {
    const std::size_t begin = rest_.find_first_not_of(" \t\n");
    rest_.remove_prefix(begin == std::string_view::npos ? rest_.size() : begin);
    if (!rest_.starts_with(token)) return false;
    rest_.remove_prefix(token.size());
    return true;
  }
  void expect(std::string_view token) {
    if (!take(token)) damaged();
  }
  std::string_view quoted() {
    const char quote = take("'") ? '\'' : '"';
    if (quote == '"') expect("\"");
    const std::size_t end = rest_.find(quote);
    if (end == std::string_view::npos) damaged();
    const std::string_view text = rest_.substr(0, end);
    rest_.remove_prefix(end + 1);
    return text;
  }
  void read_shape() {
    expect("(");
    shape.emplace();
    while (!take(")")) {
      (void)take("");  // spaces
      std::int64_t size = 0;
      const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), size);
      if (error != std::errc() || size < 0) damaged();
      rest_.remove_prefix(static_cast<std::size_t>(end - rest_.data()));
      shape->push_back(size);
      (void)take("L");
      (void)take(",");
    }
  }

  const std::string& path_;
  std::string_view rest_;
};

struct Header {
  std::string text;
  std::int64_t values = 0;  // the place of the first
};

Header read_header(const DataFile& file) {
  const auto damaged = [&](bool condition) {
    TESSERA_CHECK(condition, ErrorCode::data, "{}: it is not a .npy file, or it is cut off",
                  file.path());
  };
  unsigned char begin[12] = {};
  const std::size_t there = file.read_to_end(0, begin, sizeof begin);
  damaged(there >= 10 && std::memcmp(begin, magic.data(), magic.size()) == 0);
  const int version = begin[6];
  TESSERA_CHECK(version >= 1 && version <= 3, ErrorCode::data,
                "{}: version {} of the .npy format; 1 to 3 are known", file.path(), version);
  std::size_t length = begin[8] | static_cast<std::size_t>(begin[9]) << 8;
  if (version > 1) {
    damaged(there == sizeof begin);
    length |= static_cast<std::size_t>(begin[10]) << 16 | static_cast<std::size_t>(begin[11]) << 24;
  }
  damaged(length <= longest_header);
  const std::int64_t first = version == 1 ? 10 : 12;
  Header header{std::string(length, '\0'), first + static_cast<std::int64_t>(length)};
  damaged(file.read_to_end(first, header.text.data(), length) == length);
  return header;
}

DType dtype_named(const std::string& path, std::string_view descr) {
  for (const NpyType& row : npy_types) {
    if (row.descr == descr || (descr.size() == 3 && row.descr.substr(1) == descr.substr(1) &&
                               (descr[0] == '=' || (size_of(row.dtype) == 1 && descr[0] != '>')))) {
      return row.dtype;
    }
  }
  fail(ErrorCode::data,
       "{}: an array of '{}'; there are little-endian float16, float32, float64, int32, int64, "
       "uint8 and bool; convert it with astype()",
       path, descr);
}

}  // namespace

std::string npy_header(DType dtype, const Shape& shape, std::size_t least_bytes) {
  std::string_view descr;
  for (const NpyType& row : npy_types) {
    if (row.dtype == dtype) descr = row.descr;
  }
  TESSERA_REQUIRE(!descr.empty(), "a .npy file: NumPy has no {}; cast the tensor of shape {} first",
                  name_of(dtype), shape.to_string());
  std::string sizes;
  for (const std::int64_t size : shape.sizes()) sizes += fmt::format("{}, ", size);
  if (shape.dimensions() > 1) sizes.resize(sizes.size() - 2);  // one size keeps its comma
  if (shape.dimensions() == 1) sizes.resize(sizes.size() - 1);
  std::string text =
      fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}), }}", descr, sizes);
  const std::size_t before = magic.size() + 4;
  const std::size_t bytes = std::max(before + text.size() + 1, least_bytes);
  text.resize((bytes + alignment - 1) / alignment * alignment - before - 1, ' ');
  text += '\n';
  std::string header(magic);
  header +=
      {'\x01', '\0', static_cast<char>(text.size() & 0xFF), static_cast<char>(text.size() >> 8)};
  return header + text;
}

void save_npy(const std::filesystem::path& path, const Tensor& x) {
  const Tensor here = x.to(Device::cpu());
  std::string file = npy_header(x.dtype(), x.shape());
  file.append(reinterpret_cast<const char*>(here.data()), here.bytes());
  write_output("save_npy", path, file);
}

Tensor load_npy(const std::filesystem::path& path, Device device) {
  const DataFile file(path.string());
  const Header header = read_header(file);
  HeaderReader reader(file.path(), header.text);
  reader.read();
  TESSERA_CHECK(reader.shape && !reader.descr.empty(), ErrorCode::data,
                "{}: its header lacks descr or shape", file.path());
  TESSERA_CHECK(!reader.fortran_order, ErrorCode::data,
                "{}: an array with its columns first; save numpy.ascontiguousarray() of it",
                file.path());
  const DType dtype = dtype_named(file.path(), reader.descr);
  const std::vector<std::int64_t>& sizes = *reader.shape;
  TESSERA_CHECK(sizes.size() <= static_cast<std::size_t>(Shape::max_dimensions), ErrorCode::data,
                "{}: an array of {} dimensions; at most {}", file.path(), sizes.size(),
                Shape::max_dimensions);
  // No shape with more bytes than the file may allocate memory.
  const std::int64_t bytes = file.size() - header.values;
  std::int64_t elements = std::find(sizes.begin(), sizes.end(), 0) == sizes.end() ? 1 : 0;
  std::int64_t product = 1;  // without zeros, which must not overflow either
  for (const std::int64_t size : sizes) {
    TESSERA_CHECK(size == 0 || product <= std::numeric_limits<std::int64_t>::max() / size,
                  ErrorCode::data, "{}: its shape has more elements than memory", file.path());
    product *= std::max<std::int64_t>(size, 1);
    TESSERA_CHECK(elements == 0 || elements <= bytes / size, ErrorCode::data,
                  "{}: it is cut off: it has {} bytes of values, fewer than its shape needs",
                  file.path(), bytes);
    elements *= size;
  }
  const auto needed = elements * static_cast<std::int64_t>(size_of(dtype));
  TESSERA_CHECK(needed == bytes, ErrorCode::data,
                "{}: it has {} bytes of values, and its shape needs {}", file.path(), bytes,
                needed);
  Tensor here = Tensor::empty(Shape(sizes), dtype, Device::cpu());
  file.read(header.values, here.data(), here.bytes());
  return here.to(device);
}

}  // namespace tessera
