// The operations between products, each on its own.

#include "elementwise.h"

namespace {

constexpr int64_t kParallel = 1 << 14;  // elements from which a second thread pays

template <typename T>
void rms_norm_rows(const T* x, int64_t stride, const T* weight, float epsilon, int64_t rows, int64_t dim, T* y) {
#pragma omp parallel for if (rows * dim > kParallel)
  for (int64_t row = 0; row < rows; row++) rms_norm(x + row * stride, weight, epsilon, dim, y + row * dim);
}

template <typename T>
void silu_and_multiply_rows(const T* gate_up, int64_t rows, int64_t dim, T* y) {
#pragma omp parallel for if (rows * dim > kParallel)
  for (int64_t row = 0; row < rows; row++) {
    const T* gate = gate_up + row * 2 * dim;
    for (int64_t d = 0; d < dim; d += kLanes)
      store(y + row * dim + d, silu_and_multiply<T>(load(gate + d), load(gate + dim + d)));
  }
}

// Of [tokens, heads, dim].
template <typename T>
void rotate_heads(const T* x, int64_t token_stride, int64_t head_stride, const T* cosine, const T* sine,
                  int64_t tokens, int64_t heads, int64_t dim, T* y) {
#pragma omp parallel for if (tokens * heads * dim > kParallel)
  for (int64_t token = 0; token < tokens; token++)
    for (int64_t head = 0; head < heads; head++)
      rotate(x + token * token_stride + head * head_stride, cosine + token * dim, sine + token * dim, dim,
             y + (token * heads + head) * dim);
}

}  // namespace

#define EXPORT(T, name)                                                                                         \
  extern "C" void rms_norm_##name(const T* x, int64_t stride, const T* weight, float epsilon, int64_t rows,     \
                                  int64_t dim, T* y) {                                                          \
    rms_norm_rows(x, stride, weight, epsilon, rows, dim, y);                                                    \
  }                                                                                                             \
  extern "C" void silu_and_multiply_##name(const T* gate_up, int64_t rows, int64_t dim, T* y) {                 \
    silu_and_multiply_rows(gate_up, rows, dim, y);                                                              \
  }                                                                                                             \
  extern "C" void rotate_##name(const T* x, int64_t token_stride, int64_t head_stride, const T* cosine,         \
                                const T* sine, int64_t tokens, int64_t heads, int64_t dim, T* y) {              \
    rotate_heads(x, token_stride, head_stride, cosine, sine, tokens, heads, dim, y);                            \
  }

EXPORT(float, float32)
EXPORT(Bfloat16, bfloat16)
