// .npy files: what NumPy writes, round trips, and damaged files.
#include "engine/interop/npy.h"

#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

#include "engine/tensor_ops.h"
#include "tests/support/errors.h"
#include "tests/support/temporary_folder.h"

namespace tessera {
namespace {

using Values = std::vector<double>;

class Npy : public ::testing::Test {
 protected:
  void write(const std::string& bytes) const {
    std::ofstream(file, std::ios::binary)
        .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  }
  // A file with this header, as version 1.
  void write(const std::string& header, const std::string& values) const {
    write(std::string("\x93NUMPY\x01\0", 8) + static_cast<char>(header.size() & 0xFF) +
          static_cast<char>(header.size() >> 8) + header + values);
  }
  [[nodiscard]] std::string refused() const {
    std::string message = testing::error_of([&] { (void)load_npy(file); }, ErrorCode::data);
    return message.substr(message.find(": ") + 2);
  }

  testing::TemporaryFolder folder;
  std::filesystem::path file = folder.path() / "array.npy";
};

TEST_F(Npy, RoundTripsOfEveryDtypeAndShape) {
  const auto check = [&](const Tensor& x) {
    save_npy(file, x);
    const Tensor back = load_npy(file);
    EXPECT_EQ(back.dtype(), x.dtype());
    EXPECT_EQ(back.shape(), x.shape());
    EXPECT_EQ(back.to_vector(), x.to_vector());
  };
  for (const Shape& shape : {Shape{}, Shape{6}, Shape{2, 3}, Shape{1, 0, 4}, Shape{2, 1, 3}}) {
    const auto elements = static_cast<std::size_t>(shape.elements());
    const Values numbers(elements, 2.5);
    for (const DType dtype : {float32, float64, float16}) {
      check(cast(Tensor::from(numbers, shape), dtype));
    }
    check(Tensor::from(std::vector<std::int32_t>(elements, -7), shape));
    check(Tensor::from(std::vector<std::int64_t>(elements, std::int64_t{1} << 40), shape));
    check(Tensor::from(std::vector<std::uint8_t>(elements, 255), shape));
  }
  check(less(Tensor::from({1.f, 5.f}, {2}), 3.0));
}

// The bytes of numpy.save(file, numpy.array([[1, 2], [3, 4]], "<i4")).
TEST_F(Npy, HasNumPysBytes) {
  std::string header = "{'descr': '<i4', 'fortran_order': False, 'shape': (2, 2), }";
  header.append(128 - 10 - header.size() - 1, ' ');
  const std::string values("\1\0\0\0\2\0\0\0\3\0\0\0\4\0\0\0", 16);
  const std::string whole = std::string("\x93NUMPY\x01\0\x76\0", 10) + header + "\n" + values;
  const Tensor x = Tensor::from(std::vector<std::int32_t>{1, 2, 3, 4}, {2, 2});
  save_npy(file, x);
  std::ifstream in(file, std::ios::binary);
  const std::string written{std::istreambuf_iterator<char>(in), {}};
  EXPECT_EQ(written, whole);
}

TEST_F(Npy, OtherHeadersThatNumPyReads) {
  const std::string four("\0\0\x80\x3f", 4);
  write("{\"shape\": (1,), \"descr\": \"=f4\", \"fortran_order\": False}\n", four);
  EXPECT_EQ(load_npy(file).to_vector(), Values{1});
  write("{'shape': (1L, 1L), 'fortran_order': False, 'descr': '<f4'}", four);
  EXPECT_EQ(load_npy(file).shape(), (Shape{1, 1}));
}

TEST_F(Npy, RefusesWhatATensorCannotHold) {
  write("{'descr': '>f4', 'fortran_order': False, 'shape': (1,)}", "abcd");
  EXPECT_EQ(refused(),
            "an array of '>f4'; there are little-endian float16, float32, float64, int32, int64, "
            "uint8 and bool; convert it with astype()");
  write("{'descr': '<f4', 'fortran_order': True, 'shape': (1,)}", "abcd");
  EXPECT_EQ(refused(), "an array with its columns first; save numpy.ascontiguousarray() of it");
  write("{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1, 1, 1, 1, 1, 1, 1, 1)}", "abcd");
  EXPECT_NE(refused().find("9 dimensions"), std::string::npos);
  EXPECT_NE(testing::misuse_of([&] {
              save_npy(file, Tensor::zeros({2}, bfloat16));
            }).find("NumPy has no bfloat16"),
            std::string::npos);
}

TEST_F(Npy, TheReservedHeaderHasOneSizeForEveryNumberOfRows) {
  EXPECT_EQ(npy_header(float32, {0, 4}, 256).size(), 256u);
  EXPECT_EQ(npy_header(float32, {1'000'000'000'000, 4}, 256).size(), 256u);
  EXPECT_EQ(npy_header(float32, {2, 4}, 129).size(), 192u);
  EXPECT_EQ(npy_header(float32, {2, 4}).size(), 128u);
}

TEST_F(Npy, DamagedFilesAreNamed) {
  write("{'descr': '<f4', 'fortran_order': False, 'shape': (2,)}", "abcd");
  EXPECT_EQ(refused(), "it has 4 bytes of values, and its shape needs 8");
  write("{'descr': '<f4', 'fortran_order': False, 'shape': (9223372036854775807, 2)}", "abcd");
  EXPECT_EQ(refused(), "it is cut off: it has 4 bytes of values, fewer than its shape needs");
  write("{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387904, 4, 0)}", "");
  EXPECT_EQ(refused(), "its shape has more elements than memory");
  write("{'descr': '<f4', 'fortran_order': False, 'shape': (1,)}", "abcdefgh");
  EXPECT_EQ(refused(), "it has 8 bytes of values, and its shape needs 4");
  write("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,)}", "abcd");
  EXPECT_EQ(refused(), "its header is not that of a .npy file");
  write("{'fortran_order': False, 'shape': (1,)}", "abcd");
  EXPECT_EQ(refused(), "its header lacks descr or shape");
  Tensor x = Tensor::from({1.f, 2.f}, {2});
  save_npy(file, x);
  std::ifstream in(file, std::ios::binary);
  const std::string whole{std::istreambuf_iterator<char>(in), {}};
  for (std::size_t length = 0; length < whole.size(); ++length) {
    write(whole.substr(0, length));
    (void)testing::error_of([&] { return load_npy(file); }, ErrorCode::data);
  }
}

}  // namespace
}  // namespace tessera
