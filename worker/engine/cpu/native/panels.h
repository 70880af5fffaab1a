// y = x W^T for few rows of x: a stream of weights through the registers, as fast as memory gives them.
//
// Weights lie in panels of 32 columns of y: for each step along x, what 32 columns need of it, one after the
// other. A step is one element in float32 and a pair in bfloat16, which one instruction multiplies and adds.
//
// int8 is for weights: each column has a scale. A row of x becomes 16 bits with a scale, as fine as the sums'
// 32 bits allow, so that what is lost is lost in the weights.
#pragma once

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "tiles.h"
#include "vectors.h"

#if defined(__AVX512F__)

#include <immintrin.h>

constexpr int64_t kPanel = 2 * kLanes;
constexpr int kTile = 12;         // rows of x at a time: with two vectors each, their sums fill the registers
constexpr int kFew = 3;           // so few rows leave registers free, and need more sums in flight
constexpr int64_t kRows = 96;     // rows of x that stay in the cache while the weights pass
constexpr int64_t kAhead = 4096;  // bytes between what is used and what is fetched, where both are one stream

// Kinds of products: Element is what activations are, Input what is multiplied. By tiles where there are any and
// they may be used, else by vectors; int8 by tiles alone, where the compiler knows them: panels differ.
struct Float32 {
  typedef float Element;
  typedef float Input;
  typedef Floats Sum;
  typedef NoTiles Tiles;
  static constexpr bool kByVectors = true;
  static constexpr int64_t kStep = 1, kStepBytes = 128;
  static Floats add(Floats sum, const char* weights, const float* x) { return sum + load((const float*)weights) * *x; }
};

#if defined(__AVX512BF16__)
struct Pairs {
  typedef Bfloat16 Element;
  typedef Bfloat16 Input;
  typedef Floats Sum;
  typedef PairTiles Tiles;
  static constexpr bool kByVectors = true;
  static constexpr int64_t kStep = 2, kStepBytes = 128;
  static Floats add(Floats sum, const char* weights, const Bfloat16* x) {
    int32_t pair;
    std::memcpy(&pair, x, sizeof pair);
    return (Floats)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_loadu_si512(weights),
                                    (__m512bh)_mm512_set1_epi32(pair));
  }
};
#endif

#if defined(HAS_TILES)
#define HAS_INT8 1
template <typename T>
struct Int8 {
  typedef T Element;
  typedef int16_t Input;
  typedef Int8Tiles Tiles;
  static constexpr bool kByVectors = false;
  static constexpr int64_t kStep = 4, kStepBytes = 128;
};
#elif defined(__AVX512VNNI__) && defined(__AVX512BW__)
#define HAS_INT8 1
template <typename T>
struct Int8 {
  typedef T Element;
  typedef int16_t Input;
  typedef Ints Sum;
  typedef NoTiles Tiles;
  static constexpr bool kByVectors = true;
  static constexpr int64_t kStep = 2, kStepBytes = 64;
  static Ints add(Ints sum, const char* weights, const int16_t* x) {
    int32_t pair;
    std::memcpy(&pair, x, sizeof pair);
    __m512i wide = _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i*)weights));
    return (Ints)_mm512_dpwssd_epi32((__m512i)sum, wide, _mm512_set1_epi32(pair));
  }
};
#endif

// Sums of M rows of x, which lie `depth` apart, in the columns of one panel.
template <typename Kind, int M>
struct Sums {
  typename Kind::Sum at[M][2];

