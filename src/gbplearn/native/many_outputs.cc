// Factors with M measurements over scalars: the update of messages.py for any M, in double precision.
//
//   S = Sy + sum_j J_j v_j J_j' ,   R = y - h(x0) - sum_j J_j (m_j - x0_j)
//   u_i = S^-1 J_i ,   s_i = J_i' u_i ,   lam_i = s_i / (1 - v_i s_i) ,   eta_i = u_i' R / (1 - v_i s_i) + lam_i m_i
//
// where v_i s_i <= 1/2. Leverages v_i s_i sum to less than M, so fewer than 2 M edges lie above: for these S is summed
// again without them.
#include <cmath>
#include <tuple>
#include <utility>

#include "parallel.h"

namespace gbplearn {
namespace {

// One edge set: Jacobians (F or 1, n, M), cavities (F, n), linearisation points (F or 1, n), and its results.
struct Slot {
  int64_t n;
  const float *jacobian, *eta, *lam, *point;
  bool one_jacobian, one_point;
  float *new_eta, *new_lam;
};

// S = L L' in place, lower triangle. False if it is not positive definite.
bool factorise(std::vector<double>& s, int64_t m) {
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j <= i; ++j) {
      double sum = s[i * m + j];
      for (int64_t k = 0; k < j; ++k) sum -= s[i * m + k] * s[j * m + k];
      if (i == j && !(sum > 0)) return false;
      s[i * m + j] = i == j ? std::sqrt(sum) : sum / s[j * m + j];
    }
  return true;
}

// u = L^-1 u
void solve(const std::vector<double>& l, int64_t m, double* u) {
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t k = 0; k < i; ++k) u[i] -= l[i * m + k] * u[k];
    u[i] /= l[i * m + i];
  }
}

struct Factors {
  int64_t m;
  const float *residual, *covariance;
  bool one_covariance;
  Shared weight;  // of each measurement
  std::vector<Slot> slots;

  // What a task needs for one factor at a time.
  struct Work {
    std::vector<double> s, less, root, r, innovation, u, q;
    explicit Work(int64_t m) : s(m * m), less(m * m), root(m), r(m), innovation(m), u(m), q(m) {}
  };

  // The Jacobian of an edge, in units of the weights.
  void column(int64_t f, const Slot& slot, int64_t e, Work& work) const {
    const float* j = slot.jacobian + (slot.one_jacobian ? e : f * slot.n + e) * m;
    for (int64_t a = 0; a < m; ++a) work.u[a] = work.root[a] * j[a];
  }

  // S of a factor without one edge (null: with all), factorised; false if it is not positive definite.
  bool predict(int64_t f, const Slot* without, int64_t edge, std::vector<double>& s, Work& work) const {
    const float* noise = covariance + (one_covariance ? 0 : f * m * m);
    for (int64_t i = 0; i < m * m; ++i) s[i] = noise[i];
    for (const Slot& slot : slots)
      for (int64_t e = 0; e < slot.n; ++e) {
        if (&slot == without && e == edge) continue;
        column(f, slot, e, work);
        double v = 1.0 / slot.lam[f * slot.n + e];
        for (int64_t a = 0; a < m; ++a)
          for (int64_t b = 0; b <= a; ++b) s[a * m + b] += work.u[a] * v * work.u[b];
      }
    return factorise(s, m);
  }

  // u' u and u' r with u = L^-1 J and r = L^-1 (innovation), for the edge whose Jacobian is in `work.u`.
  std::pair<double, double> heard(const std::vector<double>& l, const std::vector<double>& r, Work& work) const {
    solve(l, m, work.u.data());
    double own = 0, both = 0;
    for (int64_t a = 0; a < m; ++a) {
      own += work.u[a] * work.u[a];
      both += work.u[a] * r[a];
    }
    return {own, both};
  }

  void one(int64_t f, Work& work) const {
    for (int64_t a = 0; a < m; ++a) {
      work.root[a] = std::sqrt(static_cast<double>(weight.at(f * m + a)));
      work.innovation[a] = work.root[a] * residual[f * m + a];
    }
    for (const Slot& slot : slots)
      for (int64_t e = 0; e < slot.n; ++e) {
        int64_t at = f * slot.n + e;
        column(f, slot, e, work);
        double off = slot.eta[at] / static_cast<double>(slot.lam[at]) - slot.point[slot.one_point ? e : at];
        for (int64_t a = 0; a < m; ++a) work.innovation[a] -= work.u[a] * off;
      }
    bool sound = predict(f, nullptr, 0, work.s, work);
    work.r = work.innovation;
    solve(work.s, m, work.r.data());
    for (const Slot& slot : slots)
      for (int64_t e = 0; e < slot.n; ++e) {
        int64_t at = f * slot.n + e;
        column(f, slot, e, work);
        auto [own, both] = heard(work.s, work.r, work);
        double v = 1.0 / slot.lam[at], left = 1 - v * own;
        if (v * own > 0.5) {
          sound = predict(f, &slot, e, work.less, work) && sound;
          work.q = work.innovation;
          solve(work.less, m, work.q.data());
          column(f, slot, e, work);
          std::tie(own, both) = heard(work.less, work.q, work);
          left = 1;
        }
        double lam = sound ? own / left : NAN;
        slot.new_lam[at] = static_cast<float>(lam);
        slot.new_eta[at] = static_cast<float>(both / left + lam * slot.eta[at] * v);
      }
  }
};

}  // namespace

// Arguments: residuals (F, M), covariances (F or 1, M, M), weights (F, M) or 1; then of each edge set the Jacobian, eta,
// lam and the linearisation point. Results: of each edge set eta and lam.
ffi::Error ManyOutputs(ffi::ThreadPool pool, float, ffi::RemainingArgs in, ffi::RemainingRets out) {
  Arguments args{in, out};
  int64_t factors = args[0].dimensions()[0], m = args[0].dimensions()[1];
  Factors a{m, args.data(0), args.data(1), args[1].dimensions()[0] == 1 && factors > 1, args[2], {}};
  for (size_t i = 3, q = 0; i + 3 < in.size(); i += 4, q += 2) {
    auto jacobian = args[i].dimensions();
    a.slots.push_back({jacobian[1], args.data(i), args.data(i + 1), args.data(i + 2), args.data(i + 3),
                       jacobian[0] == 1 && factors > 1, args[i + 3].dimensions()[0] == 1 && factors > 1, args.result(q),
                       args.result(q + 1)});
  }
  int64_t tasks = std::max<int64_t>(1, std::min<int64_t>(64, factors / 16));
  spread(pool, tasks, [&](int64_t t) {
    Factors::Work work(m);
    for (int64_t f = t * factors / tasks; f < (t + 1) * factors / tasks; ++f) a.one(f, work);
  });
  return ffi::Error::Success();
}

}  // namespace gbplearn

HANDLER(gbplearn_many_outputs, gbplearn::ManyOutputs);
