// Linear factors over slices of one variable, such as pairs of neighbouring pixels, or each over a unit: the update of
// engine/update.py for M = 1, in one pass over the units.
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
#include <numeric>

#include "prediction.h"
#include "robust.h"
#include "window.h"

namespace gbplearn {
namespace {

constexpr int64_t PIECE = 1024;  // factors at a time
constexpr int64_t AHEAD = 256;   // units, so far memory is prefetched: these are more arrays than the processor follows by itself
constexpr int MOST = 5;          // slices

struct Plane {  // the messages to one slice, on the units
  float *eta, *lam;
};

struct Slices {
  int64_t factors, units;
  std::vector<int64_t> sizes, strides;  // of the grid of factors; unit strides along its axes
  int64_t run;                          // so many factors in a row have units in a row
  int64_t start;                        // the unit of the first factor, without an offset
  std::array<int64_t, MOST> offset;     // of each slice, growing from 0
  int64_t reach;                        // the largest of them
  std::array<Plane, MOST> planes;
  std::vector<Shared> jacobian;
  std::array<float, MOST> damp;
  Shared measured, noise;
  Blocks weight;
  Inbox inbox;
  const float* unknown;  // means of units of zero precision, their starts; null: no precision is zero
  const float* point;    // where the robust scale is taken; null: at the means
  int robust;
  float threshold;
  int64_t tasks;
  std::vector<float> heads;  // (tasks, slices, 2, reach): messages before the visit, from the first unit of a task on

