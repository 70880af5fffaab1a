// Layers whose weights are what activations are.

#include "layers.h"

#if defined(__AVX512F__)

extern "C" void run_layers_float32(const Pass<Float32>* pass) { run(*pass); }
#if defined(__AVX512BF16__)
extern "C" void run_layers_bfloat16(const Pass<Pairs>* pass) { run(*pass); }
#endif

#endif
