// Linear factors over slices of one variable, such as pairs of neighbouring pixels: the update of messages.py for M = 1, in
// one pass over the units.
//
// Factor f has the units u(f) + o_j, one for each slice j, with Jacobians J_j. With the cavities of the others
//
//   to j: lam = J_j² k / (sigma² + k sum_i J_i² v_i) , eta = J_j k (r - sum_i J_i m_i) / (same) ,   i != j
//
// where r is what is measured, less h(0), and k the weight times the robust scale at the means of the beliefs.
//
// Messages are written where the old ones stand, of which the cavities of later factors are made: what has been
// overwritten and is still wanted is kept in a window that slides along.
#include <algorithm>
#include <array>
#include <cmath>

#include "parallel.h"

namespace gbplearn {
namespace {

constexpr int64_t PIECE = 1024;  // factors at a time
constexpr int MOST = 5;          // slices

// Gaussians of the units [base, front), as they were when they were put in.
class Window {
 public:
  Window(Room& room, int64_t reach) : size_(4 * reach + 8 * PIECE) {
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
  const float* eta(int64_t unit) const { return eta_ + (unit - base_); }
  const float* lam(int64_t unit) const { return lam_ + (unit - base_); }

 private:
  int64_t size_, base_ = 0, front_ = 0;
  float *eta_, *lam_;
};

enum Robust { NONE, TUKEY_VALUE, TUKEY_GRADIENT, HUBER_VALUE, HUBER_GRADIENT };

INLINE Vec root(Vec x) {
  Vec out;
  for (int i = 0; i < LANES; ++i) out[i] = std::sqrt(x[i]);
  return out;
}

// See robust.py.
INLINE Vec scale(int robust, float n, Vec d2) {
  Vec n2 = all(n * n), large = d2 > n2 ? d2 : n2;
  if (robust == TUKEY_VALUE) return n2 / large;
  if (robust == TUKEY_GRADIENT) return d2 > n2 ? Vec{} : all(1);
  Vec ratio = n / root(large);
  return robust == HUBER_VALUE ? ratio * (2 - ratio) : ratio;
}

struct Plane {  // the messages to one slice, on the units
  float *eta, *lam;
};

struct Slices {
  int64_t factors;
  std::vector<int64_t> sizes, strides;  // of the grid of factors; unit strides along its axes
  int64_t run;                          // so many factors in a row have units in a row
  int64_t start;                        // the unit of the first factor, without an offset
  std::array<int64_t, MOST> offset;     // of each slice, the least is 0
  int64_t reach;                        // the largest of them
  std::array<Plane, MOST> planes;
  std::vector<Shared> jacobian;
  std::array<float, MOST> damp;
  Shared measured, noise;
  Blocks weight;
  Inbound inbound;
  int robust;
  float threshold;
  int64_t tasks;
  std::vector<float> heads;  // (tasks, slices, 2, reach): messages as they were before the visit, from the first unit of a task on

