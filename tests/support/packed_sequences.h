// Consecutive sequences of given lengths, and the attention of each to itself by the textbook
// formula, in double.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/sequence_attention.h"

namespace tessera::testing {

struct PackedSequences {
  std::vector<std::int32_t> starts, lengths, slots;
  std::int64_t rows = 0, longest = 0;

  PackedSequences(std::vector<std::int32_t> of_lengths, std::int64_t capacity)
      : lengths(std::move(of_lengths)) {
    for (std::size_t i = 0; i < lengths.size(); ++i) {
      starts.push_back(static_cast<std::int32_t>(rows));
      for (std::int32_t t = 0; t < lengths[i]; ++t) {
        slots.push_back(static_cast<std::int32_t>(static_cast<std::int64_t>(i) * capacity) + t);
      }
      rows += lengths[i];
      longest = std::max<std::int64_t>(longest, lengths[i]);
    }
  }
};

struct SequenceReference {
  std::vector<double> out, log_sum_exp, dq, dk, dv, dbias;
};

// `seen_out` is the output whose products with its gradients the backward uses: a kernel's own,
// rounded output; empty for the exact one.
inline SequenceReference attend(const kernels::SequenceShape& s, const std::vector<double>& q,
                                const std::vector<double>& k, const std::vector<double>& v,
                                const std::vector<double>& dout, const std::vector<double>& bias,
                                const std::vector<double>& seen_out = {}) {
  const std::int64_t dim = s.head_dim, stride = s.heads * dim;
  const auto size = static_cast<std::size_t>(s.rows * stride);
  SequenceReference r{std::vector<double>(size), std::vector<double>(s.heads * s.rows),
                      std::vector<double>(size), std::vector<double>(size),
                      std::vector<double>(size), std::vector<double>(bias.size())};
  const double kept_scale = 1.0 / (1.0 - static_cast<double>(s.dropout));
  const auto threshold = static_cast<std::uint32_t>(s.dropout * 0x1p32);
  for (std::int64_t n = 0; n < s.sequences; ++n) {
    const std::int64_t length = s.lengths[n];
    for (std::int64_t h = 0; h < s.heads; ++h) {
      const auto at = [&](std::int64_t t, std::int64_t c) {
        return static_cast<std::size_t>((s.starts[n] + t) * stride + h * dim + c);
      };
      const auto bias_at = [&](std::int64_t i, std::int64_t j) {
        return static_cast<std::size_t>((j - i + s.reach - 1) * s.heads + h);
      };
      for (std::int64_t i = 0; i < length; ++i) {
        std::vector<double> p(static_cast<std::size_t>(length)), keep(p.size(), 1.0);
        double total = 0;
        for (std::int64_t j = 0; j < length; ++j) {
          if (s.window > 0 && std::abs(i - j) > s.window) continue;
          double score = 0;
          for (std::int64_t c = 0; c < dim; ++c) score += q[at(i, c)] * k[at(j, c)];
          score *= static_cast<double>(s.scale);
          if (!bias.empty()) score += bias[bias_at(i, j)];
          total += p[static_cast<std::size_t>(j)] = std::exp(score);
          if (s.dropout == 0) continue;
          const std::int64_t draw =
              (((s.first_sequence + n) * s.heads + h) * s.capacity + i) * s.capacity + j;
          const auto words = kernels::philox(s.key, static_cast<std::uint64_t>(draw / 4));
          keep[static_cast<std::size_t>(j)] =
              words[static_cast<std::size_t>(draw % 4)] < threshold ? 0.0 : kept_scale;
        }
        r.log_sum_exp[static_cast<std::size_t>(h * s.rows + s.starts[n] + i)] = std::log(total);
        double delta = 0;
        for (std::int64_t c = 0; c < dim; ++c) {
          double sum = 0;
          for (std::int64_t j = 0; j < length; ++j) {
            const auto place = static_cast<std::size_t>(j);
            sum += p[place] / total * keep[place] * v[at(j, c)];
          }
          r.out[at(i, c)] = sum;
          delta += (seen_out.empty() ? sum : seen_out[at(i, c)]) * dout[at(i, c)];
        }
        for (std::int64_t j = 0; j < length; ++j) {
          const auto place = static_cast<std::size_t>(j);
          const double probability = p[place] / total;
          double gradient = 0;
          for (std::int64_t c = 0; c < dim; ++c) gradient += dout[at(i, c)] * v[at(j, c)];
          const double dscore = probability * (gradient * keep[place] - delta);
          if (!bias.empty()) r.dbias[bias_at(i, j)] += dscore;
          for (std::int64_t c = 0; c < dim; ++c) {
            r.dv[at(j, c)] += probability * keep[place] * dout[at(i, c)];
            r.dq[at(i, c)] += dscore * static_cast<double>(s.scale) * k[at(j, c)];
            r.dk[at(j, c)] += dscore * static_cast<double>(s.scale) * q[at(i, c)];
          }
        }
      }
    }
  }
  return r;
}

}  // namespace tessera::testing
