// LZ4 frames and Zstandard by their own libraries, which few users need and every Debian has.
#include "tasks/columnar/arrow/arrow_codec.h"

#include <dlfcn.h>

#include <cstddef>

#include "base/error.h"

namespace tessera::tasks {
namespace {

void* codec_library(const char* file, const char* package) {
  void* const object = dlopen(file, RTLD_NOW | RTLD_LOCAL);
  if (object != nullptr) return object;
  const char* const reason = dlerror();
  fail(ErrorCode::configuration,
       "this Arrow data is compressed, and {} cannot be loaded ({}); install it (Debian: {})", file,
       reason != nullptr ? reason : "unknown", package);
}

template <class Function>
Function* codec_function(void* object, const char* name) {
  void* const symbol = dlsym(object, name);
  TESSERA_CHECK(symbol != nullptr, ErrorCode::configuration,
                "a library of compression has no function {}; install another version", name);
  return reinterpret_cast<Function*>(symbol);
}

// lz4frame.h and zstd.h, in the parts that are stable since their first releases.
struct Lz4 {
  void* object = codec_library("liblz4.so.1", "liblz4-1");
  std::size_t (*create)(void**, unsigned) =
      codec_function<std::size_t(void**, unsigned)>(object, "LZ4F_createDecompressionContext");
  std::size_t (*release)(void*) =
      codec_function<std::size_t(void*)>(object, "LZ4F_freeDecompressionContext");
  std::size_t (*run)(void*, void*, std::size_t*, const void*, std::size_t*, const void*) =
      codec_function<std::size_t(void*, void*, std::size_t*, const void*, std::size_t*,
                                 const void*)>(object, "LZ4F_decompress");
  unsigned (*failed)(std::size_t) = codec_function<unsigned(std::size_t)>(object, "LZ4F_isError");
};
constexpr unsigned lz4_frame_version = 100;

struct Zstd {
  void* object = codec_library("libzstd.so.1", "libzstd1");
  std::size_t (*run)(void*, std::size_t, const void*, std::size_t) =
      codec_function<std::size_t(void*, std::size_t, const void*, std::size_t)>(object,
                                                                                "ZSTD_decompress");
  unsigned (*failed)(std::size_t) = codec_function<unsigned(std::size_t)>(object, "ZSTD_isError");
};

bool decompress_lz4(std::span<const char> bytes, std::span<char> out) {
  static const Lz4 lz4;
  void* context = nullptr;
  TESSERA_CHECK(lz4.failed(lz4.create(&context, lz4_frame_version)) == 0, ErrorCode::out_of_memory,
                "no memory for LZ4");
  std::size_t read = 0;
  std::size_t written = 0;
  std::size_t left = 1;  // 0 at the end of a frame
  while (left != 0) {
    std::size_t to = out.size() - written;
    std::size_t from = bytes.size() - read;
    left = lz4.run(context, out.data() + written, &to, bytes.data() + read, &from, nullptr);
    if (lz4.failed(left) != 0) break;
    read += from;
    written += to;
    if (to == 0 && from == 0) break;  // no progress: more bytes are wanted, or more space
  }
  lz4.release(context);
  return left == 0 && written == out.size() && read == bytes.size();
}

bool decompress_zstd(std::span<const char> bytes, std::span<char> out) {
  static const Zstd zstd;
  const std::size_t written = zstd.run(out.data(), out.size(), bytes.data(), bytes.size());
  return zstd.failed(written) == 0 && written == out.size();
}

}  // namespace

bool decompress(ArrowCodec codec, std::span<const char> bytes, std::span<char> out) {
  switch (codec) {
    case ArrowCodec::lz4_frame:
      return decompress_lz4(bytes, out);
    case ArrowCodec::zstd:
      return decompress_zstd(bytes, out);
    case ArrowCodec::none:
      break;
  }
  misuse("no codec to decompress with");
}

}  // namespace tessera::tasks
