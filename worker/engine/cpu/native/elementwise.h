// What a layer does to a row between its products. Values are rounded where the model's own code rounds them.
#pragma once

#include <cmath>

#include "vectors.h"

// Llama's: the normalised row is rounded, then multiplied by the weight. In place too.
template <typename T>
inline void rms_norm(const T* x, const T* weight, float epsilon, int64_t dim, T* y) {
  Floats squares = {};
  for (int64_t d = 0; d < dim; d += kLanes) squares += load(x + d) * load(x + d);
  float factor = 1.0f / std::sqrt(sum(squares) / (float)dim + epsilon);
  for (int64_t d = 0; d < dim; d += kLanes) store(y + d, rounded<T>(load(x + d) * factor) * load(weight + d));
}

template <typename T>
inline Floats silu_and_multiply(Floats gate, Floats up) {
  return rounded<T>(gate / (1.0f + exponential(-gate))) * up;
}

// Rotary embedding of a head, whose halves are the two coordinates. In place too.
template <typename T>
inline void rotate(const T* x, const T* cosine, const T* sine, int64_t dim, T* y) {
  int64_t half = dim / 2;
  for (int64_t d = 0; d < half; d += kLanes) {
    Floats a = load(x + d), b = load(x + half + d);
    store(y + d, rounded<T>(a * load(cosine + d)) - rounded<T>(b * load(sine + d)));
    store(y + half + d, rounded<T>(b * load(cosine + half + d)) + rounded<T>(a * load(sine + half + d)));
  }
}