  void multiply(const typename Kind::Input* x, int64_t depth, const char* weights, Fetch fetch) {
    constexpr int kSums = M <= kFew ? 2 : 1;
    // Three rows share a pointer: the registers do not hold twelve, which would be computed at each step.
    constexpr int kPointers = (M + 2) / 3;
    const typename Kind::Input* rows[kPointers];
    for (int p = 0; p < kPointers; p++) rows[p] = x + 3 * p * depth;
    typename Kind::Sum sums[kSums][M][2] = {};
    int64_t steps = depth / Kind::kStep, step = 0;
    for (; step + kSums <= steps; step += kSums) {
#pragma GCC unroll 2
      for (int s = 0; s < kSums; s++) {
        __builtin_prefetch(fetch.from);
        __builtin_prefetch(fetch.from + 64);
        fetch.from += fetch.stride;
#pragma GCC unroll 12
        for (int m = 0; m < M; m++) add(sums[s][m], weights, rows[m / 3] + m % 3 * depth + s * Kind::kStep);
        weights += Kind::kStepBytes;
      }
      for (int p = 0; p < kPointers; p++) {
        rows[p] += kSums * Kind::kStep;
        asm("" : "+r"(rows[p]));  // else the compiler makes twelve of them after all
      }
    }
    if (step < steps)
#pragma GCC unroll 12
      for (int m = 0; m < M; m++) add(sums[0][m], weights, rows[m / 3] + m % 3 * depth);
#pragma GCC unroll 12
    for (int m = 0; m < M; m++)
#pragma GCC unroll 2
      for (int z = 0; z < 2; z++) at[m][z] = kSums == 2 ? sums[0][m][z] + sums[kSums - 1][m][z] : sums[0][m][z];
  }

 private:
  static inline __attribute__((always_inline)) void add(typename Kind::Sum (&sums)[2], const char* weights, const typename Kind::Input* x) {
#pragma GCC unroll 2
    for (int z = 0; z < 2; z++) sums[z] = Kind::add(sums[z], weights + z * Kind::kStepBytes / 2, x);
  }
};

// f(the number as a constant), for a number of rows from 1 to M.
template <int M = kTile, typename Function>
inline void with_constant(int64_t count, Function f) {
  if (count == M) return f(std::integral_constant<int, M>());
  if constexpr (M > 1) with_constant<M - 1>(count, f);
}

// Some rows of x, by vectors: their number is a constant.
template <typename Kind, int M>
struct VectorBlock {
  static constexpr int64_t rows = M;
  int64_t first;
  Fetch fetch;

  Sums<Kind, M> multiply(const typename Kind::Input* x, int64_t depth, const char* weights, int64_t further) const {
    Sums<Kind, M> sums;
    sums.multiply(x + first * depth, depth, weights, {fetch.from + further, fetch.stride});
    return sums;
  }
};

// So many rows of x, laid out as blocks of them want it. While a panel is used by all blocks, each fetches its
// share of the next one.
template <typename Kind>
struct Blocks {
  typedef typename Kind::Input Input;
  typedef typename Kind::Tiles Tiles;
  static constexpr bool kHasTiles = !std::is_same_v<Tiles, NoTiles>;
  const Input* x;
  int64_t rows, depth, number;
  bool by_tiles = false;

  Blocks(const Input* of, int64_t rows, int64_t depth)
      : x(of), rows(rows), depth(depth), number((rows + kTile - 1) / kTile) {
    if constexpr (kHasTiles)
      if (!Kind::kByVectors || (depth % Tiles::kDepth == 0 && may_use_tiles())) {
        by_tiles = true;
        x = Tiles::lay_out(of, rows, depth);
        number = (rows + Tiles::kRows - 1) / Tiles::kRows;
      }
  }

  template <typename Function>
  void each(const char* weights, Function f) const {
    int64_t panel_bytes = depth / Kind::kStep * Kind::kStepBytes;
    for (int64_t block = 0; block < number; block++) {
      Fetch fetch = {weights + kAhead, Kind::kStepBytes};
      if (number > 1) fetch = {weights + panel_bytes + block * (panel_bytes / number), Kind::kStepBytes / number};
      if constexpr (kHasTiles)
        if (by_tiles) {
          int64_t first = Tiles::kRows * block;
          f(Tiles{first, std::min(Tiles::kRows, rows - first), fetch});
          continue;
        }
      if constexpr (Kind::kByVectors) {
        int64_t from = rows * block / number, to = rows * (block + 1) / number;
        with_constant(to - from, [&](auto m) { f(VectorBlock<Kind, m>{from, fetch}); });
      }
    }
  }
};