  int64_t first(int64_t task) const { return task * factors / tasks; }
  int64_t unit(int64_t f) const {
    int64_t at = start;
    for (int64_t d = static_cast<int64_t>(sizes.size()) - 1; d >= 0; --d) {
      at += f % sizes[d] * strides[d];
      f /= sizes[d];
    }
    return at;
  }
  float* head(int64_t task, int slice, int parameter, int count) {
    return heads.data() + ((task * count + slice) * 2 + parameter) * reach;
  }
};

// Where a piece finds what it needs; [i][j] are the messages to slice i at the units of slice j.
template <int V>
struct Sources {
  const float *in_eta[V], *in_lam[V], *eta[V][V], *lam[V][V];
};

template <int V, bool R>
INLINE void lanes(const Slices& a, const Sources<V>& from, int64_t f, int64_t unit, int64_t x, int64_t count) {
  Vec eta[V], lam[V], old_eta[V], old_lam[V], j[V];
  for (int s = 0; s < V; ++s) {
    eta[s] = load(from.in_eta[s] + x, count, 0);
    lam[s] = load(from.in_lam[s] + x, count, 1);
    for (int i = 0; i < V; ++i)
      if (i != s) {
        eta[s] += load(from.eta[i][s] + x, count, 0);
        lam[s] += load(from.lam[i][s] + x, count, 0);
      }
    old_eta[s] = load(a.planes[s].eta + unit + a.offset[s] + x, count, 0);
    old_lam[s] = load(a.planes[s].lam + unit + a.offset[s] + x, count, 0);
    j[s] = a.jacobian[s].at(f + x, count, 0);
  }
  Vec r = a.measured.at(f + x, count, 0), noise = a.noise.at(f + x, count, 1), k = a.weight.at(f + x, count, 1);
  if constexpr (R) {
    Vec d = r;
    for (int s = 0; s < V; ++s) d -= j[s] * ((eta[s] + old_eta[s]) / (lam[s] + old_lam[s]));
    k *= scale(a.robust, a.threshold, d * d / noise);
  }
  Vec part[V], move[V];
  if constexpr (V > 2)
    for (int s = 0; s < V; ++s) {
      Vec v = 1 / lam[s];
      part[s] = j[s] * j[s] * v;
      move[s] = j[s] * eta[s] * v;
    }
  for (int s = 0; s < V; ++s) {
    Vec gain, told;
    if constexpr (V == 2) {  // both times the precision of the other: one division
      int o = 1 - s;
      gain = k * j[s] / (noise * lam[o] + k * j[o] * j[o]);
      told = r * lam[o] - j[o] * eta[o];
      told *= gain;
      gain *= lam[o];
    } else {
      Vec rest{}, left = r;
      for (int i = 0; i < V; ++i)
        if (i != s) {
          rest += part[i];
          left -= move[i];
        }
      gain = k * j[s] / (noise + k * rest);
      told = gain * left;
    }
    store(a.planes[s].eta + unit + a.offset[s] + x, a.damp[s] * old_eta[s] + (1 - a.damp[s]) * told, count);
    store(a.planes[s].lam + unit + a.offset[s] + x, a.damp[s] * old_lam[s] + (1 - a.damp[s]) * gain * j[s], count);
  }
}

template <int V, bool R>
void task(Slices& a, int64_t t) {
  Room room;
  Window inbound(room, a.reach);
  std::vector<Window> old;
  for (int s = 0; s < V; ++s) old.emplace_back(room, a.reach);
  std::vector<float> scratch(2 * V * V * PIECE);
  int64_t begin = a.first(t), end = a.first(t + 1), last = t + 1 < a.tasks ? a.unit(end) : INT64_MAX;
  for (int64_t f = begin; f < end;) {
    int64_t unit = a.unit(f), count = std::min({PIECE, a.run - f % a.run, end - f});
    inbound.slide(unit, unit + a.reach + count, [&](float* eta, float* lam, int64_t u, int64_t n) {
      for (int64_t x = 0; x < n; x += LANES) {
        Vec e, l;
        a.inbound.sum(u + x, n - x, e, l);
        store(eta + x, e, n - x);
        store(lam + x, l, n - x);
      }
    });
    Sources<V> from;
    for (int i = 0; i < V; ++i) {
      const Plane& plane = a.planes[i];
      if (a.offset[i] > 0) {
        if (f == begin)  // the task before may have overwritten these
          old[i].slide(unit, unit + a.offset[i], [&](float* eta, float* lam, int64_t, int64_t n) {
            std::copy_n(a.head(t, i, 0, V), n, eta);
            std::copy_n(a.head(t, i, 1, V), n, lam);
          });
        old[i].slide(unit, unit + a.offset[i] + count, [&](float* eta, float* lam, int64_t u, int64_t n) {
          std::copy_n(plane.eta + u, n, eta);
          std::copy_n(plane.lam + u, n, lam);
        });
      }
      for (int s = 0; s < V; ++s) {
        int64_t u = unit + a.offset[s];
        if (a.offset[s] < a.offset[i]) {
          from.eta[i][s] = old[i].eta(u);
          from.lam[i][s] = old[i].lam(u);
          continue;
        }
        from.eta[i][s] = plane.eta + u;
        from.lam[i][s] = plane.lam + u;
        int64_t theirs = last == INT64_MAX ? INT64_MAX : last + a.offset[i];  // from here on the next task writes
        if (i == s || u + count <= theirs) continue;
        float *eta = scratch.data() + (i * V + s) * 2 * PIECE, *lam = eta + PIECE;
        int64_t own = std::clamp<int64_t>(theirs - u, 0, count);
        std::copy_n(plane.eta + u, own, eta);
        std::copy_n(plane.lam + u, own, lam);
        std::copy_n(a.head(t + 1, i, 0, V) + (u + own - last), count - own, eta + own);
        std::copy_n(a.head(t + 1, i, 1, V) + (u + own - last), count - own, lam + own);
        from.eta[i][s] = eta;
        from.lam[i][s] = lam;
      }
    }
    for (int s = 0; s < V; ++s) {
      from.in_eta[s] = inbound.eta(unit + a.offset[s]);
      from.in_lam[s] = inbound.lam(unit + a.offset[s]);
    }
    int64_t x = 0;
    for (; x + LANES <= count; x += LANES) lanes<V, R>(a, from, f, unit, x, LANES);
    if (x < count) lanes<V, R>(a, from, f, unit, x, count - x);
    f += count;
  }
}

template <int V>
void visit(ffi::ThreadPool& pool, Slices& a) {
  a.heads.resize(a.tasks * V * 2 * a.reach);
  for (int64_t t = 0; t < a.tasks; ++t) {
    int64_t unit = a.unit(a.first(t));
    for (int s = 0; s < V; ++s) {
      std::copy_n(a.planes[s].eta + unit, a.reach, a.head(t, s, 0, V));
      std::copy_n(a.planes[s].lam + unit, a.reach, a.head(t, s, 1, V));
    }
  }
  spread(pool, a.tasks, [&](int64_t t) { a.robust == NONE ? task<V, false>(a, t) : task<V, true>(a, t); });
}

}  // namespace

// Arguments: noise, r (F or 1), weight (F or fewer); the Jacobian of each slice (F or 1); numbers: which
// robust energy and its threshold, how many axes, the shape of the variable, the grid of factors, of each slice where it
// begins, and how much is kept of its messages; the messages to each (eta, lam) on the units; then pairs of what else
// comes in. Results: the new messages, in the same place. Offsets are in the order in which units lie in memory.
ffi::Error SlicesVisit(ffi::ThreadPool pool, float, ffi::RemainingArgs in, ffi::RemainingRets out) {
  Arguments args{in, out};
  int count = static_cast<int>(out.size() / 2);
  const float* numbers = args.data(3 + count);
  auto next = [&] { return static_cast<int64_t>(*numbers++); };
  int robust = static_cast<int>(next());
  float threshold = *numbers++;
  int64_t axes = next(), factors = 1;
  std::vector<int64_t> shape(axes), sizes(axes), strides(axes, 1);
  for (auto& n : shape) n = next();
  for (auto& n : sizes) factors *= n = next();
  for (int64_t d = axes - 2; d >= 0; --d) strides[d] = strides[d + 1] * shape[d + 1];
  std::array<int64_t, MOST> offset{};
  std::array<float, MOST> damp{};
  for (int s = 0; s < count; ++s)
    for (int64_t d = 0; d < axes; ++d) offset[s] += next() * strides[d];
  for (int s = 0; s < count; ++s) damp[s] = *numbers++;
  int64_t start = *std::min_element(offset.begin(), offset.begin() + count);
  for (int s = 0; s < count; ++s) offset[s] -= start;
  int64_t reach = *std::max_element(offset.begin(), offset.begin() + count), run = 1;
  for (int64_t d = axes - 1; d >= 0; --d) {
    run *= sizes[d];
    if (sizes[d] != shape[d]) break;
  }
  std::array<Plane, MOST> planes{};
  std::vector<Shared> jacobian;
  size_t own = 4 + count;
  for (int s = 0; s < count; ++s) {
    planes[s] = {args.result(2 * s), args.result(2 * s + 1)};
    jacobian.emplace_back(args[3 + s]);
    for (int q = 0; q < 2; ++q)
      if (size_t i = own + 2 * s + q; args.data(i) != args.result(2 * s + q))
        std::copy_n(args.data(i), args[i].element_count(), args.result(2 * s + q));
  }
  // The heads of the tasks must stay small beside the rest.
  int64_t most = std::max<int64_t>(2, factors / (8 * std::max<int64_t>(reach, PIECE)));
  Slices a{factors, sizes, strides, run, start, offset, reach, planes, jacobian, damp, args[1], args[0],
           Blocks(args[2], factors), Inbound(args, own + 2 * count, in.size()), robust, threshold,
           std::min<int64_t>({32, most, std::max<int64_t>(1, factors / PIECE)}), {}};
  if (count == 2) visit<2>(pool, a);
  return ffi::Error::Success();
}

}  // namespace gbplearn

HANDLER(gbplearn_slices, gbplearn::SlicesVisit);
