// The arguments, results and attributes of a call: taken by name, one after the other, and checked before any is used.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "xla/ffi/api/ffi.h"

namespace gbplearn {

namespace ffi = xla::ffi;

using Sizes = ffi::Span<const int64_t>;

// How many elements sizes make; -1, which no array has, if one is negative or there are more than can be counted.
int64_t count_of(Sizes sizes);
inline int64_t count_of(std::initializer_list<int64_t> sizes) { return count_of(Sizes(sizes.begin(), sizes.size())); }

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
  bool flag(const char* name);
  int64_t whole(const char* name);
  float number(const char* name);
  Sizes wholes(const char* name);
  // Positive ones, so many; they are 1 if that is not so.
  int64_t size(const char* name);
  std::vector<int64_t> sizes(const char* name, size_t count);
  // Refuses a call unless this is so; in the sentence, `%s` is the attribute.
  bool require(bool so, const char* sentence, const char* name);

  // An array of this shape.
  Array take(const char* name, std::initializer_list<int64_t> shape);
  // The same, or with 1 for the first size: one for all factors, which `one` says.
  Array take_each(const char* name, std::initializer_list<int64_t> shape, bool& one);
  // So many numbers in any shape, as variables have them.
  Array take_flat(const char* name, int64_t count);
  // One for all, or so many.
  Array take_shared(const char* name, int64_t count);
  // Each holds for equally many of `count` factors in a row: for one, or for whole rows of `channels`.
  Array take_blocks(const char* name, int64_t count, int64_t channels);
  // A single number.
  float take_number(const char* name);
  // Whether something is so; the same of several, at least one.
  bool take_truth(const char* name);
  std::pair<const bool*, int64_t> take_truths(const char* name);
  // The inbox of a variable of so many units.
  Pairs take_inbox(const char* variable, int64_t pairs, int64_t units);

  // A result instead of an argument: in its place, or if a visit is alone in a call, in memory of its own.
  float* replace(const char* name, const Array& old);
  // A result of so many numbers.
  float* report(const char* name, int64_t count);

  // What is wrong, to be asked when all was taken; if there are too many arrays or too few, that first, as the rest follows.
  ffi::Error error() const;
  // The rest of a call was for its visits: so many arrays and attributes.
  void leave_to_visits(size_t arguments, size_t results, size_t attributes);

 private:
  struct Name;
  bool fail(std::string sentence);
  ffi::Error failed(const std::string& sentence) const { return ffi::Error::InvalidArgument(kernel_ + ": " + sentence); }
  template <class T>
  T attribute(const char* name, const char* type, T otherwise);
  template <class T, class Fits, class Wanted>
  std::pair<const T*, int64_t> take_any(const Name& name, ffi::DataType type, const Fits& fits, const Wanted& wanted);
  template <class Fits, class Wanted>
  Array take_float(const Name& name, const Fits& fits, const Wanted& wanted);
  Array take_shared(const Name& name, int64_t count);

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
