// Calls the kernels without Python and XLA, from a list of calls that `sanitize.py` writes, so that sanitizers see all of the
// program: every array has memory of its own of exactly its size, and the threads are ours.
//
//   kernel_driver CALLS check     every call with one thread, with several, and beside the call before it in the same threads:
//                                 the results must be the same, bit for bit
//   kernel_driver CALLS spoil     some calls with something wrong about each array and attribute: refused, or harmless
#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <deque>
#include <fstream>
#include <functional>
#include <iostream>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "xla/ffi/api/c_api.h"

#define KERNELS(do) do(matrix_pooled) do(matrix_pooled_inputs) do(matrix_edges) do(tile_max) do(slices) do(many_outputs) do(sensitivities) do(chain)
#define DECLARE(name) extern "C" XLA_FFI_Error* gbplearn_##name(XLA_FFI_CallFrame*);
#define ENTRY(name) {"gbplearn_" #name, gbplearn_##name},
KERNELS(DECLARE)
static const std::map<std::string, XLA_FFI_Handler*> HANDLERS{KERNELS(ENTRY)};

// What XLA is to a kernel: errors, and a pool of threads.

struct XLA_FFI_Error {
  std::string message;
};

class Pool {
 public:
  explicit Pool(int threads) {
    for (int i = 1; i < threads; ++i) threads_.emplace_back([this] { work(); });
  }
  ~Pool() {
    { std::lock_guard<std::mutex> lock(mutex_); over_ = true; }
    ready_.notify_all();
    for (std::thread& t : threads_) t.join();
  }
  void schedule(std::function<void()> task) {
    { std::lock_guard<std::mutex> lock(mutex_); tasks_.push_back(std::move(task)); }
    ready_.notify_one();
  }
  int64_t size() const { return static_cast<int64_t>(threads_.size()) + 1; }

 private:
  void work() {
    for (;;) {
      std::unique_lock<std::mutex> lock(mutex_);
      ready_.wait(lock, [this] { return over_ || !tasks_.empty(); });
      if (tasks_.empty()) return;
      std::function<void()> task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      task();
    }
  }
  std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<std::function<void()>> tasks_;
  bool over_ = false;
  std::vector<std::thread> threads_;
};

static XLA_FFI_Error* create_error(XLA_FFI_Error_Create_Args* args) { return new XLA_FFI_Error{args->message}; }
static void get_message(XLA_FFI_Error_GetMessage_Args* args) { args->message = args->error->message.c_str(); }
static void destroy_error(XLA_FFI_Error_Destroy_Args* args) { delete args->error; }
static XLA_FFI_Error* schedule(XLA_FFI_ThreadPool_Schedule_Args* args) {
  reinterpret_cast<Pool*>(args->ctx)->schedule([task = args->task, data = args->data] { task(data); });
  return nullptr;
}
static XLA_FFI_Error* count_threads(XLA_FFI_ThreadPool_NumThreads_Args* args) {
  *args->num_threads = reinterpret_cast<Pool*>(args->ctx)->size();
  return nullptr;
}

static XLA_FFI_Api make_api() {
  XLA_FFI_Api api{};
  api.struct_size = XLA_FFI_Api_STRUCT_SIZE;
  api.api_version = {XLA_FFI_Api_Version_STRUCT_SIZE, nullptr, XLA_FFI_API_MAJOR, XLA_FFI_API_MINOR};
  api.XLA_FFI_Error_Create = create_error;
  api.XLA_FFI_Error_GetMessage = get_message;
  api.XLA_FFI_Error_Destroy = destroy_error;
  api.XLA_FFI_ThreadPool_Schedule = schedule;
  api.XLA_FFI_ThreadPool_NumThreads = count_threads;
  return api;
}
static const XLA_FFI_Api API = make_api();

// A call as the list has it.

struct Attribute {
  std::string name;
  char type;  // b, i, f, or I for an array of int64
  std::vector<int64_t> wholes;
  float number = 0;
};

struct Shape {
  XLA_FFI_DataType type;
  std::vector<int64_t> sizes;
  int64_t count() const {
    int64_t out = 1;
    for (int64_t n : sizes) out *= n;
    return out;
  }
  size_t bytes() const { return count() * (type == XLA_FFI_DataType_PRED ? 1 : 4); }
};

struct Result {
  Shape shape;
  int64_t replaces;  // an argument, or -1
};

struct Call {
  std::string kernel;
  std::vector<Attribute> attributes;  // by name, as XLA sorts them
  std::vector<Shape> arguments;
  std::vector<Result> results;
};

