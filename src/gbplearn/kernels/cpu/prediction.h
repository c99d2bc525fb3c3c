// The prediction of a factor with one measurement, as engine/prediction.py has it: what messages take of S and R.
//
// Noise sigma², weight k on its precision, S = sum J² v the spread of the variables, R the innovation. The weight belongs
// to the noise and may be 0, so that k times all is computed; a variable of its own is known by its cavity `eta`, `lam`,
// whose variance is never taken, since it may be very large.
#pragma once

#include "parallel.h"

namespace gbplearn {

// 1 / (sigma² / k + spread): how precisely a factor measures what it has beside the variables of this spread.
template <class Noise, class Weight, class Spread>
INLINE auto precision_beside(Noise noise, Weight weight, Spread spread) {
  return weight / (noise + weight * spread);
}

// 1 / (rest / k lam + 1): the share of a cavity of precision `lam` that passes a factor, `rest` = sigma² + k (other spread).
// Times `lam` that is 1 / S with its variance in it, times `eta` its mean / S.
template <class T>
INLINE T passed(T rest, T weight, T lam) {
  return weight / (rest * lam + weight);
}

// Of a factor y - h, linear in y: its message to y, and what those to all others take.
template <class T>
struct ScalarPrediction {
  T eta, lam;     // to y, undamped
  T gain, share;  // 1 / S and R / S
};

// `spread`: S without y; `predicted`: R + m_y; cavity of y: `eta`, `lam`.
template <class T>
INLINE ScalarPrediction<T> predict_scalar(T noise, T weight, T spread, T predicted, T eta, T lam) {
  T rest = noise + weight * spread, to_y = weight / rest, part = passed(rest, weight, lam);
  return {to_y * predicted, to_y, part * lam, part * (lam * predicted - eta)};
}

}  // namespace gbplearn
