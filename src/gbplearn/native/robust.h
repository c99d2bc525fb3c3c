// Robust energies, see robust.py.
#pragma once

#include <cmath>

#include "parallel.h"

namespace gbplearn {

enum Robust { NONE, TUKEY_VALUE, TUKEY_GRADIENT, HUBER_VALUE, HUBER_GRADIENT };

INLINE Vec root(Vec x) {
  Vec out;
  for (int i = 0; i < LANES; ++i) out[i] = std::sqrt(x[i]);
  return out;
}

// The factor on the precision at a squared distance.
INLINE Vec scale(int robust, float n, Vec d2) {
  Vec n2 = all(n * n), large = d2 > n2 ? d2 : n2;
  if (robust == TUKEY_VALUE) return n2 / large;
  if (robust == TUKEY_GRADIENT) return d2 > n2 ? Vec{} : all(1);
  Vec ratio = n / root(large);
  return robust == HUBER_VALUE ? ratio * (2 - ratio) : ratio;
}

// The energy beyond the threshold.
INLINE Vec flat(int robust, float n, Vec d2) {
  float half = 0.5f * n * n;
  return robust >= HUBER_VALUE ? n * root(d2 > n * n ? d2 : all(n * n)) - half : all(half);
}

}  // namespace gbplearn
