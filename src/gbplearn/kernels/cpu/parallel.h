// What the kernels share: vectors of eight floats (sixteen with AVX-512), work spread over XLA's own threads, arrays that may be one number.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#ifdef __AVX2__  // which processors with AVX-512 have, too
#include <immintrin.h>
#endif

#include "arguments.h"

namespace gbplearn {

#define INLINE inline __attribute__((always_inline))

#ifdef __AVX512F__
constexpr int LANES = 16;
#else
constexpr int LANES = 8;
#endif
typedef float Vec __attribute__((vector_size(4 * LANES)));
typedef float LooseVec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t Mask __attribute__((vector_size(4 * LANES)));

INLINE Vec load(const float* p) { return *reinterpret_cast<const LooseVec*>(p); }
INLINE void store(float* p, Vec v) { *reinterpret_cast<LooseVec*>(p) = v; }
INLINE Vec all(float x) { return x - Vec{}; }

// The first `count` of a vector; the rest is `fill`, and no memory is touched for it.
#ifdef __AVX512F__
INLINE __mmask16 first_lanes(int64_t count) { return static_cast<__mmask16>(_bzhi_u32(0xffff, static_cast<uint32_t>(count))); }

INLINE Vec load(const float* p, int64_t count, float fill) {
  if (count >= LANES) return load(p);
  return _mm512_mask_loadu_ps(all(fill), first_lanes(count), p);
}

INLINE void store(float* p, Vec v, int64_t count) {
  if (count >= LANES) return store(p, v);
  _mm512_mask_storeu_ps(p, first_lanes(count), v);
}
#elif defined(__AVX2__)
INLINE __m256i first_lanes(int64_t count) {
  alignas(32) static const int32_t bits[2 * LANES] = {-1, -1, -1, -1, -1, -1, -1, -1};
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(bits + LANES - count));
}

INLINE Vec load(const float* p, int64_t count, float fill) {
  if (count >= LANES) return load(p);
  __m256i lanes = first_lanes(count);
  return _mm256_blendv_ps(all(fill), _mm256_maskload_ps(p, lanes), _mm256_castsi256_ps(lanes));
}

INLINE void store(float* p, Vec v, int64_t count) {
  if (count >= LANES) return store(p, v);
  // Not by a mask: processors of AMD take a dozen cycles for it.
  __m128 part = _mm256_castps256_ps128(v);
  if (count & 4) {
    _mm_storeu_ps(p, part);
    part = _mm256_extractf128_ps(v, 1);
    p += 4;
  }
  if (count & 2) {
    _mm_storel_pi(reinterpret_cast<__m64*>(p), part);
    part = _mm_movehl_ps(part, part);
    p += 2;
  }
  if (count & 1) _mm_store_ss(p, part);
}
#else
INLINE Vec load(const float* p, int64_t count, float fill) {
  if (count >= LANES) return load(p);
  float few[LANES];
  for (int i = 0; i < LANES; ++i) few[i] = i < count ? p[i] : fill;
  return load(few);
}

INLINE void store(float* p, Vec v, int64_t count) {
  if (count >= LANES) return store(p, v);
  float few[LANES];
  store(few, v);
  for (int i = 0; i < count; ++i) p[i] = few[i];
}
#endif

INLINE float sum_of(Vec v) {
  float few[LANES], out = 0;
  store(few, v);
  for (int i = 0; i < LANES; ++i) out += few[i];
  return out;
}

INLINE float largest_of(Vec v) {
  float few[LANES], out;
  store(few, v);
  out = few[0];
  for (int i = 1; i < LANES; ++i) out = std::max(out, few[i]);
  return out;
}

