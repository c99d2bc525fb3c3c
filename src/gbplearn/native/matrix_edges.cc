// Factors y - g(rows w + d) with a message an edge: the update of messages.py for M = 1, in two passes over the edges.
//
// Factor (n, c) has an edge to each w_kc (coefficient rows_nk), to d_c and to y_nc, and where the rows are variables one
// to each rows_nk (coefficient w_kc). With J = -s x coefficient, cavities m, v, and rest = sum of the other J² v:
//
//   R = measured + g(a) - m_y - sum J (m - x0) ,   lam = J² / (sigma² / weight + rest) ,   eta = (R + J m) lam / J
//
// Cavities are the total of a unit without the own message. Totals are summed in double precision and kept as two
// floats: (high - own) + low loses nothing even where the own message is nearly all of it.
#include "parallel.h"

namespace gbplearn {
namespace {

int64_t padded(int64_t p) { return (p + LANES - 1) / LANES * LANES; }

// What all units along a row of edges are known by, `p` of them, padded.
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

// The edges of one factor to one set of units.
struct Row {
  const Units* units;
  int64_t offset;      // of these units
  const float* factor; // coefficients, padded
  const float *old_eta, *old_lam;
  float *eta, *lam;    // new messages
  float *sum_eta, *sum_lam;  // of the units, padded: added to
};

struct Scratch {
  std::vector<float> mean, term;
  explicit Scratch(int64_t size) : mean(size), term(size) {}
};

struct Total {
  float sum = 0, largest = 0, move = 0;
};

// Cavities of a row: their means, J² v, and what these add up to.
INLINE Total look(const Row& row, int64_t p, float s, Scratch& scratch) {
  Vec sum{}, largest{}, move{};
  const Units& u = *row.units;
  for (int64_t k = 0; k < p; k += LANES) {
    int64_t count = p - k, i = row.offset + k;
    Vec lam = (load(&u.lam_high[i]) - load(row.old_lam + k, count, 0)) + load(&u.lam_low[i]);
    Vec eta = (load(&u.eta_high[i]) - load(row.old_eta + k, count, 0)) + load(&u.eta_low[i]);
    Vec v = 1 / lam, m = eta * v, x = load(row.factor + k);
    Vec term = (s * s) * (x * x) * v;
    store(&scratch.mean[k], m);
    store(&scratch.term[k], term);
    sum += term;
    largest = largest > term ? largest : term;
    move += x * (m - load(&u.point[i]));
  }
  return {sum_of(sum), largest_of(largest), s * sum_of(move)};
}

// Messages of a row. `rest`: J² v of all other edges of the factor.
INLINE void answer(const Row& row, int64_t p, float s, const Scratch& scratch, const Total& total, float rest, float r,
                   float weight, float noise, float damp) {
  auto write = [&](int64_t k, Vec left, int64_t count) __attribute__((always_inline)) {
    Vec j = -s * load(row.factor + k);
    Vec gain = (weight / (noise + weight * left)) * j;
    Vec eta = gain * (r + j * load(&scratch.mean[k])), lam = gain * j;
    eta = damp * load(row.old_eta + k, count, 0) + (1 - damp) * eta;
    lam = damp * load(row.old_lam + k, count, 0) + (1 - damp) * lam;
    store(row.sum_eta + k, load(row.sum_eta + k) + eta);
    store(row.sum_lam + k, load(row.sum_lam + k) + lam);
    store(row.eta + k, eta, count);
    store(row.lam + k, lam, count);
  };
  if (total.largest <= 0.5f * total.sum) {
    for (int64_t k = 0; k < p; k += LANES) write(k, rest + (total.sum - load(&scratch.term[k])), p - k);
    return;
  }
  // One edge holds more than half: what the others hold is summed without it.
  int64_t top = 0;
  float others = 0;
  while (top + 1 < p && scratch.term[top] != total.largest) ++top;
  for (int64_t k = 0; k < p; ++k) others += k == top ? 0 : scratch.term[k];
  for (int64_t k = 0; k < p; k += LANES) {
    Vec left = total.sum - load(&scratch.term[k]);
    if (top >= k && top < k + LANES) left[top - k] = others;
    write(k, rest + left, p - k);
  }
}

struct Edges {
  int64_t n, p, c, width;  // width: p with padding
  bool uncertain;
  float slope;
  const float *rows, *d;
  std::vector<float> w;  // (c, width): linearisation points
  const Units *of_w, *of_d;
  const float *rows_eta, *rows_lam;              // what comes in from outside
  const float *w_eta, *w_lam, *d_eta, *d_lam, *x_eta, *x_lam, *y_eta, *y_lam;  // old messages
  Shared measured, noise;
  Blocks weight;
  float damp_y, damp_w, damp_d, damp_x;
  const Inbound* inbound;
  float *new_y_eta, *new_y_lam, *new_w_eta, *new_w_lam, *new_d_eta, *new_d_lam, *new_x_eta, *new_x_lam;
  float *sum_x_eta, *sum_x_lam;

