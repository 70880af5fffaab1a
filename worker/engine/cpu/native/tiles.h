// The same products by matrix tiles (AMX), where the CPU has them: 16 rows of x by 32 elements by 16 columns in one
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

#if defined(__AMX_BF16__) && defined(__AVX512BF16__) && defined(__linux__)

#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#define HAS_TILES 1

constexpr int64_t kTileRows = 16, kTileDepth = 32;
constexpr int64_t kTileElements = kTileRows * kTileDepth;

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

// Rows of x in tiles, each in one piece, which the CPU reads ahead; zeros below the last. It is the thread's own,
// and good until its next call.
inline const Bfloat16* in_tiles(const Bfloat16* x, int64_t rows, int64_t depth) {
  static thread_local std::vector<Bfloat16> tiles;
  int64_t whole = (rows + kTileRows - 1) / kTileRows * kTileRows;
  if ((int64_t)tiles.size() < whole * depth) tiles.resize(whole * depth);
  for (int64_t row = 0; row < whole; row++) {
    Bfloat16* to = tiles.data() + row / kTileRows * kTileRows * depth + row % kTileRows * kTileDepth;
    for (int64_t d = 0; d < depth; d += kTileDepth, to += kTileElements) {
      if (row < rows)
        std::memcpy(to, x + row * depth + d, kTileDepth * sizeof *x);
      else
        std::memset((void*)to, 0, kTileDepth * sizeof *x);
    }
  }
  return tiles.data();
}

struct TileSums {
  Floats at[2 * kTileRows][2];
};

// Up to two tiles of rows.
struct TileBlock {
  int64_t first, rows;
  Fetch fetch;

  TileSums multiply(const Bfloat16* tiles, int64_t depth, const char* weights, int64_t further) const {
    TileSums sums;
    tiles += first * depth;
    if (rows > kTileRows)
      multiply<2>(tiles, depth, weights, fetch.from + further, sums);
    else
      multiply<1>(tiles, depth, weights, fetch.from + further, sums);
    return sums;
  }

 private:
  template <int Tiles>
  void multiply(const Bfloat16* x, int64_t depth, const char* weights, const char* next, TileSums& sums) const {
    constexpr int64_t kSteps = kTileDepth / 2, kStepBytes = 128, kTileBytes = 64;
    const Bfloat16* below = x + kTileRows * depth;
    _tile_zero(0);
    _tile_zero(1);
    if (Tiles == 2) {
      _tile_zero(2);
      _tile_zero(3);
    }
    for (int64_t d = 0; d < depth; d += kTileDepth) {
      for (int64_t i = 0; i < kSteps * fetch.stride; i += 64) __builtin_prefetch(next + i);
      _tile_loadd(6, weights, kStepBytes);
      _tile_loadd(7, weights + kTileBytes, kStepBytes);
      _tile_loadd(4, x, kTileBytes);
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 4, 7);
      if (Tiles == 2) {
        _tile_loadd(5, below, kTileBytes);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
      }
      x += kTileElements;
      below += kTileElements;
      weights += kSteps * kStepBytes;
      next += kSteps * fetch.stride;
    }
    _tile_stored(0, &sums.at[0][0], sizeof sums.at[0]);
    _tile_stored(1, &sums.at[0][1], sizeof sums.at[0]);
    if (Tiles == 2) {
      _tile_stored(2, &sums.at[kTileRows][0], sizeof sums.at[0]);
      _tile_stored(3, &sums.at[kTileRows][1], sizeof sums.at[0]);
    }
  }
};

#else

inline bool may_use_tiles() { return false; }

struct TileShapes {
  TileShapes() {}  // not trivial: nobody uses it
};

#endif
