// The functions of zlib.h and zstd.h that are stable since their first releases.
#include "engine/data/compression/decompressor.h"

#include <algorithm>
#include <cstdint>
#include <limits>

#include "base/error.h"
#include "base/text/ascii_lower.h"
#include "engine/data/compression/codec_library.h"

namespace tessera {
namespace {

constexpr std::string_view gzip_mark = "\x1f\x8b\x08";
constexpr std::string_view zstd_mark = "\x28\xb5\x2f\xfd";

// z_stream of zlib 1.
struct ZlibStream {
  const unsigned char* in = nullptr;
  unsigned in_bytes = 0;
  unsigned long in_total = 0;
  unsigned char* out = nullptr;
  unsigned out_bytes = 0;
  unsigned long out_total = 0;
  const char* message = nullptr;
  void* state = nullptr;
  void* allocate = nullptr;
  void* release = nullptr;
  void* opaque = nullptr;
  int data_type = 0;
  unsigned long checksum = 0;
  unsigned long reserved = 0;
};

struct Zlib {
  CodecLibrary library{"libz.so.1", "zlib1g"};
  const char* (*version)() = library.function<const char*()>("zlibVersion");
  int (*begin)(ZlibStream*, int, const char*,
               int) = library.function<int(ZlibStream*, int, const char*, int)>("inflateInit2_");
  int (*run)(ZlibStream*, int) = library.function<int(ZlibStream*, int)>("inflate");
  int (*reset)(ZlibStream*) = library.function<int(ZlibStream*)>("inflateReset");
  int (*end)(ZlibStream*) = library.function<int(ZlibStream*)>("inflateEnd");
};
constexpr int zlib_gzip_window = 16 + 15;  // gzip's header, the largest window
constexpr int zlib_ok = 0;
constexpr int zlib_stream_end = 1;
constexpr int zlib_no_progress = -5;

template <class Size>
Size bounded(std::size_t bytes) {
  return static_cast<Size>(std::min<std::size_t>(bytes, std::numeric_limits<Size>::max() / 2));
}

class GzipDecompressor final : public Decompressor {
 public:
  explicit GzipDecompressor(std::string name) : name_(std::move(name)) {
    TESSERA_CHECK(zlib().begin(&stream_, zlib_gzip_window, zlib().version(),
                               static_cast<int>(sizeof(stream_))) == zlib_ok,
                  ErrorCode::out_of_memory, "no memory for zlib");
  }
  ~GzipDecompressor() override { (void)zlib().end(&stream_); }
  GzipDecompressor(const GzipDecompressor&) = delete;
  GzipDecompressor& operator=(const GzipDecompressor&) = delete;

  Step run(std::span<const char> in, std::span<char> out) override {
    if (ended_) {
      if (in.empty()) return {};
      // Tapes and some programs fill the last block with zeros.
      if (in.front() == '\0') return {1, 0};
      (void)zlib().reset(&stream_);
      ended_ = false;
    }
    stream_.in = reinterpret_cast<const unsigned char*>(in.data());
    stream_.in_bytes = bounded<unsigned>(in.size());
    stream_.out = reinterpret_cast<unsigned char*>(out.data());
    stream_.out_bytes = bounded<unsigned>(out.size());
    const int result = zlib().run(&stream_, 0);
    ended_ = result == zlib_stream_end;
    TESSERA_CHECK(ended_ || result == zlib_ok || result == zlib_no_progress, ErrorCode::data,
                  "{}: its gzip data is damaged ({})", name_,
                  stream_.message != nullptr ? stream_.message : "unknown");
    return {bounded<unsigned>(in.size()) - stream_.in_bytes,
            bounded<unsigned>(out.size()) - stream_.out_bytes};
  }
  [[nodiscard]] bool may_end() const override { return ended_; }

 private:
  static const Zlib& zlib() {
    static const Zlib library;
    return library;
  }
  std::string name_;
  ZlibStream stream_;
  bool ended_ = false;
};

struct ZstdBuffer {
  void* bytes;
  std::size_t size;
  std::size_t place;
};

struct Zstd {
  CodecLibrary library{"libzstd.so.1", "libzstd1"};
  void* (*create)() = library.function<void*()>("ZSTD_createDStream");
  std::size_t (*release)(void*) = library.function<std::size_t(void*)>("ZSTD_freeDStream");
  std::size_t (*run)(void*, ZstdBuffer*, ZstdBuffer*) =
      library.function<std::size_t(void*, ZstdBuffer*, ZstdBuffer*)>("ZSTD_decompressStream");
  unsigned (*failed)(std::size_t) = library.function<unsigned(std::size_t)>("ZSTD_isError");
  const char* (*message)(std::size_t) =
      library.function<const char*(std::size_t)>("ZSTD_getErrorName");
};

// Its memory is bounded: a window of more than 128 MiB is refused.
class ZstdDecompressor final : public Decompressor {
 public:
  explicit ZstdDecompressor(std::string name) : name_(std::move(name)), stream_(zstd().create()) {
    TESSERA_CHECK(stream_ != nullptr, ErrorCode::out_of_memory, "no memory for Zstandard");
  }
  ~ZstdDecompressor() override { (void)zstd().release(stream_); }
  ZstdDecompressor(const ZstdDecompressor&) = delete;
  ZstdDecompressor& operator=(const ZstdDecompressor&) = delete;

