// Factors y - g(rows w + d) with pooled messages: the update of messages.py for M = 1, in one pass over the factors.
//
// Factor (n, c), with a = sum_k rows_nk w_kc + d_c, s = g'(a), beliefs' means and variances of what is pooled:
//
//   wide = s² (sum_k rows_nk² v_kc + v_c)  [ + s² sum_k u_nk w_kc²  where the rows are uncertain by u ]
//   R = measured + g(a) + s moved - m_y + reaction wide ,   S = sigma² / weight + v_y + wide ,   share = R / S
//   to y: lam = 1 / (S - v_y) , eta = lam (R + m_y)
//   to w: lam = sum_n rows² s² / S , eta = -sum_n rows s share + lam w
//
// and likewise to d and to the rows.
#include <algorithm>
#include <cmath>

#include "parallel.h"

namespace gbplearn {
namespace {

constexpr int64_t AT_A_TIME = 1536;  // factors, so that what is known of them stays in the first cache

struct Pooled {
  int64_t n, p, c, width;  // width: channels with padding
  float slope;             // of g for negative numbers
  const float *rows, *spread, *moved;  // moved: null where nothing has
  const float *w, *v, *w2;             // (p, width), packed
  const float* wt;                     // (c, p)
  const float *d, *vd;                 // (width)
  Shared measured, noise, weight;
  const float *reaction_w, *reaction_x;
  const float *old_eta, *old_lam;
  float damp_y, damp_w, damp_x;
  const Inbound* inbound;
  float *eta, *lam, *new_w, *new_x, *x_eta, *x_lam;
  const float *x_mean, *old_x_eta, *old_x_lam;
  int64_t task_rows;
  float* parts;  // (tasks, 2, p + 1, width)
  float* looks;  // (tasks, COUNT)
};

// out[r] = sum_k rows[r][k] w[k].
template <int R, int V>
INLINE void dot(const float* rows, int64_t p, const float* w, int64_t width, Vec (&out)[R][V]) {
  Vec acc[R][V];
  for (int r = 0; r < R; ++r)
    for (int j = 0; j < V; ++j) acc[r][j] = Vec{};
  for (int64_t k = 0; k < p; ++k) {
    Vec x[V];
    for (int j = 0; j < V; ++j) x[j] = load(w + k * width + j * LANES);
    for (int r = 0; r < R; ++r) {
      Vec b = all(rows[r * p + k]);
      for (int j = 0; j < V; ++j) acc[r][j] += b * x[j];
    }
  }
  for (int r = 0; r < R; ++r)
    for (int j = 0; j < V; ++j) out[r][j] = acc[r][j];
}

// R rows and V vectors of channels from c0 on: messages to y; -s share and s² / S into `share` and `gain`.
template <int R, int V, bool U, bool L>
INLINE void factors(const Pooled& a, int64_t row, const float* squares, int64_t c0, float* share, float* gain,
                    Looked& looked) {
  const float* rows = a.rows + row * a.p;
  Vec mean[R][V], wide[R][V], more[R][V], moved[R][V];
  dot<R, V>(rows, a.p, a.w + c0, a.width, mean);
  dot<R, V>(squares, a.p, a.v + c0, a.width, wide);
  if constexpr (U) {
    dot<R, V>(a.spread + row * a.p, a.p, a.w2 + c0, a.width, more);
    if (a.moved)
      dot<R, V>(a.moved + row * a.p, a.p, a.w + c0, a.width, moved);
    else
      for (auto& of_row : moved)
        for (Vec& one : of_row) one = Vec{};
  }
  for (int r = 0; r < R; ++r) {
    for (int j = 0; j < V; ++j) {
      int64_t channel = c0 + j * LANES, i = (row + r) * a.c + channel;
      auto eight = [&](int64_t count) __attribute__((always_inline)) {
      Vec sum = mean[r][j] + load(a.d + channel);
      Vec s = sum > 0 ? all(1) : all(a.slope);
      Vec s2 = s * s;
      Vec spread = s2 * (wide[r][j] + load(a.vd + channel));
      Vec back_w = load(a.reaction_w + i, count, 0), back_x;
      Vec predicted = a.measured.at(i, count, 0) + s * sum + back_w * spread;
      if constexpr (U) {
        Vec of_x = s2 * more[r][j];
        back_x = load(a.reaction_x + i, count, 0);
        predicted += s * moved[r][j] + back_x * of_x;
        spread += of_x;
      }
      Vec outside_eta, outside_lam;
      a.inbound->sum(i, count, outside_eta, outside_lam);
      Vec k = a.weight.at(i, count, 1), noise = a.noise.at(i, count, 1);
      Vec rest = noise + k * spread;  // the weight belongs to the noise, and may be 0
      Vec lam = k / rest;
      Vec part = k / (rest * outside_lam + k);  // (1 / S) / lam_y, without the variance of y
      Vec full = part * outside_lam;
      Vec answer = part * (outside_lam * predicted - outside_eta);
      Vec eta = lam * predicted;
      Vec old_eta = load(a.old_eta + i, count, 0), old_lam = load(a.old_lam + i, count, 0);
      if constexpr (L) {
        Mask inside = first_of(count);
        Vec mean_y = looked.change(outside_eta + old_eta, outside_lam + old_lam, outside_eta + eta, outside_lam + lam, inside);
        looked.add_prior(mean_y, a.inbound->eta[0].at(i, count, 0), a.inbound->lam[0].at(i, count, 1), inside);
        Vec value = s * sum;
        if constexpr (U) value += s * moved[r][j];
        looked.add_energy(a.measured.at(i, count, 0) + value - mean_y, k, noise, inside);
      }
      store(a.eta + i, a.damp_y * old_eta + (1 - a.damp_y) * eta, count);
      store(a.lam + i, a.damp_y * old_lam + (1 - a.damp_y) * lam, count);
      store(a.new_w + i, a.damp_w * back_w + (1 - a.damp_w) * answer, count);
      if constexpr (U) store(a.new_x + i, a.damp_x * back_x + (1 - a.damp_x) * answer, count);
      store(share + r * a.width + j * LANES, -s * answer);
      store(gain + r * a.width + j * LANES, s2 * full);
      };
      if (channel + LANES <= a.c)
        eight(LANES);
      else if (channel < a.c)
        eight(a.c - channel);
    }
  }
}

// sum_r rows[r][k] terms[r], added to `out`, for K taps and V vectors of channels.
template <int K, int V>
INLINE void back(const float* rows, int64_t p, int64_t count, const float* terms, float* out, int64_t width) {
  Vec acc[K][V];
  for (int k = 0; k < K; ++k)
    for (int j = 0; j < V; ++j) acc[k][j] = load(out + k * width + j * LANES);
  for (int64_t r = 0; r < count; ++r) {
    Vec term[V];
    for (int j = 0; j < V; ++j) term[j] = load(terms + r * width + j * LANES);
    for (int k = 0; k < K; ++k) {
      Vec x = all(rows[r * p + k]);
      for (int j = 0; j < V; ++j) acc[k][j] += x * term[j];
    }
  }
  for (int k = 0; k < K; ++k)
    for (int j = 0; j < V; ++j) store(out + k * width + j * LANES, acc[k][j]);
}

// For all taps, five at a time: as many sums as there are registers.
template <int V>
INLINE void all_back(const float* rows, int64_t p, int64_t count, const float* terms, float* out, int64_t width) {
  int64_t k = 0;
  for (; k + 5 <= p; k += 5) back<5, V>(rows + k, p, count, terms, out + k * width, width);
  for (; k < p; ++k) back<1, V>(rows + k, p, count, terms, out + k * width, width);
}

// A pooled message from its sums, damped: `eta` and `lam` hold sums of J share and of J² / S, and then the message.
INLINE void finish(Vec& eta, Vec& lam, Vec mean, float keep, Vec old_eta, Vec old_lam) {
  eta = keep * old_eta + (1 - keep) * (eta + lam * mean);
  lam = keep * old_lam + (1 - keep) * lam;
}

// To the rows themselves, one row: vectors run along the taps.
INLINE void to_row(const Pooled& a, int64_t row, const float* share, const float* gain) {
  float *eta = a.x_eta + row * a.p, *lam = a.x_lam + row * a.p;
  for (int64_t k = 0; k < a.p; k += LANES) {
    int64_t count = std::min<int64_t>(LANES, a.p - k);
    Vec e{}, l{};
    for (int64_t c = 0; c < a.c; ++c) {
      Vec w = load(a.wt + c * a.p + k, count, 0);
      e += share[c] * w;
      l += gain[c] * (w * w);
    }
    int64_t i = row * a.p + k;
    finish(e, l, load(a.x_mean + i, count, 0), a.damp_x, load(a.old_x_eta + i, count, 0), load(a.old_x_lam + i, count, 0));
    store(eta + k, e, count);
    store(lam + k, l, count);
  }
}

template <int V, bool U, bool L>
INLINE void task(const Pooled& a, int64_t t) {
  Looked looked;
  int64_t begin = t * a.task_rows, end = std::min(a.n, begin + a.task_rows);
  float *eta = a.parts + t * 2 * (a.p + 1) * a.width, *lam = eta + (a.p + 1) * a.width;
  const int64_t rows_at_a_time = std::max<int64_t>(8, AT_A_TIME / a.width);
  Room room;
  float* share = room.take(2 * rows_at_a_time * a.width, 0.0f);  // padding stays 0
  float* gain = share + rows_at_a_time * a.width;
  float* squares = room.take(rows_at_a_time * a.p);
  for (int64_t first = begin; first < end; first += rows_at_a_time) {
    int64_t count = std::min(rows_at_a_time, end - first), r = 0;
    const float* rows = a.rows + first * a.p;
    for (int64_t i = 0; i < count * a.p; ++i) squares[i] = rows[i] * rows[i];
    for (; r + 4 <= count; r += 4)
      for (int64_t c0 = 0; c0 < a.width; c0 += V * LANES)
        factors<4, V, U, L>(a, first + r, squares + r * a.p, c0, share + r * a.width + c0, gain + r * a.width + c0, looked);
    for (; r < count; ++r)
      for (int64_t c0 = 0; c0 < a.width; c0 += V * LANES)
        factors<1, V, U, L>(a, first + r, squares + r * a.p, c0, share + r * a.width + c0, gain + r * a.width + c0, looked);
    for (int64_t c0 = 0; c0 < a.width; c0 += V * LANES) {
      all_back<V>(rows, a.p, count, share + c0, eta + c0, a.width);
      all_back<V>(squares, a.p, count, gain + c0, lam + c0, a.width);
    }
    float *e = eta + a.p * a.width, *l = lam + a.p * a.width;  // the bias
    for (r = 0; r < count; ++r)
      for (int64_t j = 0; j < a.width; ++j) {
        e[j] += share[r * a.width + j];
        l[j] += gain[r * a.width + j];
      }
    if constexpr (U)
      for (r = 0; r < count; ++r) to_row(a, first + r, share + r * a.width, gain + r * a.width);
  }
  if constexpr (L) looked.write(a.looks + t * Looked::COUNT);
}

using Task = void (*)(const Pooled&, int64_t);
template <int V, bool U, bool L>
void run(const Pooled& a, int64_t t) {
  const Pooled own = a;  // which nothing that is written can change
  task<V, U, L>(own, t);
}

template <int V>
Task choose(bool uncertain, bool looking) {
  return uncertain ? (looking ? run<V, true, true> : run<V, true, false>) : (looking ? run<V, false, true> : run<V, false, false>);
}

// What is known of a variable before a visit.
struct Before {
  const float *mean, *variance;
};

// Means and variances from what comes in and the own message; padded to `width` in rows of `c` if that is more.
Before beliefs(Room& room, const Arguments& args, size_t own, const Inbound& inbound, int64_t rows, int64_t c, int64_t width) {
  float *mean = room.take(rows * width, 0.0f), *variance = room.take(rows * width, 0.0f);
  const float *own_eta = args.data(own), *own_lam = args.data(own + 1);
  int64_t chunk = width == c ? rows * c : c;  // vectors run over whole rows, or over all of them
  for (int64_t r = 0; r < rows * c; r += chunk)
    for (int64_t j = 0; j < chunk; j += LANES) {
      Vec eta, lam;
      int64_t count = chunk - j;
      inbound.sum(r + j, count, eta, lam);
      Vec v = 1 / (lam + load(own_lam + r + j, count, 0));
      store(mean + r / c * width + j, (eta + load(own_eta + r + j, count, 0)) * v, count);
      store(variance + r / c * width + j, v, count);
    }
  return {mean, variance};
}

}  // namespace

// Arguments: rows (n, p) that are known, or empty; start of rows that are not; noise, weight, measurements (F or 1);
// reactions of parameters and of rows (F, or empty); numbers: how much is kept of messages to rows, w, d and y, whether
// it is the first visit, how many arrays follow for each; the own messages (eta, lam) to rows (n, p), w (p, c), d (c,), y
// (n, c); then pairs of what each hears from outside.
// Results: the new messages, in that order; the reactions; and if it is there, a look at y.
ffi::Error MatrixPooled(ffi::ThreadPool pool, float slope, ffi::RemainingArgs in, ffi::RemainingRets out) {
  enum { ROWS, START, NOISE, WEIGHT, MEASURED, OF_W, OF_X, NUMBERS, X = 8, W = 10, D = 12, Y = 14, REST = 16 };
  enum { NEW_X, NEW_W = 2, NEW_D = 4, NEW_Y = 6, NEW_OF_W = 8, NEW_OF_X, LOOK };
  Arguments args{in, out};
  const float* numbers = args.data(NUMBERS);
  size_t at[5] = {REST};
  for (int q = 0; q < 4; ++q) at[q + 1] = at[q] + static_cast<size_t>(numbers[5 + q]);
  Inbound of_x(args, at[0], at[1]), of_w(args, at[1], at[2]), of_d(args, at[2], at[3]), of_y(args, at[3], at[4]);
  int64_t c = args[D].element_count(), p = args[W].element_count() / c, n = args[Y].element_count() / c;
  int64_t tile = c <= LANES ? LANES : 2 * LANES, width = (c + tile - 1) / tile * tile;
  bool uncertain = args[X].element_count() > 0, first = numbers[4] > 0;
  Room room;
  Before w = beliefs(room, args, W, of_w, p, c, width), d = beliefs(room, args, D, of_d, 1, c, width), x{};
  const float* rows = args.data(ROWS);
  float *w2 = nullptr, *wt = nullptr, *moved = nullptr;
  if (uncertain) {
    x = beliefs(room, args, X, of_x, n, p, p);
    rows = x.mean;
    if (first && args[START].element_count() > 0) {  // linearised where the user says
      rows = args.data(START);
      moved = room.take(n * p);
      for (int64_t i = 0; i < n * p; ++i) moved[i] = x.mean[i] - rows[i];
    }
    w2 = room.take(p * width);
    wt = room.take(p * c);
    for (int64_t i = 0; i < p * width; ++i) w2[i] = w.mean[i] * w.mean[i];
    for (int64_t j = 0; j < c; ++j)
      for (int64_t k = 0; k < p; ++k) wt[j * p + k] = w.mean[k * width + j];
  }
  // Each task has its own sums, which must stay small beside the rows.
  int64_t tasks = std::max<int64_t>(1, std::min<int64_t>(32, n / width));
  int64_t task_rows = (n + tasks - 1) / tasks;
  tasks = (n + task_rows - 1) / task_rows;
  float* parts = room.take(tasks * 2 * (p + 1) * width, 0.0f);
  bool looking = out.size() > LOOK;
  std::vector<float> looks(tasks * Looked::COUNT, 0.0f);
  Pooled a{n, p, c, width, slope, rows, x.variance, moved, w.mean, w.variance, w2, wt, d.mean, d.variance,
           args[MEASURED], args[NOISE], args[WEIGHT], args.data(OF_W), args.data(OF_X), args.data(Y), args.data(Y + 1),
           numbers[3], numbers[1], numbers[0], &of_y, args.result(NEW_Y), args.result(NEW_Y + 1), args.result(NEW_OF_W),
           args.result(NEW_OF_X), args.result(NEW_X), args.result(NEW_X + 1), x.mean, args.data(X), args.data(X + 1),
           task_rows, parts, looks.data()};
  Task work = tile == LANES ? choose<1>(uncertain, looking) : choose<2>(uncertain, looking);
  spread(pool, tasks, [&](int64_t t) { work(a, t); });
  int64_t size = (p + 1) * width;
  for (int64_t i = 0; i < 2 * size; ++i)
    for (int64_t t = 1; t < tasks; ++t) parts[i] += parts[t * 2 * size + i];
  for (int64_t k = 0; k <= p; ++k) {
    size_t own = k < p ? W : D, result = k < p ? NEW_W : NEW_D;
    int64_t row = k < p ? k * c : 0;
    const float* mean = k < p ? w.mean + k * width : d.mean;
    const float *old_eta = args.data(own) + row, *old_lam = args.data(own + 1) + row;
    float *new_eta = args.result(result) + row, *new_lam = args.result(result + 1) + row;
    for (int64_t j = 0; j < c; j += LANES) {
      Vec eta = load(parts + k * width + j), lam = load(parts + size + k * width + j);
      finish(eta, lam, load(mean + j), numbers[k < p ? 1 : 2], load(old_eta + j, c - j, 0), load(old_lam + j, c - j, 0));
      store(new_eta + j, eta, c - j);
      store(new_lam + j, lam, c - j);
    }
  }
  if (looking) join_looks(looks, args.result(LOOK));
  return ffi::Error::Success();
}

}  // namespace gbplearn

HANDLER(gbplearn_matrix_pooled, gbplearn::MatrixPooled);
