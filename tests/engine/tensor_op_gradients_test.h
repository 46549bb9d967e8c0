// The gradient checks of engine/tensor_ops.h and of grouped products, for the programs that include
// engine/gradient_check_test.h.
#pragma once

#include "engine/gradient_check_test.h"
#include "engine/ops/products/convolution.h"
#include "engine/ops/products/grouped.h"
#include "engine/tensor_ops.h"

namespace tessera::gradient_cases {

TEST_F(GradientCheck, PermuteAndTranspose) {
  const Tensor x = leaf({2, 3, 4, 5}, 101);
  check_gradients([&] { return weighted_sum(permute(x, {2, 0, 3, 1})); }, {x});
  check_gradients([&] { return weighted_sum(transpose(x, 1, -1) * transpose(x, -1, 1)); }, {x});
  const Tensor number = leaf({}, 102);
  check_gradients([&] { return weighted_sum(permute(number, {})); }, {number});
}

TEST_F(GradientCheck, SlicesAndSelections) {
  const Tensor x = leaf({4, 5, 6}, 103);
  const auto function = [&] {
    return weighted_sum(square(slice(x, 1, 1, -1))) + weighted_sum(slice(x, 2, 0, to_the_end, 4)) +
           weighted_sum(narrow(x, 0, 1, 2)) + weighted_sum(select(x, 0, -1)) +
           weighted_sum(select(x, 2, 3)) + weighted_sum(slice(x, 0, 3, 3));
  };
  check_gradients(function, {x});
}

TEST_F(GradientCheck, SplitsWithUnusedParts) {
  const Tensor x = leaf({4, 6}, 104);
  check_gradients(
      [&] {
        const std::vector<Tensor> columns = split(x, {1, 3, 2}, 1);
        const std::vector<Tensor> rows = chunk(x, 2);
        return weighted_sum(square(columns[1])) + weighted_sum(columns[2]) +
               weighted_sum(rows[0] * rows[1]);
      },
      {x});
}

TEST_F(GradientCheck, ConcatenateAndStackAlongEveryDimension) {
  const Tensor a = leaf({2, 3, 2}, 105);
  const Tensor b = leaf({2, 1, 2}, 106);
  const Tensor c = leaf({2, 3, 2}, 107);
  check_gradients([&] { return weighted_sum(square(concatenate({a, b, a}, 1))); }, {a, b});
  check_gradients([&] { return weighted_sum(square(concatenate({a, c}, -1))); }, {a, c});
  for (const int dimension : {0, 1, 3}) {
    check_gradients([&] { return weighted_sum(square(stack({a, c}, dimension))); }, {a, c});
  }
}

TEST_F(GradientCheck, ExpandSqueezeAndPad) {
  const Tensor x = leaf({3, 1, 2}, 108);
  check_gradients([&] { return weighted_sum(square(expand(x, {2, 3, 4, 2}))); }, {x});
  check_gradients([&] { return weighted_sum(unsqueeze(squeeze(x, 1), 0)); }, {x});
  check_gradients([&] { return weighted_sum(square(pad(x, {{1, 0}, {2, -1}}, 0.5))); }, {x});
}

TEST_F(GradientCheck, ArithmeticWithGeneralBroadcasting) {
  const std::pair<Shape, Shape> shapes[] = {
      {{2, 1, 3}, {4, 1}}, {{3}, {2, 3}}, {{1, 1}, {3}}, {{2, 3, 4}, {2, 1, 4}}, {{}, {2, 2}}};
  for (const BinaryFunction op :
       {BinaryFunction(add), BinaryFunction(subtract), BinaryFunction(multiply),
        BinaryFunction(divide), BinaryFunction(maximum), BinaryFunction(minimum)}) {
    for (const auto& [first, second] : shapes) {
      SCOPED_TRACE(first.to_string() + second.to_string());
      const Tensor a = leaf(first, 109, 0.1, 1.1);
      const Tensor b = leaf(second, 110, 0.55, 1.6);
      check_gradients([&, &op = op] { return weighted_sum(op(a, b)); }, {a, b});
    }
  }
}

TEST_F(GradientCheck, PointwiseFunctions) {
  const Tensor x = leaf({23}, 111, -2.3, 2.2);
  const Tensor positive = leaf({23}, 112, 0.4, 2.2);
  check_gradients([&] { return weighted_sum(abs(x)); }, {x});
  check_gradients([&] { return weighted_sum(reciprocal(positive)); }, {positive});
  check_gradients([&] { return weighted_sum(rsqrt(positive)); }, {positive});
  check_gradients([&] { return weighted_sum(sin(x) + cos(x)); }, {x});
  check_gradients([&] { return weighted_sum(softplus(x) + softplus(x, 2.5, 3)); }, {x});
  check_gradients([&] { return weighted_sum(clamp(x, -1.05, 0.72)); }, {x});
  check_gradients([&] { return weighted_sum(pow(positive, 2.5) + pow(x, 3)); }, {positive, x});
  const Tensor exponent = leaf({3, 1}, 113, -1.5, 2);
  check_gradients([&] { return weighted_sum(pow(positive, exponent)); }, {positive, exponent});
}

TEST_F(GradientCheck, SelectionsByMasks) {
  const Tensor x = leaf({3, 4}, 114);
  const Tensor y = leaf({4}, 115);
  const Tensor mask = greater(x.detach(), 0.1);
  check_gradients([&] { return weighted_sum(where(mask, square(x), y)); }, {x, y});
  check_gradients([&] { return weighted_sum(masked_fill(x, mask, -3)); }, {x});
}

TEST_F(GradientCheck, ReductionsOverDimensions) {
  const Tensor x = leaf({3, 4, 5}, 116, -2, 2);
  for (const Dimensions& dimensions : {Dimensions{0}, Dimensions{1}, Dimensions{-1},
                                       Dimensions{0, 2}, Dimensions{1, 2}, Dimensions{}}) {
    for (const bool keep : {false, true}) {
      check_gradients([&] { return weighted_sum(square(sum(x, dimensions, keep))); }, {x});
      check_gradients([&] { return weighted_sum(mean(x, dimensions, keep)); }, {x});
      check_gradients([&] { return weighted_sum(max(x, dimensions, keep)); }, {x});
      check_gradients([&] { return weighted_sum(min(x, dimensions, keep)); }, {x});
      check_gradients([&] { return weighted_sum(variance(x, dimensions, 1, keep)); }, {x});
      check_gradients([&] { return weighted_sum(logsumexp(x, dimensions, keep)); }, {x});
      check_gradients([&] { return weighted_sum(norm(x, 2, dimensions, keep)); }, {x});
      check_gradients([&] { return weighted_sum(norm(x, 3, dimensions, keep)); }, {x});
    }
  }
}

TEST_F(GradientCheck, SoftmaxAndRunningSumsOverEveryDimension) {
  const Tensor x = leaf({3, 4, 5}, 117, -2, 2);
  for (const int dimension : {0, 1, -1}) {
    check_gradients([&] { return weighted_sum(softmax(x, dimension)); }, {x});
    check_gradients([&] { return weighted_sum(log_softmax(x, dimension)); }, {x});
    check_gradients([&] { return weighted_sum(cumulative_sum(x, dimension)); }, {x});
  }
}

TEST_F(GradientCheck, ReadsAndSumsAtIds) {
  const Tensor x = leaf({3, 4, 2}, 118);
  const Tensor ids = constant(std::vector<std::int64_t>{2, 0, 2, 1, 2}, {5});
  for (const int dimension : {0, 1}) {
    check_gradients([&] { return weighted_sum(index_select(x, dimension, ids)); }, {x});
  }
  const Tensor places =
      constant(std::vector<std::int32_t>{3, 3, 0, 1, 2, 2, 3, 0, 0, 1, 0, 0}, {3, 2, 2});
  check_gradients([&] { return weighted_sum(square(gather(x, 1, places))); }, {x});
  const Tensor values = leaf({3, 2, 2}, 119);
  check_gradients([&] { return weighted_sum(square(scatter_add(x, 1, places, values))); },
                  {x, values});
}

TEST_F(GradientCheck, SortedValues) {
  const Tensor x = leaf({3, 5, 2}, 120);
  check_gradients([&] { return weighted_sum(sort(x, 1).values); }, {x});
  check_gradients([&] { return weighted_sum(topk(x, 2, 1).values); }, {x});
}

TEST_F(GradientCheck, ProductsOfBroadcastAndTransposedMatrices) {
  const std::pair<Shape, Shape> batches[] = {
      {{}, {}}, {{2}, {}}, {{}, {2}}, {{2}, {2}}, {{2, 1}, {3}}};
  const auto with = [](Shape batch, std::int64_t rows, std::int64_t columns) {
    std::vector<std::int64_t> sizes(batch.sizes().begin(), batch.sizes().end());
    sizes.insert(sizes.end(), {rows, columns});
    return Shape(sizes);
  };
  for (const auto& [first, second] : batches) {
    for (const bool ta : {false, true}) {
      for (const bool tb : {false, true}) {
        SCOPED_TRACE(first.to_string() + second.to_string());
        const Tensor a = leaf(ta ? with(first, 3, 2) : with(first, 2, 3), 121);
        const Tensor b = leaf(tb ? with(second, 4, 3) : with(second, 3, 4), 122);
        check_gradients(
            [&, ta = ta, tb = tb] {
              return weighted_sum(matmul(a, b, {ta, tb}));
            },
            {a, b});
      }
    }
  }
  const Tensor vector = leaf({3}, 123);
  const Tensor matrices = leaf({2, 3, 3}, 124);
  check_gradients([&] { return weighted_sum(matmul(matrices, vector) + matmul(vector, matrices)); },
                  {vector, matrices});
  check_gradients([&] { return weighted_sum(matmul(vector, vector)); }, {vector});
}

TEST_F(GradientCheck, GroupedProducts) {
  // Group 2 has no row, group 3 one.
  const Tensor ids = constant(std::vector<std::int64_t>{1, 0, 0, 3, 1, 0, 1, 0}, {4, 2});
  const RowGroups groups = group_rows(ids, 4);
  const Tensor x = leaf({4, 3}, 129);
  std::vector<Tensor> into, out;
  for (unsigned g = 0; g < 4; ++g) {
    into.push_back(leaf({5, 3}, 130 + g));
    out.push_back(leaf({2, 5}, 140 + g));
  }
  const auto leaves = [](std::vector<Tensor> all, const std::vector<Tensor>& more) {
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  check_gradients(
      [&] {
        const Tensor rows = grouped_linear(dispatch_rows(x, groups), into, groups);
        return weighted_sum(combine_rows(square(rows), groups));
      },
      leaves({x}, into));
  const Tensor gate = leaf({8, 5}, 150);
  const Tensor up = leaf({8, 5}, 151);
  check_gradients([&] { return weighted_sum(grouped_swiglu_linear(gate, up, out, groups)); },
                  leaves({gate, up}, out));
  // A part of the weights, or only the rows, or only the weights.
  const Tensor fixed = values({5, 3}, 152);
  const Tensor rows = leaf({8, 3}, 153);
  check_gradients(
      [&] {
        return weighted_sum(
            grouped_linear(rows, std::vector{fixed, into[1], fixed, into[3]}, groups));
      },
      {rows, into[1], into[3]});
  check_gradients(
      [&] {
        return weighted_sum(grouped_linear(rows, std::vector{fixed, fixed, fixed, fixed}, groups));
      },
      {rows});
  check_gradients([&] { return weighted_sum(grouped_linear(rows.detach(), into, groups)); }, into);
  // The weights of all groups in one tensor.
  const Tensor by_in = leaf({4, 3, 5}, 154), by_out = leaf({4, 5, 3}, 155);
  const Tensor biases = leaf({4, 5}, 156);
  check_gradients(
      [&] {
        return weighted_sum(grouped_linear(rows, by_in, biases, groups, WeightLayout::in_out));
      },
      {rows, by_in, biases});
  check_gradients(
      [&] { return weighted_sum(grouped_linear(rows, by_out, {}, groups, WeightLayout::out_in)); },
      {rows, by_out});
  check_gradients(
      [&] {
        return weighted_sum(
            grouped_linear(rows.detach(), by_out, biases, groups, WeightLayout::out_in));
      },
      {biases});
}

TEST_F(GradientCheck, Einsum) {
  const Tensor a = leaf({2, 3, 4}, 125);
  const Tensor b = leaf({4, 2, 5}, 126);
  check_gradients([&] { return weighted_sum(einsum("bik,kbj->jbi", {a, b})); }, {a, b});
  check_gradients([&] { return weighted_sum(einsum("bik,kbj->ij", {a, b})); }, {a, b});
  check_gradients([&] { return weighted_sum(einsum("abc->ca", {a})); }, {a});
}

TEST_F(GradientCheck, Losses) {
  const Tensor x = leaf({3, 4}, 127, -2, 2);
  const Tensor target = leaf({3, 4}, 128, 0.05, 0.95);
  for (const Reduction reduction : {Reduction::mean, Reduction::sum, Reduction::none}) {
    check_gradients([&] { return weighted_sum(mse_loss(x, target, reduction)); }, {x, target});
    check_gradients([&] { return weighted_sum(l1_loss(x, target, reduction)); }, {x, target});
    check_gradients([&] { return weighted_sum(huber_loss(x, target, 0.7, reduction)); },
                    {x, target});
    check_gradients([&] { return weighted_sum(bce_with_logits(x, target, reduction)); },
                    {x, target});
    check_gradients(
        [&] { return weighted_sum(kl_div(log_softmax(x), target.detach(), reduction)); }, {x});
  }
  const Tensor targets = constant(std::vector<std::int32_t>{3, -100, 0}, {3});
  check_gradients(
      [&] {
        return cross_entropy(x, targets,
                             CrossEntropyOptions{.label_smoothing = 0.1, .z_loss = 0.01});
      },
      {x});
}

TEST_F(GradientCheck, ConvolutionsOverOneAndTwoDimensions) {
  for (const std::int64_t groups : {1, 2}) {
    SCOPED_TRACE(groups);
    const Tensor x = leaf({3, 4, 5, 6}, 141), w = leaf({2, 4 / groups, 3, 2}, 142),
                 bias = leaf({2}, 143);
    check_gradients(
        [&] {
          return weighted_sum(square(
              conv2d(x, w, bias,
                     {.stride = {2, 1}, .padding = {1, 2}, .dilation = {1, 2}, .groups = groups})));
        },
        {x, w, bias});
    const Tensor line = leaf({2, 4, 7}, 144), kernel = leaf({4, 4 / groups, 3}, 145);
    check_gradients(
        [&] {
          return weighted_sum(
              conv1d(line, kernel, {}, {.stride = 2, .padding = 1, .groups = groups}));
        },
        {line, kernel});
  }
  // A kernel of 1, which reads x in place.
  const Tensor x = leaf({2, 3, 2, 2}, 146), w = leaf({4, 3, 1, 1}, 147);
  check_gradients([&] { return weighted_sum(square(conv2d(x, w))) + weighted_sum(x); }, {x, w});
}

TEST_F(GradientCheck, GroupNorm) {
  const Tensor x = leaf({2, 6, 3, 2}, 148), gamma = leaf({6}, 149), beta = leaf({6}, 150);
  check_gradients([&] { return weighted_sum(square(group_norm(x, 3, gamma, beta))); },
                  {x, gamma, beta});
}

}  // namespace tessera::gradient_cases
