// The arguments, results and attributes of a call: taken by name, one after the other, and checked before any is used.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "xla/ffi/api/ffi.h"

namespace gbplearn {

namespace ffi = xla::ffi;

// How many elements sizes make; -1, which no array has, if one is negative or there are more than can be counted.
template <class Sizes = std::initializer_list<int64_t>>
int64_t count_of(const Sizes& sizes) {
  int64_t out = 1;
  for (int64_t n : sizes)
    if (n < 0 || __builtin_mul_overflow(out, n, &out)) return -1;
  return out;
}

// Float32 numbers that were checked.
struct Array {
  const float* data = nullptr;
  int64_t size = 0;
};

// Of a variable, its prior and the messages of other groups: eta and lam of each, one for all units or one a unit.
struct Pairs {
  std::vector<Array> eta, lam;
};

// What XLA hands to a kernel. Each `take...` has the next argument, `replace` and `report` the next result. Their names are
// those that visits.py and calls.py give them. The first that does not fit is kept as a sentence, and all that is taken from
// then on is empty: no pointer and no size may be used before `error()` has nothing to say.
class Arguments {
 public:
  Arguments(const char* kernel, ffi::RemainingArgs in, ffi::RemainingRets out, ffi::Dictionary attributes)
      : kernel_(kernel), in_(in), out_(out), attributes_(attributes), alone_(true) {}
  // One of several visits in a call: these of the call's arguments and results, and its attributes that begin so. Results
  // must be in the place of what they replace.
  Arguments(std::string kernel, const Arguments& call, std::string prefix, std::vector<size_t> which_in,
            std::vector<size_t> which_out)
      : kernel_(std::move(kernel)), in_(call.in_), out_(call.out_), attributes_(call.attributes_), alone_(false),
        prefix_(std::move(prefix)), which_in_(std::move(which_in)), which_out_(std::move(which_out)) {}

  bool ok() const { return wrong_.empty(); }
  size_t arguments() const { return alone_ ? in_.size() : which_in_.size(); }
  size_t results() const { return alone_ ? out_.size() : which_out_.size(); }
  size_t attributes_read() const { return attributes_read_; }

  // Attributes: known when a program is compiled.
  bool flag(const char* name) { return attribute<bool>(name, "a bool", false); }
  int64_t whole(const char* name) { return attribute<int64_t>(name, "an int64", 0); }
  float number(const char* name) { return attribute<float>(name, "a float32", 0.0f); }
  using Sizes = ffi::Span<const int64_t>;
  Sizes wholes(const char* name) { return attribute<Sizes>(name, "an array of int64", Sizes()); }
  // Positive ones, so many; they are 1 if that is not so.
  int64_t size(const char* name) {
    int64_t found = whole(name);
    return require(found >= 1, "attribute %s must be positive", name) ? found : 1;
  }
  std::vector<int64_t> sizes(const char* name, size_t count) {
    Sizes found = wholes(name);
    bool fit = found.size() == count && std::all_of(found.begin(), found.end(), [](int64_t n) { return n >= 1; });
    if (!require(fit, "attribute %s must be positive, and as many as there are axes, or variables", name)) return std::vector<int64_t>(count, 1);
    return std::vector<int64_t>(found.begin(), found.end());
  }
  // Refuses a call unless this is so; in the sentence, `%s` is the attribute.
  bool require(bool so, const char* sentence, const char* name) {
    if (so || !ok()) return ok();
    std::string text = sentence, full = prefix_ + name;
    text.replace(text.find("%s"), 2, full);
    sizes_known_ = false;
    return fail(text);
  }

