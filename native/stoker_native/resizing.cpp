// RGB images in another size, bilinear: the arithmetic of Pillow (libImaging/Resample.c), to the bit, by SSE2. The width
// changes first, then the height; each level is rounded to eight bits in between.

#define Py_LIMITED_API 0x030b0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <emmintrin.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <new>
#include <vector>

namespace {

constexpr Py_ssize_t kChannels = 3;
// JPEG's limit, far below the sides at which sums of 32 bits overflow.
constexpr Py_ssize_t kMostSide = 65'535;
// Weights are fixed-point numbers with so many bits, of which the lower ones are multiplied apart: factors have 16 bits.
constexpr int kBits = 22;
constexpr int kLowBits = 11;
constexpr int kLowMask = (1 << kLowBits) - 1;
// So many bytes are read and written at once.
constexpr Py_ssize_t kBlock = 8;

// The weights of two neighbours: each half has that of the first one in its lower 16 bits.
struct Pair {
  int32_t high, low;
};

// The neighbours that a pixel is the mean of.
struct Window {
  Py_ssize_t first, pairs;
  const Pair* weights;
};

// The windows of all pixels along one axis.
class Axis {
 public:
  Axis(Py_ssize_t size, Py_ssize_t new_size) : windows_(new_size) {
    const double scale = static_cast<double>(size) / new_size;
    const double reach = std::max(scale, 1.0);
    const double steepness = 1.0 / reach;
    const Py_ssize_t most_pairs = static_cast<Py_ssize_t>(std::ceil(reach)) + 1;
    weights_.resize(most_pairs * new_size);
    std::vector<double> shares(2 * most_pairs);
    for (Py_ssize_t pixel = 0; pixel < new_size; ++pixel) {
      const double centre = (pixel + 0.5) * scale;
      const Py_ssize_t first = std::max<Py_ssize_t>(static_cast<Py_ssize_t>(centre - reach + 0.5), 0);
      const Py_ssize_t end = std::min(static_cast<Py_ssize_t>(centre + reach + 0.5), size);
      double sum = 0.0;
      std::fill(shares.begin(), shares.end(), 0.0);
      for (Py_ssize_t at = first; at < end; ++at) {
        const double distance = std::abs((at - centre + 0.5) * steepness);
        sum += shares[at - first] = std::max(1.0 - distance, 0.0);
      }
      Pair* const weights = &weights_[most_pairs * pixel];
      const Py_ssize_t pairs = (end - first + 1) / 2;
      for (Py_ssize_t pair = 0; pair < pairs; ++pair) {
        const int32_t one = fixed(shares[2 * pair] / sum), other = fixed(shares[2 * pair + 1] / sum);
        weights[pair] = {join(one >> kLowBits, other >> kLowBits), join(one & kLowMask, other & kLowMask)};
      }
      windows_[pixel] = {first, pairs, weights};
    }
  }

  const std::vector<Window>& windows() const { return windows_; }

 private:
  static int32_t fixed(double share) { return static_cast<int32_t>(0.5 + share * (1 << kBits)); }
  static int32_t join(int32_t lower, int32_t upper) { return lower | upper << 16; }

  std::vector<Pair> weights_;
  std::vector<Window> windows_;
};

// Four weighted sums.
class Sums {
 public:
  // Adds pairs of levels of 16 bits.
  void add(__m128i levels, const Pair& weights) {
    high_ = _mm_add_epi32(high_, _mm_madd_epi16(levels, _mm_set1_epi32(weights.high)));
    low_ = _mm_add_epi32(low_, _mm_madd_epi16(levels, _mm_set1_epi32(weights.low)));
  }

  __m128i rounded() const {
    const __m128i sums = _mm_add_epi32(_mm_slli_epi32(high_, kLowBits), low_);
    return _mm_srli_epi32(_mm_add_epi32(sums, _mm_set1_epi32(1 << (kBits - 1))), kBits);
  }

 private:
  __m128i high_ = _mm_setzero_si128(), low_ = _mm_setzero_si128();
};

__m128i read_block(const uint8_t* at) { return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(at)); }

// Changes the width of one line. Up to a block less a pixel is read beyond it, and a byte written beyond the new one.
void resize_line(const uint8_t* line, const Axis& axis, uint8_t* out) {
  const __m128i zero = _mm_setzero_si128();
  for (const Window& window : axis.windows()) {
    const uint8_t* at = line + kChannels * window.first;
    Sums sums;
    for (Py_ssize_t pair = 0; pair < window.pairs; ++pair, at += 2 * kChannels) {
      const __m128i block = read_block(at);
      const __m128i pixels = _mm_unpacklo_epi8(block, _mm_srli_si128(block, kChannels));
      sums.add(_mm_unpacklo_epi8(pixels, zero), window.weights[pair]);
    }
    const __m128i levels = _mm_packs_epi32(sums.rounded(), zero);
    const int32_t pixel = _mm_cvtsi128_si32(_mm_packus_epi16(levels, zero));
    std::memcpy(out, &pixel, sizeof pixel);
    out += kChannels;
  }
}

