// What a drafter remembers of the target's positions: keys, normed and rotated, and values, put into its cache.

#include "elementwise.h"

namespace {

struct Context {
  void* keys_values;           // [tokens, 2, layers, heads, dim]; overwritten
  const void* norms;           // [layers, dim], of keys
  const void *cosine, *sine;   // [positions, dim]
  const int64_t *slots, *at;   // [tokens]: where each belongs
  void *const *keys, *const *values;  // each layer's cache, [slots, heads, capacity, dim]
  int64_t tokens, layers, heads, dim, capacity;
  float epsilon;
};

template <typename T>
void store(const Context& c) {
#pragma omp parallel for if (c.tokens > 16)
  for (int64_t token = 0; token < c.tokens; token++) {
    T* key = (T*)c.keys_values + token * 2 * c.layers * c.heads * c.dim;
    const T* value = key + c.layers * c.heads * c.dim;
    int64_t turn = c.at[token] * c.dim;
    for (int64_t layer = 0; layer < c.layers; layer++)
      for (int64_t head = 0; head < c.heads; head++, key += c.dim, value += c.dim) {
        int64_t place = ((c.slots[token] * c.heads + head) * c.capacity + c.at[token]) * c.dim;
        rms_norm(key, (const T*)c.norms + layer * c.dim, c.epsilon, c.dim, key);
        rotate(key, (const T*)c.cosine + turn, (const T*)c.sine + turn, c.dim, (T*)c.keys[layer] + place);
        std::memcpy((T*)c.values[layer] + place, value, c.dim * sizeof(T));
      }
  }
}

}  // namespace

extern "C" void store_context_float32(const Context* context) { store<float>(*context); }
extern "C" void store_context_bfloat16(const Context* context) { store<Bfloat16>(*context); }
