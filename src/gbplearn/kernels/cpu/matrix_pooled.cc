// Factors y - g(rows w + d) with pooled messages: the update of engine/update.py for M = 1, in one pass over the factors.
//
// Factor (n, c), with a = sum_k rows_nk w_kc + d_c, s = g'(a), beliefs' means and variances of what is pooled:
//
//   wide = s² (sum_k rows_nk² v_kc + v_c)
//   R = measured + g(a) - m_y + reaction wide ,   S = sigma² / weight + v_y + wide ,   share = R / S (the new reaction)
//   to y: lam = 1 / (S - v_y) , eta = lam (R + m_y)
//   to w: lam = sum_n rows² s² / S , eta = -sum_n rows s share + lam w
//
// and likewise to d. Where the rows are uncertain by u (matrix_pooled_inputs.cc), wide has s² sum_k u_nk w_kc² more, with a
// reaction of its own, and messages to them are as those to w.
#include <algorithm>
#include <cmath>

#include "step.h"

namespace gbplearn {
namespace {

constexpr int MOST_REGISTERS = 12;       // for sums
constexpr int64_t AT_A_TIME = 1536;  // factors, so that what is computed of them stays in the first cache

struct Pooled {
  int64_t n, p, c, width;  // width: channels with padding
  float slope;             // of g for negative numbers
  const float* rows;
  const float *w, *v, *d, *vd;  // means and variances, (p, width) and (width)
  Shared measured, noise;
  Blocks weight;
  const float *reaction, *old_eta, *old_lam;
  float damp_y, damp_w;
  const Inbox* inbox;
  float *eta, *lam, *new_reaction;
  float* parts;  // (tasks, 2, p + 1, width)
  float* partials;  // (tasks, COUNT): diagnostics of y
  int64_t ahead;  // so many rows later is what to prefetch, or 0
};

// R rows from `rows` on, times V vectors of channels: sums over the taps.
template <int R, int V>
INLINE void dot(const float* rows, int64_t p, const float* w, int64_t width, float* out) {
  Vec acc[R][V];
  for (auto& row : acc)
    for (Vec& v : row) v = Vec{};
  for (int64_t k = 0; k < p; ++k) {
    Vec x[V];
    for (int j = 0; j < V; ++j) x[j] = load(w + k * width + j * LANES);
    for (int r = 0; r < R; ++r) {
      Vec b = all(rows[r * p + k]);
      for (int j = 0; j < V; ++j) acc[r][j] += b * x[j];
    }
  }
  for (int r = 0; r < R; ++r)
    for (int j = 0; j < V; ++j) store(out + r * width + j * LANES, acc[r][j]);
}

// For so many rows, as many at a time as there are registers for their sums; the last may be some too many.
template <int V>
INLINE void all_dots(const float* rows, int64_t p, int64_t count, const float* w, int64_t width, float* out) {
  constexpr int MOST = MOST_REGISTERS / V;
  for (int64_t r = 0; r < count; r += MOST) dot<MOST, V>(rows + r * p, p, w, width, out + r * width);
}

// What a task computes of some rows in a row: sums rows w and rows² v, then -s share and s² / S; `(rows, width)` each.
struct Block {
  float *sum, *wide, *share, *gain;
  const int32_t* where;
};

// Messages to y of `count` rows from `first` on. `UNIFORM`: all have the same noise and measurement, those of a row one
// weight, and the inbox of y has one array beside uniform priors. `DIAGNOSE`: whether diagnostics are wanted.
template <bool DIAGNOSE, bool UNIFORM>
INLINE void factors(const Pooled& a, int64_t first, int64_t count, const Block& block, Diagnostics& diagnostics) {
  const Inbox& inbox = *a.inbox;
  const float *in_eta = UNIFORM ? inbox.more_eta[0] : nullptr, *in_lam = UNIFORM ? inbox.more_lam[0] : nullptr;
  const float keep_y = a.damp_y, keep_w = a.damp_w, slope = a.slope;
  const Vec one_eta = all(inbox.one_eta), one_lam = all(inbox.one_lam), noise_one = all(a.noise.at(0)), measured_one = all(a.measured.at(0));
  Vec weight_row{};
  for (int64_t r = 0, changes = 0; r < count; ++r) {
    if (UNIFORM && r == changes) {
      weight_row = all(a.weight.at((first + r) * a.c));
      int64_t rows = a.weight.size / a.c;
      changes = (((first + r) / rows) + 1) * rows - first;
    }
    auto eight = [&](int64_t j, int64_t count) __attribute__((always_inline)) {
      int64_t i = (first + r) * a.c + j, at = r * a.width + j, from = block.where[r] * a.width + j;
      Vec sum = load(block.sum + from) + load(a.d + j);
      Vec s = sum > 0 ? all(1) : all(slope);
      Vec s2 = s * s;
      Vec spread = s2 * (load(block.wide + from) + load(a.vd + j));
      if (a.ahead && j % LINE == 0) prefetch(a.reaction + i + a.ahead * a.c);
      Vec back_w = load(a.reaction + i, count, 0);
      Vec measured = UNIFORM ? measured_one : a.measured.at(i, count, 0), noise = UNIFORM ? noise_one : a.noise.at(i, count, 1);
      Vec k = UNIFORM ? weight_row : a.weight.at(i, count, 1);
      Vec predicted = measured + s * sum + back_w * spread;
      Vec outside_eta, outside_lam;
      if (UNIFORM) {
        outside_eta = one_eta + load(in_eta + i, count, 0);
        outside_lam = one_lam + load(in_lam + i, count, 1);
      } else {
        inbox.sum(i, count, outside_eta, outside_lam);
      }
      Vec rest = noise + k * spread;  // the weight belongs to the noise, and may be 0
      Vec lam = k / rest;
      Vec part = k / (rest * outside_lam + k);  // (1 / S) / lam_y, without the variance of y
      Vec full = part * outside_lam;
      Vec new_reaction = part * (outside_lam * predicted - outside_eta);
      Vec eta = lam * predicted;
      Vec old_eta = load(a.old_eta + i, count, 0), old_lam = load(a.old_lam + i, count, 0);
      if constexpr (DIAGNOSE) {
        Mask inside = first_of(count);
        Vec mean_y = diagnostics.change(outside_eta + old_eta, outside_lam + old_lam, outside_eta + eta, outside_lam + lam, inside);
        diagnostics.add_prior(mean_y, inbox.eta[0].at(i, count, 0), inbox.lam[0].at(i, count, 1), inside);
        diagnostics.add_energy(measured + s * sum - mean_y, k, noise, inside);
      }
      store(a.eta + i, keep_y * old_eta + (1 - keep_y) * eta, count);
      store(a.lam + i, keep_y * old_lam + (1 - keep_y) * lam, count);
      store(a.new_reaction + i, keep_w * back_w + (1 - keep_w) * new_reaction, count);
      store(block.share + at, -s * new_reaction);
      store(block.gain + at, s2 * full);
    };
    int64_t j = 0;
    for (; j + LANES <= a.c; j += LANES) eight(j, LANES);
    if (j < a.c) eight(j, a.c - j);
  }
}

// sum_r rows[r][k] terms[at[r]], added to `out`, for K taps and V vectors of channels.
template <int K, int V>
INLINE void back(const float* rows, int64_t p, int64_t count, const float* terms, const int32_t* at, float* out, int64_t width) {
  Vec acc[K][V];
  for (int k = 0; k < K; ++k)
    for (int j = 0; j < V; ++j) acc[k][j] = load(out + k * width + j * LANES);
  for (int64_t r = 0; r < count; ++r) {
    Vec term[V];
    for (int j = 0; j < V; ++j) term[j] = load(terms + at[r] * width + j * LANES);
    for (int k = 0; k < K; ++k) {
      Vec x = all(rows[r * p + k]);
      for (int j = 0; j < V; ++j) acc[k][j] += x * term[j];
    }
  }
  for (int k = 0; k < K; ++k)
    for (int j = 0; j < V; ++j) store(out + k * width + j * LANES, acc[k][j]);
}

// For all taps, as many at a time as there are registers for their sums.
template <int V>
INLINE void all_back(const float* rows, int64_t p, int64_t count, const float* terms, const int32_t* at, float* out,
                     int64_t width) {
  constexpr int MOST = 10 / V;
  int64_t k = 0;
  for (; k + MOST <= p; k += MOST) back<MOST, V>(rows + k, p, count, terms, at, out + k * width, width);
  for (; k + 5 <= p; k += 5) back<5, V>(rows + k, p, count, terms, at, out + k * width, width);
  for (; k < p; ++k) back<1, V>(rows + k, p, count, terms, at, out + k * width, width);
}

// The total of some rows, added to `out`: in four sums that do not wait for each other.
INLINE void add_total(const float* rows, int64_t count, int64_t width, float* out) {
  for (int64_t j = 0; j < width; j += LANES) {
    Vec sums[4]{load(out + j)};
    int64_t r = 0;
    for (; r + 4 <= count; r += 4)
      for (int q = 0; q < 4; ++q) sums[q] += load(rows + (r + q) * width + j);
    for (; r < count; ++r) sums[0] += load(rows + r * width + j);
    store(out + j, (sums[0] + sums[1]) + (sums[2] + sums[3]));
  }
}

// Calls `eight(k, count)` for the vectors of `p` numbers; the last may have some of them once more, which is quicker than a
// part of a vector.
template <class Eight>
INLINE void over(int64_t p, const Eight& eight) {
  int64_t k = 0;
  for (; k + LANES <= p; k += LANES) eight(k, LANES);
  if (k < p) p > LANES ? eight(p - LANES, LANES) : eight(k, p - k);
}

// Copies the rows that have anything in them, one after the other, and their squares. `at` is which they are, and `where`
// of all where they are; `nowhere` for the others, which are many in the margins of images, and need no products.
INLINE int64_t take_rows(const float* from, int64_t p, int64_t total, float* rows, float* squares, int32_t* at,
                         int32_t* where, int32_t nowhere, int64_t ahead) {
  int32_t count = 0;
  for (int32_t r = 0; r < total; ++r, from += p) {
    float* to = rows + count * p;
    Mask bits{};
    if (ahead)
      for (int64_t k = 0; k < p; k += LINE) prefetch(from + ahead * p + k);
    over(p, [&](int64_t k, int64_t n) __attribute__((always_inline)) {
      Vec x = load(from + k, n, 0);
      store(to + k, x, n);
      bits |= reinterpret_cast<Mask>(x);
    });
    bool full = some(bits);
    at[count] = r;
    where[r] = full ? count : nowhere;
    count += full;  // else the next one takes its place
  }
  over(count * p, [&](int64_t k, int64_t n) __attribute__((always_inline)) {
    Vec x = load(rows + k, n, 0);
    store(squares + k, x * x, n);
  });
  return count;
}

template <int V, bool DIAGNOSE, bool UNIFORM>
INLINE void task(const Pooled& a, int64_t begin, int64_t end, int64_t t) {
  Diagnostics diagnostics;
  float *eta = a.parts + t * 2 * (a.p + 1) * a.width, *lam = eta + (a.p + 1) * a.width;
  const int64_t most = std::max<int64_t>(8, AT_A_TIME / a.width);
  Room room;
  // Room for rows that are too many (see `all_dots`), and one for all that have nothing in them.
  const int64_t more = most + MOST_REGISTERS, nowhere = more;
  std::vector<int32_t> at(most), where(most);
  Block block{room.take((more + 1) * a.width), room.take((more + 1) * a.width), room.take(most * a.width),
              room.take(most * a.width), where.data()};
  if (a.width > a.c)  // vectors of padding are read, but not written
    for (float* padded : {block.share, block.gain}) std::fill_n(padded, most * a.width, 0.0f);
  std::fill_n(block.sum + nowhere * a.width, a.width, 0.0f);
  std::fill_n(block.wide + nowhere * a.width, a.width, 0.0f);
  float *rows = room.take(more * a.p), *squares = room.take(more * a.p);
  for (int64_t first = begin; first < end; first += most) {
    int64_t total = std::min(most, end - first);
    int64_t count = take_rows(a.rows + first * a.p, a.p, total, rows, squares, at.data(), where.data(), nowhere, a.ahead);
    for (int64_t c0 = 0; c0 < a.width; c0 += V * LANES) {
      all_dots<V>(rows, a.p, count, a.w + c0, a.width, block.sum + c0);
      all_dots<V>(squares, a.p, count, a.v + c0, a.width, block.wide + c0);
    }
    factors<DIAGNOSE, UNIFORM>(a, first, total, block, diagnostics);
    for (int64_t c0 = 0; c0 < a.width; c0 += V * LANES) {
      all_back<V>(rows, a.p, count, block.share + c0, at.data(), eta + c0, a.width);
      all_back<V>(squares, a.p, count, block.gain + c0, at.data(), lam + c0, a.width);
    }
    add_total(block.share, total, a.width, eta + a.p * a.width);  // the bias
    add_total(block.gain, total, a.width, lam + a.p * a.width);
  }
  if constexpr (DIAGNOSE) diagnostics.write(a.partials + t * Diagnostics::COUNT);
}

// Rows [begin, end), as task t.
using Task = void (*)(const Pooled&, int64_t begin, int64_t end, int64_t t);
template <int V, bool DIAGNOSE>
void run(const Pooled& a, int64_t begin, int64_t end, int64_t t) {
  Pooled own = a;  // which nothing that is written can change
  if (a.ahead) own.ahead = end - begin;
  bool uniform = a.noise.one && a.measured.one && a.weight.size % a.c == 0 && a.inbox->more_eta.size() == 1;
  uniform ? task<V, DIAGNOSE, true>(own, begin, end, t) : task<V, DIAGNOSE, false>(own, begin, end, t);
}

// The belief of a variable before a visit.
struct Before {
  const float *mean, *variance;
};

// Means and variances from the inbox and the group's own message; padded to `width` in rows of `c` if that is more.
Before beliefs(Room& room, const Arguments& args, size_t own, const Inbox& inbox, int64_t rows, int64_t c, int64_t width) {
  float *mean = room.take(rows * width, 0.0f), *variance = room.take(rows * width, 0.0f);
  const float *own_eta = args.data(own), *own_lam = args.data(own + 1);
  int64_t chunk = width == c ? rows * c : c;  // vectors run over whole rows, or over all of them
  for (int64_t r = 0; r < rows * c; r += chunk)
    for (int64_t j = 0; j < chunk; j += LANES) {
      Vec eta, lam;
      int64_t count = chunk - j;
      inbox.sum(r + j, count, eta, lam);
      Vec v = 1 / (lam + load(own_lam + r + j, count, 0));
      store(mean + r / c * width + j, (eta + load(own_eta + r + j, count, 0)) * v, count);
      store(variance + r / c * width + j, v, count);
    }
  return {mean, variance};
}

// Arguments: rows (n, p); noise, measurements (F or 1), weight (F or fewer); reactions (F); numbers: how much is kept of
// messages to w, d and y, how many arrays follow for each; the own messages (eta, lam) to w (p, c), d (c,), y (n, c); then
// the inbox of each, in pairs. Results: the new messages, in that order; the reactions; and if that result is there, the
// diagnostics of y.
enum { ROWS, NOISE, MEASURED, WEIGHT, REACTION, NUMBERS, W, D = 8, Y = 10, REST = 12 };
enum { NEW_W, NEW_D = 2, NEW_Y = 4, NEW_REACTION = 6, DIAGNOSTICS };

int64_t channels(const Arguments& args) { return args[D].element_count(); }
int64_t factor_rows(const Arguments& args) { return args[Y].element_count() / channels(args); }
int64_t lanes(int64_t c) { return c <= LANES ? LANES : 2 * LANES; }
int64_t padded(int64_t c) { return (c + lanes(c) - 1) / lanes(c) * lanes(c); }

class MatrixPooledStep final : public Step {
 public:
  MatrixPooledStep(const Arguments& args, float slope, int64_t tasks, Room& room)
      : args_(args), tasks_(tasks), c_(channels(args)), width_(padded(c_)) {
    const float* numbers = args.data(NUMBERS);
    size_t at[4] = {REST};
    for (int q = 0; q < 3; ++q) at[q + 1] = at[q] + static_cast<size_t>(numbers[3 + q]);
    of_y_ = std::make_unique<Inbox>(args, at[2], at[3]);
    p_ = args[W].element_count() / c_;
    w_ = beliefs(room, args, W, Inbox(args, at[0], at[1]), p_, c_, width_);
    d_ = beliefs(room, args, D, Inbox(args, at[1], at[2]), 1, c_, width_);
    parts_ = room.take(tasks * 2 * (p_ + 1) * width_, 0.0f);
    diagnose_ = args.results() > DIAGNOSTICS;
    partials_.assign(tasks * Diagnostics::COUNT, 0.0f);
    int64_t n = factor_rows(args);
    a_ = std::make_unique<Pooled>(Pooled{
        n, p_, c_, width_, slope, args.data(ROWS), w_.mean, w_.variance, d_.mean, d_.variance, args[MEASURED],
        args[NOISE], Blocks(args[WEIGHT], n * c_), args.data(REACTION), args.data(Y), args.data(Y + 1), numbers[2],
        numbers[0], of_y_.get(), args.result(NEW_Y), args.result(NEW_Y + 1), args.result(NEW_REACTION), parts_,
        partials_.data(), n * (20 * c_ + 4 * p_) > MORE_THAN_A_CACHE});
    work_ = lanes(c_) == LANES ? (diagnose_ ? run<1, true> : run<1, false>) : (diagnose_ ? run<2, true> : run<2, false>);
  }

