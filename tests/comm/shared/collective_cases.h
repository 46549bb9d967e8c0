// Requirements for every communicator, whatever its backend: each case runs on all ranks of the
// given communicator and reports through gtest's EXPECT.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/low_precision.h"
#include "comm/communicator.h"
#include "kernels/registry.h"

namespace tessera::comm::cases {

using Ranks = std::shared_ptr<Communicator>;

// A value of rank `rank` that any rank can compute, with many distinct magnitudes.
inline double value_of(std::uint64_t seed, int rank, std::int64_t index) {
  std::uint64_t x =
      seed * 1000003 + static_cast<std::uint64_t>(rank) * 7919 + static_cast<std::uint64_t>(index);
  x = (x ^ (x >> 31)) * 0x9e3779b97f4a7c15u;
  x ^= x >> 29;
  const double unit = static_cast<double>(x >> 11) * 0x1p-53 - 0.5;
  return std::ldexp(unit, static_cast<int>(x % 9) - 4);
}

// Stores `value` as an element of `dtype`, and returns the stored value.
inline double put(std::byte* memory, std::int64_t index, DType dtype, double value) {
  const auto store = [&](auto element) {
    std::memcpy(memory + index * static_cast<std::int64_t>(sizeof element), &element,
                sizeof element);
    if constexpr (std::is_same_v<decltype(element), double>) {
      return element;
    } else {
      return static_cast<double>(to_float(element));
    }
  };
  switch (dtype) {
    case DType::bfloat16:
      return store(to_bfloat16(static_cast<float>(value)));
    case DType::float16:
      return store(to_float16(static_cast<float>(value)));
    case DType::float64:
      return store(value);
    default:
      return store(static_cast<float>(value));
  }
}

// The summation tree, implemented independently: split at the largest power of two below the size.
template <class Real>
Real tree(const std::vector<Real>& values, std::size_t first, std::size_t count) {
  if (count == 1) return values[first];
  std::size_t left = 1;
  while (left * 2 < count) left *= 2;
  return tree(values, first, left) + tree(values, first + left, count - left);
}

template <class Real>
Real grouped_tree(const std::vector<Real>& values, std::size_t group) {
  std::vector<Real> sums;
  for (std::size_t first = 0; first < values.size(); first += group) {
    sums.push_back(tree(values, first, std::min(group, values.size() - first)));
  }
  return tree(sums, 0, sums.size());
}

// The expected element of a reduction, from the ranks' elements and the output's old value. Scales
// are powers of two in these cases, so that there is only one correct rounding.
inline void reference(const std::vector<double>& ranks, const Reduction& reduction, std::byte* out,
                      std::int64_t index, double old) {
  const auto group =
      static_cast<std::size_t>(reduction.group == 0 ? ranks.size() : reduction.group);
  double sum = 0;
  if (reduction.in_dtype == float64) {
    sum = grouped_tree(ranks, group) * static_cast<double>(reduction.scale);
  } else {
    std::vector<float> values(ranks.begin(), ranks.end());
    sum = static_cast<double>(grouped_tree(values, group) * reduction.scale);
  }
  if (reduction.accumulate) {
    // fp32 sums for fp32 and 16-bit outputs are computed in fp32, all others in fp64.
    const bool in_float = reduction.in_dtype != float64 && reduction.out_dtype != float64;
    sum = in_float ? static_cast<double>(static_cast<float>(old) + static_cast<float>(sum))
                   : old + sum;
  }
  put(out, index, reduction.out_dtype, sum);
}

// `spare` bytes at the buffer's end are not used, as in a pool of buffers.
inline void check_all_gather(const Ranks& ranks, std::size_t share, int rounds,
                             std::size_t spare = 0) {
  const auto size = static_cast<std::size_t>(ranks->size());
  auto buffer = ranks->allocate("gathered", share * size + spare, Sharing::one_copy);
  ASSERT_EQ(reinterpret_cast<std::uintptr_t>(buffer->data()) % 4096, 0u);
  for (std::size_t i = 0; i < buffer->bytes(); ++i) ASSERT_EQ(buffer->data()[i], std::byte{0});
  ranks->barrier();  // no rank writes while another still reads the zeros
  const auto byte_of = [](int round, std::size_t rank, std::size_t index) {
    return static_cast<std::byte>(round * 37 + static_cast<int>(rank) * 11 +
                                  static_cast<int>(index));
  };
  for (int round = 0; round < rounds; ++round) {
    ranks->acquire(*buffer);
    const auto rank = static_cast<std::size_t>(ranks->rank());
    for (std::size_t i = 0; i < share; ++i) {
      buffer->data()[rank * share + i] = byte_of(round, rank, i);
    }
    ranks->all_gather(*buffer, share * size, {.step = static_cast<std::uint64_t>(round)});
    std::size_t wrong = 0;
    for (std::size_t other = 0; other < size; ++other) {
      for (std::size_t i = 0; i < share; ++i) {
        wrong += buffer->data()[other * share + i] != byte_of(round, other, i) ? 1 : 0;
      }
    }
    EXPECT_EQ(wrong, 0u) << "round " << round;
    buffer->release();
  }
}

// Two ranges with gaps before, between and after them; the gaps must not change.
inline void check_gathered_ranges(const Ranks& ranks) {
  const auto size = static_cast<std::size_t>(ranks->size());
  const auto own = static_cast<std::size_t>(ranks->rank());
  constexpr std::size_t room = 100;
  const std::vector<GatheredRange> parts{{room, 64 * size}, {2 * room + 64 * size, 8 * size}};
  auto buffer = ranks->allocate("ranges", 3 * room + 72 * size, Sharing::one_copy);
  const auto fill = [&](const GatheredRange& part, std::byte value) {
    const std::size_t share = part.bytes / size;
    std::fill_n(buffer->data() + part.first + own * share, share, value);
  };
  const auto value_of_rank = [](std::size_t rank, int round) {
    return static_cast<std::byte>(static_cast<int>(rank) + 1 + 16 * round);
  };
  for (int round = 0; round < 3; ++round) {
    // The last round gathers only the second range: the first one must not change.
    const bool whole = round < 2;
    ranks->acquire(*buffer);
    if (whole) fill(parts[0], value_of_rank(own, round));
    fill(parts[1], value_of_rank(own, round));
    ranks->all_gather(*buffer, whole ? parts : std::vector<GatheredRange>{parts[1]}, {});
    std::vector<std::byte> expected(buffer->bytes());
    for (std::size_t rank = 0; rank < size; ++rank) {
      std::fill_n(expected.begin() + static_cast<std::ptrdiff_t>(room + rank * 64), 64,
                  value_of_rank(rank, whole ? round : 1));
      std::fill_n(expected.begin() + static_cast<std::ptrdiff_t>(parts[1].first + rank * 8), 8,
                  value_of_rank(rank, round));
    }
    EXPECT_TRUE(std::equal(expected.begin(), expected.end(), buffer->data())) << "round " << round;
    buffer->release();
  }
}

// Pieces that name their giver and receiver, from a buffer that may be larger.
inline void check_all_to_all(const Ranks& ranks) {
  const auto size = static_cast<std::size_t>(ranks->size());
  const auto own = static_cast<std::size_t>(ranks->rank());
  const auto byte_of = [](std::size_t from, std::size_t to, int round, std::size_t i) {
    return static_cast<std::byte>(from * 31 + to * 7 + static_cast<std::size_t>(round) * 3 +
                                  i % 251);
  };
  constexpr std::size_t most = 300'001;
  auto buffer = ranks->allocate("pieces", most * size + 100, Sharing::per_rank);
  int round = 0;
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{5000}, std::size_t{0}, most}) {
    for (int again = 0; again < 2; ++again, ++round) {
      ranks->acquire(*buffer);
      for (std::size_t to = 0; to < size; ++to) {
        for (std::size_t i = 0; i < bytes; ++i) {
          buffer->data()[to * bytes + i] = byte_of(own, to, round, i);
        }
      }
      std::vector<std::byte> out(bytes * size);
      ranks->all_to_all(*buffer, bytes, out.data(), {.step = static_cast<std::uint64_t>(round)});
      std::size_t wrong = 0;
      for (std::size_t from = 0; from < size; ++from) {
        for (std::size_t i = 0; i < bytes; ++i) {
          wrong += out[from * bytes + i] != byte_of(from, own, round, i) ? 1 : 0;
        }
      }
      EXPECT_EQ(wrong, 0u) << bytes << " bytes, round " << round;
    }
  }
  std::byte out{};
  EXPECT_THROW(ranks->all_to_all(*buffer, most + 101, &out, {}), std::logic_error);
  EXPECT_THROW(ranks->all_to_all(*buffer, 1, nullptr, {}), std::logic_error);
  auto shared = ranks->allocate("one copy", size, Sharing::one_copy);
  EXPECT_THROW(ranks->all_to_all(*shared, 1, &out, {}), std::logic_error);
}

