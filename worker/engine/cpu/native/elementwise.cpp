// What a layer does between its products. Values are rounded where the model's own code rounds them.

#include <cmath>

#include "vectors.h"

namespace {

constexpr int64_t kParallel = 1 << 14;  // elements from which a second thread pays

// Llama's: the normalised row is rounded, then multiplied by the weight.
template <typename T>
void rms_norm(const T* input, int64_t stride, const T* weight, float epsilon, int64_t rows, int64_t dim, T* output) {
#pragma omp parallel for if (rows * dim > kParallel)
  for (int64_t row = 0; row < rows; row++) {
    const T* x = input + row * stride;
    T* y = output + row * dim;
    Floats squares = {};
    for (int64_t d = 0; d < dim; d += kLanes) squares += load(x + d) * load(x + d);
    float factor = 1.0f / std::sqrt(sum(squares) / (float)dim + epsilon);
    for (int64_t d = 0; d < dim; d += kLanes) store(y + d, rounded<T>(load(x + d) * factor) * load(weight + d));
  }
}

template <typename T>
void silu_and_multiply(const T* gate_up, int64_t rows, int64_t dim, T* output) {
#pragma omp parallel for if (rows * dim > kParallel)
  for (int64_t row = 0; row < rows; row++) {
    const T* gate = gate_up + row * 2 * dim;
    const T* up = gate + dim;
    T* y = output + row * dim;
    for (int64_t d = 0; d < dim; d += kLanes) {
      Floats x = load(gate + d);
      store(y + d, rounded<T>(x / (1.0f + exponential(-x))) * load(up + d));
    }
  }
}

// Rotary embedding of [tokens, heads, dim]; the halves of a head are the two coordinates.
template <typename T>
void rotate(const T* input, int64_t token_stride, int64_t head_stride, const T* cosine, const T* sine, int64_t tokens,
            int64_t heads, int64_t dim, T* output) {
  int64_t half = dim / 2;
#pragma omp parallel for if (tokens * heads * dim > kParallel)
  for (int64_t token = 0; token < tokens; token++) {
    const T *cos = cosine + token * dim, *sin = sine + token * dim;
    for (int64_t head = 0; head < heads; head++) {
      const T* x = input + token * token_stride + head * head_stride;
      T* y = output + (token * heads + head) * dim;
      for (int64_t d = 0; d < half; d += kLanes) {
        Floats a = load(x + d), b = load(x + half + d);
        store(y + d, rounded<T>(a * load(cos + d)) - rounded<T>(b * load(sin + d)));
        store(y + half + d, rounded<T>(b * load(cos + half + d)) + rounded<T>(a * load(sin + half + d)));
      }
    }
  }
}

}  // namespace

#define EXPORT(T, name)                                                                                           \
  extern "C" void rms_norm_##name(const T* input, int64_t stride, const T* weight, float epsilon, int64_t rows,   \
                                  int64_t dim, T* output) {                                                       \
    rms_norm(input, stride, weight, epsilon, rows, dim, output);                                                  \
  }                                                                                                               \
  extern "C" void silu_and_multiply_##name(const T* gate_up, int64_t rows, int64_t dim, T* output) {              \
    silu_and_multiply(gate_up, rows, dim, output);                                                                \
  }                                                                                                               \
  extern "C" void rotate_##name(const T* input, int64_t token_stride, int64_t head_stride, const T* cosine,       \
                                const T* sine, int64_t tokens, int64_t heads, int64_t dim, T* output) {           \
    rotate(input, token_stride, head_stride, cosine, sine, tokens, heads, dim, output);                           \
  }

EXPORT(float, float32)
EXPORT(Bfloat16, bfloat16)