  void visit(int64_t begin, int64_t end, int64_t pieces, int64_t task) const override {
    work_(*a_, begin * a_->n / pieces, end * a_->n / pieces, task);
  }

  // Sends the messages to the parameters, which are sums over all pieces.
  void finish() override {
    const float* numbers = args_.data(NUMBERS);
    int64_t size = (p_ + 1) * width_;
    for (int64_t t = 1; t < tasks_; ++t)
      for (int64_t i = 0; i < 2 * size; ++i) parts_[i] += parts_[t * 2 * size + i];
    for (int64_t k = 0; k <= p_; ++k) {
      size_t own = k < p_ ? W : D, result = k < p_ ? NEW_W : NEW_D;
      int64_t row = k < p_ ? k * c_ : 0;
      const float* mean = k < p_ ? w_.mean + k * width_ : d_.mean;
      const float *old_eta = args_.data(own) + row, *old_lam = args_.data(own + 1) + row;
      float *new_eta = args_.result(result) + row, *new_lam = args_.result(result + 1) + row;
      float keep = numbers[k < p_ ? 0 : 1];
      for (int64_t j = 0; j < c_; j += LANES) {
        Vec lam = load(parts_ + size + k * width_ + j), eta = load(parts_ + k * width_ + j) + lam * load(mean + j);
        store(new_eta + j, keep * load(old_eta + j, c_ - j, 0) + (1 - keep) * eta, c_ - j);
        store(new_lam + j, keep * load(old_lam + j, c_ - j, 0) + (1 - keep) * lam, c_ - j);
      }
    }
    if (diagnose_) join_diagnostics(partials_, args_.result(DIAGNOSTICS));
  }

 private:
  Arguments args_;
  int64_t tasks_, c_, width_, p_;
  std::unique_ptr<Inbox> of_y_;
  Before w_, d_;
  float* parts_;
  bool diagnose_;
  std::vector<float> partials_;
  std::unique_ptr<Pooled> a_;
  Task work_;
};

}  // namespace

std::unique_ptr<Step> matrix_pooled(const Arguments& args, float slope, int64_t tasks, Room& room) {
  return std::make_unique<MatrixPooledStep>(args, slope, tasks, room);
}

int64_t most_tasks(const Arguments& args) {
  return std::max<int64_t>(1, factor_rows(args) / padded(channels(args)));
}

ffi::Error MatrixPooled(ffi::ThreadPool pool, float slope, ffi::RemainingArgs in, ffi::RemainingRets out) {
  Arguments args{in, out};
  int64_t tasks = std::min<int64_t>(32, most_tasks(args));
  Room room;
  MatrixPooledStep step(args, slope, tasks, room);
  spread(pool, tasks, [&](int64_t t) { step.visit(t, t + 1, tasks, t); });
  step.finish();
  return ffi::Error::Success();
}

}  // namespace gbplearn

HANDLER(gbplearn_matrix_pooled, gbplearn::MatrixPooled);
