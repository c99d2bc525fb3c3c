// Factors y - g(x w + d) with pooled messages where x, too, is a variable. The update is that of matrix_pooled.cc; here
// rows are few and long, so vectors run along the inputs.
#include <type_traits>

#include "prediction.h"

namespace gbplearn {
namespace {

constexpr int ROWS = 4;  // that are visited together
constexpr int R_AT_ONCE = LANES > 8 ? 4 : 2;  // for which there are registers; divides ROWS
constexpr int64_t BLOCK = 192;  // inputs, so that their beliefs stay in the first cache

// A pooled message from its sums, damped: of J share and of J² / S, where the belief had this mean.
INLINE void finish(Vec& eta, Vec& lam, Vec mean, float keep, Vec old_eta, Vec old_lam) {
  eta = keep * old_eta + (1 - keep) * (eta + lam * mean);
  lam = keep * old_lam + (1 - keep) * lam;
}

struct Inputs {
  int64_t n, p, c, width;  // width: inputs with padding
  float slope;
  float keep_x, keep_w, keep_d, keep_y;
  const float* start;  // where the rows are linearised; null: at their means
  Inbox of_x, of_w, of_d, of_y;
  const float *x_eta, *x_lam, *w_eta, *w_lam, *d_eta, *d_lam, *y_eta, *y_lam;  // own messages
  const float *reaction_w, *reaction_x;
  Shared measured, noise;
  Blocks weight;
  float *new_x_eta, *new_x_lam, *new_w_eta, *new_w_lam, *new_d_eta, *new_d_lam, *new_y_eta, *new_y_lam;
  float *new_reaction_w, *new_reaction_x;
  float *w, *v;         // (c, width): means, variances
  float *d, *vd;        // (c)
  float* x;             // (n, width): where it is linearised
  float *share, *gain;  // (n, c): -s R / S, s² / S
  float* partials;         // (2, n, COUNT): diagnostics of y and of the rows, row by row

  // Means and variances of the parameters from input `begin` to `end`.
  void prepare(int64_t begin, int64_t end) const {
    for (int64_t k = begin; k < end; ++k)
      for (int64_t j = 0; j < c; j += LANES) {
        int64_t i = k * c + j, count = std::min<int64_t>(LANES, c - j);
        Vec eta, lam;
        of_w.sum(i, count, eta, lam);
        Vec variance = 1 / (lam + load(w_lam + i, count, 0)), mean = (eta + load(w_eta + i, count, 0)) * variance;
        for (int64_t q = 0; q < count; ++q) {
          w[(j + q) * width + k] = mean[q];
          v[(j + q) * width + k] = variance[q];
        }
      }
    if (begin == 0)
      for (int64_t j = 0; j < c; ++j) {
        float eta, lam;
        of_d.sum(j, eta, lam);
        vd[j] = 1 / (lam + d_lam[j]);
        d[j] = (eta + d_eta[j]) * vd[j];
      }
  }

  // Beliefs of a row: where it is linearised and the squares of that, variances, means, means less linearisation points.
  struct RowBeliefs {
    float *at, *squares, *variance, *mean, *moved;
  };

  // Of each of R rows and C channels, three sums over inputs [begin, end) go on: x w, x² v and (variance of x) w².
  template <int R, int C>
  INLINE void add_products(const RowBeliefs* rows, int64_t j, int64_t begin, int64_t end, float* sums) const {
    Vec acc[3][R][C];
    for (int r = 0; r < R; ++r)
      for (int h = 0; h < C; ++h)
        for (int q = 0; q < 3; ++q) acc[q][r][h] = load(sums + ((r * c + j + h) * 3 + q) * LANES);
    for (int64_t k = begin; k < end; k += LANES) {
      Vec weight[C];
      for (int h = 0; h < C; ++h) weight[h] = load(w + (j + h) * width + k);
      for (int r = 0; r < R; ++r) {
        Vec at = load(rows[r].at + k);
        for (int h = 0; h < C; ++h) acc[0][r][h] += at * weight[h];
      }
      for (int h = 0; h < C; ++h) weight[h] *= weight[h];
      for (int r = 0; r < R; ++r) {
        Vec variance = load(rows[r].variance + k);
        for (int h = 0; h < C; ++h) acc[2][r][h] += variance * weight[h];
      }
      for (int h = 0; h < C; ++h) weight[h] = load(v + (j + h) * width + k);
      for (int r = 0; r < R; ++r) {
        Vec square = load(rows[r].squares + k);
        for (int h = 0; h < C; ++h) acc[1][r][h] += square * weight[h];
      }
    }
    for (int r = 0; r < R; ++r)
      for (int h = 0; h < C; ++h)
        for (int q = 0; q < 3; ++q) store(sums + ((r * c + j + h) * 3 + q) * LANES, acc[q][r][h]);
  }