template <typename Kind>
struct Weights {
  const void* panels;
  const typename Kind::Element* bias;  // as many as the panels have columns, or none
  const float* scales;                 // the same, of int8
  int64_t columns, depth;              // depth: a multiple of the step

  int64_t panel_bytes() const { return depth / Kind::kStep * Kind::kStepBytes; }
  const char* panel(int64_t index) const { return (const char*)panels + index * panel_bytes(); }
  Floats value(Floats sums, int64_t column, float) const { return bias ? sums + load(bias + column) : sums; }
  Floats value(Ints sums, int64_t column, float row_scale) const {
    return value(__builtin_convertvector(sums, Floats) * (load(scales + column) * row_scale), column, 0);
  }
};

// Where rows are made ready for a product: as many integers, and a scale for each.
struct Scratch16 {
  int16_t* x;
  float* scales;
};

// Rows of x as a product takes them.
template <typename Input>
struct Rows {
  const Input* x;
  const float* scales;  // of int16
  float scale(int64_t row) const { return scales ? scales[row] : 0; }
};

template <typename T>
inline void to_int16(const T* x, int64_t depth, int16_t* y, float* scale) {
  Floats most = {}, not_finite = {};
  for (int64_t d = 0; d < depth; d += kLanes) {
    Floats v = load(x + d);
    most = larger(larger(v, -v), most);
    not_finite += v * 0.0f;  // NaN and infinity would be lost as integers
  }
  float limit = std::min<float>(32767, 2147483647.0f / 127 / (float)depth);  // so that no sum overflows
  float highest = largest(most);
  *scale = highest / std::floor(limit) + sum(not_finite);
  float factor = highest > 0 ? std::floor(limit) / highest : 0;
  for (int64_t d = 0; d < depth; d += kLanes)
    _mm256_storeu_si256((__m256i*)(y + d),
                        _mm512_cvtsepi32_epi16(_mm512_cvtps_epi32((__m512)(load(x + d) * factor))));
}

// Nothing is to be done where the input is what activations are. The threads wait for each other otherwise.
template <typename T>
inline Rows<T> ready(const T* x, int64_t, int64_t, const T*, const Scratch16&) {
  return {x, nullptr};
}

template <typename T>
inline Rows<int16_t> ready(const T* x, int64_t rows, int64_t depth, const int16_t*, const Scratch16& scratch) {
#pragma omp for schedule(static)
  for (int64_t row = 0; row < rows; row++) to_int16(x + row * depth, depth, scratch.x + row * depth, scratch.scales + row);
  return {scratch.x, scratch.scales};
}

// f(x, block, panel, row of the block's first sums) for all rows and the first `panels` panels, shared among the
// threads of the parallel region around it. Other threads' parts may be unfinished on return.
template <typename Kind, typename Function>
inline void for_panels(const Rows<typename Kind::Input>& rows, int64_t count, const Weights<Kind>& w, int64_t panels,
                       Function f) {
  for (int64_t begin = 0; begin < count; begin += kRows) {
    Blocks<Kind> blocks(rows.x + begin * w.depth, std::min(kRows, count - begin), w.depth);
#pragma omp for schedule(static) nowait
    for (int64_t panel = 0; panel < panels; panel++)
      blocks.each(w.panel(panel), [&](auto block) { f(blocks.x, block, panel, begin + block.first); });
  }
}

// out(row, column, sixteen of y) for all of y, shared among threads like `for_panels`.
template <typename Kind, typename Out>
inline void multiply(const Rows<typename Kind::Input>& rows, int64_t count, const Weights<Kind>& w, Out out) {
  int64_t panels = (w.columns + kPanel - 1) / kPanel;
  for_panels(rows, count, w, panels, [&](auto x, auto block, int64_t panel, int64_t row) {
    auto sums = block.multiply(x, w.depth, w.panel(panel), 0);
    for (int64_t i = 0; i < block.rows; i++)
      for (int z = 0; z < 2; z++) {
        int64_t column = panel * kPanel + z * kLanes;
        if (column < w.columns) out(row + i, column, w.value(sums.at[i][z], column, rows.scale(row + i)));
      }
  });
}

#endif
