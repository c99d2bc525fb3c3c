// Robust energies, see core/robust.py.
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
  Vec beyond{};
  if (robust == TUKEY_VALUE) beyond = n2 / large;
  if (robust >= HUBER_VALUE) beyond = n / root(large);
  if (robust == HUBER_VALUE) beyond *= 2 - beyond;
  return d2 > n2 ? beyond : all(1);  // also if the threshold is infinite
}

// The energy beyond the threshold.
INLINE Vec flat(int robust, float n, Vec d2) {
  float half = 0.5f * n * n;
  return robust >= HUBER_VALUE ? n * root(d2 > n * n ? d2 : all(n * n)) - half : all(half);
}

}  // namespace gbplearn
