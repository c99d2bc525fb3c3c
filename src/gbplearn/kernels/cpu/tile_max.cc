// Factors y - max(tile of x), a message an edge: the update of messages.py for M = 1, in one pass over the image.
//
// The Jacobian is -1 at the largest mean of a tile (the first, if several are) and 0 elsewhere, so with the cavities of
// y and of that one pixel
//
//   to y: lam = 1 / (sigma² / weight + v_x) , eta = lam (m_x + measured)
//   to x: lam = 1 / (sigma² / weight + v_y) , eta = lam (m_y - measured)   (to other pixels: nothing)
#include "step.h"

namespace gbplearn {
namespace {

struct Tiles {
  int64_t height, width, channels, k, l;  // of an image, of a tile
  const Inbound *x, *y;
  const float *old_x_eta, *old_x_lam, *old_y_eta, *old_y_lam;
  Shared measured, noise;
  Blocks weight;
  bool started;        // the largest is found among `start`
  const float* start;
  float damp_x, damp_y;
  float *x_eta, *x_lam, *y_eta, *y_lam;
  int64_t ahead;  // so many numbers later is what to ask for, or 0

  // As is usual: one noise and one measurement for all, one weight for the channels of a tile, one array that x hears.
  bool plain() const {
    return noise.one && measured.one && weight.size % channels == 0 && x->more_eta.size() == 1;
  }

  // What x hears from outside. `P`: it is plain.
  template <bool P>
  INLINE void hear(int64_t at, int64_t count, Vec& eta, Vec& lam) const {
    if (!P) return x->sum(at, count, eta, lam);
    eta = x->one_eta + load(x->more_eta[0] + at, count, 0);
    lam = x->one_lam + load(x->more_lam[0] + at, count, 1);
  }

  // Eight channels of one tile, or `count` of them; `unit` and `corner` are where they lie in y and x. `S`: the size of a
  // tile if it is known, else 0; `weight_here`: of the tile, if it is plain.
  template <bool L, int S, bool P>
  INLINE void tile(int64_t unit, int64_t corner, int64_t count, Vec weight_here, Looked* looked) const {
    const int64_t k = S ? S : this->k, l = S ? S : this->l, down = width * channels;
    Vec best{}, eta{}, lam{};  // of the largest: its mean, and the cavity
    Mask place{};
#pragma GCC unroll 2
    for (int64_t u = 0; u < k; ++u)
#pragma GCC unroll 2
      for (int64_t v = 0; v < l; ++v) {
        int64_t at = corner + u * down + v * channels;
        Vec outside_eta, outside_lam;
        if (P && ahead && at % LINE < LANES)
          for (const float* from : {x->more_eta[0], x->more_lam[0], old_x_eta, old_x_lam}) ask_for(from + at + ahead);
        hear<P>(at, count, outside_eta, outside_lam);
        Vec mean = started ? load(start + at, count, 0)
                           : (outside_eta + load(old_x_eta + at, count, 0)) / (outside_lam + load(old_x_lam + at, count, 0));
        if (u + v == 0) {
          best = mean;
          eta = outside_eta;
          lam = outside_lam;
          continue;
        }
        Mask larger = mean > best;
        best = larger ? mean : best;
        eta = larger ? outside_eta : eta;
        lam = larger ? outside_lam : lam;
        place = larger ? Mask{} + static_cast<int32_t>(u * l + v) : place;
      }
    Vec off = P ? all(measured.at(0)) : measured.at(unit, count, 0), var = P ? all(noise.at(0)) : noise.at(unit, count, 1);
    Vec weigh = P ? weight_here : weight.at(unit, count, 1);
    Vec part = weigh / (var * lam + weigh), gain = part * lam;  // 1 / (sigma² / weight + 1 / lam)
    Vec old_eta = load(old_y_eta + unit, count, 0), old_lam = load(old_y_lam + unit, count, 0);
    Vec answer = part * (eta + lam * off);
    Mask inside = first_of(count);
    store(y_eta + unit, damp_y * old_eta + (1 - damp_y) * answer, count);
    store(y_lam + unit, damp_y * old_lam + (1 - damp_y) * gain, count);
    y->sum(unit, count, eta, lam);
    if constexpr (L) {
      Vec mean = looked[1].change(eta + old_eta, lam + old_lam, eta + answer, lam + gain, inside);
      looked[1].add_prior(mean, y->eta[0].at(unit, count, 0), y->lam[0].at(unit, count, 1), inside);
      looked[1].add_energy(off + best - mean, weigh, var, inside);
    }
    part = weigh / (var * lam + weigh);
    Vec full = part * lam, full_eta = part * (eta - lam * off);
    lam = (1 - damp_x) * full;
    eta = (1 - damp_x) * full_eta;
#pragma GCC unroll 2
    for (int64_t u = 0; u < k; ++u)
#pragma GCC unroll 2
      for (int64_t v = 0; v < l; ++v) {
        int64_t at = corner + u * down + v * channels;
        Mask hit = place == static_cast<int32_t>(u * l + v);
        old_eta = load(old_x_eta + at, count, 0);
        old_lam = load(old_x_lam + at, count, 0);
        if constexpr (L) {
          Vec outside_eta, outside_lam;
          x->sum(at, count, outside_eta, outside_lam);
          looked[0].change(outside_eta + old_eta, outside_lam + old_lam, outside_eta + (hit ? full_eta : Vec{}),
                           outside_lam + (hit ? full : Vec{}), inside);
        }
        store(x_eta + at, damp_x * old_eta + (hit ? eta : Vec{}), count);
        store(x_lam + at, damp_x * old_lam + (hit ? lam : Vec{}), count);
      }
  }

