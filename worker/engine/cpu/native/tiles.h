// The same products by matrix tiles (AMX), where the CPU has them: 16 rows of x by 64 bytes by 16 columns in one
// instruction. Panels are laid out as tiles want them already. A row's sums do not depend on how many rows there
// are, so that a token gets the same output alone and among the proposals of a verify step.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "vectors.h"

// What to ask memory for while weights are used: so many bytes further at each step.
struct Fetch {
  const char* from;
  int64_t stride;
};

struct NoTiles {};

#if defined(__AMX_BF16__) && defined(__AMX_INT8__) && defined(__AVX512BF16__) && defined(__linux__)

#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#define HAS_TILES 1

constexpr int64_t kTileRows = 16, kTileBytes = 64;  // of each row

// Linux saves tiles at a switch of threads only for processes that have asked for them.
inline bool may_use_tiles() {
  constexpr int kRequest = 0x1023, kTileData = 18;
  static const bool may = syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
  return may;
}

// While it lives, this thread's tiles have the shape that blocks want.
class TileShapes {
 public:
  TileShapes() : used_(may_use_tiles()) {
    if (!used_) return;
    Config config = {};
    config.palette = 1;
    for (int tile = 0; tile < 8; tile++) {
      config.bytes[tile] = 64;
      config.rows[tile] = kTileRows;
    }
    asm volatile("" : : "r"(&config) : "memory");  // gcc 12 does not know that all of it is read
    _tile_loadconfig(&config);
  }
  ~TileShapes() {
    if (used_) _tile_release();
  }
  TileShapes(const TileShapes&) = delete;
  TileShapes& operator=(const TileShapes&) = delete;

 private:
  struct alignas(64) Config {
    uint8_t palette, start, reserved[14];
    uint16_t bytes[16];
    uint8_t rows[16];
  };
  bool used_;
};

// Memory for rows of x in tiles, each in one piece, which the CPU reads ahead, and each row a line of the cache. It
// is the thread's own, and good until its next call.
inline char* memory_for_tiles(int64_t bytes) {
  struct alignas(kTileBytes) Line {
    char bytes[kTileBytes];
  };
  static thread_local std::vector<Line> memory;
  int64_t lines = bytes / kTileBytes;
  if ((int64_t)memory.size() < lines) memory.resize(lines);
  return memory.data()->bytes;
}

inline int64_t whole_tiles(int64_t rows) { return (rows + kTileRows - 1) / kTileRows * kTileRows; }

template <typename Sum, int Rows>
struct TileSums {
  Sum at[Rows][2];
};

// A panel's weights for one tile's depth, as two tiles of 16 columns; asks for what `fetch` says meanwhile.
struct PanelTiles {
  static constexpr int64_t kSteps = 16, kStepBytes = 128, kBytes = kSteps * kStepBytes;
  const char *weights, *next;
  int64_t stride;

  void load_into_6_and_7() {
    for (int64_t i = 0; i < kSteps * stride; i += 64) __builtin_prefetch(next + i);
    _tile_loadd(6, weights, kStepBytes);
    _tile_loadd(7, weights + kStepBytes / 2, kStepBytes);
    weights += kBytes;
    next += kSteps * stride;
  }
};

// bfloat16: up to two tiles of rows.
struct PairTiles {
  static constexpr int64_t kRows = 2 * kTileRows, kDepth = 32;
  typedef TileSums<Floats, kRows> Sums;
  int64_t first, rows;
  Fetch fetch;

  // Zeros below the last row.
  static const Bfloat16* lay_out(const Bfloat16* x, int64_t rows, int64_t depth) {
    constexpr int64_t kElements = kTileRows * kDepth;
    int64_t whole = whole_tiles(rows);
    auto tiles = (Bfloat16*)memory_for_tiles(whole * depth * sizeof *x);
    for (int64_t row = 0; row < whole; row++) {
      Bfloat16* to = tiles + row / kTileRows * kTileRows * depth + row % kTileRows * kDepth;
      for (int64_t d = 0; d < depth; d += kDepth, to += kElements) {
        if (row < rows)
          std::memcpy(to, x + row * depth + d, kTileBytes);
        else
          std::memset((void*)to, 0, kTileBytes);
      }
    }
    return tiles;
  }