inline double element_at(const std::byte* memory, std::int64_t index, DType dtype) {
  const auto load = [&](auto element) {
    std::memcpy(&element, memory + index * static_cast<std::int64_t>(sizeof element),
                sizeof element);
    return static_cast<double>(to_float(element));
  };
  switch (dtype) {
    case DType::bfloat16:
      return load(BFloat16{});
    case DType::float16:
      return load(Float16{});
    case DType::float64: {
      double element = 0;
      std::memcpy(&element, memory + index * 8, 8);
      return element;
    }
    default:
      return load(float{});
  }
}

// Elements [first, first + count) of a rank's contribution, rounded to the wire format; `first` is
// the start of a block.
inline void put_contribution(std::byte* memory, int rank, std::int64_t first, std::int64_t count,
                             const Reduction& reduction, std::uint64_t seed) {
  for (std::int64_t i = 0; i < count; ++i) {
    put(memory, i, reduction.in_dtype, value_of(seed, rank, first + i));
  }
  if (reduction.wire != WireFormat::same) {
    kernels::cpu::wire({kernels::WireStep::round, reduction.wire, memory, memory, nullptr, nullptr,
                        count, reduction.in_dtype, reduction.in_dtype});
  }
}

inline std::vector<std::byte> contribution_of(int rank, std::int64_t count,
                                              const Reduction& reduction, std::uint64_t seed) {
  std::vector<std::byte> region(static_cast<std::size_t>(count) * size_of(reduction.in_dtype));
  put_contribution(region.data(), rank, 0, count, reduction, seed);
  return region;
}

