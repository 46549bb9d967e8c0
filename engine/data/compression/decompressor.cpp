// The functions of zlib.h and zstd.h that are stable since their first releases.
#include "engine/data/compression/decompressor.h"

#include <algorithm>
#include <cstdint>
#include <limits>

#include "base/error.h"
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
    TESSERA_CHECK(zstd().failed(left) == 0, ErrorCode::data,
                  "{}: its Zstandard data is damaged ({})", name_, zstd().message(left));
    may_end_ = left == 0;
    return {from.place, to.place};
  }
  [[nodiscard]] bool may_end() const override { return may_end_; }

 private:
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
  std::string_view ending;  // only files with this ending
};
constexpr UnreadCompression unread_compressions[] = {
    {std::string_view("\xfd"
                      "7zXZ\0",
                      6),
     "xz", "xz -d", ""},
    {"BZh", "bzip2", "bzip2 -d", ".bz2"},
    {"\x04\x22\x4d\x18", "LZ4", "lz4 -d", ""},
    {"PK\x03\x04", "zip", "unzip", ".zip"},
};

}  // namespace

std::unique_ptr<Decompressor> make_decompressor(std::string_view beginning,
                                                const std::string& name) {
  if (beginning.starts_with(gzip_mark)) return std::make_unique<GzipDecompressor>(name);
  if (beginning.starts_with(zstd_mark)) return std::make_unique<ZstdDecompressor>(name);
  for (const UnreadCompression& one : unread_compressions) {
    TESSERA_CHECK(!beginning.starts_with(one.mark) || !name.ends_with(one.ending), ErrorCode::data,
                  "{} is compressed by {}, which is not read; decompress it ({}), or compress it "
                  "by gzip or zstd",
                  name, one.name, one.way_out);
  }
  TESSERA_CHECK(beginning.empty() || name_without_compression(name) == name, ErrorCode::data,
                "{} does not begin as the compressed file that its name says; it is damaged, or "
                "named so by mistake",
                name);
  return nullptr;
}

std::string name_without_compression(std::string_view name) {
  if (name.ends_with(".tgz")) {
    name.remove_suffix(std::string_view("gz").size());
    return std::string(name) + "ar";
  }
  for (const std::string_view ending : {".gz", ".zst", ".zstd"}) {
    if (name.ends_with(ending)) return std::string(name.substr(0, name.size() - ending.size()));
  }
  return std::string(name);
}

}  // namespace tessera
