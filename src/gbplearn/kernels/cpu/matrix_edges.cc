// Factors y - g(rows w + d) with a message an edge: the update of engine/update.py for M = 1, in two passes over the edges.
//
// Factor (n, c) has an edge to each w_kc (coefficient rows_nk), to d_c and to y_nc, and where the rows are variables one
// to each rows_nk (coefficient w_kc). With J = -s x coefficient, cavities m, v, and rest = sum of the other J² v:
//
//   R = measured + g(a) - m_y - sum J (m - x0) ,   lam = J² / (sigma² / weight + rest) ,   eta = (R + J m) lam / J
//
// Cavities are the total of a unit without the own message. Totals are summed in double precision and kept as two
// floats: (high - own) + low loses nothing even where the own message is nearly all of it.
#include "prediction.h"

namespace gbplearn {
namespace {

int64_t padded(int64_t p) { return (p + LANES - 1) / LANES * LANES; }

// Beliefs of all units along a row of edges, `p` of them, padded; and where they are linearised.
struct Units {
  std::vector<float> eta_high, eta_low, lam_high, lam_low, point;
  explicit Units(int64_t size)
      : eta_high(size, 0), eta_low(size, 0), lam_high(size, 1), lam_low(size, 0), point(size, 0) {}
  void set(int64_t i, double eta, double lam, float at) {
    eta_high[i] = static_cast<float>(eta);
    eta_low[i] = static_cast<float>(eta - eta_high[i]);
    lam_high[i] = static_cast<float>(lam);
    lam_low[i] = static_cast<float>(lam - lam_high[i]);
    point[i] = at;
  }
};

// Messages are added to sums in double precision.
INLINE void add_up(const float* each, int64_t size, double* out) {
  for (int64_t k = 0; k < size; ++k) out[k] += each[k];
}

// The edges of one factor to one set of units.
struct Row {
  const Units* units;
  int64_t offset;       // of these units
  const float* factor;  // coefficients x, padded
  const float *old_eta, *old_lam;
  float *eta, *lam;          // new messages
  float *sum_eta, *sum_lam;  // of the units, padded: added to
  float *mean, *term;        // room for the cavities of the edges: their means, and x² v
};

constexpr int BLOCK = LANES;  // factors at a time

// Of the factors of a block, a vector each: sum and largest of x² v, sums of x (m - x0) and of x x0.
struct Sums {
  Vec sum[BLOCK], largest[BLOCK], move[BLOCK], dot[BLOCK];
};

INLINE Vec add_lanes(Vec (&a)[LANES]) {
  transpose(a);
  for (int apart = 1; apart < LANES; apart *= 2)
    for (int i = 0; i < LANES; i += 2 * apart) a[i] += a[i + apart];
  return a[0];
}

// The same as a lane each.
struct Totals {
  Vec sum, largest, move, dot;
  INLINE Totals() { sum = largest = move = dot = Vec{}; }  // one by one: a whole struct would be cleared by a slow instruction
  INLINE void take(Sums& s, int64_t count) {
    for (int64_t b = count; b < BLOCK; ++b) s.sum[b] = s.largest[b] = s.move[b] = s.dot[b] = Vec{};
    dot = add_lanes(s.dot);
    sum = add_lanes(s.sum);
    move = add_lanes(s.move);
    transpose(s.largest);
    for (const Vec& a : s.largest) largest = largest > a ? largest : a;
  }
};

// The cavities of a row: means and x² v of its edges, and their sums.
template <int N>
INLINE void find_cavities(const Row row, int64_t p, int b, Sums& sums) {
  Vec sum{}, largest{}, move{}, dot{};
  const float *eta_high = &row.units->eta_high[row.offset], *eta_low = &row.units->eta_low[row.offset];
  const float *lam_high = &row.units->lam_high[row.offset], *lam_low = &row.units->lam_low[row.offset];
  const float* point = &row.units->point[row.offset];
  const int64_t end = N ? N * LANES : p;
#pragma GCC unroll 4
  for (int64_t k = 0; k < end; k += LANES) {
    int64_t count = N && k + LANES < end ? LANES : p - k;
    Vec lam = (load(lam_high + k) - load(row.old_lam + k, count, 0)) + load(lam_low + k);
    Vec eta = (load(eta_high + k) - load(row.old_eta + k, count, 0)) + load(eta_low + k);
    Vec v = 1 / lam, m = eta * v, x = load(row.factor + k);
    Vec term = (x * x) * v;
    store(row.mean + k, m);
    store(row.term + k, term);
    sum += term;
    largest = largest > term ? largest : term;
    Vec at = load(point + k);
    move += x * (m - at);
    dot += x * at;
  }
  sums.dot[b] = dot;
  sums.sum[b] = sum;
  sums.largest[b] = largest;
  sums.move[b] = move;
}

// Sends the messages of a row. `N`: of how many vectors, 0 for any number. `rest`: J² v of all edges of the factor to other
// sets; `sum`, `largest` of x² v in this one.
template <int N>
INLINE void send(const Row row, int64_t p, float s, float sum, float largest, float rest, float r, float weight, float noise,
                   float damp) {
  // If one edge holds more than half, what the others hold is summed without it.
  bool most = largest > 0.5f * sum;
  float others = 0;
  if (most) {
    Vec left{};
    for (int64_t k = 0; k < p; k += LANES) {
      Vec term = load(row.term + k);
      left += term == largest ? Vec{} : term;
    }
    others = sum_of(left);
  }
  float s2 = s * s;
  const int64_t end = N ? N * LANES : p;
#pragma GCC unroll 4
  for (int64_t k = 0; k < end; k += LANES) {
    int64_t count = N && k + LANES < end ? LANES : p - k;
    Vec term = load(row.term + k), left = sum - term, j = -s * load(row.factor + k);
    if (most) left = term == largest ? all(others) : left;
    Vec gain = precision_beside(noise, weight, rest + s2 * left) * j;
    Vec eta = gain * (r + j * load(row.mean + k)), lam = gain * j;
    eta = damp * load(row.old_eta + k, count, 0) + (1 - damp) * eta;
    lam = damp * load(row.old_lam + k, count, 0) + (1 - damp) * lam;
    store(row.sum_eta + k, load(row.sum_eta + k) + eta);
    store(row.sum_lam + k, load(row.sum_lam + k) + lam);
    store(row.eta + k, eta, count);
    store(row.lam + k, lam, count);
  }
}

struct Edges {
  int64_t n, p, c, width;  // width: p with padding
  bool uncertain, learnt;  // whether the rows are variables, whether w and d are
  float slope;
  const float *rows, *d;
  std::vector<float> w;  // (c, width): linearisation points
  const Units *of_w, *of_d;
  const float *rows_eta, *rows_lam;              // inbox of the rows
  const float *w_eta, *w_lam, *d_eta, *d_lam, *x_eta, *x_lam, *y_eta, *y_lam;  // old messages
  Shared measured, noise;
  Blocks weight;
  float damp_y, damp_w, damp_d, damp_x;
  const Inbox* inbox;
  float *new_y_eta, *new_y_lam, *new_w_eta, *new_w_lam, *new_d_eta, *new_d_lam, *new_x_eta, *new_x_lam;
  float *sum_x_eta, *sum_x_lam;
  const char* skip;  // of each row, whether its messages to w are zero and were: the row is zero, as margins of images are