// Compares reduce_scatter over ranges that together cover the buffer, and all_reduce of the same
// contents, with the tree.
inline void check_reductions(const Ranks& ranks, std::int64_t count, const Reduction& reduction,
                             std::uint64_t seed) {
  const std::size_t in_bytes = size_of(reduction.in_dtype),
                    out_bytes = size_of(reduction.out_dtype);
  auto buffer =
      ranks->allocate("gradients", static_cast<std::size_t>(count) * in_bytes, Sharing::per_rank);
  std::vector<std::byte> expected(static_cast<std::size_t>(count) * out_bytes);
  std::vector<std::byte> scattered(expected.size()), reduced(expected.size());
  const std::vector<std::byte> mine = contribution_of(ranks->rank(), count, reduction, seed);
  const auto fill = [&] { std::copy(mine.begin(), mine.end(), buffer->data()); };
  std::vector<double> elements(static_cast<std::size_t>(ranks->size()));
  const std::size_t block_bytes = wire_block * in_bytes;
  std::vector<std::byte> blocks(elements.size() * block_bytes);
  for (std::int64_t first = 0; first < count; first += wire_block) {
    const std::int64_t length = std::min(wire_block, count - first);
    for (std::size_t rank = 0; rank < elements.size(); ++rank) {
      put_contribution(blocks.data() + rank * block_bytes, static_cast<int>(rank), first, length,
                       reduction, seed);
    }
    for (std::int64_t i = 0; i < length; ++i) {
      for (std::size_t rank = 0; rank < elements.size(); ++rank) {
        elements[rank] = element_at(blocks.data() + rank * block_bytes, i, reduction.in_dtype);
      }
      const std::int64_t at = first + i;
      const double old = put(scattered.data(), at, reduction.out_dtype, value_of(seed + 1, 0, at));
      put(reduced.data(), at, reduction.out_dtype, old);
      reference(elements, reduction, expected.data(), at, old);
    }
  }
  // Each rank takes two ranges: an uneven cut, so that ranges start at any element.
  const std::int64_t first = count * ranks->rank() / ranks->size();
  const std::int64_t last = count * (ranks->rank() + 1) / ranks->size();
  const std::int64_t middle = first + (last - first) / 3;
  const auto out_at = [&](std::int64_t index) {
    return scattered.data() + index * static_cast<std::int64_t>(out_bytes);
  };
  ranks->acquire(*buffer);
  fill();
  ranks->reduce_scatter(*buffer,
                        {{.first = first, .count = middle - first, .out = out_at(first)},
                         {.first = middle, .count = last - middle, .out = out_at(middle)}},
                        reduction, {.phase = Phase::reduce});
  const auto own_part = [&](const std::vector<std::byte>& whole) {
    const auto width = static_cast<std::int64_t>(out_bytes);
    return std::vector<std::byte>(whole.begin() + first * width, whole.begin() + last * width);
  };
  EXPECT_TRUE(own_part(scattered) == own_part(expected))
      << "reduce_scatter of " << count << ' ' << name_of(reduction.in_dtype) << " to "
      << name_of(reduction.out_dtype) << ", group " << reduction.group << ", scale "
      << reduction.scale << ", accumulate " << reduction.accumulate;
  ranks->acquire(*buffer);
  fill();
  ranks->all_reduce(*buffer, count, reduced.data(), reduction, {.phase = Phase::reduce});
  EXPECT_TRUE(reduced == expected)
      << "all_reduce of " << count << ' ' << name_of(reduction.in_dtype) << " to "
      << name_of(reduction.out_dtype) << ", group " << reduction.group << ", scale "
      << reduction.scale << ", accumulate " << reduction.accumulate;
}

