// The layers of transformers and small networks. Parameter names are torch's.
#pragma once

#include <cstdint>
#include <optional>

#include "base/quantized.h"
#include "engine/nn/lora_options.h"
#include "engine/nn/module.h"
#include "engine/nn/weight_rounding.h"
#include "engine/ops.h"

namespace tessera::nn {

struct LinearOptions {
  bool bias = true;
  WeightLayout layout = WeightLayout::out_in;
  // Unset (0): torch.nn.Linear's uniform in +-1/sqrt(in). Otherwise normal weights and zero bias.
  double deviation = 0;
};

// One of an adapter's two matrices: [out, in].
class LoraFactorImpl : public Module {
 public:
  LoraFactorImpl(std::int64_t in, std::int64_t out, Initializer initializer);
  Tensor forward(const Tensor& x) const { return linear(x, weight()); }
  [[nodiscard]] const Tensor& weight() const { return parameter("weight"); }
};
TESSERA_MODULE(LoraFactor);

class LinearImpl : public Module {
 public:
  LinearImpl(std::int64_t in, std::int64_t out, const LinearOptions& options = {});
  Tensor forward(const Tensor& x) const;  // [..., in] -> [..., out]
  // The weight that products read: the parameter, or its rounded values.
  [[nodiscard]] Tensor weight() const;
  [[nodiscard]] const Tensor& stored_weight() const { return parameter("weight"); }
  [[nodiscard]] Tensor bias() const { return options_.bias ? parameter("bias") : Tensor{}; }
  [[nodiscard]] WeightLayout layout() const { return options_.layout; }
  // Transposes a float32 weight on a CPU to [in, out], which products read without packing it
  // first; their results stay the same. For a layer that from now on only computes: its parameter
  // has another shape, so it must not be trained, sharded or saved.
  void lay_in_first();

  // From now on weight() gives rounded values, of blocks along the inputs. Returns false, and does
  // nothing, if a block does not divide the number of inputs.
  bool round_weight(WeightRounding rounding);

  // From now on the weight is codes (engine/ops/products/quantized.h), of its values or, on `meta`,
  // of zeros. It is frozen. Returns false, and does nothing, if the weight does not consist of
  // whole blocks.
  bool quantize_weight(QuantizedFormat format);
  [[nodiscard]] std::optional<QuantizedFormat> quantized() const { return quantized_; }
  // [out, in], or [in, out] as the layout says, however the weight is stored.
  [[nodiscard]] const Shape& weight_shape() const { return weight_shape_; }

  // Adds an adapter on the weight's device, in the thread's dtype of parameters. A is drawn like a
  // linear layer in torch, B is zero. The matrices are named `lora_A` and `lora_B`, as in PEFT.
  // With LoraOptions::dora there is also `lora_magnitude_vector` [out], which begins with
  // adapted_norms(): the layer computes what it did. On `meta` it is NaN until it is loaded or
  // begin_magnitude() is called.
  void add_lora(const LoraOptions& options);
  [[nodiscard]] bool has_lora() const { return static_cast<bool>(lora_a_); }
  [[nodiscard]] bool has_dora() const { return has_dora_; }
  [[nodiscard]] const LoraFactor& lora_a() const { return lora_a_; }
  [[nodiscard]] const LoraFactor& lora_b() const { return lora_b_; }
  [[nodiscard]] double lora_scaling() const { return lora_scaling_; }
  // For code that uses the weight without calling forward(): the adapter's dropout that now applies
  // (0 outside training), and y plus the adapter's product of inputs that have been through the
  // dropout. with_lora() does both; dimension 0 of x is the batch. Without an adapter y is
  // unchanged. y is without the bias if scales_product().
  [[nodiscard]] double lora_dropout() const { return is_training() ? lora_dropout_ : 0.0; }
  [[nodiscard]] Tensor add_lora_product(const Tensor& y, const Tensor& dropped) const;
  [[nodiscard]] Tensor with_lora(const Tensor& y, const Tensor& x) const;
  // forward() for inputs that have been through the dropout already.
  [[nodiscard]] Tensor forward_dropped(const Tensor& x, const Tensor& dropped) const;

