// Factors y - max(tile of x), a message an edge: the update of engine/update.py for M = 1, in one pass over the image.
//
// The Jacobian is -1 at the largest mean of a tile (the first, if several are) and 0 elsewhere, so with the cavities of
// y and of that one pixel
//
//   to y: lam = 1 / (sigma² / weight + v_x) , eta = lam (m_x + measured)
//   to x: lam = 1 / (sigma² / weight + v_y) , eta = lam (m_y - measured)   (to other pixels: nothing)
#include "prediction.h"
#include "step.h"

namespace gbplearn {
namespace {

struct Tiles {
  int64_t height, width, channels, k, l;  // of an image, of a tile
  const Inbox *x, *y;
  const float *old_x_eta, *old_x_lam, *old_y_eta, *old_y_lam;
  Shared measured, noise;
  Blocks weight;
  bool started;        // the largest is found among `start`
  const float* start;
  float damp_x, damp_y;
  float *x_eta, *x_lam, *y_eta, *y_lam;
  int64_t ahead;  // so many numbers later is what to prefetch, or 0

  // As is usual: one noise and one measurement for all, one weight for the channels of a tile, and in the inbox of x one
  // array beside uniform priors. Then `UNIFORM` is true below.
  bool uniform() const {
    return noise.one && measured.one && weight.size % channels == 0 && x->more_eta.size() == 1;
  }

  // The product of the inbox of x.
  template <bool UNIFORM>
  INLINE void read_inbox(int64_t at, int64_t count, Vec& eta, Vec& lam) const {
    if (!UNIFORM) return x->sum(at, count, eta, lam);
    eta = x->one_eta + load(x->more_eta[0] + at, count, 0);
    lam = x->one_lam + load(x->more_lam[0] + at, count, 1);
  }

