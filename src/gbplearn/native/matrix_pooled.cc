// Factors y - g(rows w + d) with pooled messages: the update of messages.py for M = 1, in one pass over the factors.
//
// Factor (n, c), with a = sum_k rows_nk w_kc + d_c, s = g'(a), beliefs' means and variances of what is pooled:
//
//   wide = s² (sum_k rows_nk² v_kc + v_c)  [ + s² sum_k u_nk w_kc²  where the rows are uncertain by u ]
//   R = measured + g(a) + s moved - m_y + reaction wide ,   S = sigma² / weight + v_y + wide ,   share = R / S
//   to y: lam = 1 / (S - v_y) , eta = lam (R + m_y)
//   to w: lam = sum_n rows² s² / S , eta = -sum_n rows s share [ + lam w, added by the caller ]
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
  const float *rows, *spread, *moved;
  const float *w, *v, *w2;  // (p, width), packed
  const float *wt;          // (c, p)
  const float *d, *vd;      // (width)
  Shared measured, noise, weight;
  const float *reaction_w, *reaction_x;
  const float *old_eta, *old_lam;
  float damp_y, damp_w, damp_x;
  const Inbound* inbound;
  float *eta, *lam, *new_w, *new_x, *x_eta, *x_lam;
  int64_t task_rows;
  float* parts;  // (tasks, 2, p + 1, width)
  float* looks;  // (tasks, COUNT)
};

// acc[r] = sum_k rows[r][k] w[k], of squares of the rows if asked for.
template <int R, int V, bool SQUARE>
INLINE void dot(const float* rows, int64_t p, const float* w, int64_t width, Vec (&out)[R][V]) {
  Vec acc[R][V];
  for (int r = 0; r < R; ++r)
    for (int j = 0; j < V; ++j) acc[r][j] = Vec{};
  for (int64_t k = 0; k < p; ++k) {
    Vec x[V];
    for (int j = 0; j < V; ++j) x[j] = load(w + k * width + j * LANES);
    for (int r = 0; r < R; ++r) {
      float f = rows[r * p + k];
      Vec b = all(SQUARE ? f * f : f);
      for (int j = 0; j < V; ++j) acc[r][j] += b * x[j];
    }
  }
  for (int r = 0; r < R; ++r)
    for (int j = 0; j < V; ++j) out[r][j] = acc[r][j];
}

// R rows and V vectors of channels from c0 on: messages to y; s share and s² / S into `share` and `gain`.
template <int R, int V, bool U, bool L>
INLINE void factors(const Pooled& a, int64_t row, int64_t c0, float* share, float* gain, Looked& looked) {
  const float* rows = a.rows + row * a.p;
  Vec mean[R][V], wide[R][V], more[R][V], moved[R][V];
  dot<R, V, false>(rows, a.p, a.w + c0, a.width, mean);
  dot<R, V, true>(rows, a.p, a.v + c0, a.width, wide);
  if constexpr (U) {
    dot<R, V, false>(a.spread + row * a.p, a.p, a.w2 + c0, a.width, more);
    dot<R, V, false>(a.moved + row * a.p, a.p, a.w + c0, a.width, moved);
  }
  for (int r = 0; r < R; ++r) {
    for (int j = 0; j < V; ++j) {
      int64_t channel = c0 + j * LANES, count = std::min<int64_t>(LANES, a.c - channel);
      if (count <= 0) continue;
      int64_t i = (row + r) * a.c + channel;
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
      Vec v_y = 1 / outside_lam, k = a.weight.at(i, count, 1), noise = a.noise.at(i, count, 1);
      Vec lam = k / (noise + k * spread);  // the weight belongs to the noise, and may be 0
      Vec full = k / (noise + k * (v_y + spread));
      Vec answer = full * (predicted - outside_eta * v_y);
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
      store(share + r * a.width + j * LANES, s * answer);
      store(gain + r * a.width + j * LANES, s2 * full);
    }
  }
}

// Sums over some rows, for K taps and V vectors of channels.
template <int K, int V>
INLINE void back(const float* rows, int64_t p, int64_t count, const float* share, const float* gain, float* eta,
                 float* lam, int64_t width) {
  Vec e[K][V], l[K][V];
  for (int k = 0; k < K; ++k)
    for (int j = 0; j < V; ++j) {
      e[k][j] = load(eta + k * width + j * LANES);
      l[k][j] = load(lam + k * width + j * LANES);
    }
  for (int64_t r = 0; r < count; ++r)
    for (int k = 0; k < K; ++k) {
      float f = rows[r * p + k];
      Vec x = all(f), x2 = all(f * f);
      for (int j = 0; j < V; ++j) {
        e[k][j] -= x * load(share + r * width + j * LANES);
        l[k][j] += x2 * load(gain + r * width + j * LANES);
      }
    }
  for (int k = 0; k < K; ++k)
    for (int j = 0; j < V; ++j) {
      store(eta + k * width + j * LANES, e[k][j]);
      store(lam + k * width + j * LANES, l[k][j]);
    }
}