  // DoRA: the sum of the weight's and the adapter's products is multiplied by the magnitude over
  // adapted_norms() before the bias is added.
  [[nodiscard]] bool scales_product() const;
  // Both for such a sum.
  [[nodiscard]] Tensor scale_and_add_bias(const Tensor& sum) const;
  [[nodiscard]] const Tensor& lora_magnitude() const { return parameter("lora_magnitude_vector"); }
  // The norms of the rows of the weight with its adapter (engine/nn/adapted_norms.h).
  [[nodiscard]] Tensor adapted_norms() const;
  // Sets the magnitude to adapted_norms(): call it after the frozen weight has got other values. A
  // sharded layer: models::begin_magnitudes() (models/load/magnitudes.h).
  void begin_magnitude();
  // From now on the norms are those of now, and forwards do not compute them. For a layer that only
  // computes: its weight and its adapter must not change.
  void keep_adapted_norms();
  // An adapter belongs to its layer's unit.
  [[nodiscard]] bool is_indivisible() const override { return has_lora(); }

 private:
  [[nodiscard]] Tensor lora_product(const Tensor& dropped) const;
  [[nodiscard]] Tensor lora_factor(DType dtype) const;

  LinearOptions options_;
  LoraFactor lora_a_, lora_b_;
  bool has_dora_ = false;
  Tensor kept_norms_;
  double lora_scaling_ = 0;
  double lora_dropout_ = 0;
  WeightRounding rounding_ = WeightRounding::none;
  Shape weight_shape_;
  std::optional<QuantizedFormat> quantized_;
};
TESSERA_MODULE(Linear);

// These do it for all linear layers of a module; the second for those with DoRA.
void lay_in_first(Module& module);
void keep_adapted_norms(Module& module);

class EmbeddingImpl : public Module {
 public:
  EmbeddingImpl(std::int64_t entries, std::int64_t dim, double deviation = 1.0);
  Tensor forward(const Tensor& ids) const;  // [...] -> [..., dim]
  // The table that products read: the parameter, or its rounded values.
  [[nodiscard]] Tensor weight() const;
  [[nodiscard]] const Tensor& stored_weight() const { return parameter("weight"); }
  // As LinearImpl::round_weight, for blocks along `dim`.
  bool round_weight(WeightRounding rounding);

 private:
  WeightRounding rounding_ = WeightRounding::none;
};
TESSERA_MODULE(Embedding);

class LayerNormImpl : public Module {
 public:
  explicit LayerNormImpl(std::int64_t dim, double eps = 1e-5, bool bias = true);
  Tensor forward(const Tensor& x) const;
  // (x + residual, normalised sum)
  std::pair<Tensor, Tensor> forward(const Tensor& x, const Tensor& residual) const;

 private:
  [[nodiscard]] Tensor bias() const { return has_bias_ ? parameter("bias") : Tensor{}; }

  double eps_;
  bool has_bias_;
};
TESSERA_MODULE(LayerNorm);

class RmsNormImpl : public Module {
 public:
  // The factor of an element is its weight plus `offset`, and 1 at first; Gemma's offset is 1.
  explicit RmsNormImpl(std::int64_t dim, double eps = 1e-6, double offset = 0);
  Tensor forward(const Tensor& x) const;
  std::pair<Tensor, Tensor> forward(const Tensor& x, const Tensor& residual) const;

 private:
  [[nodiscard]] Tensor factors() const;

  double eps_;
  double offset_;
};
TESSERA_MODULE(RmsNorm);

class DropoutImpl : public Module {
 public:
  explicit DropoutImpl(double p);
  Tensor forward(const Tensor& x) const;
  // The probability that now applies: p in training mode, else 0.
  [[nodiscard]] double probability() const { return is_training() ? p_ : 0.0; }

 private:
  double p_;
};
TESSERA_MODULE(Dropout);

}  // namespace tessera::nn