// Makes a line of the lines in a window, block by block.
void merge_lines(const uint8_t* lines, Py_ssize_t stride, const Window& window, uint8_t* out) {
  const __m128i zero = _mm_setzero_si128();
  for (Py_ssize_t start = 0; start < stride; start += kBlock) {
    const uint8_t* at = lines + window.first * stride + start;
    Sums left, right;
    for (Py_ssize_t pair = 0; pair < window.pairs; ++pair, at += 2 * stride) {
      const __m128i levels = _mm_unpacklo_epi8(read_block(at), read_block(at + stride));
      left.add(_mm_unpacklo_epi8(levels, zero), window.weights[pair]);
      right.add(_mm_unpackhi_epi8(levels, zero), window.weights[pair]);
    }
    const __m128i levels = _mm_packs_epi32(left.rounded(), right.rounded());
    _mm_storel_epi64(reinterpret_cast<__m128i*>(out + start), _mm_packus_epi16(levels, zero));
  }
}

void resize(const uint8_t* pixels, Py_ssize_t height, Py_ssize_t width, uint8_t* out, Py_ssize_t new_height,
            Py_ssize_t new_width) {
  const Axis across(width, new_width), down(height, new_height);
  const Py_ssize_t line_bytes = kChannels * width, new_bytes = kChannels * new_width;
  const Py_ssize_t stride = (new_bytes + kBlock) / kBlock * kBlock;
  // An odd window ends with a line of weight 0, which may be the one after the last.
  std::vector<uint8_t> narrowed(stride * (height + 1)), last(line_bytes + kBlock), merged(stride);
  const uint8_t* const end = pixels + height * line_bytes;
  for (Py_ssize_t y = 0; y < height; ++y) {
    const uint8_t* line = pixels + y * line_bytes;
    // Nothing is read beyond the image.
    if (end - line < line_bytes + kBlock) line = static_cast<uint8_t*>(std::memcpy(last.data(), line, line_bytes));
    resize_line(line, across, &narrowed[y * stride]);
  }
  for (Py_ssize_t y = 0; y < new_height; ++y) {
    merge_lines(narrowed.data(), stride, down.windows()[y], merged.data());
    std::memcpy(out + y * new_bytes, merged.data(), new_bytes);
  }
}

// The memory of an image, given back at the end.
class Image {
 public:
  ~Image() {
    if (view_.obj != nullptr) PyBuffer_Release(&view_);
  }

  bool take(PyObject* object, int flags, Py_ssize_t height, Py_ssize_t width) {
    if (PyObject_GetBuffer(object, &view_, flags) != 0) return false;
    if (view_.len == height * width * kChannels) return true;
    PyErr_SetString(PyExc_ValueError, "an image has three bytes for each pixel");
    return false;
  }

  uint8_t* bytes() const { return static_cast<uint8_t*>(view_.buf); }

 private:
  Py_buffer view_ = {};
};

PyObject* resize_rgb(PyObject*, PyObject* arguments) {
  PyObject *pixels, *resized;
  Py_ssize_t height, width, new_height, new_width;
  if (PyArg_ParseTuple(arguments, "OnnOnn", &pixels, &height, &width, &resized, &new_height, &new_width) == 0)
    return nullptr;
  for (const Py_ssize_t side : {height, width, new_height, new_width}) {
    if (side >= 1 && side <= kMostSide) continue;
    PyErr_Format(PyExc_ValueError, "the sides of an image are 1 to %zd pixels", kMostSide);
    return nullptr;
  }
  Image from, to;
  if (!from.take(pixels, PyBUF_SIMPLE, height, width)) return nullptr;
  if (!to.take(resized, PyBUF_WRITABLE, new_height, new_width)) return nullptr;
  bool has_memory = true;
  Py_BEGIN_ALLOW_THREADS
  try {
    resize(from.bytes(), height, width, to.bytes(), new_height, new_width);
  } catch (const std::bad_alloc&) {
    has_memory = false;
  }
  Py_END_ALLOW_THREADS
  if (!has_memory) return PyErr_NoMemory();
  Py_RETURN_NONE;
}

PyDoc_STRVAR(kResizeRgbDoc,
             "resize_rgb(pixels, height, width, resized, new_height, new_width)\n--\n\n"
             "Write an image, uint8 [height, width, 3], in another size into the memory `resized`.");

PyMethodDef kMethods[] = {
    {"resize_rgb", resize_rgb, METH_VARARGS, kResizeRgbDoc},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef_Slot kSlots[] = {{0, nullptr}};

PyModuleDef kModule = {PyModuleDef_HEAD_INIT, "resizing", nullptr, 0, kMethods, kSlots, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit_resizing() { return PyModuleDef_Init(&kModule); }