static std::vector<Call> read_calls(const char* path) {
  std::ifstream file(path);
  std::vector<Call> out;
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string kind;
    words >> kind;
    auto shape = [&](const std::string& type) {
      Shape found{type == "bool" ? XLA_FFI_DataType_PRED : XLA_FFI_DataType_F32, {}};
      for (int64_t n; words >> n;) found.sizes.push_back(n);
      return found;
    };
    if (kind == "call") {
      out.emplace_back();
      words >> out.back().kernel;
    } else if (kind == "attribute") {
      Attribute a;
      words >> a.name >> a.type;
      if (a.type == 'f') words >> a.number;
      else for (int64_t n; words >> n;) a.wholes.push_back(n);
      out.back().attributes.push_back(a);
    } else if (kind == "argument") {
      std::string type;
      words >> type;
      out.back().arguments.push_back(shape(type));
    } else if (kind == "result") {
      int64_t replaces;
      words >> replaces;
      out.back().results.push_back({shape("float32"), replaces});
    }
  }
  for (Call& call : out)
    std::sort(call.attributes.begin(), call.attributes.end(), [](const Attribute& a, const Attribute& b) { return a.name < b.name; });
  return out;
}

// What arrays hold: messages and variances as they are, nothing at all, or what no message should be.
enum class Fill { RANDOM, ZERO, NAN_ };

struct Outcome {
  std::string error;  // empty: none
  std::vector<std::vector<char>> results;
};

// Makes a call. `in_place`: results lie in the memory of the arguments that they replace, as XLA has it.
static Outcome make(const Call& call, Fill fill, unsigned seed, Pool& pool, bool in_place) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> some(0.2f, 0.8f);
  using Memory = std::unique_ptr<char[]>;
  std::vector<Memory> memory;
  std::vector<XLA_FFI_Buffer> buffers(call.arguments.size() + call.results.size());
  std::vector<void*> inputs, outputs;
  auto add = [&](size_t i, const Shape& shape, void* data) {
    buffers[i] = {XLA_FFI_Buffer_STRUCT_SIZE, nullptr, shape.type, data, static_cast<int64_t>(shape.sizes.size()),
                  const_cast<int64_t*>(shape.sizes.data())};
    return static_cast<void*>(&buffers[i]);
  };
  for (size_t i = 0; i < call.arguments.size(); ++i) {
    const Shape& shape = call.arguments[i];
    memory.emplace_back(new char[shape.bytes()]);
    char* data = memory.back().get();
    if (shape.type == XLA_FFI_DataType_PRED) {
      for (int64_t n = 0; n < shape.count(); ++n) data[n] = random() % 4 > 0;
    } else {
      float* numbers = reinterpret_cast<float*>(data);
      bool row_of_zeros = false;
      for (int64_t n = 0; n < shape.count(); ++n) {
        if (n % 64 == 0) row_of_zeros = !shape.sizes.empty() && random() % 16 == 0;
        bool random_one = fill == Fill::RANDOM || shape.sizes.empty();
        numbers[n] = random_one ? some(random) * !row_of_zeros + row_of_zeros * 1e-3f : fill == Fill::ZERO ? 0.0f : std::numeric_limits<float>::quiet_NaN();
      }
    }
    inputs.push_back(add(i, shape, data));
  }
  for (size_t i = 0; i < call.results.size(); ++i) {
    const Result& result = call.results[i];
    void* data;
    if (in_place && result.replaces >= 0 && result.replaces < static_cast<int64_t>(call.arguments.size()) &&
        call.arguments[result.replaces].bytes() == result.shape.bytes()) {
      data = buffers[result.replaces].data;
    } else {
      memory.emplace_back(new char[result.shape.bytes()]());
      data = memory.back().get();
    }
    outputs.push_back(add(call.arguments.size() + i, result.shape, data));
  }
  std::vector<XLA_FFI_ArgType> input_types(inputs.size(), XLA_FFI_ArgType_BUFFER);
  std::vector<XLA_FFI_RetType> output_types(outputs.size(), XLA_FFI_RetType_BUFFER);

  size_t count = call.attributes.size();
  std::vector<XLA_FFI_ByteSpan> names(count);
  std::vector<XLA_FFI_ByteSpan*> name_pointers;
  std::vector<XLA_FFI_Scalar> scalars(count);
  std::vector<XLA_FFI_Array> arrays(count);
  std::vector<XLA_FFI_AttrType> attribute_types;
  std::vector<void*> values;
  std::deque<bool> truths;
  for (size_t i = 0; i < count; ++i) {
    const Attribute& a = call.attributes[i];
    names[i] = {a.name.data(), a.name.size()};
    name_pointers.push_back(&names[i]);
    if (a.type == 'I') {
      arrays[i] = {XLA_FFI_DataType_S64, a.wholes.size(), const_cast<int64_t*>(a.wholes.data())};
      values.push_back(&arrays[i]);
      attribute_types.push_back(XLA_FFI_AttrType_ARRAY);
      continue;
    }
    void* value = const_cast<float*>(&a.number);
    XLA_FFI_DataType type = XLA_FFI_DataType_F32;
    if (a.type == 'i') {
      type = XLA_FFI_DataType_S64;
      value = const_cast<int64_t*>(a.wholes.data());
    } else if (a.type == 'b') {
      type = XLA_FFI_DataType_PRED;
      truths.push_back(a.wholes[0] != 0);
      value = &truths.back();
    }
    scalars[i] = {type, value};
    values.push_back(&scalars[i]);
    attribute_types.push_back(XLA_FFI_AttrType_SCALAR);
  }

  XLA_FFI_CallFrame frame{};
  frame.struct_size = XLA_FFI_CallFrame_STRUCT_SIZE;
  frame.api = &API;
  frame.ctx = reinterpret_cast<XLA_FFI_ExecutionContext*>(&pool);
  frame.stage = XLA_FFI_ExecutionStage_EXECUTE;
  frame.args = {XLA_FFI_Args_STRUCT_SIZE, nullptr, static_cast<int64_t>(inputs.size()), input_types.data(), inputs.data()};
  frame.rets = {XLA_FFI_Rets_STRUCT_SIZE, nullptr, static_cast<int64_t>(outputs.size()), output_types.data(), outputs.data()};
  frame.attrs = {XLA_FFI_Attrs_STRUCT_SIZE, nullptr, static_cast<int64_t>(count), attribute_types.data(), name_pointers.data(), values.data()};
  Outcome out;
  if (XLA_FFI_Error* error = HANDLERS.at(call.kernel)(&frame)) {
    out.error = error->message;
    delete error;
    return out;
  }
  for (size_t i = 0; i < call.results.size(); ++i) {
    const char* data = static_cast<const char*>(buffers[call.arguments.size() + i].data);
    out.results.emplace_back(data, data + call.results[i].shape.bytes());
  }
  return out;
}

