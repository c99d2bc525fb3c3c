#include "arguments.h"

#include <algorithm>
#include <sstream>

namespace gbplearn {
namespace {

template <class Shape>
bool same(Sizes found, const Shape& shape) {
  return found.size() == shape.size() && std::equal(found.begin(), found.end(), shape.begin());
}

template <class Shape>
std::string text(const Shape& shape) {
  std::string out = "(";
  for (int64_t n : shape) out += (out.size() > 1 ? ", " : "") + std::to_string(n);
  return out + (shape.size() == 1 ? ",)" : ")");
}

std::string text(const ffi::AnyBuffer& buffer) {
  std::ostringstream type;
  type << buffer.element_type();
  std::string known = buffer.element_type() == ffi::F32 ? "float32" : buffer.element_type() == ffi::PRED ? "bool" : type.str();
  return known + " of shape " + text(buffer.dimensions());
}

std::string elements(int64_t count) { return "with " + std::to_string(count) + " elements"; }

std::string place(const char* what, size_t i, const std::string& name) {
  return what + (" " + std::to_string(i)) + " (" + name + ")";
}

std::string counted(const char* what, size_t wanted, size_t found) {
  return "takes " + std::to_string(wanted) + " " + what + ", got " + std::to_string(found);
}

}  // namespace

int64_t count_of(Sizes sizes) {
  int64_t out = 1;
  for (int64_t n : sizes)
    if (n < 0 || __builtin_mul_overflow(out, n, &out)) return -1;
  return out;
}

// Of an argument: put together when it is wanted.
struct Arguments::Name {
  const char* variable;
  int64_t pair = -1;  // of an inbox
  const char* parameter = "";
  std::string text() const { return pair < 0 ? variable : variable + (".inbox." + std::to_string(pair)) + parameter; }
};

bool Arguments::fail(std::string sentence) {
  if (ok()) wrong_ = std::move(sentence);
  return false;
}

template <class T>
T Arguments::attribute(const char* name, const char* type, T otherwise) {
  ++attributes_read_;
  auto found = alone_ ? attributes_.get<T>(name) : attributes_.get<T>(prefix_ + name);
  if (found.has_value()) return *found;
  sizes_known_ = false;
  fail("attribute " + prefix_ + name + " must be there, and be " + type);
  return otherwise;
}

bool Arguments::flag(const char* name) { return attribute<bool>(name, "a bool", false); }
int64_t Arguments::whole(const char* name) { return attribute<int64_t>(name, "an int64", 0); }
float Arguments::number(const char* name) { return attribute<float>(name, "a float32", 0.0f); }
Sizes Arguments::wholes(const char* name) { return attribute<Sizes>(name, "an array of int64", Sizes()); }

int64_t Arguments::size(const char* name) {
  int64_t found = whole(name);
  return require(found >= 1, "attribute %s must be positive", name) ? found : 1;
}

std::vector<int64_t> Arguments::sizes(const char* name, size_t count) {
  Sizes found = wholes(name);
  bool fit = found.size() == count && std::all_of(found.begin(), found.end(), [](int64_t n) { return n >= 1; });
  std::string sentence = fit ? "" : "attribute %s must be " + std::to_string(count) + " positive numbers";
  if (!require(fit, sentence.c_str(), name)) return std::vector<int64_t>(count, 1);
  return std::vector<int64_t>(found.begin(), found.end());
}

bool Arguments::require(bool so, const char* sentence, const char* name) {
  if (so || !ok()) return ok();
  std::string text = sentence;
  text.replace(text.find("%s"), 2, prefix_ + name);
  sizes_known_ = false;
  return fail(text);
}

template <class T, class Fits, class Wanted>
std::pair<const T*, int64_t> Arguments::take_any(const Name& name, ffi::DataType type, const Fits& fits, const Wanted& wanted) {
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
Array Arguments::take_float(const Name& name, const Fits& fits, const Wanted& wanted) {
  auto [data, size] = take_any<float>(name, ffi::F32, fits, wanted);
  return {data, size};
}

Array Arguments::take(const char* name, std::initializer_list<int64_t> shape) {
  return take_float(Name{name}, [&](Sizes found) { return same(found, shape); }, [&] { return "of shape " + text(shape); });
}

Array Arguments::take_each(const char* name, std::initializer_list<int64_t> shape, bool& one) {
  std::vector<int64_t> single(shape);
  single[0] = 1;
  Array found = take_float(Name{name}, [&](Sizes found) { return same(found, shape) || same(found, single); },
                           [&] { return "of shape " + text(shape) + " or " + text(single); });
  one = found.size != count_of(shape);
  return found;
}

Array Arguments::take_flat(const char* name, int64_t count) {
  return take_float(Name{name}, [&](Sizes found) { return count_of(found) == count; }, [&] { return elements(count); });
}

Array Arguments::take_shared(const Name& name, int64_t count) {
  return take_float(name, [&](Sizes found) { return count_of(found) == 1 || (count > 0 && count_of(found) == count); },
                    [&] { return count == 1 ? elements(1) : "with 1 or " + std::to_string(count) + " elements"; });
}

Array Arguments::take_shared(const char* name, int64_t count) { return take_shared(Name{name}, count); }

Array Arguments::take_blocks(const char* name, int64_t count, int64_t channels) {
  auto fits = [&](Sizes found) {
    int64_t n = count_of(found);
    return n >= 1 && n <= count && count % n == 0 && (n == count || count / n % channels == 0);
  };
  return take_float(Name{name}, fits, [&] {
    std::string rows = channels == 1 ? "" : " in whole rows of " + std::to_string(channels) + ", or with as many";
    return "with a number of elements that divides " + std::to_string(count) + rows;
  });
}

float Arguments::take_number(const char* name) {
  Array found = take(name, {});
  return found.data ? *found.data : 0.0f;
}

bool Arguments::take_truth(const char* name) {
  auto fits = [](Sizes shape) { return shape.size() == 0; };
  auto [found, count] = take_any<bool>(Name{name}, ffi::PRED, fits, [] { return "of shape ()"; });
  return found && *found;
}

std::pair<const bool*, int64_t> Arguments::take_truths(const char* name) {
  auto fits = [](Sizes shape) { return shape.size() == 1 && shape[0] >= 1; };
  return take_any<bool>(Name{name}, ffi::PRED, fits, [] { return "of shape (n,), not empty"; });
}

Pairs Arguments::take_inbox(const char* variable, int64_t pairs, int64_t units) {
  Pairs out;
  for (int64_t i = 0; i < pairs && ok(); ++i) {
    out.eta.push_back(take_shared(Name{variable, i, ".eta"}, units));
    int64_t size = out.eta.back().size;
    out.lam.push_back(take_float(Name{variable, i, ".lam"}, [&](Sizes found) { return count_of(found) == size; },
                                 [&] { return elements(size) + ", as eta has"; }));
  }
  if (!ok()) next_in_ += 2 * static_cast<size_t>(pairs - static_cast<int64_t>(out.eta.size()));
  return out;
}

float* Arguments::replace(const char* name, const Array& old) {
  float* found = report(name, old.size);
  if (found && !alone_ && found != old.data) fail(place("result", next_out_ - 1, name) + " must be in the place of the argument");
  return found;
}

float* Arguments::report(const char* name, int64_t count) {
  size_t i = next_out_++;
  if (!ok()) return nullptr;
  if (i >= results()) return fail(place("result", i, name) + " is missing"), nullptr;
  auto found = out_.get<ffi::AnyBuffer>(alone_ ? i : which_out_[i]);
  if (!found.has_value()) return fail(place("result", i, name) + " is no array"), nullptr;
  ffi::AnyBuffer buffer = **found;
  if (buffer.element_type() == ffi::F32 && count_of(buffer.dimensions()) == count) return static_cast<float*>(buffer.untyped_data());
  return fail(place("result", i, name) + " must be float32 " + elements(count) + ", got " + text(buffer)), nullptr;
}

ffi::Error Arguments::error() const {
  if (sizes_known_ && next_in_ != arguments()) return failed(counted("arguments", next_in_, arguments()));
  if (sizes_known_ && next_out_ != results()) return failed(counted("results", next_out_, results()));
  if (!ok()) return failed(wrong_);
  bool others = alone_ && attributes_read_ != attributes_.size();
  return others ? failed(counted("attributes", attributes_read_, attributes_.size())) : ffi::Error::Success();
}

void Arguments::leave_to_visits(size_t arguments, size_t results, size_t attributes) {
  sizes_known_ &= ok();  // else they were not all asked
  next_in_ += arguments;
  next_out_ += results;
  attributes_read_ += attributes;
}

}  // namespace gbplearn
