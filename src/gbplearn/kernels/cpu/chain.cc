// Several visits in a row, piece by piece: each piece (an image) goes through all of them while it lies in the cache.
//
// All messages change in place, so that a visit reads the messages that the visits before it sent in this piece. That is
// the same as one visit after the other: visits touch other pieces through pooled messages alone, and these are read before
// the first piece, written after the last, and belong to one of the visits only.
#include "step.h"

namespace gbplearn {
namespace {

enum { MATRIX_POOLED, TILE_MAX };  // as chain.py numbers them

struct Planned {
  int64_t kernel;
  float slope;
  Arguments args;
};

}  // namespace

// Arguments: of each visit, whether it is made; a plan; then the arrays of all visits, each once. The plan: how many
// visits and pieces; then for each its kernel, slope, the number of its arguments and of its results, and which of the
// call's they are.
// Results: the arrays that are written, in place.
ffi::Error Chain(ffi::ThreadPool pool, float, ffi::RemainingArgs in, ffi::RemainingRets out) {
  Arguments args{in, out};
  const float *made = args.data(0), *plan = args.data(1);
  auto next = [&plan] { return static_cast<int64_t>(*plan++); };
  int64_t count = next(), pieces = next(), tasks = std::min<int64_t>(64, pieces);
  Room room;
  std::vector<Planned> visits;
  for (int64_t s = 0; s < count; ++s) {
    int64_t kernel = next();
    float slope = *plan++;
    std::vector<size_t> which_in(next()), which_out(next());
    for (size_t& i : which_in) i = next();
    for (size_t& i : which_out) i = next();
    if (made[s] == 0) continue;
    visits.push_back({kernel, slope, Arguments(in, out, std::move(which_in), std::move(which_out))});
    if (kernel == MATRIX_POOLED) tasks = std::min(tasks, most_tasks(visits.back().args));
  }
  std::vector<std::unique_ptr<Step>> steps;
  for (const Planned& v : visits)
    steps.push_back(v.kernel == MATRIX_POOLED ? matrix_pooled(v.args, v.slope, tasks, room) : tile_max(v.args, tasks));
  spread(pool, tasks, [&](int64_t t) {
    for (int64_t i = t * pieces / tasks; i < (t + 1) * pieces / tasks; ++i)
      for (auto& step : steps) step->visit(i, i + 1, pieces, t);
  });
  for (auto& step : steps) step->finish();
  return ffi::Error::Success();
}

}  // namespace gbplearn

HANDLER(gbplearn_chain, gbplearn::Chain);