  // Some rows; `sums (2, c, width + 1)` of what is said to w and d.
  void task(int64_t begin, int64_t end, float* sums, Looked* looked) const {
    Scratch to_w(width), to_x(width);
    Units of_x(width);
    std::vector<float> row(width, 0.0f), sum_eta(width), sum_lam(width);
    std::vector<double> eta(p), lam(p);
    for (int64_t i = begin; i < end; ++i) {
      std::copy_n(rows + i * p, p, row.begin());
      if (uncertain) {
        for (int64_t k = 0; k < p; ++k) {
          eta[k] = rows_eta[i * p + k];
          lam[k] = rows_lam[i * p + k];
        }
        for (int64_t f = i * c; f < (i + 1) * c; ++f)
          for (int64_t k = 0; k < p; ++k) {
            eta[k] += x_eta[f * p + k];
            lam[k] += x_lam[f * p + k];
          }
        for (int64_t k = 0; k < p; ++k) of_x.set(k, eta[k], lam[k], row[k]);
        std::fill(sum_eta.begin(), sum_eta.end(), 0.0f);
        std::fill(sum_lam.begin(), sum_lam.end(), 0.0f);
      }
      for (int64_t j = 0; j < c; ++j) {
        int64_t f = i * c + j, e = f * p;
        float *sum_w_eta = sums + j * (width + 1), *sum_w_lam = sum_w_eta + c * (width + 1);
        Vec dot{};
        for (int64_t k = 0; k < width; k += LANES) dot += load(&row[k]) * load(&w[j * width + k]);
        float a = sum_of(dot) + d[j], s = a > 0 ? 1 : slope;
        Row weights{of_w, j * width, row.data(), w_eta + e, w_lam + e, new_w_eta + e, new_w_lam + e, sum_w_eta, sum_w_lam};
        Total all_w = look(weights, p, s, to_w), all_x;
        Row inputs{&of_x, 0, &w[j * width], x_eta + e, x_lam + e, new_x_eta + e, new_x_lam + e, sum_eta.data(), sum_lam.data()};
        if (uncertain) all_x = look(inputs, p, s, to_x);
        float v_d = 1 / ((of_d->lam_high[j] - d_lam[f]) + of_d->lam_low[j]);
        float m_d = ((of_d->eta_high[j] - d_eta[f]) + of_d->eta_low[j]) * v_d;
        float term_d = s * s * v_d, outside_eta, outside_lam;
        inbound->sum(f, outside_eta, outside_lam);
        float v_y = 1 / outside_lam, k = weight.at(f), sigma = noise.at(f);
        float predicted = measured.at(f) + s * a + all_w.move + all_x.move + s * (m_d - d[j]), r = predicted - outside_eta * v_y;
        float rest_w = all_x.sum + term_d + v_y;
        answer(weights, p, s, to_w, all_w, rest_w, r, k, sigma, damp_w);
        if (uncertain) answer(inputs, p, s, to_x, all_x, all_w.sum + term_d + v_y, r, k, sigma, damp_x);
        float both = all_w.sum + all_x.sum, gain = k / (sigma + k * (both + v_y));
        float eta_d = damp_d * d_eta[f] - (1 - damp_d) * s * gain * (r - s * m_d);
        float lam_d = damp_d * d_lam[f] + (1 - damp_d) * s * s * gain;
        sum_w_eta[width] += eta_d;
        sum_w_lam[width] += lam_d;
        new_d_eta[f] = eta_d;
        new_d_lam[f] = lam_d;
        gain = k / (sigma + k * (both + term_d));
        if (looked) {
          Mask inside = first_of(1);
          Vec e = all(outside_eta), l = all(outside_lam);
          Vec mean = looked->change(e + y_eta[f], l + y_lam[f], e + gain * predicted, l + gain, inside);
          looked->add_prior(mean, all(inbound->eta[0].at(f)), all(inbound->lam[0].at(f)), inside);
          looked->add_energy(measured.at(f) + s * a - mean, all(k), all(sigma), inside);
        }
        new_y_eta[f] = damp_y * y_eta[f] + (1 - damp_y) * gain * predicted;
        new_y_lam[f] = damp_y * y_lam[f] + (1 - damp_y) * gain;
      }
      if (uncertain) {
        std::copy_n(sum_eta.data(), p, sum_x_eta + i * p);
        std::copy_n(sum_lam.data(), p, sum_x_lam + i * p);
      }
    }
  }
};

// Sums over all rows of messages (n, c, p), in double precision: `out (c, p)`.
void add_up(const float* each, int64_t begin, int64_t end, int64_t size, double* out) {
  for (int64_t i = begin; i < end; ++i)
    for (int64_t k = 0; k < size; ++k) out[k] += each[i * size + k];
}

}  // namespace

// Arguments: rows (n, p), w (p, c), d (c,) to linearise at; what comes in from outside (eta, lam) for w, d and the rows
// (empty where they are known); old messages (eta, lam) to w (F, p), d (F,), rows (F, p) and y (F,); noise, weight (F or
// 1); damping of y, w, d, rows; measurements (F or 1); then pairs of what y hears from outside.
// Results: messages to y; to w on the edges, and on the units; likewise to d, and to the rows; and if it is there, a
// look at y.
ffi::Error MatrixEdges(ffi::ThreadPool pool, float slope, ffi::RemainingArgs in, ffi::RemainingRets out) {
  Arguments args{in, out};
  int64_t n = args[0].dimensions()[0], p = args[0].dimensions()[1], c = args[1].dimensions()[1], width = padded(p);
  int64_t tasks = std::max<int64_t>(1, std::min<int64_t>(32, n / 8));
  auto first = [&](int64_t t) { return t * n / tasks; };
  const float *old[4] = {args.data(9), args.data(10), args.data(11), args.data(12)};
  int64_t size[4] = {c * p, c * p, c, c};
  std::vector<double> totals[4];
  for (int q = 0; q < 4; ++q) totals[q].assign(tasks * size[q], 0.0);
  spread(pool, tasks, [&](int64_t t) {
    for (int q = 0; q < 4; ++q) add_up(old[q], first(t), first(t + 1), size[q], &totals[q][t * size[q]]);
  });
  for (int q = 0; q < 4; ++q)
    for (int64_t t = 1; t < tasks; ++t)
      for (int64_t k = 0; k < size[q]; ++k) totals[q][k] += totals[q][t * size[q] + k];
  Units of_w(c * width), of_d(c);
  const float *w = args.data(1), *d = args.data(2), *from_w[2] = {args.data(3), args.data(4)};
  const float* from_d[2] = {args.data(5), args.data(6)};
  std::vector<float> wide(c * width, 0.0f);
  for (int64_t j = 0; j < c; ++j) {
    of_d.set(j, totals[2][j] + from_d[0][j], totals[3][j] + from_d[1][j], d[j]);
    for (int64_t k = 0; k < p; ++k) {
      int64_t e = j * p + k, u = k * c + j;
      wide[j * width + k] = w[u];
      of_w.set(j * width + k, totals[0][e] + from_w[0][u], totals[1][e] + from_w[1][u], w[u]);
    }
  }
  Inbound inbound(args, 21, in.size());
  const float* damp = args.data(19);
  Edges a{n, p, c, width, args[7].element_count() > 0, slope, args.data(0), d, wide, &of_w, &of_d, args.data(7),
          args.data(8), args.data(9), args.data(10), args.data(11), args.data(12), args.data(13), args.data(14),
          args.data(15), args.data(16), args[20], args[17], Blocks(args[18], n * c), damp[0], damp[1], damp[2], damp[3], &inbound,
          args.result(0), args.result(1), args.result(2), args.result(3), args.result(6), args.result(7),
          args.result(10), args.result(11), args.result(12), args.result(13)};
  std::vector<float> sums(tasks * 2 * c * (width + 1), 0.0f);
  bool looking = out.size() > 14;
  std::vector<float> looks(tasks * Looked::COUNT, 0.0f);
  spread(pool, tasks, [&](int64_t t) {
    Looked looked;
    a.task(first(t), first(t + 1), &sums[t * 2 * c * (width + 1)], looking ? &looked : nullptr);
    looked.write(&looks[t * Looked::COUNT]);
  });
  if (looking) join_looks(looks, args.result(14));
  for (int q = 0; q < 2; ++q) {
    float *to_w = args.result(4 + q), *to_d = args.result(8 + q);
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