inline void check_all_reductions(const Ranks& ranks, std::uint64_t seed) {
  std::mt19937_64 random(seed);  // the same on every rank
  for (const DType in : {float32, bfloat16, float16, float64}) {
    for (const DType out : {float32, float64, in}) {
      for (const bool accumulate : {false, true}) {
        const Reduction reduction{
            .in_dtype = in,
            .out_dtype = out,
            .group = static_cast<int>(random() % static_cast<std::uint64_t>(ranks->size() + 1)),
            .scale = std::ldexp(1.0f, -static_cast<int>(random() % 3)),
            .accumulate = accumulate};
        check_reductions(ranks, static_cast<std::int64_t>(random() % 1000), reduction, random());
      }
    }
  }
  check_reductions(ranks, 0, {}, seed);
  check_reductions(ranks, 1, {}, seed);
}

inline void check_messages(const Ranks& ranks) {
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, std::size_t{8191},
                                  std::size_t{8192}, std::size_t{8193}, std::size_t{100'000}}) {
    // Lengths differ between the ranks.
    const auto message_of = [bytes](int rank) {
      std::string message(bytes + static_cast<std::size_t>(rank) * 5000 * (bytes % 2), 'a');
      for (std::size_t i = 0; i < message.size(); ++i) {
        message[i] = static_cast<char>(i * 31 + static_cast<std::size_t>(rank));
      }
      return message;
    };
    const std::vector<std::string> messages = ranks->exchange(message_of(ranks->rank()));
    ASSERT_EQ(messages.size(), static_cast<std::size_t>(ranks->size()));
    for (int rank = 0; rank < ranks->size(); ++rank) {
      EXPECT_TRUE(messages[static_cast<std::size_t>(rank)] == message_of(rank)) << bytes;
    }
    for (int root = 0; root < ranks->size(); ++root) {
      EXPECT_TRUE(ranks->broadcast(message_of(ranks->rank()), root) == message_of(root)) << bytes;
    }
  }
}

