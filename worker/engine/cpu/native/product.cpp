// y = x W^T + b for few rows of x: a stream of weights through the registers, as fast as memory gives them.
//
// Weights lie in panels of 32 columns of y: for each step along x, what 32 columns need of it, one after the
// other. A step is one element in float32 and a pair in bfloat16, which one instruction multiplies and adds.

#include <algorithm>

#include "vectors.h"

#if defined(__AVX512F__)

#include <immintrin.h>

namespace {

constexpr int64_t kPanel = 2 * kLanes;
constexpr int kTile = 12;          // rows of x at a time: with two vectors each, their sums fill the registers
constexpr int kFew = 3;            // so few rows leave registers free, and need more sums in flight
constexpr int64_t kRows = 96;      // rows of x that stay in the cache while the weights pass
constexpr int64_t kAhead = 2048;   // bytes between what is used and what is fetched
constexpr int64_t kStepBytes = 128;  // of weights: two vectors

struct Float32 {
  typedef float Element;
  static constexpr int64_t kStep = 1;
  static Floats add(Floats sum, const char* weights, const float* x) { return sum + load((const float*)weights) * *x; }
};

#if defined(__AVX512BF16__)
struct Pairs {
  typedef Bfloat16 Element;
  static constexpr int64_t kStep = 2;
  static Floats add(Floats sum, const char* weights, const Bfloat16* x) {
    int32_t pair;
    std::memcpy(&pair, x, sizeof pair);
    return (Floats)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_loadu_si512(weights),
                                    (__m512bh)_mm512_set1_epi32(pair));
  }
};
#endif

template <typename Kind>
struct Call {
  typedef typename Kind::Element T;
  const T* x;
  int64_t rows, depth;  // depth: the length of a row, a multiple of the step
  const T *weights, *bias;
  int64_t columns;
  T* y;
};

template <typename T>
inline void store_some(T* to, Floats v, int64_t count) {
  if (count >= kLanes) return store(to, v);
  T all[kLanes];
  store(all, v);
  for (int64_t i = 0; i < count; i++) to[i] = all[i];
}

// Rows row .. row + M of y, in the columns of one panel.
template <typename Kind, int M>
void multiply(const Call<Kind>& c, int64_t row, int64_t panel, bool fetch) {
  typedef typename Kind::Element T;
  constexpr int kSums = M <= kFew ? 2 : 1;
  const T* x = c.x + row * c.depth;
  const char* weights = (const char*)(c.weights + panel * kPanel * c.depth);
  Floats sums[kSums][M][2] = {};
  int64_t steps = c.depth / Kind::kStep, step = 0;
  for (; step + kSums <= steps; step += kSums)
    for (int s = 0; s < kSums; s++, weights += kStepBytes) {
      if (fetch) {
        __builtin_prefetch(weights + kAhead);
        __builtin_prefetch(weights + kAhead + kStepBytes / 2);
      }
      for (int m = 0; m < M; m++) {
        const T* element = x + m * c.depth + (step + s) * Kind::kStep;
        sums[s][m][0] = Kind::add(sums[s][m][0], weights, element);
        sums[s][m][1] = Kind::add(sums[s][m][1], weights + kStepBytes / 2, element);
      }
    }
  for (; step < steps; step++, weights += kStepBytes)
    for (int m = 0; m < M; m++)
      for (int z = 0; z < 2; z++)
        sums[0][m][z] = Kind::add(sums[0][m][z], weights + z * kStepBytes / 2, x + m * c.depth + step * Kind::kStep);

  for (int z = 0; z < 2; z++) {
    int64_t column = panel * kPanel + z * kLanes;
    int64_t count = c.columns - column;
    if (count <= 0) break;
    Floats bias = {};
    if (c.bias) bias = load(c.bias + column);
    for (int m = 0; m < M; m++) {
      Floats sum = sums[0][m][z];
      for (int s = 1; s < kSums; s++) sum += sums[s][m][z];
      store_some(c.y + (row + m) * c.columns + column, sum + bias, count);
    }
  }
}

template <typename Kind, int M>
void multiply_rows(const Call<Kind>& c, int64_t row, int64_t count, int64_t panel, bool fetch) {
  if (count == M) return multiply<Kind, M>(c, row, panel, fetch);
  if constexpr (M > 1) multiply_rows<Kind, M - 1>(c, row, count, panel, fetch);
}

template <typename Kind>
void product(const Call<Kind>& c) {
  int64_t panels = (c.columns + kPanel - 1) / kPanel;
  for (int64_t begin = 0; begin < c.rows; begin += kRows) {
    int64_t rows = std::min(kRows, c.rows - begin);
    int64_t tiles = (rows + kTile - 1) / kTile;
#pragma omp parallel for schedule(static)
    for (int64_t panel = 0; panel < panels; panel++)
      for (int64_t tile = 0; tile < tiles; tile++) {  // of nearly equal size
        int64_t from = rows * tile / tiles, to = rows * (tile + 1) / tiles;
        multiply_rows<Kind, kTile>(c, begin + from, to - from, panel, tile == 0);
      }
  }
}

}  // namespace

// The bias has as many elements as the panels have columns.
#define EXPORT(Kind, name)                                                                                       \
  extern "C" void product_##name(const Kind::Element* x, int64_t rows, int64_t depth, const Kind::Element* weights, \
                                 const Kind::Element* bias, int64_t columns, Kind::Element* y) {                 \
    product<Kind>({x, rows, depth, weights, bias, columns, y});                                                  \
  }

EXPORT(Float32, float32)
#if defined(__AVX512BF16__)
EXPORT(Pairs, bfloat16)
#endif

#endif
