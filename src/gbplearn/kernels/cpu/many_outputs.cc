// Factors with M measurements over scalars: the update of engine/update.py for any M, in double precision.
//
//   S = Sy + sum_j J_j v_j J_j' ,   R = y - h(x0) - sum_j J_j (m_j - x0_j)
//   u_i = S^-1 J_i ,   s_i = J_i' u_i ,   lam_i = s_i / (1 - v_i s_i) ,   eta_i = u_i' R / (1 - v_i s_i) + lam_i m_i
//
// where v_i s_i <= MOST_LEVERAGE: beyond it 1 - v_i s_i would lose digits. As leverages v_i s_i sum to less than M, few
// edges lie above: for these S is summed again without them.
#include <cmath>
#include <utility>

#include "parallel.h"

namespace gbplearn {
namespace {

constexpr double MOST_LEVERAGE = 0.9;
constexpr int64_t WORTH_A_TASK = 1 << 18;  // multiplications: fewer take less time than to wake another thread

// One number each of so many factors, which are computed side by side.
constexpr int FACTORS = 4;
typedef double Reals __attribute__((vector_size(8 * FACTORS)));
typedef int64_t Where __attribute__((vector_size(8 * FACTORS)));

INLINE Reals inverse_root(Reals x) {
  for (int q = 0; q < FACTORS; ++q) x[q] = std::sqrt(x[q]);
  return 1.0 / x;
}

// One edge set: Jacobians (F or 1, n, M), cavities (F, n), linearisation points (F or 1, n), and its results.
struct Slot {
  int64_t n;
  const float *jacobian, *eta, *lam, *point;
  bool one_jacobian, one_point;
  float *new_eta, *new_lam;
};

// S = L L' in place, lower triangle, with 1 / L_ii on the diagonal. Returns where it is positive definite.
Where factorise(std::vector<Reals>& s, int64_t m) {
  Where sound = Where{} == 0;
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j <= i; ++j) {
      Reals sum = s[i * m + j];
      for (int64_t k = 0; k < j; ++k) sum -= s[i * m + k] * s[j * m + k];
      if (i == j) sound &= sum > 0;
      s[i * m + j] = i == j ? inverse_root(sum) : sum * s[j * m + j];
    }
  return sound;
}

// u = L^-1 u
void solve(const std::vector<Reals>& l, int64_t m, Reals* u) {
  for (int64_t i = 0; i < m; ++i) {
    Reals sum = u[i];
    for (int64_t k = 0; k < i; ++k) sum -= l[i * m + k] * u[k];
    u[i] = sum * l[i * m + i];
  }
}

struct Factors {
  int64_t count, m;
  const float *residual, *covariance;
  bool one_covariance;
  Shared weight;  // of each measurement
  std::vector<Slot> slots;

  int64_t edges() const {
    int64_t n = 0;
    for (const Slot& slot : slots) n += slot.n;
    return n;
  }

  // What a task needs for a few factors: of each edge the Jacobian in units of the weights, mean and variance.
  struct Work {
    std::vector<Reals> columns, mean, variance, s, less, r, innovation, u, q;
    Work(int64_t m, int64_t edges)
        : columns(edges * m), mean(edges), variance(edges), s(m * m), less(m * m), r(m), innovation(m), u(m), q(m) {}
  };

  // `number(f)` of the factors from `first` on; past the last one its own once more.
  template <class Number>
  INLINE Reals each(int64_t first, const Number& number) const {
    Reals out;
    for (int q = 0; q < FACTORS; ++q) out[q] = number(std::min(first + q, count - 1));
    return out;
  }

  void read(int64_t first, Work& work) const {
    for (int64_t a = 0; a < m; ++a) {
      // Roots of the weights, until they are in the columns.
      work.q[a] = each(first, [&](int64_t f) { return std::sqrt(static_cast<double>(weight.at(f * m + a))); });
      work.innovation[a] = work.q[a] * each(first, [&](int64_t f) { return residual[f * m + a]; });
    }
    int64_t edge = 0;
    for (const Slot& slot : slots)
      for (int64_t e = 0; e < slot.n; ++e, ++edge) {
        auto at = [&](int64_t f) { return f * slot.n + e; };
        work.variance[edge] = 1.0 / each(first, [&](int64_t f) { return slot.lam[at(f)]; });
        work.mean[edge] = work.variance[edge] * each(first, [&](int64_t f) { return slot.eta[at(f)]; });
        Reals off = work.mean[edge] - each(first, [&](int64_t f) { return slot.point[slot.one_point ? e : at(f)]; });
        for (int64_t a = 0; a < m; ++a) {
          auto entry = [&](int64_t f) { return slot.jacobian[(slot.one_jacobian ? e : at(f)) * m + a]; };
          Reals column = work.q[a] * each(first, entry);
          work.columns[edge * m + a] = column;
          work.innovation[a] -= column * off;
        }
      }
  }