  Sums multiply(const Bfloat16* tiles, int64_t depth, const char* weights, int64_t further) const {
    Sums sums;
    PanelTiles panel = {weights, fetch.from + further, fetch.stride};
    if (rows > kTileRows)
      multiply<2>(tiles + first * depth, depth, panel, sums);
    else
      multiply<1>(tiles + first * depth, depth, panel, sums);
    return sums;
  }

 private:
  template <int Tiles>
  void multiply(const Bfloat16* x, int64_t depth, PanelTiles panel, Sums& sums) const {
    const Bfloat16* below = x + kTileRows * depth;
    _tile_zero(0);
    _tile_zero(1);
    if (Tiles == 2) {
      _tile_zero(2);
      _tile_zero(3);
    }
    for (int64_t d = 0; d < depth; d += kDepth) {
      panel.load_into_6_and_7();
      _tile_loadd(4, x, kTileBytes);
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 4, 7);
      if (Tiles == 2) {
        _tile_loadd(5, below, kTileBytes);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
      }
      x += kTileRows * kDepth;
      below += kTileRows * kDepth;
    }
    _tile_stored(0, &sums.at[0][0], sizeof sums.at[0]);
    _tile_stored(1, &sums.at[0][1], sizeof sums.at[0]);
    if (Tiles == 2) {
      _tile_stored(2, &sums.at[kTileRows][0], sizeof sums.at[0]);
      _tile_stored(3, &sums.at[kTileRows][1], sizeof sums.at[0]);
    }
  }
};

// Weights of 8 bits by x of 16, whose upper and lower 8 bits are multiplied apart: one tile of rows.
struct Int8Tiles {
  static constexpr int64_t kRows = kTileRows, kDepth = 64;
  typedef TileSums<Ints, kRows> Sums;
  int64_t first, rows;
  Fetch fetch;

  // By turns a tile of upper bits, which have the sign, and one of lower bits. Below the last row lies anything.
  static const int16_t* lay_out(const int16_t* x, int64_t rows, int64_t depth) {
    char* tiles = memory_for_tiles(whole_tiles(rows) * depth * sizeof *x);
    for (int64_t row = 0; row < rows; row++) {
      char* to = tiles + row / kTileRows * kTileRows * depth * 2 + row % kTileRows * kTileBytes;
      for (int64_t d = 0; d < depth; d += kDepth, to += 2 * kTileRows * kTileBytes)
        for (int64_t half = 0; half < kDepth; half += kDepth / 2) {
          __m512i v = _mm512_loadu_si512(x + row * depth + d + half);
          _mm256_storeu_si256((__m256i*)(to + half), _mm512_cvtepi16_epi8(_mm512_srai_epi16(v, 8)));
          _mm256_storeu_si256((__m256i*)(to + kTileRows * kTileBytes + half), _mm512_cvtepi16_epi8(v));
        }
    }
    return (const int16_t*)tiles;
  }

  Sums multiply(const int16_t* tiles, int64_t depth, const char* weights, int64_t further) const {
    auto x = (const char*)(tiles + first * depth);
    PanelTiles panel = {weights, fetch.from + further, fetch.stride};
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t d = 0; d < depth; d += kDepth, x += 2 * kTileRows * kTileBytes) {
      panel.load_into_6_and_7();
      _tile_loadd(4, x, kTileBytes);
      _tile_loadd(5, x + kTileRows * kTileBytes, kTileBytes);
      _tile_dpbssd(0, 4, 6);
      _tile_dpbssd(1, 4, 7);
      _tile_dpbusd(2, 5, 6);
      _tile_dpbusd(3, 5, 7);
    }
    Sums upper, lower;
    _tile_stored(0, &upper.at[0][0], sizeof upper.at[0]);
    _tile_stored(1, &upper.at[0][1], sizeof upper.at[0]);
    _tile_stored(2, &lower.at[0][0], sizeof lower.at[0]);
    _tile_stored(3, &lower.at[0][1], sizeof lower.at[0]);
    for (int64_t row = 0; row < rows; row++)
      for (int z = 0; z < 2; z++) lower.at[row][z] += upper.at[row][z] << 8;
    return lower;
  }
};

#else

typedef NoTiles PairTiles;

inline bool may_use_tiles() { return false; }

struct TileShapes {
  TileShapes() {}  // not trivial: nobody uses it
};

#endif
