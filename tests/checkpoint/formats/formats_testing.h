// Shared by the tests of the checkpoint formats: fixtures, and the tensors of a source by name.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "checkpoint/formats/format.h"
#include "checkpoint/formats/torch/torch_archive.h"
#include "checkpoint/formats/torch/zip.h"
#include "checkpoint/io/file.h"
#include "checkpoint/safetensors/safetensors.h"
#include "checkpoint/support.h"

namespace tessera::checkpoint::testing {

inline fs::path fixture(const std::string& name) {
  const char* const source = std::getenv("TESSERA_SOURCE_DIR");
  if (source == nullptr) throw std::runtime_error("set TESSERA_SOURCE_DIR, as CTest does");
  return fs::path(source) / "tests/checkpoint/fixtures" / name;
}

struct FoundTensor {
  std::string dtype;
  std::vector<std::int64_t> shape;
  std::string bytes;
  bool operator==(const FoundTensor&) const = default;
};
using FoundTensors = std::map<std::string, FoundTensor>;

// All tensors of a source, read `step` elements at a time; names begin with "model/" or
// "optimizer/".
inline FoundTensors tensors_of(formats::Source& source, std::int64_t step = 1 << 20) {
  FoundTensors out;
  const auto& tensors = source.contents().tensors;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::int64_t count = elements_of(tensors[i].shape);
    const std::size_t size = tensors[i].stored->bits / 8;
    std::string bytes(static_cast<std::size_t>(count) * size, '\xEE');
    for (std::int64_t first = 0; first < count; first += step) {
      source.read(
          i, first, std::min(step, count - first),
          reinterpret_cast<std::byte*>(bytes.data()) + static_cast<std::size_t>(first) * size);
    }
    const char* part = tensors[i].part == formats::Part::model ? "model/" : "optimizer/";
    out[part + tensors[i].name] = {std::string(tensors[i].stored->name), tensors[i].shape, bytes};
  }
  return out;
}

// The tensors of a safetensors file.
inline FoundTensors expected_tensors(const std::string& fixture_name) {
  const SafetensorsFile file(fixture(fixture_name));
  FoundTensors out;
  for (const TensorEntry& entry : file.header().tensors()) {
    std::string bytes(entry.end - entry.begin, '\0');
    file.read(entry, 0, bytes.data(), bytes.size());
    out[entry.name] = {std::string(entry.stored->name), entry.shape, bytes};
  }
  return out;
}

inline void expect_equal(const FoundTensors& found, const FoundTensors& expected) {
  for (const auto& [name, tensor] : expected) {
    const auto at = found.find(name);
    if (at == found.end()) {
      ADD_FAILURE() << name << " is missing";
      continue;
    }
    EXPECT_EQ(at->second.dtype, tensor.dtype) << name;
    EXPECT_EQ(at->second.shape, tensor.shape) << name;
    EXPECT_TRUE(at->second.bytes == tensor.bytes) << name << " has other values";
  }
  for (const auto& [name, tensor] : found) {
    EXPECT_TRUE(expected.contains(name)) << name << " is too much";
  }
}

// Writes the contents of a source, `step` elements at a time.
inline void write_copy(formats::Source& source, const formats::Format& format, const fs::path& path,
                       int world_size, std::int64_t step) {
  if (!format.is_file) fs::create_directories(path);
  const formats::Contents& contents = source.contents();
  formats::WriteOptions options;
  options.world_size = world_size;
  const auto sink = format.create(path, contents, options);
  std::vector<std::byte> buffer;
  for (std::size_t i = 0; i < contents.tensors.size(); ++i) {
    const std::int64_t count = elements_of(contents.tensors[i].shape);
    for (std::int64_t first = 0; first < count; first += step) {
      const std::int64_t part = std::min(step, count - first);
      buffer.resize(static_cast<std::size_t>(part) * contents.tensors[i].stored->bits / 8);
      source.read(i, first, part, buffer.data());
      sink->append(i, buffer.data(), part);
    }
  }
  sink->finish();
}

// A torch.save file of this pickle, whose storages "0", "1" ... are zeros of these sizes.
inline void write_torch_file(const fs::path& path, const std::string& pickle,
                             const std::vector<std::string>& storages = {}) {
  std::vector<std::uint64_t> sizes;
  for (const std::string& storage : storages) sizes.push_back(storage.size());
  auto records = formats::plan_torch_archive("archive", pickle.size(), sizes);
  formats::plan_zip(records);
  File file = File::create(path);
  formats::ZipWriter zip(file, 0, std::move(records));
  zip.append(pickle);
  zip.append(formats::torch_byteorder);
  for (const std::string& storage : storages) zip.append(storage);
  zip.append(formats::torch_version);
  zip.finish();
  file.close();
}

}  // namespace tessera::checkpoint::testing
