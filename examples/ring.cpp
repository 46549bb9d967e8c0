// Numbers travel around a ring of ranks, one rank per round, while each rank computes.
//   tessera launch --nproc-per-node 2 -- build/examples/ring
#include <tessera/tessera.h>

#include <cmath>
#include <cstddef>
#include <cstdio>
#include <vector>

namespace ts = tessera;

// The work of a rank in the meantime.
double computed(const std::vector<float>& numbers) {
  double sum = 0;
  for (const float number : numbers) sum += std::sqrt(number);
  return sum;
}

// Sums of the roots of all ranks' numbers, of which each rank has its own at first.
double around_the_ring(const ts::Context& context, std::vector<float> mine) {
  const int rank = context.rank(), size = context.world_size();
  const std::size_t bytes = mine.size() * sizeof(float);
  std::vector<float> theirs(mine.size());
  ts::comm::MessageStream messages(context.communicator(), "ring");  // on every rank
  double sum = 0;
  for (int turn = 1; turn < size; ++turn) {
    const ts::Event sent = messages.send(mine.data(), bytes, (rank + 1) % size);
    const ts::Event come = messages.receive(theirs.data(), bytes, (rank + size - 1) % size);
    sum += computed(mine);
    messages.join(come);  // `theirs` is there
    messages.join(sent);  // `mine` may be written
    mine.swap(theirs);
  }
  return sum + computed(mine);
}

int go_round() {
  const ts::Context context = ts::init();
  const double sum = around_the_ring(
      context, std::vector<float>(1000, static_cast<float>(context.rank() * context.rank())));
  const double wanted = 1000.0 * (context.world_size() - 1) * context.world_size() / 2;
  if (context.is_main()) std::printf("%.0f, wanted %.0f\n", sum, wanted);
  return sum == wanted ? 0 : 1;
}

int main() {
  return ts::run([] { return go_round(); });
}