constexpr int MOST_SPOILT = 16;  // calls of each kernel: hundreds of calls come of one
static int failures = 0;

static void fail(const Call& call, const std::string& what) {
  std::cout << call.kernel << ": " << what << std::endl;
  ++failures;
}

static Pool& pool_of(int threads) {
  static std::map<int, std::unique_ptr<Pool>> pools;
  auto& pool = pools[threads];
  if (!pool) pool = std::make_unique<Pool>(threads);
  return *pool;
}

static void check(const Call& call, unsigned seed, const Call& before) {
  bool alone = call.kernel != "gbplearn_chain";  // whose visits share memory
  for (Fill fill : {Fill::RANDOM, Fill::ZERO, Fill::NAN_}) {
    Outcome one = make(call, fill, seed, pool_of(1), true);
    if (!one.error.empty()) return fail(call, "refused: " + one.error);
    if (make(call, fill, seed, pool_of(4), true).results != one.results) fail(call, "results depend on the number of threads");
    if (alone && make(call, fill, seed, pool_of(3), false).results != one.results && fill == Fill::RANDOM)
      fail(call, "results depend on where they are written");
  }
  // As XLA may make them, which has no order for what does not depend on each other.
  Outcome one = make(call, Fill::RANDOM, seed, pool_of(1), true), both[2];
  std::thread other([&] { both[1] = make(before, Fill::RANDOM, seed, pool_of(4), true); });
  both[0] = make(call, Fill::RANDOM, seed, pool_of(4), true);
  other.join();
  if (both[0].results != one.results) fail(call, "results depend on other calls at the same time");
  if (both[1].results != make(before, Fill::RANDOM, seed, pool_of(1), true).results) fail(before, "results depend on other calls at the same time");
}

static int64_t refused = 0, harmless = 0;

static void must_refuse(const Call& call, const std::string& what) {
  Outcome found = make(call, Fill::RANDOM, 1, pool_of(2), true);
  if (found.error.empty()) return fail(call, "takes " + what);
  if (found.error.find(call.kernel) != 0 || found.error.find('\n') != std::string::npos) fail(call, "no line of its own: " + found.error);
  ++refused;
}

static void must_not_harm(const Call& call) { ++(make(call, Fill::RANDOM, 1, pool_of(2), true).error.empty() ? harmless : refused); }

