// Attention on its own.

#include "attention.h"

namespace {

template <typename T>
void attend_alone(const Attention& c) {
#pragma omp parallel if (c.num_chunks * c.kv_heads > 1)
  attend<T>(c, [](const int64_t*, int64_t) {});
}

}  // namespace

extern "C" void attend_float32(const Attention* call) { attend_alone<float>(*call); }
extern "C" void attend_bfloat16(const Attention* call) { attend_alone<Bfloat16>(*call); }
