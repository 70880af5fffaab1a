// The product of a linear layer on its own.

#include "panels.h"

#if defined(__AVX512F__)

namespace {

template <typename T>
inline void store_some(T* to, Floats v, int64_t count) {
  if (count >= kLanes) return store(to, v);
  T all[kLanes];
  store(all, v);
  for (int64_t i = 0; i < count; i++) to[i] = all[i];
}

template <typename Kind>
void product(const typename Kind::Element* x, int64_t rows, const Weights<Kind>& w, typename Kind::Element* y) {
#pragma omp parallel
  multiply(x, rows, w, [&](int64_t row, int64_t column, Floats sums) {
    store_some(y + row * w.columns + column, sums, w.columns - column);
  });
}

}  // namespace

#define EXPORT(Kind, name)                                                                                        \
  extern "C" void product_##name(const Kind::Element* x, int64_t rows, int64_t depth, const void* weights,          \
                                 const Kind::Element* bias, int64_t columns, Kind::Element* y) {                   \
    product<Kind>(x, rows, {weights, bias, columns, depth}, y);                                                    \
  }

EXPORT(Float32, float32)
#if defined(__AVX512BF16__)
EXPORT(Pairs, bfloat16)
#endif

#endif
