// One rank or several in this process.
#include "training/rank_threads.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "training/device.h"

namespace tessera::training {
namespace {

// 0: the process is one rank.
int rank_threads() {
  const char* text = std::getenv(rank_threads_variable);
  if (text == nullptr) return 0;
  const std::string_view view(text);
  int threads = 0;
  const auto [stop, error] = std::from_chars(view.data(), view.data() + view.size(), threads);
  constexpr int most = 4096;
  TESSERA_CHECK(
      error == std::errc{} && stop == view.data() + view.size() && threads >= 1 && threads <= most,
      ErrorCode::configuration, "{}={}: must be a number of ranks from 1 to {}",
      rank_threads_variable, view, most);
  return threads;
}

}  // namespace

int ranks_of_process() {
  return std::max(rank_threads(), 1);
}

comm::World training_world() {
  comm::World world = comm::world_from_environment();
  if (const int threads = rank_threads(); threads > 0) {
    TESSERA_CHECK(world.size == 1, ErrorCode::configuration,
                  "{}={} in a world of {} processes: ranks are threads or processes",
                  rank_threads_variable, threads, world.size);
    world.size = world.local_size = threads;
  }
  return world;
}

int run_ranks(const Recipe& recipe, const comm::World& world,
              const std::function<int(const Context&)>& rank) {
  const Device device = choose_device(recipe, world);
  if (rank_threads() == 0) {
    return rank(init(device, {.fixed_order = recipe.sharding.fixed_reduction_order,
                              .hosts_backend = recipe.sharding.backend}));
  }
  int code = 0;
  launch(
      world.size,
      [&](Context& context) {
        const int own = rank(context);
        if (context.is_main()) code = own;
      },
      device);
  return code;
}

}  // namespace tessera::training
