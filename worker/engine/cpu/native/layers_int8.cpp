// Layers of int8 weights: a file of their own, so that compilers run side by side.

#include "layers.h"

#if defined(HAS_INT8)

extern "C" void run_layers_int8_float32(const Pass<Int8<float>>* pass) { run(*pass); }
extern "C" void run_layers_int8_bfloat16(const Pass<Int8<Bfloat16>>* pass) { run(*pass); }

#endif