  INLINE Vec mean(int64_t unit, int64_t count, Vec eta, Vec lam) const {
    Vec mean = eta / lam;
    return unknown ? (lam > 0 ? mean : load(unknown + unit, count, 0)) : mean;
  }
  void fetch(int64_t unit) const {
    for (const float* p : inbox.more_eta) __builtin_prefetch(p + unit);
    for (const float* p : inbox.more_lam) __builtin_prefetch(p + unit);
    for (const Plane& p : planes)
      if (p.eta) {
        __builtin_prefetch(p.eta + unit, 1);
        __builtin_prefetch(p.lam + unit, 1);
      }
  }
  int64_t first(int64_t task) const { return task * factors / tasks; }
  int64_t unit(int64_t f) const {
    int64_t at = start;
    for (int64_t d = static_cast<int64_t>(sizes.size()) - 1; d >= 0; --d) {
      at += f % sizes[d] * strides[d];
      f /= sizes[d];
    }
    return at;
  }
  // Where the units of a task begin and end; the first and the last one have all that there are.
  int64_t begin(int64_t task) const { return task == 0 ? 0 : task == tasks ? units : unit(first(task)); }
  float* head(int64_t task, int slice, int parameter, int count) {
    return heads.data() + ((task * count + slice) * 2 + parameter) * reach;
  }
};

// Where a piece finds what it needs; [i][j] are the messages to slice i at the units of slice j.
template <int V>
struct Sources {
  const float *in_eta[V], *in_lam[V], *eta[V][V], *lam[V][V];
};

// What a task reports.
struct TaskDiagnostics {
  Diagnostics diagnostics;
  Vec switched{};
};

// Lanes [first, count) of a vector; no memory is touched for the others.
INLINE Vec load_from(int64_t first, const float* p, int64_t count) {
  if (first <= 0) return load(p, count, 0);
  Vec out{};
  for (int64_t q = first; q < LANES && q < count; ++q) out[q] = p[q];
  return out;
}

// Diagnostics of units whose messages are all there: beliefs are the inbox, `eta` and `lam`, times the message of each
// slice, before the visit by `old(slice)`, and after it. Lanes below `first` are not: others may write there just now.
template <int V, class Old>
INLINE void diagnose(const Slices& a, int64_t at, Vec eta, Vec lam, const Old& old, int64_t first, int64_t count, Diagnostics& diagnostics) {
  Mask inside = first_of(count) & ~first_of(std::max<int64_t>(0, first));
  Vec new_eta = eta, new_lam = lam;
  for (int s = 0; s < V; ++s) {
    Vec was_eta, was_lam;
    old(s, was_eta, was_lam);
    eta += was_eta;
    lam += was_lam;
    float keep = a.damp[s], gain = 1 / (1 - keep);  // undamped
    new_eta += gain * (load_from(first, a.planes[s].eta + at, count) - keep * was_eta);
    new_lam += gain * (load_from(first, a.planes[s].lam + at, count) - keep * was_lam);
  }
  Vec mean = diagnostics.move(a.mean(at, count, eta, lam), lam, a.mean(at, count, new_eta, new_lam), new_lam, inside);
  diagnostics.add_prior(mean, a.inbox.eta[0].at(at, count, 0), a.inbox.lam[0].at(at, count, 1), inside);
}

template <int V, bool R, bool DIAGNOSE>
INLINE void lanes(const Slices& a, const Sources<V>& from, int64_t f, int64_t unit, int64_t x, int64_t count, int64_t shared,
                  TaskDiagnostics& report) {
  Vec eta[V], lam[V], old_eta[V], old_lam[V], j[V];
  for (int s = 0; s < V; ++s) {
    if constexpr (V > 1 || R || DIAGNOSE) {
      eta[s] = load(from.in_eta[s] + x, count, 0);
      lam[s] = load(from.in_lam[s] + x, count, 1);
    }
    for (int i = 0; i < V; ++i)
      if (i != s) {
        eta[s] += load(from.eta[i][s] + x, count, 0);
        lam[s] += load(from.lam[i][s] + x, count, 0);
      }
    old_eta[s] = load(a.planes[s].eta + unit + a.offset[s] + x, count, 0);
    old_lam[s] = load(a.planes[s].lam + unit + a.offset[s] + x, count, 0);
    j[s] = a.jacobian[s].at(f + x, count, 0);
  }
  Vec r = a.measured.at(f + x, count, 0), noise = a.noise.at(f + x, count, 1), k = a.weight.across(f + x, count, 0);
  if constexpr (R || DIAGNOSE) {
    Vec d = r, n2 = all(a.threshold * a.threshold);
    for (int s = 0; s < V; ++s) d -= j[s] * a.mean(unit + a.offset[s] + x, count, eta[s] + old_eta[s], lam[s] + old_lam[s]);
    Vec d2 = d * d / noise;
    if constexpr (DIAGNOSE) {
      Mask far = R ? (d2 > n2) & (k > 0) : Mask{};
      report.diagnostics.energy += k * (far ? flat(a.robust, a.threshold, d2) : 0.5f * d2);  // without weight beyond the last
      report.switched += far ? all(1) : Vec{};
    }
    if constexpr (R) {
      if (a.point) {
        d = r;
        for (int s = 0; s < V; ++s) d -= j[s] * load(a.point + unit + a.offset[s] + x, count, 0);
        d2 = d * d / noise;
      }
      k *= scale(a.robust, a.threshold, d2);
    }
  }
  Vec part[V], move[V];
  if constexpr (V > 2)
    for (int s = 0; s < V; ++s) {
      Vec v = 1 / lam[s];
      part[s] = j[s] * j[s] * v;
      move[s] = j[s] * eta[s] * v;
    }
  for (int s = 0; s < V; ++s) {
    Vec gain, new_eta;
    if constexpr (V == 2) {  // both times the precision of the other, which may be 0: then the message is zero
      int o = 1 - s;
      Vec other = j[o] == 0 ? all(1) : lam[o], all_of_it = noise * other + k * j[o] * j[o];
      gain = all_of_it == 0 ? Vec{} : k * j[s] / all_of_it;
      new_eta = other > 0 ? gain * (r * other - j[o] * eta[o]) : Vec{};
      gain *= other;
      if (some(all_of_it > 1e38f)) {  // it is observed, beside a vague measurement
        Mask large = all_of_it > 1e38f;
        Vec direct = j[s] * precision_beside(noise, k, j[o] * j[o] / other);
        new_eta = large ? direct * (r - j[o] * (eta[o] / other)) : new_eta;
        gain = large ? direct : gain;
      }
    } else {
      Vec rest{}, left = r;
      for (int i = 0; i < V; ++i)
        if (i != s) {
          rest += part[i];
          left -= move[i];
        }
      gain = j[s] * precision_beside(noise, k, rest);
      new_eta = gain * left;
    }
    store(a.planes[s].eta + unit + a.offset[s] + x, a.damp[s] * old_eta[s] + (1 - a.damp[s]) * new_eta, count);
    store(a.planes[s].lam + unit + a.offset[s] + x, a.damp[s] * old_lam[s] + (1 - a.damp[s]) * gain * j[s], count);
  }
  // At the units of the first slice the messages of all others are there, but for what tasks share.
  if (DIAGNOSE && unit + x + count > shared) {
    auto old = [&](int s, Vec& e, Vec& l) __attribute__((always_inline)) {
      e = s == 0 ? old_eta[0] : load(from.eta[s][0] + x, count, 0);
      l = s == 0 ? old_lam[0] : load(from.lam[s][0] + x, count, 0);
    };
    diagnose<V>(a, unit + x, load(from.in_eta[0] + x, count, 0), load(from.in_lam[0] + x, count, 1), old, shared - unit - x, count,
                report.diagnostics);
  }
}

template <int V, bool R, bool DIAGNOSE>
void task(Slices& a, int64_t t, TaskDiagnostics& report) {
  Room room;
  Window inbox(room, a.reach, PIECE);
  std::vector<Window> old;
  for (int s = 0; s < V; ++s) old.emplace_back(room, a.reach, PIECE);
  std::vector<float> scratch(2 * V * V * PIECE);
  int64_t end = a.first(t + 1), next = a.begin(t + 1), done = a.begin(t);
  int64_t shared = t == 0 ? 0 : done + a.reach;  // units up to here get messages of the task before, too: diagnosed at the end
  // Diagnostics of units of this task that are in no factor of the first slice.
  auto diagnose_between = [&](int64_t to) {
    for (int64_t u = std::max(done, shared); DIAGNOSE && u < to; u += LANES) {
      Vec eta, lam;
      int64_t count = std::min<int64_t>(LANES, to - u);
      a.inbox.sum(u, count, eta, lam);
      auto before = [&](int s, Vec& e, Vec& l) {
        int64_t kept = std::clamp<int64_t>(old[s].front() - u, 0, count);  // the rest is as it was
        e = load(a.planes[s].eta + u, count, 0);
        l = load(a.planes[s].lam + u, count, 0);
        Mask from = first_of(kept);
        if (kept > 0) {
          e = from ? load(old[s].eta(u), kept, 0) : e;
          l = from ? load(old[s].lam(u), kept, 0) : l;
        }
      };
      diagnose<V>(a, u, eta, lam, before, 0, count, report.diagnostics);
    }
  };
  for (int64_t f = a.first(t); f < end;) {
    int64_t unit = a.unit(f), count = std::min({PIECE, a.run - f % a.run, end - f});
    diagnose_between(unit);
    constexpr bool READS_INBOX = V > 1 || R || DIAGNOSE;  // else its messages do not depend on the inbox
    if constexpr (READS_INBOX) inbox.slide(unit, unit + a.reach + count, [&](float* eta, float* lam, int64_t u, int64_t n) {
      for (int64_t x = 0; x < n; x += LANES) {
        Vec e, l;
        a.inbox.sum(u + x, n - x, e, l);
        if (x % 16 == 0) a.fetch(u + x + AHEAD);
        store(eta + x, e, n - x);
        store(lam + x, l, n - x);
      }
    });
    Sources<V> from;
    for (int i = 0; i < V; ++i) {
      const Plane& plane = a.planes[i];
      if (a.offset[i] > 0) {
        if (f == a.first(t))  // the task before may have overwritten these
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
        int64_t theirs = next + a.offset[i];  // from here on the next task writes
        if (i == s || t + 1 == a.tasks || u + count <= theirs) continue;
        float *eta = scratch.data() + (i * V + s) * 2 * PIECE, *lam = eta + PIECE;
        int64_t own = std::clamp<int64_t>(theirs - u, 0, count);
        std::copy_n(plane.eta + u, own, eta);
        std::copy_n(plane.lam + u, own, lam);
        std::copy_n(a.head(t + 1, i, 0, V) + (u + own - next), count - own, eta + own);
        std::copy_n(a.head(t + 1, i, 1, V) + (u + own - next), count - own, lam + own);
        from.eta[i][s] = eta;
        from.lam[i][s] = lam;
      }
    }
    for (int s = 0; s < V && READS_INBOX; ++s) {
      from.in_eta[s] = inbox.eta(unit + a.offset[s]);
      from.in_lam[s] = inbox.lam(unit + a.offset[s]);
    }
    int64_t x = 0;
    for (; x + LANES <= count; x += LANES) lanes<V, R, DIAGNOSE>(a, from, f, unit, x, LANES, shared, report);
    if (x < count) lanes<V, R, DIAGNOSE>(a, from, f, unit, x, count - x, shared, report);
    f += count;
    done = unit + count;
  }
  diagnose_between(next);
}

template <int V, bool DIAGNOSE>
void visit(ffi::ThreadPool& pool, Slices& a, float* result, float* switched) {
  a.heads.resize(a.tasks * V * 2 * a.reach);
  for (int64_t t = 0; t < a.tasks; ++t) {
    int64_t unit = a.unit(a.first(t));
    for (int s = 0; s < V; ++s) {
      std::copy_n(a.planes[s].eta + unit, a.reach, a.head(t, s, 0, V));
      std::copy_n(a.planes[s].lam + unit, a.reach, a.head(t, s, 1, V));
    }
  }
  std::vector<float> parts((a.tasks + 1) * Diagnostics::COUNT, 0.0f), far(a.tasks, 0.0f);
  spread(pool, a.tasks, [&](int64_t t) {
    TaskDiagnostics report;
    a.robust == NONE ? task<V, false, DIAGNOSE>(a, t, report) : task<V, true, DIAGNOSE>(a, t, report);
    report.diagnostics.write(&parts[t * Diagnostics::COUNT]);
    far[t] = sum_of(report.switched);
  });
  if constexpr (DIAGNOSE) {
    Diagnostics diagnostics;
    for (int64_t t = 1; t < a.tasks; ++t)
      for (int64_t u = a.begin(t), end = std::min(u + a.reach, a.begin(t + 1)), x = 0; u + x < end; x += LANES) {
        int64_t count = std::min<int64_t>(LANES, end - u - x);
        Vec eta, lam;
        a.inbox.sum(u + x, count, eta, lam);
        auto before = [&](int s, Vec& e, Vec& l) {
          e = load(a.head(t, s, 0, V) + x, count, 0);
          l = load(a.head(t, s, 1, V) + x, count, 0);
        };
        diagnose<V>(a, u + x, eta, lam, before, 0, count, diagnostics);
      }
    diagnostics.write(&parts[a.tasks * Diagnostics::COUNT]);
    join_diagnostics(parts, result);
    double sum = 0;
    for (float part : far) sum += part;
    *switched = static_cast<float>(sum / static_cast<double>(a.factors));
  }
}

// The slices of a variable, from the attributes of a call.
struct Layout {
  std::vector<int64_t> shape, sizes, begins;  // of the variable, of the grid of factors; of each slice, along each axis
  int64_t axes = 0, slices = 0, units = -1, factors = -1;