INLINE Mask first_of(int64_t count) {
#ifdef __AVX512F__
  Mask lane{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
#else
  Mask lane{0, 1, 2, 3, 4, 5, 6, 7};
#endif
  return lane < static_cast<int32_t>(count < LANES ? count : LANES);
}

// As many vectors as lanes, turned round.
INLINE void transpose(Vec (&a)[LANES]) {
#ifdef __AVX512F__
  __m512 pairs[LANES], fours[LANES], eights[LANES];
  for (int i = 0; i < LANES; i += 2) {
    pairs[i] = _mm512_unpacklo_ps(a[i], a[i + 1]);
    pairs[i + 1] = _mm512_unpackhi_ps(a[i], a[i + 1]);
  }
  // Of rows i to i + 3 the columns q, q + 4, q + 8 and q + 12.
  for (int i = 0; i < LANES; i += 4)
    for (int q = 0; q < 2; ++q) {
      fours[i + 2 * q] = _mm512_shuffle_ps(pairs[i + q], pairs[i + 2 + q], 0x44);
      fours[i + 2 * q + 1] = _mm512_shuffle_ps(pairs[i + q], pairs[i + 2 + q], 0xEE);
    }
  // Of rows i to i + 7: columns q and q + 8, then q + 4 and q + 12.
  for (int i = 0; i < LANES; i += 8)
    for (int q = 0; q < 4; ++q) {
      eights[i + q] = _mm512_shuffle_f32x4(fours[i + q], fours[i + 4 + q], 0x88);
      eights[i + 4 + q] = _mm512_shuffle_f32x4(fours[i + q], fours[i + 4 + q], 0xDD);
    }
  for (int q = 0; q < 8; ++q) {
    a[q] = _mm512_shuffle_f32x4(eights[q], eights[q + 8], 0x88);
    a[q + 8] = _mm512_shuffle_f32x4(eights[q], eights[q + 8], 0xDD);
  }
#elif defined(__AVX2__)
  __m256 pairs[LANES], fours[LANES];
  for (int i = 0; i < LANES; i += 2) {
    pairs[i] = _mm256_unpacklo_ps(a[i], a[i + 1]);
    pairs[i + 1] = _mm256_unpackhi_ps(a[i], a[i + 1]);
  }
  for (int i = 0; i < LANES; i += 4)
    for (int q = 0; q < 2; ++q) {
      fours[i + 2 * q] = _mm256_shuffle_ps(pairs[i + q], pairs[i + 2 + q], 0x44);
      fours[i + 2 * q + 1] = _mm256_shuffle_ps(pairs[i + q], pairs[i + 2 + q], 0xEE);
    }
  for (int i = 0; i < 4; ++i) {
    a[i] = _mm256_permute2f128_ps(fours[i], fours[i + 4], 0x20);
    a[i + 4] = _mm256_permute2f128_ps(fours[i], fours[i + 4], 0x31);
  }
#else
  Vec out[LANES];
  for (int i = 0; i < LANES; ++i)
    for (int j = 0; j < LANES; ++j) out[i][j] = a[j][i];
  for (int i = 0; i < LANES; ++i) a[i] = out[i];
#endif
}

// Visits of more bytes than the second cache holds prefetch what they will touch one piece (an image) later; smaller ones
// would only be slowed down.
constexpr int64_t MORE_THAN_A_CACHE = 4 << 20;
constexpr int64_t LINE = 16;  // floats that come together
INLINE void prefetch(const float* p) { __builtin_prefetch(p, 1, 2); }

// Whether it is true of any lane.
INLINE bool some(Mask bits) {
#ifdef __AVX512F__
  return _mm512_test_epi32_mask(reinterpret_cast<__m512i>(bits), reinterpret_cast<__m512i>(bits));
#elif defined(__AVX2__)
  return !_mm256_testz_si256(reinterpret_cast<__m256i>(bits), reinterpret_cast<__m256i>(bits));
#else
  int32_t all = 0;
  for (int i = 0; i < LANES; ++i) all |= bits[i];
  return all;
#endif
}

// Whether any of `count` numbers is not 0.
INLINE bool any(const float* numbers, int64_t count) {
  Mask bits{};
  for (int64_t k = 0; k < count; k += LANES) bits |= load(numbers + k, count - k, 0) != 0;
  return some(bits);
}

// Numbers that each hold for so many factors in a row, at least for all channels of a place.
struct Blocks {
  const float* data;
  int64_t size;
  bool one;
  Blocks(const Array& a, int64_t factors) : data(a.data), size(factors / a.size), one(a.size == 1) {}
  INLINE Vec at(int64_t i, int64_t count, float fill) const { return size == 1 ? load(data + i, count, fill) : all(at(i)); }
  INLINE float at(int64_t i) const { return data[static_cast<uint32_t>(i) / static_cast<uint32_t>(size)]; }
  // Where a vector may lie in two blocks, or more.
  INLINE Vec across(int64_t i, int64_t count, float fill) const {
    if (one) return first_of(count) ? all(*data) : all(fill);
    if (size == 1) return load(data + i, count, fill);
    Vec out = all(fill);
    for (int64_t q = 0; q < LANES && q < count; ++q) out[q] = at(i + q);
    return out;
  }
};

// Numbers of all factors, or one for all.
struct Shared {
  const float* data;
  bool one;
  Shared(const Array& a) : data(a.data), one(a.size == 1) {}
  INLINE Vec at(int64_t i, int64_t count, float fill) const { return one ? all(data[0]) : load(data + i, count, fill); }
  INLINE float at(int64_t i) const { return data[one ? 0 : i]; }
};

// The inbox of a variable: its prior and the messages of the other groups. Their product is what `outside_eta` and
// `outside_lam` hold.
struct Inbox {
  std::vector<Shared> eta, lam;
  std::vector<const float*> more_eta, more_lam;  // those that are not one for all
  float one_eta = 0, one_lam = 0;
  explicit Inbox(const Pairs& pairs) {
    for (size_t i = 0; i < pairs.eta.size(); ++i) {
      eta.emplace_back(pairs.eta[i]);
      lam.emplace_back(pairs.lam[i]);
      if (eta.back().one && lam.back().one) {
        one_eta += *eta.back().data;
        one_lam += *lam.back().data;
      } else {
        more_eta.push_back(eta.back().data);
        more_lam.push_back(lam.back().data);
      }
    }
  }
  INLINE void sum(int64_t i, int64_t count, Vec& e, Vec& l) const {
    e = all(one_eta);
    l = all(one_lam);
    for (size_t j = 0; j < more_eta.size(); ++j) {
      e += load(more_eta[j] + i, count, 0.0f);
      l += load(more_lam[j] + i, count, 1.0f);
    }
  }
  INLINE void sum(int64_t i, float& e, float& l) const {
    e = one_eta;
    l = one_lam;
    for (size_t j = 0; j < more_eta.size(); ++j) {
      e += more_eta[j][i];
      l += more_lam[j][i];
    }
  }
};

// What a visit reports of one variable, see engine/diagnostics.py: how far its undamped messages move the beliefs, the
// energy of the prior at the means before the visit, and the energy of the factors there.
struct Diagnostics {
  enum { MOVED, RATIO, POISON, ENERGY, PRIOR, COUNT };
  Vec moved{}, ratio{}, poison{}, energy{}, prior{};

  // Beliefs before and after the visit, for lanes where `inside` is true.
  INLINE Vec change(Vec eta, Vec lam, Vec new_eta, Vec new_lam, Mask inside) {
    return move(eta / lam, lam, new_eta / new_lam, new_lam, inside);
  }

  // The same with means, which of unknown units are their starts. Returns those before.
  INLINE Vec move(Vec before, Vec lam, Vec after, Vec new_lam, Mask inside) {
    Vec step = after - before;
    Vec size = before < 0 ? -before : before, other = after < 0 ? -after : after;
    size = size > other ? size : other;
    Vec length = step < 0 ? -step : step;
    step = length <= 16 * 1.1920929e-07f * size ? Vec{} : step;  // within the rounding of the mean itself
    Vec squared = step * step * lam;
    Vec high = (lam > new_lam ? lam : new_lam) + 1.1754944e-38f, low = (lam < new_lam ? lam : new_lam) + 1.1754944e-38f;
    Vec grown = high / low;
    squared = inside ? squared : Vec{};
    grown = inside ? grown : Vec{};
    moved = moved > squared ? moved : squared;
    ratio = ratio > grown ? ratio : grown;
    poison += squared * 0 + grown * 0;  // comparisons overlook what is not finite
    return before;
  }

  INLINE void add_prior(Vec mean, Vec eta, Vec lam, Mask inside) {
    Vec off = mean - eta / lam;
    prior += inside & (lam > 0) & (lam < 0x1p79f) ? 0.5f * (lam * off * off) : Vec{};  // observed units count nothing, see graph/problem.py
  }

  INLINE void add_energy(Vec residual, Vec weight, Vec noise, Mask inside) {
    energy += inside ? 0.5f * (weight * residual * residual / noise) : Vec{};
  }

  void write(float* to) const {
    for (int i = 0; i < COUNT; ++i) to[i] = 0;
    for (int i = 0; i < LANES; ++i) {
      to[MOVED] = std::max(to[MOVED], moved[i]);
      to[RATIO] = std::max(to[RATIO], ratio[i]);
      to[POISON] += poison[i];
      to[ENERGY] += energy[i];
      to[PRIOR] += prior[i];
    }
  }
};

// The diagnostics of all tasks as one.
inline void join_diagnostics(const std::vector<float>& parts, float* to) {
  double sums[Diagnostics::COUNT] = {};
  for (size_t i = 0; i < parts.size(); i += Diagnostics::COUNT)
    for (int q = 0; q < Diagnostics::COUNT; ++q)
      sums[q] = q == Diagnostics::MOVED || q == Diagnostics::RATIO ? std::max<double>(sums[q], parts[i + q]) : sums[q] + parts[i + q];
  for (int q = 0; q < Diagnostics::COUNT; ++q) to[q] = static_cast<float>(sums[q]);
}

// Memory for one call, that the next one finds again: what the system gives must be cleared page by page.
class Room {
 public:
  Room() : first_(blocks().size()) {}
  ~Room() {
    for (size_t i = first_; i < blocks().size(); ++i) spare().push_back(std::move(blocks()[i]));
    blocks().resize(first_);
  }
  Room(const Room&) = delete;
  float* take(int64_t size) {
    auto& free = spare();
    size_t best = free.size();
    for (size_t i = 0; i < free.size(); ++i)
      if (static_cast<int64_t>(free[i].size()) >= size && (best == free.size() || free[i].size() < free[best].size())) best = i;
    if (best < free.size()) {
      blocks().push_back(std::move(free[best]));
      free.erase(free.begin() + best);
    } else {
      if (!free.empty()) free.pop_back();  // too small: replaced, so that the number of blocks does not grow
      blocks().emplace_back(size);
    }
    return blocks().back().data();
  }
  float* take(int64_t size, float fill) {
    float* data = take(size);
    std::fill_n(data, size, fill);
    return data;
  }

 private:
  static std::vector<std::vector<float>>& blocks() {
    static thread_local std::vector<std::vector<float>> all;
    return all;
  }
  static std::vector<std::vector<float>>& spare() {
    static thread_local std::vector<std::vector<float>> all;
    return all;
  }
  size_t first_;
};

// Calls work(0) ... work(blocks - 1), each once, on this thread and on those of the pool that have time. Which thread
// does a block changes nothing: results are the same from run to run. Each has its own stretch of blocks and then helps the
// others, so that from call to call most of what it reads still lies in the cache of its core.
template <class Work>
void spread(ffi::ThreadPool& pool, int64_t blocks, const Work& work) {
  struct Stretch {
    alignas(64) std::atomic<int64_t> next;
    int64_t end;
  };
  struct Counters {
    std::vector<Stretch> stretches;
    std::atomic<int64_t> done{0};
    explicit Counters(int64_t count) : stretches(count) {}
  };
  int64_t threads = std::max<int64_t>(1, std::min<int64_t>(pool.num_threads(), blocks));
  auto counters = std::make_shared<Counters>(threads);
  for (int64_t t = 0; t < threads; ++t) {
    counters->stretches[t].next = t * blocks / threads;
    counters->stretches[t].end = (t + 1) * blocks / threads;
  }
  auto take_part = [counters, threads, &work](int64_t thread) {
    for (int64_t t = 0; t < threads; ++t) {
      Stretch& own = counters->stretches[(thread + t) % threads];
      for (int64_t i; (i = own.next.fetch_add(1)) < own.end;) {
        work(i);
        counters->done.fetch_add(1, std::memory_order_release);
      }
    }
  };
  // A helper that comes late finds nothing left, and does not touch `work`, which may be gone by then.
  for (int64_t t = 1; t < threads; ++t) pool.Schedule([take_part, t] { take_part(t); });
  take_part(0);
  while (counters->done.load(std::memory_order_acquire) < blocks) std::this_thread::yield();
}

// A handler of XLA: its threads, any arguments, results and attributes, which `Arguments` checks.
#define HANDLER(symbol, function)                                                                                      \
  XLA_FFI_DEFINE_HANDLER_SYMBOL(                                                                                       \
      symbol, function,                                                                                                \
      xla::ffi::Ffi::Bind().Ctx<xla::ffi::ThreadPool>().RemainingArgs().RemainingRets().Attrs())

}  // namespace gbplearn