  INLINE int64_t pixel(int64_t image, int64_t row, int64_t column) const {
    return ((image * height + row) * width + column) * channels;
  }

  // A row of tiles.
  template <bool L, int S, bool P>
  void tiles(int64_t image, int64_t i, Looked* looked) const {
    int64_t w = width / l, unit = (image * (height / k) + i) * w * channels, corner = pixel(image, i * k, 0);
    for (int64_t j = 0; j < w; ++j, unit += channels, corner += l * channels) {
      int64_t c = 0;
      Vec here = all(weight.at(unit));
      for (; c + LANES <= channels; c += LANES) tile<L, S, P>(unit + c, corner + c, LANES, here, looked);
      if (c < channels) tile<L, S, P>(unit + c, corner + c, channels - c, here, looked);
    }
  }

  template <bool L>
  void row(int64_t image, int64_t i, Looked* looked) const {
    if (k == 2 && l == 2)
      plain() ? tiles<L, 2, true>(image, i, looked) : tiles<L, 2, false>(image, i, looked);
    else
      tiles<L, 0, false>(image, i, looked);
    int64_t w = width / l;
    for (int64_t u = i * k; u < (i + 1) * k; ++u) clear(image, u, w * l);
    if (i + 1 == height / k)
      for (int64_t u = (i + 1) * k; u < height; ++u) clear(image, u, 0);
  }

  // Pixels that fill no tile hear nothing.
  void clear(int64_t image, int64_t u, int64_t from) const {
    int64_t at = pixel(image, u, from), count = (width - from) * channels;
    std::fill_n(x_eta + at, count, 0.0f);
    std::fill_n(x_lam + at, count, 0.0f);
  }
};

// Arguments: old messages to x (B, H, W, C) and to y (B, h, w, C), noise, weight (F or 1), start of x, and numbers: the
// damping of x and y, whether the start counts, how many arrays follow for x, the size of a tile; measurements; then pairs
// of what else x hears, and y.
// Results: messages to x and y; and if they are there, looks at x and at y (without the prior of x, which has pixels
// outside of all tiles, too).
enum { NUMBERS = 7, REST = 9 };
size_t of_y(const Arguments& args) { return REST + static_cast<size_t>(args.data(NUMBERS)[3]); }

Tiles tiles_of(const Arguments& args, const Inbound& x, const Inbound& y) {
  auto image = args[0].dimensions();
  const float* numbers = args.data(NUMBERS);
  return {image[1], image[2], image[3], static_cast<int64_t>(numbers[4]), static_cast<int64_t>(numbers[5]),
          &x, &y, args.data(0), args.data(1), args.data(2), args.data(3), args[8], args[4], Blocks(args[5], args[2].element_count()), numbers[2] > 0, args.data(6),
          numbers[0], numbers[1], args.result(0), args.result(1), args.result(2), args.result(3),
          args[0].element_count() * 16 > MORE_THAN_A_CACHE ? image[1] * image[2] * image[3] : 0};
}

class TileMaxStep final : public Step {
 public:
  TileMaxStep(const Arguments& args, int64_t tasks)
      : args_(args), x_(args, REST, of_y(args)), y_(args, of_y(args), args.size()), a_(tiles_of(args, x_, y_)),
        rows_(args[2].dimensions()[0] * args[2].dimensions()[1]), looking_(args.results() > 4) {
    for (auto& part : looks_) part.assign(tasks * Looked::COUNT, 0.0f);
  }

  void visit(int64_t begin, int64_t end, int64_t pieces, int64_t task) const override {
    Looked looked[2];
    const Tiles own = a_;  // numbers and pointers which nothing that is written can change
    int64_t h = own.height / own.k;
    for (int64_t r = begin * rows_ / pieces; r < end * rows_ / pieces; ++r)
      looking_ ? own.row<true>(r / h, r % h, looked) : own.row<false>(r / h, r % h, looked);
    for (int q = 0; q < 2; ++q) looked[q].write(&looks_[q][task * Looked::COUNT]);
  }

  void finish() override {
    for (int q = 0; looking_ && q < 2; ++q) join_looks(looks_[q], args_.result(4 + q));
  }

 private:
  Arguments args_;
  Inbound x_, y_;  // what they hear from outside
  Tiles a_;
  int64_t rows_;  // of tiles, in all images
  bool looking_;
  mutable std::vector<float> looks_[2];  // a part of them for each task
};

}  // namespace

std::unique_ptr<Step> tile_max(const Arguments& args, int64_t tasks) { return std::make_unique<TileMaxStep>(args, tasks); }

ffi::Error TileMax(ffi::ThreadPool pool, float, ffi::RemainingArgs in, ffi::RemainingRets out) {
  Arguments args{in, out};
  auto tiles = args[2].dimensions();
  int64_t tasks = std::min<int64_t>(32, tiles[0] * tiles[1]);
  TileMaxStep step(args, tasks);
  spread(pool, tasks, [&](int64_t t) { step.visit(t, t + 1, tasks, t); });
  step.finish();
  return ffi::Error::Success();
}

}  // namespace gbplearn

HANDLER(gbplearn_tile_max, gbplearn::TileMax);
