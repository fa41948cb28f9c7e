// Azure's scoring body, {"data": [row, ...]}, straight to float32. What cannot be proved to be that is left to the
// server's own decoder, which alone decides what is an error: here is no message and no second meaning.

#define Py_LIMITED_API 0x030b0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <algorithm>
#include <cfloat>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

static_assert(FLT_EVAL_METHOD == 0, "a product of doubles has to be rounded once");
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "of eight characters the first is the lowest byte");

namespace {

constexpr int kMostAxes = 32;
// From here on other threads may run meanwhile: for less it is not worth to hand them the interpreter.
constexpr Py_ssize_t kLongBody = 1 << 18;

// Powers of ten that are doubles exactly.
constexpr double kPowers[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
                              1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
constexpr int kMostPower = 22;
constexpr int64_t kTens[] = {1, 10, 100, 1000, 10'000, 100'000, 1'000'000, 10'000'000, 100'000'000};
// Up to here each integer is a double.
constexpr uint64_t kExact = uint64_t{1} << 53;
// So many digits fit 64 bits; integers of one digit fewer have a sign there too, as simdjson reads them.
constexpr Py_ssize_t kMostDigits = 19;
// So many characters are read at once.
constexpr Py_ssize_t kWord = 8;
// So many characters are looked through for separators at once.
constexpr Py_ssize_t kBlock = 64;
// Shorter lists are not looked through for separators, nor is the rest of one in which so many numbers, and a third of
// all, were not short.
constexpr Py_ssize_t kManyLong = 16;
// Larger exponents are as good as infinite, and are not added up.
constexpr int kMostExponent = 100'000;

unsigned digit_at(const char* at) { return static_cast<unsigned char>(*at) - unsigned{'0'}; }

const char* skip_space(const char* at) {
  while (*at == ' ' || *at == '\n' || *at == '\r' || *at == '\t') ++at;
  return at;
}

constexpr uint64_t kZeros = 0x3030303030303030;

// Whether eight bytes are all below ten.
bool are_digits(uint64_t bytes) { return (((bytes + 0x7676767676767676) | bytes) & 0x8080808080808080) == 0; }

// What eight digits are together, by three multiplications: as D. Lemire, "Number Parsing at a Gigabyte per Second"
// (2021), section 3, describes it.
uint32_t joined(uint64_t digits) {
  digits = digits * 10 + (digits >> 8);
  const uint64_t low = (digits & 0x000000ff000000ff) * (100 + (uint64_t{1'000'000} << 32));
  const uint64_t high = ((digits >> 16) & 0x000000ff000000ff) * (1 + (uint64_t{10'000} << 32));
  return static_cast<uint32_t>((low + high) >> 32);
}

uint64_t word_at(const char* at) {
  uint64_t word;
  std::memcpy(&word, at, sizeof word);
  return word;
}

// Reads one number of JSON's grammar. Returns what stands behind it, or null if this is none, or none that is taken
// here: integers of more than 18 digits, what is too large for its type, and doubles too small for theirs.
//
// The value is the float nearest to the double nearest to the number, as where simdjson reads it and numpy casts it.
const char* read_number(const char* at, const char* end, float* out) {
  const char* const begin = at;
  const bool negative = *at == '-';
  at += negative;
  const char* const first = at;
  uint64_t digits = 0;
  unsigned digit = digit_at(at);
  if (digit > 9) return nullptr;
  if (digit == 0) {
    ++at;
    if (digit_at(at) <= 9) return nullptr;
  } else {
    do {
      digits = digits * 10 + digit;
      digit = digit_at(++at);
    } while (digit <= 9);
  }
  Py_ssize_t count = at - first;
  if (*at != '.' && *at != 'e' && *at != 'E') {
    if (count >= kMostDigits) return nullptr;
    // An integer has one zero.
    const double value = static_cast<double>(digits);
    *out = static_cast<float>(negative && digits ? -value : value);
    return at;
  }
  int64_t exponent = 0;
  if (*at == '.') {
    const char* const fraction = ++at;
    for (uint64_t word; end - at >= kWord && are_digits(word = word_at(at) ^ kZeros); at += kWord) {
      digits = digits * 100'000'000 + joined(word);
    }
    while ((digit = digit_at(at)) <= 9) {
      digits = digits * 10 + digit;
      ++at;
    }
    if (at == fraction) return nullptr;
    count += at - fraction;
    exponent = fraction - at;
  }
  if (*at == 'e' || *at == 'E') {
    ++at;
    const bool down = *at == '-';
    if (down || *at == '+') ++at;
    if ((digit = digit_at(at)) > 9) return nullptr;
    int written = 0;
    do {
      written = std::min(written * 10 + static_cast<int>(digit), kMostExponent);
      digit = digit_at(++at);
    } while (digit <= 9);
    exponent += down ? -written : written;
  }
  if (digits == 0 && count <= kMostDigits) {
    // Most pixels are: no division for them.
    *out = negative ? -0.0f : 0.0f;
    return at;
  }
  double value;
  if (count <= kMostDigits && digits <= kExact && -kMostPower <= exponent && exponent <= kMostPower) {
    // One rounding of two exact doubles: W. D. Clinger, "How to Read Floating Point Numbers Accurately" (1990).
    value = static_cast<double>(digits);
    value = exponent < 0 ? value / kPowers[-exponent] : value * kPowers[exponent];
    value = negative ? -value : value;
  } else {
    const std::from_chars_result read = std::from_chars(begin, at, value);
    if (read.ec != std::errc() || read.ptr != at) return nullptr;
  }
  *out = static_cast<float>(value);
  return std::isinf(*out) ? nullptr : at;
}

// Reads a number of up to eight digits, or of one digit, a point and up to eight decimals, that ends before `end`. Most
// numbers are so, and are read without going through their characters; of all others this says false. There are eight
// characters of the body before `end`.
bool read_short(const char* at, const char* end, float* out) {
  const bool negative = *at == '-';
  at += negative;
  const bool pointed = at[1] == '.';
  const unsigned first = digit_at(at);
  const Py_ssize_t count = end - at - (pointed ? 2 : 0);
  if (count < 1 || count > kWord) return false;
  // What stands before its digits counts as zeros.
  const int others = 8 * static_cast<int>(kWord - count);
  const uint64_t word = (word_at(end - kWord) ^ kZeros) >> others << others;
  if (!are_digits(word)) return false;
  int64_t digits = joined(word);
  if (!pointed) {
    if (first == 0 && count > 1) return false;
    // An integer has one zero.
    *out = static_cast<float>(static_cast<double>(negative ? -digits : digits));
    return true;
  }
  if (first > 9) return false;
  digits += first * kTens[count];
  // One rounding of two exact doubles, as in `read_number`.
  const double value = static_cast<double>(digits) / kPowers[count];
  *out = static_cast<float>(negative ? -value : value);
  return true;
}

#if !defined(__SSE2__)
constexpr uint64_t kOnes = 0x0101010101010101;

// The highest bit of each byte that is zero.
uint64_t zeros_in(uint64_t bytes) {
  constexpr uint64_t kLower = 0x7f7f7f7f7f7f7f7f;
  return ~(((bytes & kLower) + kLower) | bytes | kLower);
}
#endif

// Whether each of 64 characters is a comma or a closing bracket, the first one in the lowest bit.
uint64_t separators_in(const char* at) {
  uint64_t found = 0;
#if defined(__SSE2__)
  for (int place = 0; place < kBlock; place += 16) {
    const __m128i characters = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at + place));
    const __m128i commas = _mm_cmpeq_epi8(characters, _mm_set1_epi8(','));
    const __m128i brackets = _mm_cmpeq_epi8(characters, _mm_set1_epi8(']'));
    const int separators = _mm_movemask_epi8(_mm_or_si128(commas, brackets));
    found |= static_cast<uint64_t>(separators) << place;
  }
#else
  for (int place = 0; place < kBlock; place += kWord) {
    const uint64_t word = word_at(at + place);
    const uint64_t separators = zeros_in(word ^ (kOnes * ',')) | zeros_in(word ^ (kOnes * ']'));
    // A multiplication that brings the bits of all bytes together.
    found |= ((separators >> 7) * 0x0102040810204080 >> 56) << place;
  }
#endif
  return found;
}

// The commas and closing brackets of a text, one after the other.
class Separators {
 public:
  Separators(const char* begin, const char* end)
      : block_(begin), end_(end), left_(end - begin < kBlock ? 0 : separators_in(begin)) {}

  // Where the next one stands; null where it is in the last few characters, which are no block.
  const char* next() {
    while (left_ == 0) {
      if (end_ - block_ < 2 * kBlock) return nullptr;
      block_ += kBlock;
      left_ = separators_in(block_);
    }
    const char* const found = block_ + __builtin_ctzll(left_);
    left_ &= left_ - 1;
    return found;
  }

 private:
  const char* block_;
  const char* const end_;
  uint64_t left_;
};

// In blocks whose counts fit the bytes that are compared, for a compiler to make one vector of each few.
Py_ssize_t count_commas(const char* at, const char* end) {
  constexpr Py_ssize_t kCounted = 128;
  Py_ssize_t commas = 0;
  for (; end - at >= kCounted; at += kCounted) {
    uint8_t count = 0;
    for (Py_ssize_t index = 0; index < kCounted; ++index) count += at[index] == ',';
    commas += count;
  }
  return commas + std::count(at, end, ',');
}

// Reads one body. Bytes of Python end with a NUL, which nothing here takes: the end needs no other guard.
class Body {
 public:
  Body(const char* begin, Py_ssize_t length) : at_(begin), end_(begin + length) {}

  // Whether the body is so many rows of this shape, and nothing else; they are written to `out`.
  bool read(Py_ssize_t rows, const Py_ssize_t* shape, int axes, float* out) {
    shape_ = shape;
    axes_ = axes;
    out_ = out;
    return take('{') && take_key() && take(':') && read_list(rows, 0) && take('}') && skip_space(at_) == end_;
  }

 private:
  bool take(char wanted) {
    at_ = skip_space(at_);
    if (*at_ != wanted) return false;
    ++at_;
    return true;
  }

  bool take_key() {
    at_ = skip_space(at_);
    if (std::strncmp(at_, "\"data\"", 6) != 0) return false;
    at_ += 6;
    return true;
  }

  // A list of so many items, which are lists down to the last axis.
  bool read_list(Py_ssize_t size, int depth) {
    if (depth == axes_) return read_numbers(size);
    if (!take('[')) return false;
    for (Py_ssize_t index = 0; index < size; ++index) {
      if (index > 0 && !take(',')) return false;
      if (!read_list(shape_[depth], depth + 1)) return false;
    }
    return take(']');
  }

  bool read_numbers(Py_ssize_t size) {
    if (!take('[')) return false;
    Py_ssize_t index = size < kManyLong ? 0 : read_shorts(size);
    if (index < 0) return false;
    // Not the members, which would be stored after each number.
    const char* at = at_;
    float* const first = out_;
    for (; index < size; ++index) {
      if (index > 0) {
        if (*at != ',') at = skip_space(at);
        if (*at != ',') return false;
        ++at;
      }
      // The one space that most writers leave, before the loop for all others.
      at += *at == ' ';
      if (static_cast<unsigned char>(*at) <= ' ') at = skip_space(at);
      at = read_number(at, end_, first + index);
      if (at == nullptr) return false;
    }
    at_ = at;
    out_ = first + size;
    return take(']');
  }

  // Reads numbers of a list, all but the last of them at most, as far as their separators are found, and no more where
  // too many are not short. Returns how many, or a negative number where something else stands.
  Py_ssize_t read_shorts(Py_ssize_t size) {
    const char* at = at_;
    float* const first = out_;
    Py_ssize_t most = size - 1;
    Py_ssize_t index = 0;
    Py_ssize_t longs = 0;
    Separators separators(at, end_);
    for (; index < most; ++index) {
      const char* const next = separators.next();
      if (next == nullptr) break;
      at += *at == ' ';
      if (!read_short(at, next, first + index)) {
        at = read_number(skip_space(at), end_, first + index);
        if (at == nullptr || skip_space(at) != next) return -1;
        if (++longs >= kManyLong && 3 * longs > index) most = index + 1;
      }
      if (*next != ',') return -1;
      at = next + 1;
    }
    // The next one begins with the comma before it.
    at_ = index > 0 ? at - 1 : at;
    return index;
  }

  const char* at_;
  const char* const end_;
  const Py_ssize_t* shape_ = nullptr;
  int axes_ = 0;
  float* out_ = nullptr;
};

// Lets other threads run while a long body is read.
PyThreadState* release_for(Py_ssize_t length) { return length < kLongBody ? nullptr : PyEval_SaveThread(); }

void take_back(PyThreadState* state) {
  if (state != nullptr) PyEval_RestoreThread(state);
}

// The memory of a row that the caller gave; `at` is null where there is none.
class RowMemory {
 public:
  RowMemory() = default;
  RowMemory(const RowMemory&) = delete;
  RowMemory& operator=(const RowMemory&) = delete;
  ~RowMemory() { PyBuffer_Release(&buffer_); }

  // Whether it is such memory, or None; if it is not, an exception is set.
  bool take(PyObject* object, Py_ssize_t bytes) {
    if (Py_IsNone(object)) return true;
    if (PyObject_GetBuffer(object, &buffer_, PyBUF_WRITABLE) != 0) return false;
    at = static_cast<float*>(buffer_.buf);
    if (buffer_.len == bytes && reinterpret_cast<uintptr_t>(at) % alignof(float) == 0) return true;
    PyErr_Format(PyExc_ValueError, "a row takes %zd aligned bytes", bytes);
    return false;
  }

  float* at = nullptr;

 private:
  Py_buffer buffer_{};
};

PyObject* float32_rows_into(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  if (count < 2 || count > kMostAxes + 2) {
    PyErr_SetString(PyExc_TypeError, "float32_rows_into() takes a body, memory or None, and the sizes of a row");
    return nullptr;
  }
  char* text;
  Py_ssize_t length;
  if (PyBytes_AsStringAndSize(arguments[0], &text, &length) != 0) return nullptr;
  const int axes = static_cast<int>(count) - 2;
  Py_ssize_t shape[kMostAxes];
  Py_ssize_t row = 1;
  for (int axis = 0; axis < axes; ++axis) {
    shape[axis] = PyLong_AsSsize_t(arguments[axis + 2]);
    if (shape[axis] == -1 && PyErr_Occurred() != nullptr) return nullptr;
    if (shape[axis] < 1) {
      PyErr_SetString(PyExc_ValueError, "the sizes of a row are 1 or more");
      return nullptr;
    }
    // More elements than the body has bytes are in no body; so the product stays small.
    if (row > length / shape[axis]) Py_RETURN_NONE;
    row *= shape[axis];
  }
  RowMemory memory;
  if (!memory.take(arguments[1], row * Py_ssize_t{sizeof(float)})) return nullptr;
  // The caller holds the body, and nobody else looks at the values: both may be touched without the lock.
  PyThreadState* state = release_for(length);
  // Of lists of numbers, and of nothing else that is taken, the commas say how many numbers there are.
  const Py_ssize_t numbers = count_commas(text, text + length) + 1;
  take_back(state);
  if (numbers % row != 0) Py_RETURN_NONE;
  const bool in_place = memory.at != nullptr && numbers == row;
  PyObject* const values = PyBytes_FromStringAndSize(nullptr, in_place ? 0 : numbers * Py_ssize_t{sizeof(float)});
  if (values == nullptr) return nullptr;
  float* const out = in_place ? memory.at : reinterpret_cast<float*>(PyBytes_AsString(values));
  state = release_for(length);
  const bool read = Body(text, length).read(numbers / row, shape, axes, out);
  take_back(state);
  if (read) return values;
  Py_DECREF(values);
  Py_RETURN_NONE;
}

PyDoc_STRVAR(kFloat32RowsIntoDoc,
             "float32_rows_into(body, row, *row_shape)\n--\n\n"
             "Return the numbers of {\"data\": [row, ...]} as float32 in native byte order; None for any other body.\n\n"
             "A single row is written into the memory `row`, and nothing returned but b\"\", if that is not None; what\n"
             "was there is then lost also where None is returned.");

PyMethodDef kMethods[] = {
    {"float32_rows_into", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(float32_rows_into)), METH_FASTCALL,
     kFloat32RowsIntoDoc},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef_Slot kSlots[] = {{0, nullptr}};

PyModuleDef kModule = {PyModuleDef_HEAD_INIT, "_rows", nullptr, 0, kMethods, kSlots, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit__rows() { return PyModuleDef_Init(&kModule); }