// To the rows themselves, one row: vectors run along the taps.
INLINE void to_row(const Pooled& a, int64_t row, const float* share, const float* gain) {
  float *eta = a.x_eta + row * a.p, *lam = a.x_lam + row * a.p;
  for (int64_t k = 0; k < a.p; k += LANES) {
    int64_t count = std::min<int64_t>(LANES, a.p - k);
    Vec e{}, l{};
    for (int64_t c = 0; c < a.c; ++c) {
      Vec w = load(a.wt + c * a.p + k, count, 0);
      e -= share[c] * w;
      l += gain[c] * (w * w);
    }
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
  std::vector<float> buffer(2 * rows_at_a_time * a.width, 0.0f);  // padding stays 0
  float *share = buffer.data(), *gain = share + rows_at_a_time * a.width;
  for (int64_t first = begin; first < end; first += rows_at_a_time) {
    int64_t count = std::min(rows_at_a_time, end - first), r = 0;
    const float* rows = a.rows + first * a.p;
    for (; r + 4 <= count; r += 4)
      for (int64_t c0 = 0; c0 < a.width; c0 += V * LANES)
        factors<4, V, U, L>(a, first + r, c0, share + r * a.width + c0, gain + r * a.width + c0, looked);
    for (; r < count; ++r)
      for (int64_t c0 = 0; c0 < a.width; c0 += V * LANES)
        factors<1, V, U, L>(a, first + r, c0, share + r * a.width + c0, gain + r * a.width + c0, looked);
    for (int64_t c0 = 0; c0 < a.width; c0 += V * LANES) {
      int64_t k = 0;
      for (; k + 2 <= a.p; k += 2)
        back<2, V>(rows + k, a.p, count, share + c0, gain + c0, eta + k * a.width + c0, lam + k * a.width + c0, a.width);
      for (; k < a.p; ++k)
        back<1, V>(rows + k, a.p, count, share + c0, gain + c0, eta + k * a.width + c0, lam + k * a.width + c0, a.width);
    }
    float *e = eta + a.p * a.width, *l = lam + a.p * a.width;  // the bias
    for (r = 0; r < count; ++r)
      for (int64_t j = 0; j < a.width; ++j) {
        e[j] -= share[r * a.width + j];
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
  task<V, U, L>(a, t);
}

template <int V>
Task choose(bool uncertain, bool looking) {
  return uncertain ? (looking ? run<V, true, true> : run<V, true, false>) : (looking ? run<V, false, true> : run<V, false, false>);
}

std::vector<float> packed(const float* from, int64_t p, int64_t c, int64_t width, bool square) {
  std::vector<float> out(p * width, 0.0f);
  for (int64_t k = 0; k < p; ++k)
    for (int64_t j = 0; j < c; ++j) {
      float x = from[k * c + j];
      out[k * width + j] = square ? x * x : x;
    }
  return out;
}

}  // namespace

// Arguments: rows (n, p), their variances and how far their means are from them ((n, p), or empty where they are known),
// w (p, c) and its variances, d (c,) and its variances, noise, weight (F or 1), reactions of parameters and of rows (F,
// or empty), damping (of y, parameters, rows), old messages to y, measurements (F or 1); then pairs of what else y hears.
// Results: messages to y (eta, lam), reactions of parameters and of rows, sums into w (eta, lam), d, rows; and if it is
// there, a look at y.
ffi::Error MatrixPooled(ffi::ThreadPool pool, float slope, ffi::RemainingArgs in, ffi::RemainingRets out) {
  Arguments args{in, out};
  int64_t n = args[0].dimensions()[0], p = args[0].dimensions()[1], c = args[3].dimensions()[1];
  int64_t tile = c <= LANES ? LANES : 2 * LANES, width = (c + tile - 1) / tile * tile;
  bool uncertain = args[1].element_count() > 0;
  const float* w = args.data(3);
  auto pw = packed(w, p, c, width, false), pv = packed(args.data(4), p, c, width, false);
  auto pd = packed(args.data(5), 1, c, width, false), pvd = packed(args.data(6), 1, c, width, false);
  std::vector<float> pw2, wt;
  if (uncertain) {
    pw2 = packed(w, p, c, width, true);
    wt.resize(p * c);
    for (int64_t k = 0; k < p; ++k)
      for (int64_t j = 0; j < c; ++j) wt[j * p + k] = w[k * c + j];
  }
  // Each task has its own sums, which must stay small beside the rows.
  int64_t tasks = std::max<int64_t>(1, std::min<int64_t>(32, n / width));
  int64_t task_rows = (n + tasks - 1) / tasks;
  tasks = (n + task_rows - 1) / task_rows;
  std::vector<float> parts(tasks * 2 * (p + 1) * width, 0.0f);
  bool looking = out.size() > 10;
  std::vector<float> looks(tasks * Looked::COUNT, 0.0f);
  Inbound inbound(args, 15, in.size());
  const float* damp = args.data(11);
  Pooled a{n, p, c, width, slope, args.data(0), args.data(1), args.data(2), pw.data(), pv.data(),
           pw2.data(), wt.data(), pd.data(), pvd.data(), args[14], args[7], args[8], args.data(9), args.data(10),
           args.data(12), args.data(13), damp[0], damp[1], damp[2], &inbound, args.result(0), args.result(1), args.result(2),
           args.result(3), args.result(8), args.result(9), task_rows, parts.data(), looks.data()};
  Task work = tile == LANES ? choose<1>(uncertain, looking) : choose<2>(uncertain, looking);
  spread(pool, tasks, [&](int64_t t) { work(a, t); });
  for (int q = 0; q < 2; ++q) {
    float *of_w = args.result(4 + q), *of_d = args.result(6 + q);
    for (int64_t k = 0; k <= p; ++k)
      for (int64_t j = 0; j < c; ++j) {
        double sum = 0;
        for (int64_t t = 0; t < tasks; ++t) sum += parts[((t * 2 + q) * (p + 1) + k) * width + j];
        (k < p ? of_w[k * c + j] : of_d[j]) = static_cast<float>(sum);
      }
  }
  if (looking) join_looks(looks, args.result(10));
  return ffi::Error::Success();
}

}  // namespace gbplearn

HANDLER(gbplearn_matrix_pooled, gbplearn::MatrixPooled);