  // The same for all channels, and R rows, some at a time (or one).
  template <int R>
  INLINE void add_all_products(const RowBeliefs* rows, int64_t begin, int64_t end, float* sums) const {
    constexpr int AT_ONCE = R == 1 ? 1 : R_AT_ONCE;
    auto add = [&](int64_t j, auto channels) __attribute__((always_inline)) {
      for (int q = 0; q < R; q += AT_ONCE)
        add_products<AT_ONCE, decltype(channels)::value>(rows + q, j, begin, end, sums + q * c * 3 * LANES);
    };
    int64_t j = 0;
    for (; j + 2 <= c; j += 2) add(j, std::integral_constant<int, 2>());
    if (j < c) add(j, std::integral_constant<int, 1>());
  }

  // Messages of R rows from `first` on to y and to the rows; rows share what is read of the weights. `buffer (R, 4, width)`,
  // `sums (R, c, 3, LANES)`.
  template <bool DIAGNOSE, int R>
  void visit(int64_t first, float* buffer, float* sums) const {
    RowBeliefs rows[R];
    for (int q = 0; q < R; ++q) {
      float* own = buffer + q * 4 * width;
      rows[q] = {x + (first + q) * width, own, own + width, own + 2 * width, own + 3 * width};
    }
    std::fill_n(sums, R * c * 3 * LANES, 0.0f);
    for (int64_t begin = 0; begin < width; begin += BLOCK) {
      int64_t end = std::min(width, begin + BLOCK);
      for (int q = 0; q < R; ++q) read_row(first + q, rows[q], begin, std::min(p, end));
      add_all_products<R>(rows, begin, end, sums);
    }
    Diagnostics of_y_row[R], of_x_row[R];
    for (int64_t j = 0; j < c; ++j)
      for (int q = 0; q < R; ++q) factor<DIAGNOSE>(first + q, j, rows[q], sums + (q * c + j) * 3 * LANES, of_y_row[q]);
    for (int64_t k = 0; k < p; k += LANES) {
      Vec eta[R], lam[R];
      for (int q = 0; q < R; ++q) eta[q] = lam[q] = Vec{};
      for (int64_t j = 0; j < c; ++j) {
        Vec weights = load(w + j * width + k), squared = weights * weights;
        for (int q = 0; q < R; ++q) {
          eta[q] += share[(first + q) * c + j] * weights;
          lam[q] += gain[(first + q) * c + j] * squared;
        }
      }
      for (int q = 0; q < R; ++q) {
        int64_t i = (first + q) * p + k, count = p - k;
        Vec mean = load(rows[q].mean + k);
        if constexpr (DIAGNOSE) {
          Vec outside_eta, outside_lam;
          Mask inside = first_of(count);
          of_x.sum(i, count, outside_eta, outside_lam);
          Vec m = of_x_row[q].change(outside_eta + load(x_eta + i, count, 0), outside_lam + load(x_lam + i, count, 0),
                                   outside_eta + eta[q] + lam[q] * mean, outside_lam + lam[q], inside);
          of_x_row[q].add_prior(m, of_x.eta[0].at(i, count, 0), of_x.lam[0].at(i, count, 1), inside);
        }
        finish(eta[q], lam[q], mean, keep_x, load(x_eta + i, count, 0), load(x_lam + i, count, 0));
        store(new_x_eta + i, eta[q], count);
        store(new_x_lam + i, lam[q], count);
      }
    }
    for (int q = 0; DIAGNOSE && q < R; ++q) {
      of_y_row[q].write(partials + (first + q) * Diagnostics::COUNT);
      of_x_row[q].write(partials + (n + first + q) * Diagnostics::COUNT);
    }
  }

