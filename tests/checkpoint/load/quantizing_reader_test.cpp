// Matrices that are quantised while they are read: any range has the bytes of the whole, from every
// kind of folder, and bad matrices are refused.
#include "checkpoint/load/quantizing_reader.h"

#include <sys/resource.h>

#include <cmath>
#include <iterator>
#include <random>

#include "checkpoint/load/hugging_face.h"
#include "checkpoint/support.h"
#include "engine/ops/products/quantized.h"

namespace tessera::checkpoint {
namespace {

using namespace testing;

constexpr QuantizedFormat all_formats[] = {QuantizedFormat::nf4, QuantizedFormat::int8};

struct StoredMatrix {
  std::vector<std::int64_t> shape;
  std::vector<float> values;

  StoredMatrix(std::int64_t rows, std::int64_t columns) : shape{rows, columns} {
    std::mt19937 generator(5);
    std::normal_distribution<float> normal(0, 0.02f);
    for (std::int64_t i = 0; i < rows * columns; ++i) values.push_back(normal(generator));
  }
  [[nodiscard]] QuantizedFrom as(QuantizedFormat format) const { return {format, shape}; }
  [[nodiscard]] QuantizingReader reader(QuantizedFormat format) const {
    return {"w", as(format), float32,
            [this](std::int64_t first, std::int64_t count, std::byte* out) {
              std::memcpy(out, values.data() + first, static_cast<std::size_t>(count) * 4);
            }};
  }
  // The result of quantize() for the same values.
  [[nodiscard]] Tensor codes(QuantizedFormat format) const {
    return quantize(Tensor::from(values, Shape{shape[0], shape[1]}), format);
  }
  [[nodiscard]] std::vector<float> numbers(QuantizedFormat format) const {
    const Tensor all = dequantize(codes(format), shape[0], shape[1], float32);
    const float* const first = all.data_as<float>();
    return {first, first + all.elements()};
  }
};

std::vector<std::byte> bytes_in(const Tensor& codes) {
  return {codes.data(), codes.data() + codes.elements()};
}

// 12,033 blocks of nf4: several slices, and 48 groups of scales.
TEST(QuantizingReader, AnyRangeHasTheBytesOfTheWhole) {
  const StoredMatrix matrix(382, 2016);
  for (const QuantizedFormat format : all_formats) {
    const std::vector<std::byte> wanted = bytes_in(matrix.codes(format));
    QuantizingReader reader = matrix.reader(format);
    ASSERT_EQ(reader.bytes(), static_cast<std::int64_t>(wanted.size()));
    const std::int64_t all = reader.bytes(), elements = 382 * 2016;
    const std::int64_t scales =
        format == QuantizedFormat::nf4 ? Nf4Layout(elements).scale_codes : elements;
    for (const auto& [first, count] : {std::pair<std::int64_t, std::int64_t>{0, all},
                                       {0, 1},
                                       {31, 2},
                                       {100'000, 70'001},
                                       {scales - 7, 30},
                                       {all - 9, 9},
                                       {all - 1, 1}}) {
      QuantizingReader fresh = matrix.reader(format);
      for (QuantizingReader* each : {&reader, &fresh}) {
        std::vector<std::byte> got(static_cast<std::size_t>(count));
        each->read_codes(first, count, got.data());
        const auto from = wanted.begin() + first;
        EXPECT_TRUE(std::equal(got.begin(), got.end(), from)) << name_of(format) << " " << first;
      }
    }
  }
}

TEST(QuantizingReader, NumbersAreThoseOfTheCodes) {
  const StoredMatrix matrix(130, 96);
  for (const QuantizedFormat format : all_formats) {
    const std::vector<float> wanted = matrix.numbers(format);
    QuantizingReader reader = matrix.reader(format);
    for (const auto& [first, count] :
         {std::pair<std::int64_t, std::int64_t>{0, 130 * 96}, {63, 2}, {1001, 333}, {12'479, 1}}) {
      std::vector<float> got(static_cast<std::size_t>(count));
      reader.read_numbers(first, count, got.data());
      EXPECT_TRUE(std::equal(got.begin(), got.end(), wanted.begin() + first)) << first;
    }
  }
}

// A rank's tensors: codes from byte `first` on, and numbers.
struct QuantizedPieces {
  std::vector<std::byte> codes;
  std::vector<float> numbers;
  std::vector<LogicalTensor> tensors;

  QuantizedPieces(const StoredMatrix& matrix, QuantizedFormat format, std::int64_t first)
      : numbers(matrix.values.size()) {
    const std::int64_t bytes = quantized_bytes(format, matrix.shape[0], matrix.shape[1]);
    codes.resize(static_cast<std::size_t>(bytes - first));
    LogicalTensor of_codes{"w", uint8, {bytes}, {{first, bytes - first, codes.data()}}};
    of_codes.quantized = matrix.as(format);
    LogicalTensor of_numbers{"v",
                             float32,
                             matrix.shape,
                             {{0, static_cast<std::int64_t>(numbers.size()),
                               reinterpret_cast<std::byte*>(numbers.data())}}};
    of_numbers.quantized = matrix.as(format);
    tensors = {of_codes, of_numbers};
  }
  void expect_filled(const StoredMatrix& matrix, QuantizedFormat format, std::int64_t first) const {
    const std::vector<std::byte> whole = bytes_in(matrix.codes(format));
    EXPECT_TRUE(std::equal(codes.begin(), codes.end(), whole.begin() + first)) << first;
    EXPECT_EQ(numbers, matrix.numbers(format));
  }
};

class QuantizedLoad : public ::testing::Test {
 protected:
  [[nodiscard]] const fs::path& dir() const { return folder_.path(); }
  void write(const StoredMatrix& matrix) const {
    write_safetensors(dir() / "model.safetensors",
                      {{{"v", float32, matrix.shape}, matrix.values.data()},
                       {{"w", float32, matrix.shape}, matrix.values.data()}});
  }
  TemporaryFolder folder_;
};

TEST_F(QuantizedLoad, HuggingFaceFoldersFillCodesAndNumbers) {
  const StoredMatrix matrix(70, 128);
  write(matrix);
  for (const QuantizedFormat format : all_formats) {
    for (const std::int64_t first : {0, 3001}) {
      QuantizedPieces pieces(matrix, format, first);
      load_hugging_face(dir(), pieces.tensors, {}, nullptr);
      pieces.expect_filled(matrix, format, first);
    }
  }
}

TEST_F(QuantizedLoad, StepsOfBothKindsFillCodesAndNumbers) {
  StoredMatrix matrix(70, 128);
  const auto alone = comm::connect(comm::World{});
  for (const StateDictType type : {StateDictType::full, StateDictType::sharded}) {
    State state;
    for (const char* name : {"v", "w"}) {
      state.model.push_back({name,
                             float32,
                             matrix.shape,
                             {{0, 70 * 128, reinterpret_cast<std::byte*>(matrix.values.data())}}});
    }
    SaveOptions options;
    options.type = type;
    const fs::path run = dir() / (type == StateDictType::full ? "full" : "sharded");
    save(*alone, run.string(), 1, state, options);
    for (const QuantizedFormat format : all_formats) {
      QuantizedPieces pieces(matrix, format, 129);
      State wanted;
      wanted.model = pieces.tensors;
      load(*alone, (run / "step-1").string(), wanted, LoadParts::model_only);
      pieces.expect_filled(matrix, format, 129);
    }
  }
}

// Lets the process open `more` files than it has now.
class FewFiles {
 public:
  explicit FewFiles(std::size_t more) {
    getrlimit(RLIMIT_NOFILE, &before_);
    const fs::directory_iterator opened("/proc/self/fd");
    rlimit limit = before_;
    limit.rlim_cur = static_cast<rlim_t>(std::distance(begin(opened), end(opened))) + more;
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  }
  FewFiles(const FewFiles&) = delete;
  FewFiles& operator=(const FewFiles&) = delete;
  FewFiles(FewFiles&&) = delete;
  FewFiles& operator=(FewFiles&&) = delete;
  ~FewFiles() { (void)setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
};

TEST_F(QuantizedLoad, AStepOfManyRanksNeedsFewOpenFiles) {
  constexpr int world = 40;
  StoredMatrix matrix(world, 128);
  SaveOptions options;
  options.type = StateDictType::sharded;
  comm::run_local(world, [&](const auto& communicator) {
    State state;
    const std::int64_t first = 128 * communicator->rank();
    auto* const row = reinterpret_cast<std::byte*>(matrix.values.data() + first);
    for (const char* name : {"v", "w"}) {
      state.model.push_back({name, float32, matrix.shape, {{first, 128, row}}});
    }
    save(*communicator, dir().string(), 1, state, options);
  });
  const auto alone = comm::connect(comm::World{});
  const FewFiles few(20);
  for (const QuantizedFormat format : all_formats) {
    QuantizedPieces pieces(matrix, format, 0);
    State wanted;
    wanted.model = pieces.tensors;
    load(*alone, (dir() / "step-1").string(), wanted, LoadParts::model_only);
    pieces.expect_filled(matrix, format, 0);
  }
}

TEST_F(QuantizedLoad, BadMatricesAreRefused) {
  StoredMatrix matrix(70, 128);
  QuantizedPieces pieces(matrix, QuantizedFormat::nf4, 0);
  const auto refusal = [&] {
    return error_of([&] { load_hugging_face(dir(), pieces.tensors, {}, nullptr); });
  };
  StoredMatrix other(128, 70);
  write(other);
  EXPECT_TRUE(has(refusal(), "tensor 'w' has shape [128, 70], wanted [70, 128]"));
  const std::vector<std::int32_t> integers(70 * 128);
  write_safetensors(dir() / "model.safetensors", {{{"v", int32, matrix.shape}, integers.data()},
                                                  {{"w", int32, matrix.shape}, integers.data()}});
  EXPECT_TRUE(has(refusal(), "tensor 'w' is I32, wanted"));
  for (const QuantizedFormat format : all_formats) {
    matrix.values[5000] = NAN;
    write(matrix);
    pieces = QuantizedPieces(matrix, QuantizedFormat::nf4, 0);
    for (LogicalTensor& tensor : pieces.tensors) tensor.quantized->format = format;
    EXPECT_TRUE(has(refusal(), "has an element that is not finite and cannot be quantised"));
    matrix.values[5000] = 0;
  }
}

}  // namespace
}  // namespace tessera::checkpoint
