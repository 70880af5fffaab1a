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
void product(const typename Kind::Element* x, int64_t rows, const Weights<Kind>& w, Scratch16 scratch,
             typename Kind::Element* y) {
#pragma omp parallel
  {
    TileShapes shapes;
    multiply(ready(x, rows, w.depth, (const typename Kind::Input*)nullptr, scratch), rows, w,
             [&](int64_t row, int64_t column, Floats values) {
               store_some(y + row * w.columns + column, values, w.columns - column);
             });
  }
}

}  // namespace

#define EXPORT(name, ...)                                                                                         \
  extern "C" void product_##name(const void* x, int64_t rows, const Weights<__VA_ARGS__>* w, Scratch16 scratch, void* y) { \
    typedef __VA_ARGS__::Element T;                                                                               \
    product((const T*)x, rows, *w, scratch, (T*)y);                                                               \
  }

extern "C" int64_t has_tiles() { return may_use_tiles(); }

// Elements of a column that lie together in its panel; 0 where integers cannot be multiplied.
extern "C" int64_t int8_step() {
#if defined(HAS_INT8)
  if (Int8<float>::kByVectors || may_use_tiles()) return Int8<float>::kStep;
#endif
  return 0;
}

EXPORT(float32, Float32)
#if defined(__AVX512BF16__)
EXPORT(bfloat16, Pairs)
#endif
#if defined(HAS_INT8)
EXPORT(int8_float32, Int8<float>)
EXPORT(int8_bfloat16, Int8<Bfloat16>)
#endif

#endif