  // The beliefs of row r, inputs [begin, end).
  INLINE void read_row(int64_t r, const RowBeliefs& row, int64_t begin, int64_t end) const {
    for (int64_t k = begin; k < end; k += LANES) {
      int64_t i = r * p + k, count = p - k;
      Vec eta, lam;
      of_x.sum(i, count, eta, lam);
      Vec var = 1 / (lam + load(x_lam + i, count, 0)), m = (eta + load(x_eta + i, count, 0)) * var;
      Vec inside = first_of(count) ? all(1) : Vec{};
      var *= inside;
      m *= inside;
      Vec point = start ? load(start + i, count, 0) : m;
      store(row.mean + k, m);
      store(row.variance + k, var);
      if (start) store(row.moved + k, m - point);
      store(row.at + k, point);
      store(row.squares + k, point * point);
    }
  }

  // Factor j of row r, from the products.
  template <bool DIAGNOSE>
  INLINE void factor(int64_t r, int64_t j, const RowBeliefs& row, const float* sums, Diagnostics& of_y_row) const {
    Vec moves{};
    if (start)
      for (int64_t k = 0; k < width; k += LANES) moves += load(row.moved + k) * load(w + j * width + k);
    int64_t f = r * c + j;
    float sum = sum_of(load(sums)) + d[j], s = sum > 0 ? 1 : slope, step = sum_of(moves);
    float of_params = s * s * (sum_of(load(sums + LANES)) + vd[j]), of_rows = s * s * sum_of(load(sums + 2 * LANES));
    float mean_sum = sum + step, at_means = mean_sum > 0 ? mean_sum : slope * mean_sum;
    float value = s * mean_sum, off = measured.at(f), k = weight.at(f), sigma = noise.at(f);
    float predicted = off + value + reaction_w[f] * of_params + reaction_x[f] * of_rows;
    float outside_eta, outside_lam;
    of_y.sum(f, outside_eta, outside_lam);
    auto [eta, lam, full, reaction] = predict_scalar(sigma, k, of_params + of_rows, predicted, outside_eta, outside_lam);
    if constexpr (DIAGNOSE) {
      Mask inside = first_of(1);
      Vec e = all(outside_eta), l = all(outside_lam);
      Vec mean_y = of_y_row.change(e + y_eta[f], l + y_lam[f], e + eta, l + lam, inside);
      of_y_row.add_prior(mean_y, all(of_y.eta[0].at(f)), all(of_y.lam[0].at(f)), inside);
      of_y_row.add_energy(off + at_means - mean_y, all(k), all(sigma), inside);
    }
    new_y_eta[f] = keep_y * y_eta[f] + (1 - keep_y) * eta;
    new_y_lam[f] = keep_y * y_lam[f] + (1 - keep_y) * lam;
    new_reaction_w[f] = keep_w * reaction_w[f] + (1 - keep_w) * reaction;
    new_reaction_x[f] = keep_x * reaction_x[f] + (1 - keep_x) * reaction;
    share[f] = -s * reaction;
    gain[f] = s * s * full;
  }

  // Undamped messages of two vectors of inputs from k on to the weights of channels [j, j + C): into `eta` and
  // `lam (2 LANES, c)`.
  template <int C>
  INLINE void sum_for_weights(int64_t j, int64_t k, float* eta_to, float* lam_to) const {
    Vec eta[C][2]{}, lam[C][2]{};
    for (int64_t r = 0; r < n; ++r) {
      const float* a = x + r * width + k;
      Vec at[2] = {load(a), load(a + LANES)}, squares[2] = {at[0] * at[0], at[1] * at[1]};
      for (int q = 0; q < C; ++q) {
        Vec f = all(share[r * c + j + q]), g = all(gain[r * c + j + q]);
        for (int h = 0; h < 2; ++h) {
          eta[q][h] += f * at[h];
          lam[q][h] += g * squares[h];
        }
      }
    }
    for (int q = 0; q < C; ++q)
      for (int h = 0; h < 2; ++h) {
        eta[q][h] += lam[q][h] * load(w + (j + q) * width + k + h * LANES);
        for (int64_t lane = 0; lane < LANES; ++lane) {
          eta_to[(h * LANES + lane) * c + j + q] = eta[q][h][lane];
          lam_to[(h * LANES + lane) * c + j + q] = lam[q][h][lane];
        }
      }
  }

