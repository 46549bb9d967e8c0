// Runs with 8-bit and with bf16 moments go on on other worlds and strategies with the same bits,
// and what a checkpoint of the other moments does.
#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/classifier.h"
#include "checkpoint/convert/convert.h"
#include "engine/optim/adamw_8bit.h"
#include "engine/optim/optimizer.h"

namespace tessera::checkpoint {
namespace {

using testing::Whole;

constexpr std::int64_t width = 70;  // so that shard boundaries lie inside parameters

class WideNet : public nn::Module {
 public:
  WideNet() {
    in_ = register_module("in", nn::Linear(width, width));
    out_ = register_module("out", nn::Linear(width, 3));
  }
  [[nodiscard]] Tensor loss(const Tensor& x) const { return mean(square(out_(gelu(in_(x))))); }

 private:
  nn::Linear in_, out_;
};

void train_wide(const WideNet& net, optim::Optimizer& optimizer, int first, int last) {
  for (int step = first; step < last; ++step) {
    std::vector<float> x;
    for (int i = 0; i < 4 * width; ++i)
      x.push_back(0.1f * static_cast<float>((i * 7 + step) % 11 - 5));
    net.loss(Tensor::from(x, {4, width})).backward();
    optimizer.step();
    optimizer.zero_grad();
  }
}

optim::AdamW8BitOptions eight_bit() {
  return {.lr = 0.01, .min_8bit_size = 100, .decay = optim::decay_matrices};
}

using Make = std::function<std::unique_ptr<optim::Optimizer>(std::vector<nn::NamedParameter>)>;
using WideBody = std::function<void(Context&, WideNet&, ShardedModel&, optim::Optimizer&)>;

std::unique_ptr<optim::Optimizer> make_8bit(std::vector<nn::NamedParameter> parameters) {
  return std::make_unique<optim::AdamW8Bit>(std::move(parameters), eight_bit());
}
std::unique_ptr<optim::Optimizer> make_rounded(std::vector<nn::NamedParameter> parameters) {
  return std::make_unique<optim::AdamW>(
      std::move(parameters), optim::AdamWOptions{.lr = 0.01, .state_dtype = bfloat16, .seed = 3});
}
std::unique_ptr<optim::Optimizer> make_fp32(std::vector<nn::NamedParameter> parameters) {
  return std::make_unique<optim::AdamW>(std::move(parameters), optim::AdamWOptions{.lr = 0.01});
}

// All ranks have the same data, so the mean of 1, 2 or 4 gradients has the same bits.
void on_wide(int world, ShardingOptions options, const Make& make, Whole& whole,
             const WideBody& body) {
  const optim::ShardNeeds needs = optim::needs_of(eight_bit());
  options.apart = needs.apart;
  options.block = needs.block;
  options.wrap = WrapPolicy::list({"in"});
  launch(world, [&](Context& context) {
    const tessera::testing::OneThread one_thread;
    manual_seed(3);
    WideNet net;
    ShardedModel model = fully_shard(net, context, options);
    const auto optimizer = make(model.parameters());
    body(context, net, model, *optimizer);
    whole.add(model, optimizer.get());
  });
}

void check_resume(const Make& make) {
  for (const StateDictType type : {StateDictType::full, StateDictType::sharded}) {
    const testing::TemporaryFolder folder;
    const std::string dir = folder.path().string();
    Whole straight, saved;
    on_wide(2, {}, make, straight,
            [](Context&, WideNet& net, ShardedModel&, optim::Optimizer& optimizer) {
              train_wide(net, optimizer, 0, 5);
            });
    on_wide(2, {}, make, saved,
            [&](Context& context, WideNet& net, ShardedModel& model, optim::Optimizer& optimizer) {
              train_wide(net, optimizer, 0, 3);
              (void)save(context, dir, model, optimizer, {.type = type});
            });
    for (const int world : {1, 2, 3, 4}) {
      for (const ShardingOptions& options : tessera::testing::all_strategies(world)) {
        Whole resumed;
        on_wide(
            world, options, make, resumed,
            [&](Context& context, WideNet& net, ShardedModel& model, optim::Optimizer& optimizer) {
              (void)load(context, dir + "/step-3", model, optimizer);
              // The mean of three equal gradients is rounded.
              if (world != 3) train_wide(net, optimizer, 3, 5);
            });
        const Whole& expected = world == 3 ? saved : straight;
        EXPECT_EQ(resumed.values, expected.values)
            << tessera::testing::describe(options) << " on " << world;
        EXPECT_EQ(resumed.counts, expected.counts);
      }
    }
  }
}

TEST(AdamW8BitResume, GoesOnAnywhereWithTheSameBits) {
  check_resume(make_8bit);
}

TEST(AdamWRoundedResume, GoesOnAnywhereWithTheSameBits) {
  check_resume(make_rounded);
}

// Moments of 16 bits are the numbers of fp32 moments, rounded.
TEST(AdamWRoundedResume, TakesFp32Moments) {
  const testing::TemporaryFolder folder;
  const std::string dir = folder.path().string();
  Whole wide, narrow;
  on_wide(2, {}, make_fp32, wide,
          [&](Context& context, WideNet& net, ShardedModel& model, optim::Optimizer& optimizer) {
            train_wide(net, optimizer, 0, 3);
            (void)save(context, dir, model, optimizer);
          });
  on_wide(1, {}, make_rounded, narrow,
          [&](Context& context, WideNet&, ShardedModel& model, optim::Optimizer& optimizer) {
            (void)load(context, dir + "/step-3", model, optimizer);
          });
  EXPECT_EQ(narrow.counts, wide.counts);
  const std::vector<double>& from = wide.values.at("in.weight.exp_avg_sq");
  const std::vector<double>& to = narrow.values.at("in.weight.exp_avg_sq");
  ASSERT_EQ(from.size(), to.size());
  for (std::size_t i = 0; i < from.size(); ++i) EXPECT_NEAR(to[i], from[i], from[i] / 256);
}

// The message of a load that is refused.
std::string refusal_of(const Make& make, const std::string& step) {
  std::string text;
  Whole none;
  on_wide(1, {}, make, none,
          [&](Context& context, WideNet&, ShardedModel& model, optim::Optimizer& optimizer) {
            text = tessera::testing::message_of<Error>(
                [&] { (void)load(context, step, model, optimizer); });
          });
  return text;
}

// Lion's moment has the name of AdamW's first one, and no conversion makes the second.
TEST(AdamW8BitResume, NamesNoConversionForAnotherOptimizer) {
  const testing::TemporaryFolder folder;
  const Make make_lion = [](std::vector<nn::NamedParameter> parameters) {
    return std::make_unique<optim::Lion>(std::move(parameters), optim::LionOptions{});
  };
  Whole lion;
  on_wide(1, {}, make_lion, lion,
          [&](Context& context, WideNet& net, ShardedModel& model, optim::Optimizer& optimizer) {
            train_wide(net, optimizer, 0, 1);
            (void)save(context, folder.path().string(), model, optimizer);
          });
  const std::string refused = refusal_of(make_8bit, (folder.path() / "step-1").string());
  EXPECT_NE(refused, "");
  EXPECT_EQ(refused.find("--moments"), std::string::npos) << refused;
}

// A step with fp32 moments is refused with the command that converts it, which goes there and back.
TEST(AdamW8BitResume, TakesConvertedMoments) {
  const testing::TemporaryFolder folder;
  const auto at = [&](const std::string& name) { return (folder.path() / name).string(); };
  Whole wide, converted, back;
  on_wide(2, {}, make_fp32, wide,
          [&](Context& context, WideNet& net, ShardedModel& model, optim::Optimizer& optimizer) {
            train_wide(net, optimizer, 0, 3);
            (void)save(context, folder.path().string(), model, optimizer);
          });
  const std::string refused = refusal_of(make_8bit, at("step-3"));
  EXPECT_NE(refused.find("tessera convert STEP OUT --to full --moments 8bit"), std::string::npos)
      << refused;
  // The smallest parameter with codes has 4096 elements then.
  const ConvertReport report = convert(
      at("step-3"), at("codes"), {.to = "sharded", .verify = true, .moments = Moments::eight_bit});
  EXPECT_EQ(report.tensors.size(), 4 + 4 + 3 * 2u);
  const Make make_usual = [](std::vector<nn::NamedParameter> parameters) {
    return std::make_unique<optim::AdamW8Bit>(std::move(parameters),
                                              optim::AdamW8BitOptions{.lr = 0.01});
  };
  on_wide(3, {}, make_usual, converted,
          [&](Context& context, WideNet&, ShardedModel& model, optim::Optimizer& optimizer) {
            (void)load(context, at("codes"), model, optimizer);
          });
  EXPECT_EQ(converted.counts, wide.counts);
  std::map<std::string, std::vector<double>> decoded;
  for (const auto& [moment, map] :
       {std::pair{"exp_avg", &signed_eight_bit_map()}, {"exp_avg_sq", &unsigned_eight_bit_map()}}) {
    const std::string state = std::string("in.weight.") + moment;
    const std::vector<double>& codes = converted.values.at(state + "_8bit");
    const std::vector<double>& scales = converted.values.at(state + "_scale");
    const std::vector<double>& numbers = wide.values.at(state);
    const std::array<float, 256> values = map->values();
    ASSERT_EQ(codes.size(), numbers.size());
    for (std::size_t i = 0; i < codes.size(); ++i) {
      const double scale = scales.at(i / static_cast<std::size_t>(eight_bit_block));
      // Half of the widest cell of each map, with a little for fp32.
      const double half = (map->is_signed ? 0.0071 : 0.0036) * scale;
      const float number = values[static_cast<std::size_t>(codes[i])] * static_cast<float>(scale);
      decoded[state].push_back(number);
      EXPECT_NEAR(number, numbers[i], half) << state << " " << i;
    }
  }
  // A run that keeps other parameters in 8 bits than the conversion.
  const Make make_all = [](std::vector<nn::NamedParameter> parameters) {
    return std::make_unique<optim::AdamW8Bit>(std::move(parameters),
                                              optim::AdamW8BitOptions{.min_8bit_size = 0});
  };
  const std::string mixed = refusal_of(make_all, at("codes"));
  EXPECT_NE(mixed.find("set train.adamw8bit.min_size to that of the checkpoint"), std::string::npos)
      << mixed;
  const std::string all_codes = refusal_of(make_all, at("step-3"));
  EXPECT_NE(all_codes.find("--moments 8bit"), std::string::npos) << all_codes;
  const std::string other = refusal_of(make_fp32, at("codes"));
  EXPECT_NE(other.find("--moments fp32"), std::string::npos) << other;
  (void)convert(at("codes"), at("numbers"), {.to = "full", .moments = Moments::fp32});
  on_wide(1, {}, make_fp32, back,
          [&](Context& context, WideNet&, ShardedModel& model, optim::Optimizer& optimizer) {
            (void)load(context, at("numbers"), model, optimizer);
          });
  for (const auto& [name, values] : wide.values) {
    const auto found = decoded.find(name);
    EXPECT_EQ(back.values.at(name), found == decoded.end() ? values : found->second) << name;
  }
  const std::string again = tessera::testing::message_of<Error>([&] {
    (void)convert(at("codes"), at("same"), {.to = "full", .moments = Moments::eight_bit});
  });
  EXPECT_NE(again.find("has moments of 8 bits already"), std::string::npos) << again;
  EXPECT_THROW((void)convert(at("numbers"), at("same"), {.to = "full", .moments = Moments::fp32}),
               Error);
  EXPECT_THROW((void)convert(at("numbers"), at("weights"),
                             {.to = "full", .weights_only = true, .moments = Moments::eight_bit}),
               Error);
}

// Shards that cut a block are refused with the options that are missing.
TEST(AdamW8BitResume, NeedsItsOptionsOfSharding) {
  launch(3, [&](Context& context) {
    const tessera::testing::OneThread one_thread;
    WideNet net;
    ShardedModel model = fully_shard(net, context, {});
    const std::string text =
        tessera::testing::message_of<Error>([&] { (void)make_8bit(model.parameters()); });
    EXPECT_NE(text.find("optim::needs_of"), std::string::npos) << text;
  });
}

}  // namespace
}  // namespace tessera::checkpoint
