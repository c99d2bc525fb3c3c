// Messages as they were, while they are overwritten.
#pragma once

#include "parallel.h"

namespace gbplearn {

// Gaussians of the units [base, front), as they were when they were put in: `most` at a time, `reach` before they are read.
class Window {
 public:
  Window(Room& room, int64_t reach, int64_t most) : size_(4 * reach + 8 * most) {
    eta_ = room.take(size_ + LANES);
    lam_ = room.take(size_ + LANES);
  }
  // Afterwards it holds [from, to), what is new by `fill(eta, lam, first, count)`. Both only grow.
  template <class Fill>
  void slide(int64_t from, int64_t to, const Fill& fill) {
    if (front_ <= from) base_ = front_ = from;
    if (to - base_ > size_) {
      std::memmove(eta_, eta_ + (from - base_), 4 * (front_ - from));
      std::memmove(lam_, lam_ + (from - base_), 4 * (front_ - from));
      base_ = from;
    }
    if (to > front_) fill(eta_ + (front_ - base_), lam_ + (front_ - base_), front_, to - front_);
    front_ = std::max(front_, to);
  }
  int64_t front() const { return front_; }
  const float* eta(int64_t unit) const { return eta_ + (unit - base_); }
  const float* lam(int64_t unit) const { return lam_ + (unit - base_); }

 private:
  int64_t size_, base_ = 0, front_ = 0;
  float *eta_, *lam_;
};

}  // namespace gbplearn