  // An array of this shape.
  Array take(const char* name, std::initializer_list<int64_t> shape) {
    return take_float(name, [&](Sizes found) { return same(found, shape); }, [&] { return "of shape " + text(shape); });
  }
  // The same, or with 1 for the first size: one for all factors, which `one` says.
  Array take_each(const char* name, std::initializer_list<int64_t> shape, bool& one) {
    std::vector<int64_t> single(shape);
    single[0] = 1;
    Array found = take_float(name, [&](Sizes found) { return same(found, shape) || same(found, single); },
                             [&] { return "of shape " + text(shape) + " or " + text(single); });
    one = found.size != count_of(shape);
    return found;
  }
  // So many numbers in any shape, as variables have them.
  Array take_flat(const char* name, int64_t count) {
    return take_float(name, [&](Sizes found) { return count_of(found) == count; }, [&] { return elements(count); });
  }
  // One for all, or so many.
  Array take_shared(const char* name, int64_t count) { return take_shared(Name{name}, count); }
  // Each holds for equally many of `count` factors in a row: for one, or for whole rows of `channels`.
  Array take_blocks(const char* name, int64_t count, int64_t channels) {
    auto fits = [&](Sizes found) {
      int64_t n = count_of(found);
      return n >= 1 && n <= count && count % n == 0 && (n == count || count / n % channels == 0);
    };
    return take_float(name, fits, [&] {
      std::string rows = channels == 1 ? "" : ", or its rows of " + std::to_string(channels) + ",";
      return "with a number of elements that divides " + std::to_string(count) + rows + " evenly";
    });
  }
  // A single number.
  float take_number(const char* name) {
    Array found = take(name, {});
    return found.data ? *found.data : 0.0f;
  }
  // Whether something is so.
  bool take_truth(const char* name) {
    auto found = take_any<bool>(Name{name}, ffi::PRED, [](Sizes shape) { return shape.size() == 0; }, [] { return "of shape ()"; });
    return found.first && *found.first;
  }
  // The same of several, at least one.
  std::pair<const bool*, int64_t> take_truths(const char* name) {
    auto fits = [](Sizes shape) { return shape.size() == 1 && shape[0] >= 1; };
    return take_any<bool>(Name{name}, ffi::PRED, fits, [] { return "of shape (n,), not empty"; });
  }
  // The inbox of a variable of so many units.
  Pairs take_inbox(const char* variable, int64_t pairs, int64_t units) {
    Pairs out;
    for (int64_t i = 0; i < pairs && ok(); ++i) {
      out.eta.push_back(take_shared(Name{variable, i, ".eta"}, units));
      int64_t same = out.eta.back().size;
      out.lam.push_back(take_float(Name{variable, i, ".lam"}, [&](Sizes found) { return count_of(found) == same; },
                                   [&] { return elements(same) + ", as eta has"; }));
    }
    if (!ok()) next_in_ += 2 * static_cast<size_t>(pairs - static_cast<int64_t>(out.eta.size()));
    return out;
  }

  // A result instead of an argument: in its place, or if a visit is alone in a call, in memory of its own.
  float* replace(const char* name, const Array& old) {
    float* found = report(name, old.size);
    if (found && !alone_ && found != old.data) fail(place("result", next_out_ - 1, name) + " must be in the place of the argument");
    return found;
  }
  // A result of so many numbers.
  float* report(const char* name, int64_t count) {
    size_t i = next_out_++;
    if (!ok()) return nullptr;
    if (i >= results()) return fail_with<float>(place("result", i, name) + " is missing");
    auto found = out_.get<ffi::AnyBuffer>(alone_ ? i : which_out_[i]);
    if (!found.has_value()) return fail_with<float>(place("result", i, name) + " is no array");
    ffi::AnyBuffer buffer = **found;
    if (buffer.element_type() == ffi::F32 && count_of(buffer.dimensions()) == count) return static_cast<float*>(buffer.untyped_data());
    return fail_with<float>(place("result", i, name) + " must be float32 " + elements(count) + ", got " + text(buffer));
  }

  // What is wrong, to be asked when all was taken; if there are too many arrays or too few, that first, as the rest follows.
  ffi::Error error() const {
    if (sizes_known_ && next_in_ != arguments()) return failed(counted("arguments", next_in_, arguments()));
    if (sizes_known_ && next_out_ != results()) return failed(counted("results", next_out_, results()));
    if (!ok()) return failed(wrong_);
    bool others = alone_ && attributes_read_ != attributes_.size();
    return others ? failed(counted("attributes", attributes_read_, attributes_.size())) : ffi::Error::Success();
  }

  // The rest of a call is for its visits, which read so many attributes.
  void leave_to_visits(size_t attributes) {
    next_in_ = arguments();
    next_out_ = results();
    attributes_read_ += attributes;
  }