  // S of the factors without one edge (-1: with all), factorised; returns where it is positive definite.
  Where predict(int64_t first, int64_t without, std::vector<Reals>& s, const Work& work) const {
    for (int64_t i = 0; i < m * m; ++i)
      s[i] = each(first, [&](int64_t f) { return covariance[(one_covariance ? 0 : f * m * m) + i]; });
    for (size_t edge = 0; edge < work.mean.size(); ++edge) {
      if (static_cast<int64_t>(edge) == without) continue;
      const Reals* column = &work.columns[edge * m];
      for (int64_t a = 0; a < m; ++a) {
        Reals scaled = column[a] * work.variance[edge];
        for (int64_t b = 0; b <= a; ++b) s[a * m + b] += scaled * column[b];
      }
    }
    return factorise(s, m);
  }

  // `own` = u' u and `both` = u' r with u = L^-1 J and r = L^-1 (innovation), for an edge.
  std::pair<Reals, Reals> inner_products(int64_t edge, const std::vector<Reals>& l, const std::vector<Reals>& r, Work& work) const {
    std::copy_n(&work.columns[edge * m], m, work.u.begin());
    solve(l, m, work.u.data());
    Reals own{}, both{};
    for (int64_t a = 0; a < m; ++a) {
      own += work.u[a] * work.u[a];
      both += work.u[a] * r[a];
    }
    return {own, both};
  }

  // Messages of a few factors, from `first` on.
  void visit(int64_t first, Work& work) const {
    read(first, work);
    Where sound = predict(first, -1, work.s, work);
    work.r = work.innovation;
    solve(work.s, m, work.r.data());
    int64_t edge = 0;
    for (const Slot& slot : slots)
      for (int64_t e = 0; e < slot.n; ++e, ++edge) {
        auto [own, both] = inner_products(edge, work.s, work.r, work);
        Reals leverage = work.variance[edge] * own, left = 1 - leverage;
        Where high = leverage > MOST_LEVERAGE;
        bool any_high = false;
        for (int q = 0; q < FACTORS; ++q) any_high |= high[q] != 0;
        if (any_high) {
          sound &= predict(first, edge, work.less, work) | ~high;
          work.q = work.innovation;
          solve(work.less, m, work.q.data());
          auto [less_own, less_both] = inner_products(edge, work.less, work.q, work);
          own = high ? less_own : own;
          both = high ? less_both : both;
          left = high ? 1 - Reals{} : left;
        }
        Reals lam = own / left, eta = both / left + lam * work.mean[edge];
        for (int q = 0; q < FACTORS && first + q < count; ++q) {
          slot.new_lam[(first + q) * slot.n + e] = sound[q] ? static_cast<float>(lam[q]) : NAN;
          slot.new_eta[(first + q) * slot.n + e] = sound[q] ? static_cast<float>(eta[q]) : NAN;
        }
      }
  }
};

}  // namespace

// A call: F factors with M measurements each.
// Attributes: factors, outputs; edges: of each edge set, how many a factor has.
// Arguments: residual (F, M), covariance (F or 1, M, M), weight (F M or 1); then of each edge set, of n edges: jacobian (F or
// 1, n, M), eta and lam (F, n) of the cavities, and point (F or 1, n). Results: of each edge set eta and lam.
ffi::Error ManyOutputs(ffi::ThreadPool pool, ffi::RemainingArgs in, ffi::RemainingRets out, ffi::Dictionary attributes) {
  Arguments args("gbplearn_many_outputs", in, out, attributes);
  const int64_t factors = args.size("factors"), m = args.size("outputs");
  auto sizes = args.wholes("edges");
  args.require(std::all_of(sizes.begin(), sizes.end(), [](int64_t n) { return n >= 1; }), "attribute %s must be positive", "edges");
  Array residual = args.take("residual", {factors, m});
  bool one_covariance;
  Array covariance = args.take_each("covariance", {factors, m, m}, one_covariance);
  Array weight = args.take_shared("weight", count_of({factors, m}));
  std::vector<Slot> slots;
  for (size_t q = 0; q < sizes.size(); ++q) {
    const int64_t n = sizes[q];
    const std::string name = "edges." + std::to_string(q);
    Slot slot{};
    slot.n = n;
    slot.jacobian = args.take_each((name + ".jacobian").c_str(), {factors, n, m}, slot.one_jacobian).data;
    slot.eta = args.take((name + ".eta").c_str(), {factors, n}).data;
    slot.lam = args.take((name + ".lam").c_str(), {factors, n}).data;
    slot.point = args.take_each((name + ".point").c_str(), {factors, n}, slot.one_point).data;
    slot.new_eta = args.report((name + ".eta").c_str(), count_of({factors, n}));
    slot.new_lam = args.report((name + ".lam").c_str(), count_of({factors, n}));
    slots.push_back(slot);
  }
  if (ffi::Error error = args.error(); error.failure()) return error;
  Factors a{factors, m, residual.data, covariance.data, one_covariance, weight, std::move(slots)};
  int64_t groups = (factors + FACTORS - 1) / FACTORS, edges = a.edges();
  int64_t tasks = std::min<int64_t>({64, groups, 1 + factors * m * m * (edges + m) / WORTH_A_TASK});
  spread(pool, tasks, [&](int64_t t) {
    Factors::Work work(m, edges);
    for (int64_t g = t * groups / tasks; g < (t + 1) * groups / tasks; ++g) a.visit(g * FACTORS, work);
  });
  return ffi::Error::Success();
}

}  // namespace gbplearn

HANDLER(gbplearn_many_outputs, gbplearn::ManyOutputs);
