// Trains a folder of ViT or CLIP that transformers saved, sharded, and writes it as such a folder.
//   tessera launch --nproc-per-node 2 -- build/examples/fine_tune_images vit MODEL DATA OUT 5
// DATA has images.npy, float32 [samples, channels, rows, columns], prepared as the folder's
// preprocessor_config.json says, and for ViT labels.npy, int32 [samples], the classes (or other
// labels that the loss takes), or for CLIP ids.npy, int32 [samples, length], the tokens of each
// image's text. OUT/model is the trained model, OUT/outputs.npy the logits of all images before: of
// the classes, or of the texts.
#include <tessera/models/clip.h>
#include <tessera/models/vit.h>
#include <tessera/tessera.h>

#include <cstdio>
#include <filesystem>
#include <memory>
#include <stdexcept>
#include <string>

namespace ts = tessera;

struct Data {
  ts::Tensor images, answers;
};

// A rank's part of both: the ranks' parts are adjacent and equal.
Data part_of(const Data& all, const ts::Context& context) {
  const std::int64_t samples = all.images.size(0) / context.world_size();
  if (all.images.size(0) != all.answers.size(0) ||
      all.images.size(0) != samples * context.world_size()) {
    throw std::invalid_argument(
        "there must be as many answers as images, a multiple of the number of ranks");
  }
  const std::int64_t first = context.rank() * samples;
  return {ts::narrow(all.images, 0, first, samples).to(context.device()),
          ts::narrow(all.answers, 0, first, samples).to(context.device())};
}

// On `meta`: the values come from the folder, and each rank reads its shard only.
template <class Net, class Config>
std::unique_ptr<Net> made(const Config& config) {
  const ts::DeviceGuard deferred(ts::Device::meta());
  return std::make_unique<Net>(config);
}

ts::Tensor loss_of(const ts::models::ViTForImageClassification& net, const Data& batch,
                   const ts::Context& /*context*/) {
  return net.loss(batch.images, batch.answers);
}
ts::Tensor loss_of(const ts::models::CLIPModel& net, const Data& batch,
                   const ts::Context& context) {
  return net.loss(batch.images, batch.answers, context);
}

// Logits of this rank's images, gathered. Every rank has CLIP's texts whole.
ts::Tensor outputs_of(const ts::models::ViTForImageClassification& net, const Data& mine,
                      const Data& /*all*/) {
  return net.forward(mine.images);
}
ts::Tensor outputs_of(const ts::models::CLIPModel& net, const Data& mine, const Data& all) {
  return net.forward(mine.images, all.answers.to(mine.images.device()));
}

template <class Net>
void train(Net& net, const Data& all, const std::string& folder, const std::string& out, int steps,
           const ts::Context& context) {
  ts::ShardedModel model =
      ts::fully_shard(net, context, {.wrap = ts::WrapPolicy::transformer({net.layer_class()})});
  ts::models::load_pretrained(model, net, folder);
  const Data mine = part_of(all, context);
  {
    const ts::NoGradGuard no_grad;
    net.eval();
    const ts::Tensor outputs =
        context.gather_for_metrics(outputs_of(net, mine, all), mine.images.size(0));
    if (context.is_main()) {
      std::filesystem::create_directories(out);
      ts::save_npy(out + "/outputs.npy", outputs);
    }
    net.train();
  }
  ts::optim::AdamW optimizer(model.parameters(), {.lr = 1e-3});
  for (int step = 0; step < steps; ++step) {
    const ts::Tensor loss = loss_of(net, mine, context);
    loss.backward();
    optimizer.step();
    optimizer.zero_grad();
    const double mean = context.mean(loss.detach()).item();
    if (context.is_main()) std::printf("step %d loss %.9g\n", step + 1, mean);
  }
  ts::models::save_pretrained(model, net, out + "/model");
}

int run(const std::string& kind, const std::string& folder, const std::string& data,
        const std::string& out, int steps) {
  const ts::Context context = ts::init();
  const ts::Device host = ts::Device::cpu();
  const ts::Tensor images = ts::load_npy(data + "/images.npy", host);
  if (kind == "vit") {
    const auto net =
        made<ts::models::ViTForImageClassification>(ts::models::load_vit_config(folder));
    train(*net, {images, ts::load_npy(data + "/labels.npy", host)}, folder, out, steps, context);
  } else {
    const auto net = made<ts::models::CLIPModel>(ts::models::load_clip_config(folder));
    train(*net, {images, ts::load_npy(data + "/ids.npy", host)}, folder, out, steps, context);
  }
  return 0;
}

int main(int argc, char** argv) {
  if (argc != 6 || (std::string(argv[1]) != "vit" && std::string(argv[1]) != "clip")) {
    std::fprintf(stderr, "usage: fine_tune_images vit|clip MODEL DATA OUT STEPS\n");
    return 2;
  }
  return ts::run([&] { return run(argv[1], argv[2], argv[3], argv[4], std::stoi(argv[5])); });
}
