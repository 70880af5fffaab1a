// Sixteen floats at a time, written with the compiler's own vectors: it splits them where the CPU's are shorter.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__AVX512BF16__) && defined(__AVX512BW__)
#include <immintrin.h>
#endif

constexpr int kLanes = 16;

typedef float Floats __attribute__((vector_size(64)));
typedef int32_t Ints __attribute__((vector_size(64)));
typedef uint32_t Words __attribute__((vector_size(64)));
typedef uint16_t Halves __attribute__((vector_size(32)));

// bfloat16 is the upper half of a float.
struct Bfloat16 {
  uint16_t bits;
};

inline Floats splat(float x) { return Floats{} + x; }

inline Floats load(const float* p) {
  Floats v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

inline Floats load(const Bfloat16* p) {
  Halves h;
  std::memcpy(&h, p, sizeof h);
  return (Floats)(__builtin_convertvector(h, Words) << 16);
}

inline void store(float* p, Floats v) { std::memcpy(p, &v, sizeof v); }

// Round to nearest even, as torch does; NaN stays NaN.
inline Halves to_halves(Floats v) {
#if defined(__AVX512BF16__) && defined(__AVX512BW__)
  return (Halves)_mm512_cvtneps_pbh((__m512)v);
#else
  Words w = (Words)v;
  Words rounded = (w + 0x7fff + ((w >> 16) & 1)) >> 16;
  Words is_nan = (Words)(v != v);
  return __builtin_convertvector((is_nan & 0x7fc0) | (~is_nan & rounded), Halves);
#endif
}

inline void store(Bfloat16* p, Floats v) {
  Halves h = to_halves(v);
  std::memcpy(p, &h, sizeof h);
}

// What is left of a value that is stored as T and loaded again.
template <typename T>
inline Floats rounded(Floats v);
template <>
inline Floats rounded<float>(Floats v) {
  return v;
}
template <>
inline Floats rounded<Bfloat16>(Floats v) {
  return (Floats)(__builtin_convertvector(to_halves(v), Words) << 16);
}

inline Floats larger(Floats a, Floats b) { return a > b ? a : b; }

inline float sum(Floats v) {
  float s[kLanes];
  std::memcpy(s, &v, sizeof v);
  for (int half = kLanes / 2; half; half /= 2)
    for (int i = 0; i < half; i++) s[i] += s[i + half];
  return s[0];
}

inline float largest(Floats v) {
  float s[kLanes];
  std::memcpy(s, &v, sizeof v);
  for (int half = kLanes / 2; half; half /= 2)
    for (int i = 0; i < half; i++) s[i] = s[i] > s[i + half] ? s[i] : s[i + half];
  return s[0];
}

// The sums of sixteen vectors, as one vector: a tree of pairwise sums instead of sixteen reductions.
inline Floats sums(Floats v[kLanes]) {
  for (int i = 0; i < 8; i++)
    v[i] = __builtin_shufflevector(v[i], v[i + 8], 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23) +
           __builtin_shufflevector(v[i], v[i + 8], 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
  for (int i = 0; i < 4; i++)
    v[i] = __builtin_shufflevector(v[i], v[i + 4], 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27) +
           __builtin_shufflevector(v[i], v[i + 4], 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31);
  for (int i = 0; i < 2; i++)
    v[i] = __builtin_shufflevector(v[i], v[i + 2], 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29) +
           __builtin_shufflevector(v[i], v[i + 2], 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
  return __builtin_shufflevector(v[0], v[1], 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30) +
         __builtin_shufflevector(v[0], v[1], 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31);
}

// e^x to float's precision: x = n ln 2 + r, a polynomial for e^r, n into the exponent. Below -87 it is 0.
inline Floats exponential(Floats x) {
  const Floats magic = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  Floats clamped = larger(x, splat(-87.0f));
  clamped = clamped < 88.0f ? clamped : splat(88.0f);
  Floats shifted = clamped * 1.44269504088896341f + magic;
  Floats n = shifted - magic;
  Floats r = clamped - n * 0.693359375f - n * -2.12194440e-4f;
  Floats p = splat(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  Ints exponent = ((Ints)shifted - (Ints)magic) << 23;
  Floats y = (Floats)((Ints)p + exponent);
  y = x < -87.0f ? Floats{} : y;
  return x != x ? x : y;
}