  Step run(std::span<const char> in, std::span<char> out) override {
    ZstdBuffer from{const_cast<char*>(in.data()), in.size(), 0};  // it is only read
    ZstdBuffer to{out.data(), out.size(), 0};
    if (in.empty() && may_end_) return {};
    const std::size_t left = zstd().run(stream_, &to, &from);
    if (zstd().failed(left) != 0) refuse(zstd().message(left));
    may_end_ = left == 0;
    return {from.place, to.place};
  }
  [[nodiscard]] bool may_end() const override { return may_end_; }

 private:
  [[noreturn]] void refuse(std::string_view reason) const {
    TESSERA_CHECK(reason.find("too much memory") == std::string_view::npos, ErrorCode::data,
                  "{}: its Zstandard data needs a window of more than 128 MiB; compress it again "
                  "without --long, or with --long=27",
                  name_);
    fail(ErrorCode::data, "{}: its Zstandard data is damaged ({})", name_, reason);
  }
  static const Zstd& zstd() {
    static const Zstd library;
    return library;
  }
  std::string name_;
  void* stream_;
  bool may_end_ = false;
};

struct UnreadCompression {
  std::string_view mark;
  const char* name;
  const char* way_out;
};
using namespace std::string_view_literals;
constexpr UnreadCompression unread_compressions[] = {
    {"\xfd"
     "7zXZ\0"sv,
     "xz", "xz -d"},
    {"\x04\x22\x4d\x18"sv, "LZ4", "lz4 -d"},
    {"\x1f\x9d"sv, "compress", "uncompress"},
    {"PK\x03\x04"sv, "zip", "unzip"},
};

// "BZh", the size of a block, and the mark of a block or of the end.
bool is_bzip2(std::string_view beginning) {
  if (!beginning.starts_with("BZh") || beginning.size() < compression_mark_bytes) return false;
  const std::string_view mark = beginning.substr(4, 6);
  return mark == "\x31\x41\x59\x26\x53\x59"sv || mark == "\x17\x72\x45\x38\x50\x90"sv;
}

// A frame of Zstandard, or one that a reader skips: parallel compressors begin with such a one.
bool is_zstd(std::string_view beginning) {
  if (beginning.starts_with(zstd_mark)) return true;
  return beginning.size() >= 4 && (beginning[0] & 0xf0) == 0x50 &&
         beginning.substr(1, 3) == "\x2a\x4d\x18"sv;
}

struct CompressionEnding {
  std::string_view ending, contents;
};
constexpr CompressionEnding compression_endings[] = {
    {".tgz", ".tar"}, {".tzst", ".tar"}, {".txz", ".tar"}, {".tbz2", ".tar"},
    {".gz", ""},      {".zst", ""},      {".zstd", ""},    {".xz", ""},
    {".bz2", ""},     {".lz4", ""},      {".zip", ""}};

const CompressionEnding* ending_of(std::string_view lower) {
  for (const CompressionEnding& one : compression_endings) {
    if (lower.ends_with(one.ending)) return &one;
  }
  return nullptr;
}

[[noreturn]] void refuse_compression(const std::string& name, const char* compression,
                                     const char* way_out) {
  fail(ErrorCode::data,
       "{} is compressed by {}, which is not read; decompress it ({}), or compress it by gzip or "
       "zstd",
       name, compression, way_out);
}

// The message of a library that cannot be loaded gets the name of the data.
template <class OfFormat>
std::unique_ptr<Decompressor> make_named(const std::string& name) {
  try {
    return std::make_unique<OfFormat>(name);
  } catch (const Error& problem) {
    throw Error(problem.code(), name + ": " + problem.what());
  }
}

}  // namespace

std::unique_ptr<Decompressor> make_decompressor(std::string_view beginning,
                                                const std::string& name) {
  if (beginning.starts_with(gzip_mark)) return make_named<GzipDecompressor>(name);
  if (is_zstd(beginning)) return make_named<ZstdDecompressor>(name);
  if (is_bzip2(beginning)) refuse_compression(name, "bzip2", "bzip2 -d");
  for (const UnreadCompression& one : unread_compressions) {
    if (beginning.starts_with(one.mark)) refuse_compression(name, one.name, one.way_out);
  }
  TESSERA_CHECK(beginning.empty() || !is_named_compressed(name), ErrorCode::data,
                "{} does not begin as the compressed file that its name says; it is damaged, or "
                "named so by mistake",
                name);
  return nullptr;
}

std::string name_without_compression(std::string_view name) {
  std::string lower = ascii_lower(name);
  if (const CompressionEnding* const found = ending_of(lower)) {
    lower.resize(lower.size() - found->ending.size());
    lower.append(found->contents);
  }
  return lower;
}

bool is_named_compressed(std::string_view name) {
  return ending_of(ascii_lower(name)) != nullptr;
}

}  // namespace tessera