  // Some rows; `sums (2, c, width + 1)` of the messages to w and d. `diagnostics`: null if none are wanted.
  template <int N>
  void task(int64_t begin, int64_t end, float* sums, Diagnostics* diagnostics) const {
    // Long rows by one factor at a time, so that the cavities of its edges stay in the first cache.
    const int64_t block = p <= 16 * LANES ? BLOCK : 1;
    Room room;
    float* cavities = room.take(4 * block * width, 0.0f);
    auto to = [&](int64_t which, int64_t b) { return cavities + (which * block + b) * width; };
    Units of_x(width);
    std::vector<float> row(width, 0.0f), sum_eta(width), sum_lam(width), off_mean(width, 0.0f);
    std::vector<double> eta(p), lam(p);
    for (int64_t i = begin; i < end; ++i) {
      std::copy_n(rows + i * p, p, row.begin());
      if (uncertain) {
        for (int64_t k = 0; k < p; ++k) {
          eta[k] = rows_eta[i * p + k];
          lam[k] = rows_lam[i * p + k];
        }
        for (int64_t f = i * c; f < (i + 1) * c; ++f) {
          add_up(x_eta + f * p, p, eta.data());
          add_up(x_lam + f * p, p, lam.data());
        }
        for (int64_t k = 0; k < p; ++k) {
          of_x.set(k, eta[k], lam[k], row[k]);
          off_mean[k] = static_cast<float>(eta[k] / lam[k]) - row[k];  // at the first visit it may be linearised elsewhere
        }
        std::fill(sum_eta.begin(), sum_eta.end(), 0.0f);
        std::fill(sum_lam.begin(), sum_lam.end(), 0.0f);
      }
      for (int64_t j = 0; j < c; j += block) {
        int64_t f = i * c + j, count = std::min<int64_t>(block, c - j);
        float *sum_w_eta = sums + j * (width + 1), *sum_w_lam = sum_w_eta + c * (width + 1);
        auto weights = [&](int64_t b) __attribute__((always_inline)) {
          int64_t e = (f + b) * p, at = b * (width + 1);
          return Row{of_w, (j + b) * width, row.data(), w_eta + e, w_lam + e, new_w_eta + e, new_w_lam + e, sum_w_eta + at,
                     sum_w_lam + at, to(0, b), to(1, b)};
        };
        auto inputs = [&](int64_t b) __attribute__((always_inline)) {
          int64_t e = (f + b) * p;
          return Row{&of_x, 0, &w[(j + b) * width], x_eta + e, x_lam + e, new_x_eta + e, new_x_lam + e, sum_eta.data(),
                     sum_lam.data(), to(2, b), to(3, b)};
        };
        Vec a = load(d + j, count, 0);
        Sums each;
        Totals all_w, all_x;  // a lane is a factor
        if (learnt && !skip[i]) {
          for (int64_t b = 0; b < count; ++b) find_cavities<N>(weights(b), p, b, each);
          all_w.take(each, count);
        }
        if (uncertain) {
          for (int64_t b = 0; b < count; ++b) find_cavities<N>(inputs(b), p, b, each);
          all_x.take(each, count);
        }
        a += learnt ? all_w.dot : all_x.dot;
        Vec s = a > 0 ? all(1) : all(slope), s2 = s * s;
        Vec old_d_eta{}, old_d_lam{}, v_d{}, m_d = load(d + j, count, 0);
        if (learnt) {
          old_d_eta = load(d_eta + f, count, 0);
          old_d_lam = load(d_lam + f, count, 0);
          v_d = 1 / ((load(&of_d->lam_high[j]) - old_d_lam) + load(&of_d->lam_low[j]));
          m_d = ((load(&of_d->eta_high[j]) - old_d_eta) + load(&of_d->eta_low[j])) * v_d;
        }
        Vec term_d = s2 * v_d, outside_eta, outside_lam;
        inbox->sum(f, count, outside_eta, outside_lam);
        Vec v_y = 1 / outside_lam, k = weight.at(f, count, 1), sigma = noise.at(f, count, 1), off = measured.at(f, count, 0);
        Vec predicted = off + s * a + s * (all_w.move + all_x.move) + s * (m_d - load(d + j, count, 0));
        Vec r = predicted - outside_eta * v_y, of_w_all = s2 * all_w.sum, of_x_all = s2 * all_x.sum;
        if (learnt && !skip[i])
          for (int64_t b = 0; b < count; ++b)
            send<N>(weights(b), p, s[b], all_w.sum[b], all_w.largest[b], of_x_all[b] + term_d[b] + v_y[b], r[b], k[b], sigma[b],
                   damp_w);
        if (uncertain)
          for (int64_t b = 0; b < count; ++b)
            send<N>(inputs(b), p, s[b], all_x.sum[b], all_x.largest[b], of_w_all[b] + term_d[b] + v_y[b], r[b], k[b], sigma[b],
                   damp_x);
        Vec both = of_w_all + of_x_all, gain = precision_beside(sigma, k, both + v_y);
        if (learnt) {
          Vec eta_d = damp_d * old_d_eta - (1 - damp_d) * s * gain * (r - s * m_d);
          Vec lam_d = damp_d * old_d_lam + (1 - damp_d) * s2 * gain;
          for (int64_t b = 0; b < count; ++b) {
            sum_w_eta[b * (width + 1) + width] += eta_d[b];
            sum_w_lam[b * (width + 1) + width] += lam_d[b];
          }
          store(new_d_eta + f, eta_d, count);
          store(new_d_lam + f, lam_d, count);
        }
        gain = precision_beside(sigma, k, both + term_d);
        Vec old_eta = load(y_eta + f, count, 0), old_lam = load(y_lam + f, count, 0);
        if (diagnostics) {
          Mask inside = first_of(count);
          Vec mean = diagnostics->change(outside_eta + old_eta, outside_lam + old_lam, outside_eta + gain * predicted,
                                    outside_lam + gain, inside);
          diagnostics->add_prior(mean, inbox->eta[0].at(f, count, 0), inbox->lam[0].at(f, count, 1), inside);
          Vec at_mean = a;
          for (int64_t b = 0; uncertain && b < count; ++b) {
            Vec step{};
            for (int64_t q = 0; q < width; q += LANES) step += load(&off_mean[q]) * load(&w[(j + b) * width + q]);
            at_mean[b] += sum_of(step);
          }
          diagnostics->add_energy(off + (at_mean > 0 ? at_mean : slope * at_mean) - mean, k, sigma, inside);
        }
        store(new_y_eta + f, damp_y * old_eta + (1 - damp_y) * gain * predicted, count);
        store(new_y_lam + f, damp_y * old_lam + (1 - damp_y) * gain, count);
      }
      if (uncertain) {
        std::copy_n(sum_eta.data(), p, sum_x_eta + i * p);
        std::copy_n(sum_lam.data(), p, sum_x_lam + i * p);
      }
    }
  }
};

}  // namespace

// A call: `n` rows of `p` inputs, `c` outputs, F = n c factors.
// Attributes: rows, inputs, outputs; slope; learnt, uncertain: whether the parameters and the rows are variables, one of
// them at least; diagnose; inbox: how many pairs has that of y.
// Arguments: rows (n, p), w (p, c), d (c,), where it is linearised; noise, measured (F or 1), weight (F or fewer); of y
// keep, how much is kept of old messages, and these (F). If they are learnt, of w and d outside (p, c), the product of
// their inboxes, keep, and old messages (F, p) and (F, 1). If they are uncertain the same of x: (n, p) and (F, p). Then the
// inbox of y.
// Results: the new messages to y, w, d, x, in place, of those that are variables; their sums, the messages on the units, to
// w, d, x; diagnostics of y, if they are wanted.
ffi::Error MatrixEdges(ffi::ThreadPool pool, ffi::RemainingArgs in, ffi::RemainingRets out, ffi::Dictionary attributes) {
  Arguments args("gbplearn_matrix_edges", in, out, attributes);
  const int64_t n = args.size("rows"), p = args.size("inputs"), c = args.size("outputs"), pairs = args.size("inbox");
  const float slope = args.number("slope");
  const bool learnt = args.flag("learnt"), uncertain = args.flag("uncertain"), diagnose = args.flag("diagnose");
  args.require(learnt || uncertain, "attribute %s or uncertain must be true", "learnt");
  const int64_t factors = count_of({n, c});
  Array rows = args.take("rows", {n, p}), w = args.take("w", {p, c}), d = args.take("d", {c});
  Array noise = args.take_shared("noise", factors), measured = args.take_shared("measured", factors);
  Array weight = args.take_blocks("weight", factors, c);
  const float keep_y = args.take_number("keep_y");
  Array y_eta = args.take_flat("y.eta", factors), y_lam = args.take_flat("y.lam", factors);
  Array from_w[2], from_d[2], from_x[2], w_eta, w_lam, d_eta, d_lam, x_eta, x_lam;
  float keep_w = 0, keep_d = 0, keep_x = 0;
  if (learnt) {
    from_w[0] = args.take("w.outside.eta", {p, c});
    from_w[1] = args.take("w.outside.lam", {p, c});
    from_d[0] = args.take("d.outside.eta", {c});
    from_d[1] = args.take("d.outside.lam", {c});
    keep_w = args.take_number("keep_w");
    keep_d = args.take_number("keep_d");
    w_eta = args.take("w.eta", {factors, p});
    w_lam = args.take("w.lam", {factors, p});
    d_eta = args.take("d.eta", {factors, 1});
    d_lam = args.take("d.lam", {factors, 1});
  }
  if (uncertain) {
    from_x[0] = args.take("x.outside.eta", {n, p});
    from_x[1] = args.take("x.outside.lam", {n, p});
    keep_x = args.take_number("keep_x");
    x_eta = args.take("x.eta", {factors, p});
    x_lam = args.take("x.lam", {factors, p});
  }
  Pairs of_y = args.take_inbox("y", pairs, factors);
  float *new_y[2] = {args.replace("y.eta", y_eta), args.replace("y.lam", y_lam)};
  float *new_w[2] = {}, *new_d[2] = {}, *new_x[2] = {}, *sum_w[2] = {}, *sum_d[2] = {}, *sum_x[2] = {};
  if (learnt) {
    new_w[0] = args.replace("w.eta", w_eta);
    new_w[1] = args.replace("w.lam", w_lam);
    new_d[0] = args.replace("d.eta", d_eta);
    new_d[1] = args.replace("d.lam", d_lam);
  }
  if (uncertain) {
    new_x[0] = args.replace("x.eta", x_eta);
    new_x[1] = args.replace("x.lam", x_lam);
  }
  if (learnt) {
    sum_w[0] = args.report("w.sum.eta", count_of({p, c}));
    sum_w[1] = args.report("w.sum.lam", count_of({p, c}));
    sum_d[0] = args.report("d.sum.eta", c);
    sum_d[1] = args.report("d.sum.lam", c);
  }
  if (uncertain) {
    sum_x[0] = args.report("x.sum.eta", count_of({n, p}));
    sum_x[1] = args.report("x.sum.lam", count_of({n, p}));
  }
  float* reported = diagnose ? args.report("diagnostics", Diagnostics::COUNT) : nullptr;
  if (ffi::Error error = args.error(); error.failure()) return error;

  const int64_t width = padded(p), tasks = std::max<int64_t>(1, std::min<int64_t>(32, n / 8));
  auto first = [&](int64_t t) { return t * n / tasks; };
  const float *old[4] = {w_eta.data, w_lam.data, d_eta.data, d_lam.data};
  int64_t size[4] = {c * p, c * p, c, c};
  std::vector<double> totals[4];
  for (int q = 0; q < 4; ++q) totals[q].assign(tasks * size[q], 0.0);
  // Rows that are skipped are not written: their messages must be in place already.
  bool in_place = w_eta.data == new_w[0] && w_lam.data == new_w[1];
  std::vector<char> skip(n, 0);
  if (learnt) spread(pool, tasks, [&](int64_t t) {
    for (int64_t i = first(t); i < first(t + 1); ++i) {
      skip[i] = in_place && !any(rows.data + i * p, p) && !any(old[0] + i * size[0], size[0]) && !any(old[1] + i * size[1], size[1]);
      for (int q = skip[i] ? 2 : 0; q < 4; ++q) add_up(old[q] + i * size[q], size[q], &totals[q][t * size[q]]);
    }
  });
  for (int q = 0; q < 4; ++q)
    for (int64_t t = 1; t < tasks; ++t)
      for (int64_t k = 0; k < size[q]; ++k) totals[q][k] += totals[q][t * size[q] + k];
  Units of_w(c * width), of_d(padded(c) + LANES);  // a vector is read from each on
  std::vector<float> wide(c * width, 0.0f);
  for (int64_t j = 0; j < c; ++j) {
    if (learnt) of_d.set(j, totals[2][j] + from_d[0].data[j], totals[3][j] + from_d[1].data[j], d.data[j]);
    for (int64_t k = 0; k < p; ++k) {
      int64_t e = j * p + k, u = k * c + j;
      wide[j * width + k] = w.data[u];
      if (learnt) of_w.set(j * width + k, totals[0][e] + from_w[0].data[u], totals[1][e] + from_w[1].data[u], w.data[u]);
    }
  }
  Inbox inbox(of_y);
  Edges a{n, p, c, width, uncertain, learnt, slope, rows.data, d.data, wide, &of_w, &of_d, from_x[0].data,
          from_x[1].data, w_eta.data, w_lam.data, d_eta.data, d_lam.data, x_eta.data, x_lam.data,
          y_eta.data, y_lam.data, measured, noise, Blocks(weight, factors), keep_y, keep_w, keep_d, keep_x, &inbox,
          new_y[0], new_y[1], new_w[0], new_w[1], new_d[0], new_d[1],
          new_x[0], new_x[1], sum_x[0], sum_x[1], skip.data()};
  std::vector<float> sums(tasks * 2 * c * (width + 1), 0.0f);
  std::vector<float> partials(tasks * Diagnostics::COUNT, 0.0f);
  spread(pool, tasks, [&](int64_t t) {
    Diagnostics diagnostics;
    float* own = &sums[t * 2 * c * (width + 1)];
    constexpr int USUAL = 32 / LANES;  // vectors that filters of 5 x 5 on one channel have
    width == USUAL * LANES ? a.task<USUAL>(first(t), first(t + 1), own, diagnose ? &diagnostics : nullptr)
                           : a.task<0>(first(t), first(t + 1), own, diagnose ? &diagnostics : nullptr);
    diagnostics.write(&partials[t * Diagnostics::COUNT]);
  });
  if (diagnose) join_diagnostics(partials, reported);
  for (int q = 0; learnt && q < 2; ++q) {
    float *to_w = sum_w[q], *to_d = sum_d[q];
    for (int64_t j = 0; j < c; ++j)
      for (int64_t k = 0; k <= p; ++k) {
        double sum = 0;
        for (int64_t t = 0; t < tasks; ++t) sum += sums[((t * 2 + q) * c + j) * (width + 1) + (k < p ? k : width)];
        (k < p ? to_w[k * c + j] : to_d[j]) = static_cast<float>(sum);
      }
  }
  return ffi::Error::Success();
}

}  // namespace gbplearn

HANDLER(gbplearn_matrix_edges, gbplearn::MatrixEdges);
