// What a joint update (engine/chain.py) asks of the windows of a layer: how the outputs of an image move with the weights of
// each unit, and the squares of how they move with what the units say.
//
//   each_bcu = - sum_n down_cbnu slope_bnu rows_bn ,   squares_bcd = sum_nu down_cbnu down_dbnu
//
// Behind a pooling most of `down` is 0, at the same places for all outputs: these are passed over.
#include "parallel.h"

namespace gbplearn {
namespace {

struct Windows {
  int64_t images, places, units, outputs, numbers;
  const float *rows, *slope, *down;
  float *each, *squares;

  int64_t padded() const { return (numbers + LANES - 1) / LANES * LANES; }

  // What a task needs: sums of an image with rows filled up to whole vectors, a row, and the outputs of some units.
  struct Work {
    std::vector<float> sums, row, share;
    std::vector<Vec> down, pairs;
    explicit Work(const Windows& a)
        : sums(a.outputs * a.units * a.padded()), row(a.padded()), share(a.outputs * LANES), down(a.outputs),
          pairs(a.outputs * (a.outputs + 1) / 2) {}
  };

  void image(int64_t b, Work& work) const {
    const int64_t wide = padded();
    std::fill(work.sums.begin(), work.sums.end(), 0.0f);
    std::fill(work.pairs.begin(), work.pairs.end(), Vec{});
    for (int64_t n = 0; n < places; ++n) {
      const int64_t place = b * places + n;
      bool loaded = false;
      for (int64_t u = 0; u < units; u += LANES) {
        const int64_t count = std::min<int64_t>(LANES, units - u);
        Mask bits{};
        for (int64_t c = 0; c < outputs; ++c) {
          work.down[c] = load(down + (c * images * places + place) * units + u, count, 0);
          bits |= work.down[c] != 0;
        }
        if (!some(bits)) continue;
        if (!loaded) {
          for (int64_t k = 0; k < wide; k += LANES) store(work.row.data() + k, load(rows + place * numbers + k, numbers - k, 0));
          loaded = true;
        }
        add_squares(work);
        Vec by = load(slope + place * units + u, count, 0);
        for (int64_t c = 0; c < outputs; ++c) store(work.share.data() + c * LANES, -(work.down[c] * by));
        for (int64_t q = 0; q < count; ++q)
          if (bits[q]) add_row(u + q, q, work);
      }
    }
    for (int64_t i = 0; i < outputs * units; ++i)
      std::memcpy(each + (b * outputs * units + i) * numbers, work.sums.data() + i * wide, numbers * sizeof(float));
    const Vec* pair = work.pairs.data();
    for (int64_t c = 0; c < outputs; ++c)
      for (int64_t d = 0; d <= c; ++d, ++pair) {
        float* of = squares + b * outputs * outputs;
        of[c * outputs + d] = of[d * outputs + c] = sum_of(*pair);
      }
  }

  INLINE void add_squares(Work& work) const {
    Vec* pair = work.pairs.data();
    for (int64_t c = 0; c < outputs; ++c)
      for (int64_t d = 0; d <= c; ++d) *pair++ += work.down[c] * work.down[d];
  }

  INLINE void add_row(int64_t unit, int64_t lane, Work& work) const {
    const int64_t wide = padded();
    const float* row = work.row.data();
    for (int64_t c = 0; c < outputs; ++c) {
      float* to = work.sums.data() + (c * units + unit) * wide;
      const Vec share = all(work.share[c * LANES + lane]);
      for (int64_t k = 0; k < wide; k += LANES) store(to + k, load(to + k) + share * load(row + k));
    }
  }
};

}  // namespace

// A call: images with places each, at each of them a row of numbers that all units share.
// Attributes: images, places, units, outputs, numbers.
// Arguments: rows (images places, numbers), slope (images places, units), down (outputs, images, places, units).
// Results: each (images, outputs, units, numbers), squares (images, outputs, outputs).
ffi::Error Sensitivities(ffi::ThreadPool pool, ffi::RemainingArgs in, ffi::RemainingRets out, ffi::Dictionary attributes) {
  Arguments args("gbplearn_sensitivities", in, out, attributes);
  const int64_t images = args.size("images"), places = args.size("places"), units = args.size("units");
  const int64_t outputs = args.size("outputs"), numbers = args.size("numbers");
  const int64_t all_places = count_of({images, places});
  Array rows = args.take("rows", {all_places, numbers});
  Array slope = args.take("slope", {all_places, units});
  Array down = args.take("down", {outputs, images, places, units});
  float* each = args.report("each", count_of({images, outputs, units, numbers}));
  float* squares = args.report("squares", count_of({images, outputs, outputs}));
  if (ffi::Error error = args.error(); error.failure()) return error;
  Windows a{images, places, units, outputs, numbers, rows.data, slope.data, down.data, each, squares};
  const int64_t tasks = std::min<int64_t>(64, images);
  spread(pool, tasks, [&](int64_t t) {
    Windows::Work work(a);
    for (int64_t b = t * images / tasks; b < (t + 1) * images / tasks; ++b) a.image(b, work);
  });
  return ffi::Error::Success();
}

}  // namespace gbplearn

HANDLER(gbplearn_sensitivities, gbplearn::Sensitivities);