// Every pair in both directions, several messages in flight, and every root.
inline void check_point_to_point(const Ranks& ranks) {
  const int rank = ranks->rank(), size = ranks->size();
  const auto value_at = [](int from, int to, int round, std::size_t i) {
    return static_cast<std::byte>(from * 31 + to * 7 + round * 3 + static_cast<int>(i % 251));
  };
  for (const std::size_t bytes :
       {std::size_t{0}, std::size_t{1}, std::size_t{5000}, std::size_t{1'000'000}}) {
    std::vector<std::byte> memory(bytes);
    const auto fill = [&](int from, int to, int round) {
      for (std::size_t i = 0; i < bytes; ++i) memory[i] = value_at(from, to, round, i);
    };
    const auto wrong = [&](int from, int to, int round) {
      std::size_t count = 0;
      for (std::size_t i = 0; i < bytes; ++i) {
        count += memory[i] != value_at(from, to, round, i) ? 1 : 0;
      }
      return count;
    };
    for (int from = 0; from < size; ++from) {
      for (int to = 0; to < size; ++to) {
        for (int round = 0; round < 3 && from != to; ++round) {
          const Tag tag{.step = static_cast<std::uint64_t>(round)};
          if (rank == from) {
            fill(from, to, round);
            ranks->send(memory.data(), bytes, to, tag);
          } else if (rank == to) {
            ranks->receive(memory.data(), bytes, from, tag);
            EXPECT_EQ(wrong(from, to, round), 0u) << from << " to " << to << ", " << bytes;
          }
        }
      }
    }
    for (int root = 0; root < size; ++root) {
      if (rank == root) fill(root, root, 9);
      ranks->broadcast(memory.data(), bytes, root, {.step = 9});
      EXPECT_EQ(wrong(root, root, 9), 0u) << "from " << root << ", " << bytes;
    }
  }
}

inline void check_groups(const Ranks& ranks) {
  const int rank = ranks->rank(), size = ranks->size();
  const auto names = [](const Ranks& group, int world_rank) {
    std::string text;
    for (const std::string& name : group->exchange(std::to_string(world_rank))) text += name + " ";
    return text;
  };
  // By parity, in reverse order.
  auto half = ranks->split(rank % 2, -rank, "parity");
  std::string expected;
  for (int other = size - 1; other >= 0; --other) {
    if (other % 2 == rank % 2) expected += std::to_string(other) + " ";
  }
  EXPECT_EQ(names(half, rank), expected);
  check_all_gather(half, 100, 3);
  check_reductions(half, 777, {.in_dtype = bfloat16}, 5);
  auto alone = ranks->split(rank, 0, "alone");
  EXPECT_EQ(alone->size(), 1);
  check_reductions(alone, 50, {.scale = 0.5f}, 6);
  auto quarter = half->split(half->rank() % 2, 0, "quarter");
  EXPECT_EQ(quarter->exchange("x").size(), static_cast<std::size_t>(quarter->size()));
  auto all_ranks = quarter->size() == size ? quarter : ranks->duplicate("all ranks");
  check_messages(all_ranks);
}

// Two channels at once, each from a thread of its own.
inline void check_duplicates_overlap(const Ranks& ranks) {
  auto second = ranks->duplicate("second");
  std::thread other([&] {
    for (int round = 0; round < 20; ++round)
      check_reductions(second, 500, {.in_dtype = bfloat16}, 8);
  });
  for (int round = 0; round < 5; ++round) check_all_gather(ranks, 333, 5);
  other.join();
}

// A rank that reads for long must not see the next contents, and the others must wait for it.
inline void check_slow_reader_is_waited_for(const Ranks& ranks) {
  auto buffer = ranks->allocate("slow", static_cast<std::size_t>(ranks->size()), Sharing::one_copy);
  const auto own = static_cast<std::size_t>(ranks->rank());
  for (int round = 0; round < 5; ++round) {
    ranks->acquire(*buffer);
    buffer->data()[own] = static_cast<std::byte>(round);
    ranks->all_gather(*buffer, buffer->bytes(), {});
    const bool slow = round % ranks->size() == ranks->rank();
    std::thread reader([&] {  // release() may come from any thread
      if (slow) std::this_thread::sleep_for(std::chrono::milliseconds(30));
      for (int rank = 0; rank < ranks->size(); ++rank) {
        EXPECT_EQ(buffer->data()[rank], static_cast<std::byte>(round));
      }
      buffer->release();
    });
    reader.join();
  }
}

}  // namespace tessera::comm::cases
