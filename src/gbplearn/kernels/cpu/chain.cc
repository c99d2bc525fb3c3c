// Several visits in a row, piece by piece: each piece (an image) goes through all of them while it lies in the cache.
//
// All messages change in place, so that a visit reads the messages that the visits before it sent in this piece. That is
// the same as one visit after the other: visits touch other pieces through pooled messages alone, and these are read before
// the first piece, written after the last, and belong to one of the visits only.
#include "step.h"

namespace gbplearn {
namespace {

enum { MATRIX_POOLED, TILE_MAX };  // as chain.py numbers them

// Which arrays of the call have been some visit's.
using Used = std::vector<char>;

// Numbers of arrays, as `out`; whether there are such arrays, from `first` on.
bool arrays_of(Sizes numbers, size_t first, Used& used, std::vector<size_t>& out) {
  out.assign(numbers.begin(), numbers.end());
  if (!std::all_of(out.begin(), out.end(), [&](size_t i) { return i >= first && i < used.size(); })) return false;
  for (size_t i : out) used[i] = 1;
  return true;
}

}  // namespace

// Attributes: pieces; then of each visit, with `visit0_` and so on before their names: kernel; arguments and results, which
// of the call's are those of the visit; and the attributes of that kernel.
// Arguments: made (visits,), whether each of them is; then the arrays of all visits, those that are written once.
// Results: the arrays that are written, in place.
ffi::Error Chain(ffi::ThreadPool pool, ffi::RemainingArgs in, ffi::RemainingRets out, ffi::Dictionary attributes) {
  Arguments args("gbplearn_chain", in, out, attributes);
  int64_t pieces = args.size("pieces"), tasks = std::min<int64_t>(64, pieces);
  auto [made, count] = args.take_truths("made");
  Room room;
  std::vector<std::unique_ptr<Step>> steps;
  Used used_in(in.size(), 0), used_out(out.size(), 0);
  size_t read = 0;
  for (int64_t i = 0; i < count; ++i) {
    std::string prefix = "visit" + std::to_string(i) + "_";
    std::vector<size_t> which_in, which_out;
    int64_t kernel = args.whole((prefix + "kernel").c_str());
    std::string in_name = prefix + "arguments", out_name = prefix + "results";
    const char* sentence = "attribute %s must be numbers of arrays of the call";
    args.require(arrays_of(args.wholes(in_name.c_str()), 1, used_in, which_in), sentence, in_name.c_str());
    args.require(arrays_of(args.wholes(out_name.c_str()), 0, used_out, which_out), sentence, out_name.c_str());
    args.require(kernel == MATRIX_POOLED || kernel == TILE_MAX, "attribute %s must be 0 or 1", (prefix + "kernel").c_str());
    if (!args.ok()) break;
    const char* name = kernel == MATRIX_POOLED ? ", matrix_pooled" : ", tile_max";
    Arguments own("gbplearn_chain, visit " + std::to_string(i) + name, args, prefix, std::move(which_in), std::move(which_out));
    std::unique_ptr<Step> step = kernel == MATRIX_POOLED ? matrix_pooled(own) : tile_max(own);
    if (ffi::Error error = own.error(); error.failure()) return error;
    args.require(step->has_pieces(pieces), "attribute %s must divide the factors of every visit", "pieces");
    read += own.attributes_read();
    if (!made[i]) continue;
    tasks = std::min(tasks, step->most_tasks());
    steps.push_back(std::move(step));
  }
  args.leave_to_visits(std::count(used_in.begin(), used_in.end(), 1), std::count(used_out.begin(), used_out.end(), 1), read);
  if (ffi::Error error = args.error(); error.failure()) return error;
  for (auto& step : steps) step->prepare(tasks, room);
  spread(pool, tasks, [&](int64_t t) {
    for (int64_t i = t * pieces / tasks; i < (t + 1) * pieces / tasks; ++i)
      for (auto& step : steps) step->visit(i, i + 1, pieces, t);
  });
  for (auto& step : steps) step->finish();
  return ffi::Error::Success();
}

}  // namespace gbplearn

HANDLER(gbplearn_chain, gbplearn::Chain);
