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

#include "prediction.h"
#include "step.h"

namespace gbplearn {
namespace {

constexpr int MOST_REGISTERS = 12;       // for sums
constexpr int64_t AT_A_TIME = 1536;  // factors, so that what is computed of them stays in the first cache

struct Pooled {
  int64_t n, p, c, width;  // width: channels with padding
  float slope;             // of g for negative numbers
  const float* rows;
  const float *w, *v;           // means and variances, (p, width)
  const float* d;               // both, (2, width)
  Shared measured, noise;
  Blocks weight;
  float damp_y, damp_w;
  const Inbox* inbox;
  float *eta, *lam, *reaction;  // that change in place
  float* parts;  // (tasks, 2, p + 1, width)
  float* partials;  // (tasks, COUNT): diagnostics of y
  int64_t ahead;  // so many rows later is what to prefetch, or 0
};

// R rows from `rows` on, times V vectors of channels: sums over the taps, so far `apart`.
template <int R, int V>
INLINE void dot(const float* rows, int64_t p, const float* w, int64_t width, float* out, int64_t apart) {
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
    for (int j = 0; j < V; ++j) store(out + r * apart + j * LANES, acc[r][j]);
}

// For so many rows, as many at a time as there are registers for their sums; the last may be some too many.
template <int V>
INLINE void all_dots(const float* rows, int64_t p, int64_t count, const float* w, int64_t width, float* out, int64_t apart) {
  constexpr int MOST = MOST_REGISTERS / V;
  for (int64_t r = 0; r < count; r += MOST) dot<MOST, V>(rows + r * p, p, w, width, out + r * apart, apart);
}

// What a task computes of some rows in a row: sums rows w and rows² v, then -s share and s² / S; `(rows, 2, width)` each.
struct Block {
  float *sums, *terms;
  const int32_t* where;
};

// Messages to y of `count` rows from `first` on. `UNIFORM`: all have the same noise and measurement, those of a row one
// weight, and the inbox of y has one array beside uniform priors. `DIAGNOSE`: whether diagnostics are wanted.
template <bool DIAGNOSE, bool UNIFORM>
INLINE void factors(const Pooled& a, int64_t first, int64_t count, const Block& block, Diagnostics& diagnostics) {
  const Inbox& inbox = *a.inbox;
  const Vec keep_y = all(a.damp_y), keep_w = all(a.damp_w), take_y = 1 - keep_y, take_w = 1 - keep_w;
  const Vec slope = all(a.slope), slope2 = slope * slope;
  const Vec one_eta = all(inbox.one_eta), one_lam = all(inbox.one_lam), noise_one = all(a.noise.at(0)), measured_one = all(a.measured.at(0));
  const int64_t c = a.c, width = a.width;
  Vec weight_row{};
  for (int64_t r = 0, changes = 0; r < count; ++r) {
    if (UNIFORM && r == changes) {
      weight_row = all(a.weight.at((first + r) * c));
      int64_t rows = a.weight.size / c;
      changes = (((first + r) / rows) + 1) * rows - first;
    }
    const int64_t row = (first + r) * c;
    // Messages change in place: of each array one pointer, and few enough of them for the registers.
    float *y_eta = a.eta + row, *y_lam = a.lam + row, *reaction = a.reaction + row;
    const float *in_eta = UNIFORM ? inbox.more_eta[0] + row : nullptr, *in_lam = UNIFORM ? inbox.more_lam[0] + row : nullptr;
    const float *sums = block.sums + block.where[r] * 2 * width, *bias = a.d;
    float* terms = block.terms + r * 2 * width;
    auto vector = [&](int64_t j, int64_t count) __attribute__((always_inline)) {
      Vec sum = load(sums + j) + load(bias + j);
      Mask positive = sum > 0;
      Vec s = positive ? all(1) : slope, s2 = positive ? all(1) : slope2;
      Vec spread = s2 * (load(sums + width + j) + load(bias + width + j));
      if (a.ahead && j % LINE == 0) prefetch(reaction + j + a.ahead * c);
      Vec back_w = load(reaction + j, count, 0);
      Vec measured = UNIFORM ? measured_one : a.measured.at(row + j, count, 0), noise = UNIFORM ? noise_one : a.noise.at(row + j, count, 1);
      Vec k = UNIFORM ? weight_row : a.weight.at(row + j, count, 1);
      Vec predicted = measured + s * sum + back_w * spread;
      Vec outside_eta, outside_lam;
      if (UNIFORM) {
        outside_eta = one_eta + load(in_eta + j, count, 0);
        outside_lam = one_lam + load(in_lam + j, count, 1);
      } else {
        inbox.sum(row + j, count, outside_eta, outside_lam);
      }
      auto [eta, lam, gain, share] = predict_scalar(noise, k, spread, predicted, outside_eta, outside_lam);
      Vec old_eta = load(y_eta + j, count, 0), old_lam = load(y_lam + j, count, 0);
      if constexpr (DIAGNOSE) {
        Mask inside = first_of(count);
        Vec mean_y = diagnostics.change(outside_eta + old_eta, outside_lam + old_lam, outside_eta + eta, outside_lam + lam, inside);
        diagnostics.add_prior(mean_y, inbox.eta[0].at(row + j, count, 0), inbox.lam[0].at(row + j, count, 1), inside);
        diagnostics.add_energy(measured + s * sum - mean_y, k, noise, inside);
      }
      store(y_eta + j, keep_y * old_eta + take_y * eta, count);
      store(y_lam + j, keep_y * old_lam + take_y * lam, count);
      store(reaction + j, keep_w * back_w + take_w * share, count);
      store(terms + j, -s * share);
      store(terms + width + j, s2 * gain);
    };
    int64_t j = 0;
    for (; j + LANES <= c; j += LANES) vector(j, LANES);
    if (j < c) vector(j, c - j);
  }
}

// sum_r rows[r][k] terms[at[r]], added to `out`, for K taps and V vectors of channels; terms as a `Block` has them.
template <int K, int V>
INLINE void back(const float* rows, int64_t p, int64_t count, const float* terms, const int32_t* at, float* out, int64_t width) {
  Vec acc[K][V];
  for (int k = 0; k < K; ++k)
    for (int j = 0; j < V; ++j) acc[k][j] = load(out + k * width + j * LANES);
  for (int64_t r = 0; r < count; ++r) {
    Vec term[V];
    for (int j = 0; j < V; ++j) term[j] = load(terms + at[r] * 2 * width + j * LANES);
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

// The total of the terms of some rows, added to `out`: in four sums that do not wait for each other.
INLINE void add_total(const float* terms, int64_t count, int64_t width, float* out) {
  for (int64_t j = 0; j < width; j += LANES) {
    Vec sums[4]{load(out + j)};
    int64_t r = 0;
    for (; r + 4 <= count; r += 4)
      for (int q = 0; q < 4; ++q) sums[q] += load(terms + (r + q) * 2 * width + j);
    for (; r < count; ++r) sums[0] += load(terms + r * 2 * width + j);
    store(out + j, (sums[0] + sums[1]) + (sums[2] + sums[3]));
  }
}

// Calls `vector(k, count)` for the vectors of `p` numbers; the last may have some of them once more, which is quicker than a
// part of a vector.
template <class Vector>
INLINE void over(int64_t p, const Vector& vector) {
  int64_t k = 0;
  for (; k + LANES <= p; k += LANES) vector(k, LANES);
  if (k < p) p > LANES ? vector(p - LANES, LANES) : vector(k, p - k);
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
  const int64_t apart = 2 * a.width;
  Block block{room.take((more + 1) * apart), room.take(most * apart), where.data()};
  if (a.width > a.c) std::fill_n(block.terms, most * apart, 0.0f);  // vectors of padding are read, but not written
  std::fill_n(block.sums + nowhere * apart, apart, 0.0f);
  float *rows = room.take(more * a.p), *squares = room.take(more * a.p);
  for (int64_t first = begin; first < end; first += most) {
    int64_t total = std::min(most, end - first);
    int64_t count = take_rows(a.rows + first * a.p, a.p, total, rows, squares, at.data(), where.data(), nowhere, a.ahead);
    for (int64_t c0 = 0; c0 < a.width; c0 += V * LANES) {
      all_dots<V>(rows, a.p, count, a.w + c0, a.width, block.sums + c0, apart);
      all_dots<V>(squares, a.p, count, a.v + c0, a.width, block.sums + a.width + c0, apart);
    }
    factors<DIAGNOSE, UNIFORM>(a, first, total, block, diagnostics);
    for (int64_t c0 = 0; c0 < a.width; c0 += V * LANES) {
      all_back<V>(rows, a.p, count, block.terms + c0, at.data(), eta + c0, a.width);
      all_back<V>(squares, a.p, count, block.terms + a.width + c0, at.data(), lam + c0, a.width);
    }
    add_total(block.terms, total, a.width, eta + a.p * a.width);  // the bias
    add_total(block.terms + a.width, total, a.width, lam + a.p * a.width);
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

// Means and variances, one after the other, from the inbox and the group's own message; padded to `width` in rows of `c` if
// that is more.
Before beliefs(Room& room, const float* own_eta, const float* own_lam, const Inbox& inbox, int64_t rows, int64_t c, int64_t width) {
  float *mean = room.take(2 * rows * width, 0.0f), *variance = mean + rows * width;
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

int64_t lanes(int64_t c) { return c <= LANES ? LANES : 2 * LANES; }
int64_t padded(int64_t c) { return (c + lanes(c) - 1) / lanes(c) * lanes(c); }

// A call: `n` rows of `p` inputs, `c` outputs, F = n c factors.
// Attributes: rows, inputs, outputs; slope; diagnose; inbox (3): how many pairs have those of w, d and y.
// Arguments: rows (n, p); noise, measured (F or 1), weight (F or fewer); keep_w, keep_d, keep_y: how much is kept of old
// messages; those to w (p, c), d (c), y (F), and the reaction (F); then the inboxes of w, d and y.
// Results: the new messages and reactions, in place; diagnostics of y, if they are wanted.
struct PooledArguments {
  int64_t n, p, c;
  float slope;
  bool diagnose;
  Array rows, noise, measured, weight;
  float keep_w, keep_d, keep_y;
  Array w_eta, w_lam, d_eta, d_lam, y_eta, y_lam, reaction;
  Pairs of_w, of_d, of_y;
  float *new_w_eta, *new_w_lam, *new_d_eta, *new_d_lam, *new_y_eta, *new_y_lam, *new_reaction, *diagnostics = nullptr;

  explicit PooledArguments(Arguments& args) {
    n = args.size("rows");
    p = args.size("inputs");
    c = args.size("outputs");
    slope = args.number("slope");
    diagnose = args.flag("diagnose");
    auto inbox = args.sizes("inbox", 3);
    const int64_t factors = count_of({n, c}), weights = count_of({p, c});
    rows = args.take("rows", {n, p});
    noise = args.take_shared("noise", factors);
    measured = args.take_shared("measured", factors);
    weight = args.take_blocks("weight", factors, c);
    keep_w = args.take_number("keep_w");
    keep_d = args.take_number("keep_d");
    keep_y = args.take_number("keep_y");
    w_eta = args.take_flat("w.eta", weights);
    w_lam = args.take_flat("w.lam", weights);
    d_eta = args.take_flat("d.eta", c);
    d_lam = args.take_flat("d.lam", c);
    y_eta = args.take_flat("y.eta", factors);
    y_lam = args.take_flat("y.lam", factors);
    reaction = args.take_flat("reaction", factors);
    of_w = args.take_inbox("w", inbox[0], weights);
    of_d = args.take_inbox("d", inbox[1], c);
    of_y = args.take_inbox("y", inbox[2], factors);
    new_w_eta = args.replace("w.eta", w_eta);
    new_w_lam = args.replace("w.lam", w_lam);
    new_d_eta = args.replace("d.eta", d_eta);
    new_d_lam = args.replace("d.lam", d_lam);
    new_y_eta = args.replace("y.eta", y_eta);
    new_y_lam = args.replace("y.lam", y_lam);
    new_reaction = args.replace("reaction", reaction);
    if (diagnose) diagnostics = args.report("diagnostics", Diagnostics::COUNT);
  }
};

class MatrixPooledStep final : public Step {
 public:
  explicit MatrixPooledStep(PooledArguments arguments)
      : in_(std::move(arguments)), width_(padded(in_.c)), of_y_(in_.of_y), partials_() {}

  bool has_pieces(int64_t pieces) const override { return in_.n % pieces == 0; }
  int64_t most_tasks() const override { return std::max<int64_t>(1, in_.n / width_); }

  void prepare(int64_t tasks, Room& room) override {
    // Messages to y change in place; where they may not, they begin as what there was.
    const std::pair<const Array*, float*> changed[] = {{&in_.y_eta, in_.new_y_eta}, {&in_.y_lam, in_.new_y_lam}, {&in_.reaction, in_.new_reaction}};
    for (auto [old, now] : changed)
      if (now != old->data) std::copy_n(old->data, old->size, now);
    tasks_ = tasks;
    w_ = beliefs(room, in_.w_eta.data, in_.w_lam.data, Inbox(in_.of_w), in_.p, in_.c, width_);
    d_ = beliefs(room, in_.d_eta.data, in_.d_lam.data, Inbox(in_.of_d), 1, in_.c, width_);
    parts_ = room.take(tasks * 2 * (in_.p + 1) * width_, 0.0f);
    partials_.assign(tasks * Diagnostics::COUNT, 0.0f);
    a_ = std::make_unique<Pooled>(Pooled{
        in_.n, in_.p, in_.c, width_, in_.slope, in_.rows.data, w_.mean, w_.variance, d_.mean, in_.measured,
        in_.noise, Blocks(in_.weight, in_.n * in_.c), in_.keep_y, in_.keep_w, &of_y_, in_.new_y_eta, in_.new_y_lam, in_.new_reaction, parts_,
        partials_.data(), in_.n * (20 * in_.c + 4 * in_.p) > MORE_THAN_A_CACHE});
    work_ = lanes(in_.c) == LANES ? (in_.diagnose ? run<1, true> : run<1, false>) : (in_.diagnose ? run<2, true> : run<2, false>);
  }

  void visit(int64_t begin, int64_t end, int64_t pieces, int64_t task) const override {
    work_(*a_, begin * a_->n / pieces, end * a_->n / pieces, task);
  }

  // Sends the messages to the parameters, which are sums over all pieces.
  void finish() override {
    const int64_t size = (in_.p + 1) * width_, c = in_.c;
    for (int64_t t = 1; t < tasks_; ++t)
      for (int64_t i = 0; i < 2 * size; ++i) parts_[i] += parts_[t * 2 * size + i];
    for (int64_t k = 0; k <= in_.p; ++k) {
      const bool bias = k == in_.p;
      int64_t row = bias ? 0 : k * c;
      const float* mean = bias ? d_.mean : w_.mean + k * width_;
      const float *old_eta = (bias ? in_.d_eta : in_.w_eta).data + row, *old_lam = (bias ? in_.d_lam : in_.w_lam).data + row;
      float *new_eta = (bias ? in_.new_d_eta : in_.new_w_eta) + row, *new_lam = (bias ? in_.new_d_lam : in_.new_w_lam) + row;
      float keep = bias ? in_.keep_d : in_.keep_w;
      for (int64_t j = 0; j < c; j += LANES) {
        Vec lam = load(parts_ + size + k * width_ + j), eta = load(parts_ + k * width_ + j) + lam * load(mean + j);
        store(new_eta + j, keep * load(old_eta + j, c - j, 0) + (1 - keep) * eta, c - j);
        store(new_lam + j, keep * load(old_lam + j, c - j, 0) + (1 - keep) * lam, c - j);
      }
    }
    if (in_.diagnose) join_diagnostics(partials_, in_.diagnostics);
  }

 private:
  const PooledArguments in_;
  const int64_t width_;
  const Inbox of_y_;
  int64_t tasks_ = 0;
  Before w_{}, d_{};
  float* parts_ = nullptr;
  std::vector<float> partials_;
  std::unique_ptr<Pooled> a_;
  Task work_ = nullptr;
};

}  // namespace

std::unique_ptr<Step> matrix_pooled(Arguments& args) {
  PooledArguments taken(args);
  return args.ok() ? std::make_unique<MatrixPooledStep>(std::move(taken)) : nullptr;
}

ffi::Error MatrixPooled(ffi::ThreadPool pool, ffi::RemainingArgs in, ffi::RemainingRets out, ffi::Dictionary attributes) {
  Arguments args("gbplearn_matrix_pooled", in, out, attributes);
  auto step = matrix_pooled(args);
  if (ffi::Error error = args.error(); error.failure()) return error;
  int64_t tasks = std::min<int64_t>(32, step->most_tasks());
  Room room;
  step->prepare(tasks, room);
  spread(pool, tasks, [&](int64_t t) { step->visit(t, t + 1, tasks, t); });
  step->finish();
  return ffi::Error::Success();
}

}  // namespace gbplearn

HANDLER(gbplearn_matrix_pooled, gbplearn::MatrixPooled);
