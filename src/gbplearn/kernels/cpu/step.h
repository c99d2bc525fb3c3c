// Visits that can be made piece by piece, so that several follow each other on a piece while it is in the cache.
#pragma once

#include <memory>

#include "parallel.h"

namespace gbplearn {

// A visit of a group whose factors lie piece by piece (image by image) one after the other, and touch no other piece but
// through what `finish` alone writes.
struct Step {
  virtual ~Step() = default;
  // Whether its factors can be cut into so many pieces.
  virtual bool has_pieces(int64_t pieces) const = 0;
  // So many tasks at most: each has its own sums, which must stay small beside the rows.
  virtual int64_t most_tasks() const = 0;
  // Before all pieces. `tasks`: how many there will be; `room` must last as long as the step.
  virtual void prepare(int64_t tasks, Room& room) = 0;
  // Pieces [begin, end) of `pieces`, for this task: tasks run on any thread, but one of them on one. (Diagnostics are
  // those of the last call of each task.)
  virtual void visit(int64_t begin, int64_t end, int64_t pieces, int64_t task) const = 0;
  // After all pieces.
  virtual void finish() = 0;
};

// Steps of what was taken from a call; null if that does not fit, which `args.error()` knows.
std::unique_ptr<Step> matrix_pooled(Arguments& args);
std::unique_ptr<Step> tile_max(Arguments& args);

}  // namespace gbplearn