  // A vector of channels of one tile, or `count` of them; `unit` and `corner` are where they lie in y and x. `S`: the size of a
  // tile if it is known, else 0; `weight_here`: of the tile, if that is uniform; `DIAGNOSE`: whether the diagnostics of x
  // and y are wanted.
  template <bool DIAGNOSE, int S, bool UNIFORM>
  INLINE void tile(int64_t unit, int64_t corner, int64_t count, Vec weight_here, Diagnostics* diagnostics) const {
    const int64_t k = S ? S : this->k, l = S ? S : this->l, down = width * channels;
    Vec best{}, eta{}, lam{};  // of the largest: its mean, and the cavity
    Mask place{};
#pragma GCC unroll 2
    for (int64_t u = 0; u < k; ++u)
#pragma GCC unroll 2
      for (int64_t v = 0; v < l; ++v) {
        int64_t at = corner + u * down + v * channels;
        Vec outside_eta, outside_lam;
        if (UNIFORM && ahead && at % LINE < LANES)
          for (const float* from : {x->more_eta[0], x->more_lam[0], old_x_eta, old_x_lam}) prefetch(from + at + ahead);
        read_inbox<UNIFORM>(at, count, outside_eta, outside_lam);
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
    Vec off = UNIFORM ? all(measured.at(0)) : measured.at(unit, count, 0), var = UNIFORM ? all(noise.at(0)) : noise.at(unit, count, 1);
    Vec weigh = UNIFORM ? weight_here : weight.at(unit, count, 1);
    Vec part = passed(var, weigh, lam), gain = part * lam;
    Vec old_eta = load(old_y_eta + unit, count, 0), old_lam = load(old_y_lam + unit, count, 0);
    Vec full_eta_y = part * (eta + lam * off);
    Mask inside = first_of(count);
    store(y_eta + unit, damp_y * old_eta + (1 - damp_y) * full_eta_y, count);
    store(y_lam + unit, damp_y * old_lam + (1 - damp_y) * gain, count);
    y->sum(unit, count, eta, lam);
    if constexpr (DIAGNOSE) {
      Vec mean = diagnostics[1].change(eta + old_eta, lam + old_lam, eta + full_eta_y, lam + gain, inside);
      diagnostics[1].add_prior(mean, y->eta[0].at(unit, count, 0), y->lam[0].at(unit, count, 1), inside);
      diagnostics[1].add_energy(off + best - mean, weigh, var, inside);
    }
    part = passed(var, weigh, lam);
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
        if constexpr (DIAGNOSE) {
          Vec outside_eta, outside_lam;
          x->sum(at, count, outside_eta, outside_lam);
          diagnostics[0].change(outside_eta + old_eta, outside_lam + old_lam, outside_eta + (hit ? full_eta : Vec{}),
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
  template <bool DIAGNOSE, int S, bool UNIFORM>
  void tiles(int64_t image, int64_t i, Diagnostics* diagnostics) const {
    int64_t w = width / l, unit = (image * (height / k) + i) * w * channels, corner = pixel(image, i * k, 0);
    for (int64_t j = 0; j < w; ++j, unit += channels, corner += l * channels) {
      int64_t c = 0;
      Vec here = all(weight.at(unit));
      for (; c + LANES <= channels; c += LANES) tile<DIAGNOSE, S, UNIFORM>(unit + c, corner + c, LANES, here, diagnostics);
      if (c < channels) tile<DIAGNOSE, S, UNIFORM>(unit + c, corner + c, channels - c, here, diagnostics);
    }
  }

  template <bool DIAGNOSE>
  void row(int64_t image, int64_t i, Diagnostics* diagnostics) const {
    if (k == 2 && l == 2)
      uniform() ? tiles<DIAGNOSE, 2, true>(image, i, diagnostics) : tiles<DIAGNOSE, 2, false>(image, i, diagnostics);
    else
      tiles<DIAGNOSE, 0, false>(image, i, diagnostics);
    int64_t w = width / l;
    for (int64_t u = i * k; u < (i + 1) * k; ++u) clear(image, u, w * l);
    if (i + 1 == height / k)
      for (int64_t u = (i + 1) * k; u < height; ++u) clear(image, u, 0);
  }

  // Pixels that fill no tile receive no message.
  void clear(int64_t image, int64_t u, int64_t from) const {
    int64_t at = pixel(image, u, from), count = (width - from) * channels;
    std::fill_n(x_eta + at, count, 0.0f);
    std::fill_n(x_lam + at, count, 0.0f);
  }
};

// A call: images (B, H, W, C) and tiles (k, l) of them, F = B (H / k) (W / l) C factors.
// Attributes: image (4), tile (2); started: x is linearised elsewhere than at its mean at first; diagnose; inbox (2): how
// many pairs have those of x and y.
// Arguments: noise, measured (F or 1), weight (F or fewer); start of x, and first, whether it counts now, if it is
// started; keep_x, keep_y: how much is kept of old messages; those to x (B, H, W, C) and to y (B, H / k, W / l, C); then the
// inboxes of x and of y.
// Results: the new messages, in place; and if they are wanted, the diagnostics of x and of y (without the prior of x, which
// has pixels outside of all tiles, too).
struct TileArguments {
  std::vector<int64_t> image, tile;
  int64_t rows, units, factors;  // of tiles, of x, of y
  bool diagnose, first = false;
  Array noise, measured, weight, start;
  float keep_x, keep_y;
  Array x_eta, x_lam, y_eta, y_lam;
  Pairs of_x, of_y;
  float *new_x_eta, *new_x_lam, *new_y_eta, *new_y_lam, *diagnostics[2] = {};

  explicit TileArguments(Arguments& args) {
    image = args.sizes("image", 4);
    tile = args.sizes("tile", 2);
    const int64_t batch = image[0], channels = image[3], h = image[1] / tile[0], w = image[2] / tile[1];
    args.require(h >= 1 && w >= 1, "attribute %s must not be larger than an image", "tile");
    const bool started = args.flag("started");
    diagnose = args.flag("diagnose");
    auto inbox = args.sizes("inbox", 2);
    rows = count_of({batch, h});
    units = count_of(image);
    factors = count_of({batch, h, w, channels});
    noise = args.take_shared("noise", factors);
    measured = args.take_shared("measured", factors);
    weight = args.take_blocks("weight", factors, channels);
    if (started) {
      start = args.take_flat("start", units);
      first = args.take_truth("first");
    }
    keep_x = args.take_number("keep_x");
    keep_y = args.take_number("keep_y");
    x_eta = args.take("x.eta", {batch, image[1], image[2], channels});
    x_lam = args.take("x.lam", {batch, image[1], image[2], channels});
    y_eta = args.take("y.eta", {batch, h, w, channels});
    y_lam = args.take("y.lam", {batch, h, w, channels});
    of_x = args.take_inbox("x", inbox[0], units);
    of_y = args.take_inbox("y", inbox[1], factors);
    new_x_eta = args.replace("x.eta", x_eta);
    new_x_lam = args.replace("x.lam", x_lam);
    new_y_eta = args.replace("y.eta", y_eta);
    new_y_lam = args.replace("y.lam", y_lam);
    if (!diagnose) return;
    diagnostics[0] = args.report("diagnostics_x", Diagnostics::COUNT);
    diagnostics[1] = args.report("diagnostics_y", Diagnostics::COUNT);
  }
};

class TileMaxStep final : public Step {
 public:
  explicit TileMaxStep(TileArguments arguments) : in_(std::move(arguments)), x_(in_.of_x), y_(in_.of_y), a_(tiles()) {}

  bool has_pieces(int64_t pieces) const override { return in_.image[0] % pieces == 0; }
  int64_t most_tasks() const override { return in_.rows; }

  void prepare(int64_t tasks, Room&) override {
    for (auto& part : partials_) part.assign(tasks * Diagnostics::COUNT, 0.0f);
  }

  void visit(int64_t begin, int64_t end, int64_t pieces, int64_t task) const override {
    Diagnostics diagnostics[2];
    const Tiles own = a_;  // numbers and pointers which nothing that is written can change
    int64_t h = own.height / own.k;
    for (int64_t r = begin * in_.rows / pieces; r < end * in_.rows / pieces; ++r)
      in_.diagnose ? own.row<true>(r / h, r % h, diagnostics) : own.row<false>(r / h, r % h, diagnostics);
    for (int q = 0; q < 2; ++q) diagnostics[q].write(&partials_[q][task * Diagnostics::COUNT]);
  }

  void finish() override {
    for (int q = 0; in_.diagnose && q < 2; ++q) join_diagnostics(partials_[q], in_.diagnostics[q]);
  }

 private:
  Tiles tiles() const {
    return {in_.image[1], in_.image[2], in_.image[3], in_.tile[0], in_.tile[1], &x_, &y_,
            in_.x_eta.data, in_.x_lam.data, in_.y_eta.data, in_.y_lam.data, in_.measured, in_.noise,
            Blocks(in_.weight, in_.factors), in_.first, in_.start.data, in_.keep_x, in_.keep_y,
            in_.new_x_eta, in_.new_x_lam, in_.new_y_eta, in_.new_y_lam,
            in_.units * 16 > MORE_THAN_A_CACHE ? in_.units / in_.image[0] : 0};
  }

  const TileArguments in_;
  const Inbox x_, y_;
  const Tiles a_;
  mutable std::vector<float> partials_[2];  // diagnostics of x and y, of each task
};

}  // namespace

std::unique_ptr<Step> tile_max(Arguments& args) {
  TileArguments taken(args);
  return args.ok() ? std::make_unique<TileMaxStep>(std::move(taken)) : nullptr;
}

ffi::Error TileMax(ffi::ThreadPool pool, ffi::RemainingArgs in, ffi::RemainingRets out, ffi::Dictionary attributes) {
  Arguments args("gbplearn_tile_max", in, out, attributes);
  auto step = tile_max(args);
  if (ffi::Error error = args.error(); error.failure()) return error;
  int64_t tasks = std::min<int64_t>(32, step->most_tasks());
  Room room;
  step->prepare(tasks, room);
  spread(pool, tasks, [&](int64_t t) { step->visit(t, t + 1, tasks, t); });
  step->finish();
  return ffi::Error::Success();
}

}  // namespace gbplearn

HANDLER(gbplearn_tile_max, gbplearn::TileMax);