static void spoil(const Call& call) {
  for (size_t i = 0; i < call.arguments.size(); ++i) {
    std::string name = "argument " + std::to_string(i);
    Call other = call;
    other.arguments.erase(other.arguments.begin() + i);
    for (Result& r : other.results) r.replaces -= r.replaces > static_cast<int64_t>(i);
    must_refuse(other, "a call without " + name);
    other = call;
    other.arguments[i].type = other.arguments[i].type == XLA_FFI_DataType_F32 ? XLA_FFI_DataType_S32 : XLA_FFI_DataType_F32;
    must_refuse(other, name + " of another type");
    other = call;
    other.arguments[i].sizes.insert(other.arguments[i].sizes.begin(), 2);
    must_not_harm(other);
    for (size_t d = 0; d < call.arguments[i].sizes.size(); ++d)
      for (int64_t n : {int64_t{-1}, int64_t{1}, -call.arguments[i].sizes[d]}) {
        other = call;
        other.arguments[i].sizes[d] += n;
        must_not_harm(other);
      }
  }
  Call more = call;
  more.arguments.push_back({XLA_FFI_DataType_F32, {3}});
  must_refuse(more, "an argument too many");
  more = call;
  more.results.push_back({{XLA_FFI_DataType_F32, {3}}, -1});
  must_refuse(more, "a result too many");
  for (size_t i = 0; i < call.results.size(); ++i) {
    std::string name = "result " + std::to_string(i);
    Call other = call;
    other.results.erase(other.results.begin() + i);
    must_refuse(other, "a call without " + name);
    other = call;
    other.results[i].shape.type = XLA_FFI_DataType_S32;
    must_refuse(other, name + " of another type");
    other = call;
    other.results[i].shape.sizes.push_back(2);
    must_refuse(other, name + " of another size");
    other = call;
    other.results[i].shape.sizes.assign(1, std::max<int64_t>(0, call.results[i].shape.count() - 1));
    must_refuse(other, name + " of another size");
  }
  for (size_t i = 0; i < call.attributes.size(); ++i) {
    const Attribute& a = call.attributes[i];
    Call other = call;
    other.attributes.erase(other.attributes.begin() + i);
    must_refuse(other, "a call without attribute " + a.name);
    other = call;
    other.attributes[i] = {a.name, a.type == 'i' ? 'I' : 'i', {1}};
    must_refuse(other, "attribute " + a.name + " of another type");
    other = call;
    other.attributes[i].name += "_";
    must_refuse(other, "an attribute of another name than " + a.name);
    if (a.type == 'b') {
      other = call;
      other.attributes[i].wholes[0] ^= 1;
      must_not_harm(other);
    }
    if (a.type != 'i' && a.type != 'I') continue;
    for (size_t d = 0; d < a.wholes.size(); ++d)
      for (int64_t n : {int64_t{0}, int64_t{-1}, a.wholes[d] - 1, a.wholes[d] + 1, 2 * a.wholes[d], int64_t{1} << 40,
                        std::numeric_limits<int64_t>::max(), std::numeric_limits<int64_t>::min()}) {
        other = call;
        other.attributes[i].wholes[d] = n;
        must_not_harm(other);
      }
    if (a.type != 'I') continue;
    other = call;
    other.attributes[i].wholes.pop_back();
    must_not_harm(other);
    other.attributes[i].wholes.clear();
    must_not_harm(other);
    other = call;
    other.attributes[i].wholes.push_back(1);
    must_not_harm(other);
  }
}

int main(int argc, char** argv) {
  if (argc != 3) return std::cout << "kernel_driver CALLS check | spoil" << std::endl, 2;
  std::vector<Call> calls = read_calls(argv[1]);
  unsigned seed = 0;
  std::map<std::string, int> made;
  const bool spoilt = std::strcmp(argv[2], "spoil") == 0;
  for (size_t i = 0; i < calls.size(); ++i) {
    if (spoilt && made[calls[i].kernel] == MOST_SPOILT) continue;
    spoilt ? spoil(calls[i]) : check(calls[i], ++seed, calls[i ? i - 1 : calls.size() - 1]);
    ++made[calls[i].kernel];
  }
  for (const auto& [kernel, handler] : HANDLERS) {
    std::cout << "  " << kernel << ": " << made[kernel] << " calls" << std::endl;
    if (made[kernel] == 0) ++failures;
  }
  if (refused + harmless) std::cout << "  " << refused << " refused, " << harmless << " harmless" << std::endl;
  return failures ? 1 : 0;
}