  explicit Layout(Arguments& args) {
    auto taken = [&](const char* name) {
      auto found = args.wholes(name);
      return std::vector<int64_t>(found.begin(), found.end());
    };
    shape = taken("shape");
    sizes = taken("sizes");
    begins = taken("begins");
    axes = static_cast<int64_t>(shape.size());
    if (!args.require(axes >= 1 && count_of(shape) >= 1, "attribute %s must be positive", "shape")) return;
    if (!args.require(sizes.size() == shape.size(), "attribute %s must be as many as shape", "sizes")) return;
    const int64_t count = static_cast<int64_t>(begins.size());
    if (!args.require(count % axes == 0 && count >= axes && count <= MOST * axes, "attribute %s must be those of 1 to 5 slices", "begins")) return;
    for (int64_t i = 0; i < count; ++i) {
      int64_t d = i % axes;
      if (!args.require(sizes[d] >= 1 && sizes[d] <= shape[d], "attribute %s must lie between 1 and shape", "sizes")) return;
      if (!args.require(begins[i] >= 0 && begins[i] <= shape[d] - sizes[d], "attribute %s must keep slices within shape", "begins")) return;
    }
    slices = count / axes;
    units = count_of(shape);
    factors = count_of(sizes);
  }
};

// A call: slices of one variable, of which each of F factors has a unit.
// Attributes: shape, of the variable; sizes, of a slice; begins (slices, axes), where each begins; unknown: units may have
// zero precision; started: the robust scales are taken elsewhere than at the means at first; robust, which energy, and its
// threshold; diagnose; inbox: how many pairs it has.
// Arguments: noise, measured (F or 1), weight (F or fewer); start, the means of units of zero precision, if there may be any
// or it is started; first, whether it is the first visit, if it is started; of each slice jacobian (F or 1), keep, how
// much is kept of old messages, and these on the units; then the inbox.
// Results: the new messages, in place; and if they are wanted, the diagnostics of the variable, and switched, the share of
// factors beyond the threshold.
template <int V>
ffi::Error visit_slices(ffi::ThreadPool& pool, Arguments& args, const Layout& layout) {
  const bool may_be_unknown = args.flag("unknown"), started = args.flag("started"), diagnose = args.flag("diagnose");
  const int64_t robust = args.whole("robust"), pairs = args.size("inbox"), factors = layout.factors, units = layout.units;
  args.require(robust >= NONE && robust <= HUBER_GRADIENT, "attribute %s must be 0 to 4", "robust");
  const float threshold = args.number("threshold");
  Array noise = args.take_shared("noise", factors), measured = args.take_shared("measured", factors);
  Array weight = args.take_blocks("weight", factors, 1), start;
  if (may_be_unknown || started) start = args.take_flat("start", units);
  const bool at_start = started && args.take_truth("first");
  std::array<Array, V> jacobians, own_eta, own_lam;
  std::array<float, V> keep;
  std::array<Plane, V> found;
  for (int s = 0; s < V; ++s) {
    std::string name = "slice." + std::to_string(s);
    jacobians[s] = args.take_shared((name + ".jacobian").c_str(), factors);
    keep[s] = args.take_number((name + ".keep").c_str());
    own_eta[s] = args.take_flat((name + ".eta").c_str(), units);
    own_lam[s] = args.take_flat((name + ".lam").c_str(), units);
  }
  Pairs inbox = args.take_inbox("x", pairs, units);
  for (int s = 0; s < V; ++s) {
    std::string name = "slice." + std::to_string(s);
    found[s].eta = args.replace((name + ".eta").c_str(), own_eta[s]);
    found[s].lam = args.replace((name + ".lam").c_str(), own_lam[s]);
  }
  float* diagnostics = diagnose ? args.report("diagnostics", Diagnostics::COUNT) : nullptr;
  float* switched = diagnose ? args.report("switched", 1) : nullptr;
  if (ffi::Error error = args.error(); error.failure()) return error;

  const std::vector<int64_t>&shape = layout.shape, &sizes = layout.sizes;
  std::vector<int64_t> strides(layout.axes, 1), begin(V, 0), order(V);
  int64_t run = 1;
  for (int64_t d = layout.axes - 2; d >= 0; --d) strides[d] = strides[d + 1] * shape[d + 1];
  for (int64_t s = 0; s < V; ++s)
    for (int64_t d = 0; d < layout.axes; ++d) begin[s] += layout.begins[s * layout.axes + d] * strides[d];
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return begin[a] < begin[b]; });
  for (int64_t d = layout.axes - 1; d >= 0; --d) {
    run *= sizes[d];
    if (sizes[d] != shape[d]) break;
  }
  std::array<int64_t, MOST> offset{};
  std::array<float, MOST> damp{};
  std::array<Plane, MOST> planes{};
  std::vector<Shared> jacobian;
  for (int s = 0; s < V; ++s) {
    int64_t slice = order[s];
    if (own_eta[slice].data != found[slice].eta) std::copy_n(own_eta[slice].data, units, found[slice].eta);
    if (own_lam[slice].data != found[slice].lam) std::copy_n(own_lam[slice].data, units, found[slice].lam);
    offset[s] = begin[slice] - begin[order[0]];
    damp[s] = keep[slice];
    planes[s] = found[slice];
    jacobian.emplace_back(jacobians[slice]);
  }
  int64_t reach = offset[V - 1];
  // The heads of the tasks must stay small beside the rest.
  int64_t most = std::max<int64_t>(2, factors / (8 * std::max<int64_t>(reach, PIECE)));
  int64_t tasks = std::min<int64_t>({32, most, std::max<int64_t>(1, factors / PIECE)});
  Slices a{factors, units, sizes, strides, run, begin[order[0]], offset, reach, planes, jacobian, damp, measured,
           noise, Blocks(weight, factors), Inbox(inbox), may_be_unknown ? start.data : nullptr,
           at_start ? start.data : nullptr, static_cast<int>(robust), threshold, tasks, {}};
  diagnose ? visit<V, true>(pool, a, diagnostics, switched) : visit<V, false>(pool, a, nullptr, nullptr);
  return ffi::Error::Success();
}

}  // namespace

ffi::Error SlicesVisit(ffi::ThreadPool pool, ffi::RemainingArgs in, ffi::RemainingRets out, ffi::Dictionary attributes) {
  Arguments args("gbplearn_slices", in, out, attributes);
  Layout layout(args);
  switch (layout.slices) {
    case 1: return visit_slices<1>(pool, args, layout);
    case 2: return visit_slices<2>(pool, args, layout);
    case 3: return visit_slices<3>(pool, args, layout);
    case 4: return visit_slices<4>(pool, args, layout);
    case 5: return visit_slices<5>(pool, args, layout);
    default: return args.error();
  }
}

}  // namespace gbplearn

HANDLER(gbplearn_slices, gbplearn::SlicesVisit);