  // Messages to the weights of two vectors of inputs from k on. `sums (2, 2 LANES, c)`.
  void to_weights(int64_t k, float* sums) const {
    float *eta = sums, *lam = sums + 2 * LANES * c;
    int64_t j = 0;
    for (; j + 3 <= c; j += 3) sum_for_weights<3>(j, k, eta, lam);
    for (; j < c; ++j) sum_for_weights<1>(j, k, eta, lam);
    int64_t first = k * c, size = std::min<int64_t>(2 * LANES, p - k) * c;
    for (int64_t i = 0; i < size; i += LANES) {
      int64_t count = size - i;
      store(new_w_eta + first + i, keep_w * load(w_eta + first + i, count, 0) + (1 - keep_w) * load(eta + i, count, 0), count);
      store(new_w_lam + first + i, keep_w * load(w_lam + first + i, count, 0) + (1 - keep_w) * load(lam + i, count, 0), count);
    }
  }

  void to_bias() const {
    for (int64_t j = 0; j < c; ++j) {
      float e = 0, l = 0;
      for (int64_t r = 0; r < n; ++r) {
        e += share[r * c + j];
        l += gain[r * c + j];
      }
      new_d_eta[j] = keep_d * d_eta[j] + (1 - keep_d) * (e + l * d[j]);
      new_d_lam[j] = keep_d * d_lam[j] + (1 - keep_d) * l;
    }
  }
};

}  // namespace

// A call: `n` rows of `p` inputs, `c` outputs, F = n c factors.
// Attributes: rows, inputs, outputs; slope; started: the rows are linearised elsewhere than at their means at first;
// diagnose; inbox (4): how many pairs have those of x, w, d and y.
// Arguments: noise, measured (F or 1), weight (F or fewer); start of x, and first, whether it counts now, if it is started;
// keep_x, keep_w, keep_d, keep_y: how much is kept of old messages; those to x (n, p), w (p, c), d (c), y (F), and the
// reactions (F) of the parameters and of x; then the inboxes of x, w, d and y.
// Results: the new messages and reactions, in place; diagnostics of y and of x, if they are wanted.
ffi::Error MatrixPooledInputs(ffi::ThreadPool pool, ffi::RemainingArgs in, ffi::RemainingRets out, ffi::Dictionary attributes) {
  Arguments args("gbplearn_matrix_pooled_inputs", in, out, attributes);
  const int64_t n = args.size("rows"), p = args.size("inputs"), c = args.size("outputs");
  const float slope = args.number("slope");
  const bool started = args.flag("started"), diagnose = args.flag("diagnose");
  auto inbox = args.sizes("inbox", 4);
  const int64_t factors = count_of({n, c}), weights = count_of({p, c}), units = count_of({n, p});
  Array noise = args.take_shared("noise", factors), measured = args.take_shared("measured", factors);
  Array weight = args.take_blocks("weight", factors, c), start;
  bool moved = false;
  if (started) {
    start = args.take_flat("start", units);
    moved = args.take_truth("first");
  }
  const float keep_x = args.take_number("keep_x"), keep_w = args.take_number("keep_w");
  const float keep_d = args.take_number("keep_d"), keep_y = args.take_number("keep_y");
  Array x_eta = args.take_flat("x.eta", units), x_lam = args.take_flat("x.lam", units);
  Array w_eta = args.take_flat("w.eta", weights), w_lam = args.take_flat("w.lam", weights);
  Array d_eta = args.take_flat("d.eta", c), d_lam = args.take_flat("d.lam", c);
  Array y_eta = args.take_flat("y.eta", factors), y_lam = args.take_flat("y.lam", factors);
  Array reaction_w = args.take_flat("reaction_w", factors), reaction_x = args.take_flat("reaction_x", factors);
  Pairs of_x = args.take_inbox("x", inbox[0], units), of_w = args.take_inbox("w", inbox[1], weights);
  Pairs of_d = args.take_inbox("d", inbox[2], c), of_y = args.take_inbox("y", inbox[3], factors);
  float *new_x_eta = args.replace("x.eta", x_eta), *new_x_lam = args.replace("x.lam", x_lam);
  float *new_w_eta = args.replace("w.eta", w_eta), *new_w_lam = args.replace("w.lam", w_lam);
  float *new_d_eta = args.replace("d.eta", d_eta), *new_d_lam = args.replace("d.lam", d_lam);
  float *new_y_eta = args.replace("y.eta", y_eta), *new_y_lam = args.replace("y.lam", y_lam);
  float *new_reaction_w = args.replace("reaction_w", reaction_w), *new_reaction_x = args.replace("reaction_x", reaction_x);
  float* diagnostics_y = diagnose ? args.report("diagnostics_y", Diagnostics::COUNT) : nullptr;
  float* diagnostics_x = diagnose ? args.report("diagnostics_x", Diagnostics::COUNT) : nullptr;
  if (ffi::Error error = args.error(); error.failure()) return error;

  // An odd number of cache lines: else rows would lie at distances that share few places of the first cache.
  int64_t pairs = (p + 2 * LANES - 1) / (2 * LANES), width = pairs * 2 * LANES;
  if (width / LINE % 2 == 0) width += LINE;
  Room room;
  float* means_w = room.take(2 * c * width);
  for (int64_t j = 0; j < 2 * c; ++j) std::fill_n(means_w + j * width + p, width - p, 0.0f);
  float *means_d = room.take(2 * c), *rows = room.take(n * width), *sums = room.take(2 * n * c);
  std::vector<float> partials(2 * n * Diagnostics::COUNT, 0.0f);
  Inputs a{n, p, c, width, slope, keep_x, keep_w, keep_d, keep_y, moved ? start.data : nullptr,
           Inbox(of_x), Inbox(of_w), Inbox(of_d), Inbox(of_y), x_eta.data, x_lam.data, w_eta.data, w_lam.data, d_eta.data,
           d_lam.data, y_eta.data, y_lam.data, reaction_w.data, reaction_x.data, measured, noise, Blocks(weight, factors),
           new_x_eta, new_x_lam, new_w_eta, new_w_lam, new_d_eta, new_d_lam, new_y_eta, new_y_lam,
           new_reaction_w, new_reaction_x, means_w, means_w + c * width, means_d, means_d + c, rows, sums, sums + n * c,
           partials.data()};
  int64_t tasks = std::min<int64_t>(16, std::max<int64_t>(1, p / 64));
  spread(pool, tasks, [&](int64_t t) { a.prepare(t * p / tasks, (t + 1) * p / tasks); });
  int64_t groups = (n + ROWS - 1) / ROWS;
  spread(pool, groups, [&](int64_t t) {
    Room own;
    float *buffer = own.take(ROWS * 4 * width), *sums = own.take(ROWS * c * 3 * LANES);
    int64_t begin = t * ROWS, end = std::min(n, begin + ROWS);
    for (int64_t r = begin; r < end; ++r) std::fill_n(a.x + r * width + p, width - p, 0.0f);
    for (int64_t r = 0; r < ROWS * 4; ++r) std::fill_n(buffer + r * width + p, width - p, 0.0f);
    if (end - begin == ROWS)
      diagnose ? a.visit<true, ROWS>(begin, buffer, sums) : a.visit<false, ROWS>(begin, buffer, sums);
    else
      for (int64_t r = begin; r < end; ++r)
        diagnose ? a.visit<true, 1>(r, buffer, sums) : a.visit<false, 1>(r, buffer, sums);
  });
  tasks = std::min<int64_t>(16, pairs);
  spread(pool, tasks, [&](int64_t t) {
    Room own;
    float* buffer = own.take(4 * LANES * c);
    for (int64_t b = t * pairs / tasks; b < (t + 1) * pairs / tasks; ++b) a.to_weights(b * 2 * LANES, buffer);
  });
  a.to_bias();
  if (diagnose) {
    auto middle = partials.begin() + n * Diagnostics::COUNT;
    join_diagnostics({partials.begin(), middle}, diagnostics_y);
    join_diagnostics({middle, partials.end()}, diagnostics_x);
  }
  return ffi::Error::Success();
}

}  // namespace gbplearn

HANDLER(gbplearn_matrix_pooled_inputs, gbplearn::MatrixPooledInputs);