 private:
  // Of an argument: put together when it is wanted.
  struct Name {
    const char* variable;
    int64_t pair = -1;  // of an inbox
    const char* parameter = "";
    std::string text() const { return pair < 0 ? variable : variable + (".inbox." + std::to_string(pair)) + parameter; }
  };

  bool fail(std::string sentence) {
    if (ok()) wrong_ = std::move(sentence);
    return false;
  }
  template <class T>
  T* fail_with(std::string sentence) {
    fail(std::move(sentence));
    return nullptr;
  }
  ffi::Error failed(const std::string& sentence) const { return ffi::Error::InvalidArgument(kernel_ + ": " + sentence); }

  template <class Shape>
  static bool same(Sizes found, const Shape& shape) {
    return found.size() == shape.size() && std::equal(found.begin(), found.end(), shape.begin());
  }
  template <class Shape>
  static std::string text(const Shape& shape) {
    std::string out = "(";
    for (int64_t n : shape) out += (out.size() > 1 ? ", " : "") + std::to_string(n);
    return out + (shape.size() == 1 ? ",)" : ")");
  }
  static std::string text(const ffi::AnyBuffer& buffer) {
    std::ostringstream type;
    type << buffer.element_type();
    std::string known = buffer.element_type() == ffi::F32 ? "float32" : buffer.element_type() == ffi::PRED ? "bool" : type.str();
    return known + " of shape " + text(buffer.dimensions());
  }
  static std::string elements(int64_t count) { return "with " + std::to_string(count) + " elements"; }
  static std::string place(const char* what, size_t i, const std::string& name) {
    return what + (" " + std::to_string(i)) + " (" + name + ")";
  }
  static std::string counted(const char* what, size_t wanted, size_t found) {
    return "takes " + std::to_string(wanted) + " " + what + ", got " + std::to_string(found);
  }

  template <class T>
  T attribute(const char* name, const char* type, T otherwise) {
    ++attributes_read_;
    auto found = alone_ ? attributes_.get<T>(name) : attributes_.get<T>(prefix_ + name);
    if (found.has_value()) return *found;
    sizes_known_ = false;
    fail("attribute " + prefix_ + name + " must be there, and be " + type);
    return otherwise;
  }

  template <class T, class Fits, class Wanted>
  std::pair<const T*, int64_t> take_any(const Name& name, ffi::DataType type, const Fits& fits, const Wanted& wanted) {
    size_t i = next_in_++;
    std::pair<const T*, int64_t> nothing{nullptr, 0};
    if (!ok()) return nothing;
    if (i >= arguments()) return fail(place("argument", i, name.text()) + " is missing"), nothing;
    auto found = in_.get<ffi::AnyBuffer>(alone_ ? i : which_in_[i]);
    if (!found.has_value()) return fail(place("argument", i, name.text()) + " is no array"), nothing;
    if (found->element_type() == type && fits(found->dimensions()))
      return {static_cast<const T*>(found->untyped_data()), count_of(found->dimensions())};
    const char* named = type == ffi::PRED ? "bool " : "float32 ";
    return fail(place("argument", i, name.text()) + " must be " + named + wanted() + ", got " + text(*found)), nothing;
  }
  template <class Fits, class Wanted>
  Array take_float(const Name& name, const Fits& fits, const Wanted& wanted) {
    auto [data, size] = take_any<float>(name, ffi::F32, fits, wanted);
    return {data, size};
  }
  template <class Fits, class Wanted>
  Array take_float(const char* name, const Fits& fits, const Wanted& wanted) {
    return take_float(Name{name}, fits, wanted);
  }
  Array take_shared(const Name& name, int64_t count) {
    return take_float(name, [&](Sizes found) { return count_of(found) == 1 || (count > 0 && count_of(found) == count); },
                      [&] { return count == 1 ? elements(1) : "with 1 or " + std::to_string(count) + " elements"; });
  }

  std::string kernel_;
  ffi::RemainingArgs in_;
  ffi::RemainingRets out_;
  ffi::Dictionary attributes_;
  bool alone_;
  std::string prefix_;
  std::vector<size_t> which_in_, which_out_;
  size_t next_in_ = 0, next_out_ = 0, attributes_read_ = 0;
  bool sizes_known_ = true;  // attributes are sound, so that it is known how many arrays there must be
  std::string wrong_;
};

}  // namespace gbplearn
