// Decoder layers of Llama's kind in one call: for few tokens most of a step would go into calls from Python, and
// into starting threads. Values are rounded where the model's own code rounds them.

#pragma once

#include <algorithm>

#include "attention.h"
#include "elementwise.h"
#include "panels.h"

#if defined(__AVX512F__)

template <typename Kind>
struct Layer {
  typedef typename Kind::Element T;
  const T *attention_norm, *mlp_norm;
  const T *query_norm, *key_norm;  // or none
  Weights<Kind> qkv, output, gate_up, down;
  int64_t window, whole;
  float scale;
  int64_t tap;  // its output's place among the features; -1: none
};

template <typename Kind>
struct Pass {
  typedef typename Kind::Element T;
  const Layer<Kind>* layers;
  int64_t num_layers, hidden, inner, heads, kv_heads, head_dim;
  float epsilon;
  int64_t tokens;
  T* x;                     // [tokens, hidden]: what comes in, and then what goes out
  const T *cosine, *sine;   // [tokens, head_dim]
  void* const* keys;        // each layer's cache
  void* const* values;
  const int64_t* chunks;    // as attention takes them
  int64_t num_chunks, positions;
  T *normed, *qkv, *attended, *activated;  // [tokens, hidden], [.., heads and kv_heads twice], [.., heads], [.., inner]
  Scratch16 scratch;                       // for the widest of them
  T* features;                             // [tokens, taps * hidden]
  int64_t taps;
};

template <typename T>
void norm_all(const T* x, const T* weight, float epsilon, int64_t rows, int64_t dim, T* y) {
#pragma omp for schedule(static)
  for (int64_t row = 0; row < rows; row++) rms_norm(x + row * dim, weight, epsilon, dim, y + row * dim);
}

template <typename Kind>
Rows<typename Kind::Input> ready_for(const Pass<Kind>& p, const typename Kind::Element* x, const Weights<Kind>& w) {
  return ready(x, p.tokens, w.depth, (const typename Kind::Input*)nullptr, p.scratch);
}

// p.x += x W^T
template <typename Kind>
void add_product(const Pass<Kind>& p, const typename Kind::Element* x, const Weights<Kind>& w) {
  typedef typename Kind::Element T;
  multiply(ready_for(p, x, w), p.tokens, w, [&](int64_t row, int64_t column, Floats values) {
    T* to = p.x + row * w.columns + column;
    store(to, load(to) + rounded<T>(values));
  });
}

// silu(x G^T) * x U^T: the same columns of both, one after the other.
template <typename Kind>
void multiply_gated(const Rows<typename Kind::Input>& rows, int64_t count, const Weights<Kind>& w,
                    typename Kind::Element* y) {
  typedef typename Kind::Element T;
  int64_t panels = w.columns / 2 / kPanel;
  for_panels(rows, count, w, panels, [&](auto x, auto block, int64_t panel, int64_t row) {
    auto gates = block.multiply(x, w.depth, w.panel(panel), 0);
    auto ups = block.multiply(x, w.depth, w.panel(panels + panel), panels * w.panel_bytes());
    for (int64_t i = 0; i < block.rows; i++) {
      float scale = rows.scale(row + i);
      for (int z = 0; z < 2; z++) {
        int64_t column = panel * kPanel + z * kLanes;
        Floats gate = w.value(gates.at[i][z], column, scale);
        Floats up = w.value(ups.at[i][z], w.columns / 2 + column, scale);
        store(y + (row + i) * (w.columns / 2) + column, silu_and_multiply<T>(rounded<T>(gate), rounded<T>(up)));
      }
    }
  });
}

template <typename Kind>
void attend_layer(const Pass<Kind>& p, const Layer<Kind>& l, int64_t index) {
  typedef typename Kind::Element T;
  int64_t dim = p.head_dim, width = l.qkv.columns, group = p.heads / p.kv_heads;
  T *keys = p.qkv + p.heads * dim, *values = keys + p.kv_heads * dim;
  Strides strides = {width, dim};
  Attention call = {p.qkv,      keys,          values,       strides,     strides, strides, p.keys[index], p.values[index],
                    p.attended, p.chunks,      p.num_chunks, p.kv_heads,  group,   p.positions, dim,       dim,
                    l.window,   l.whole,       l.scale};
  auto rotate_head = [&](T* head, const T* norm, int64_t token) {
    if (norm) rms_norm(head, norm, p.epsilon, dim, head);
    rotate(head, p.cosine + token * dim, p.sine + token * dim, dim, head);
  };
  attend<T>(call, [&](const int64_t* chunk, int64_t kv_head) {
    for (int64_t token = chunk[2]; token < chunk[2] + chunk[3]; token++) {
      rotate_head(keys + token * width + kv_head * dim, l.key_norm, token);
      for (int64_t head = kv_head * group; head < (kv_head + 1) * group; head++)
        rotate_head(p.qkv + token * width + head * dim, l.query_norm, token);
    }
  });
}

// Whoever is done goes on: before p.x changes again there is a barrier.
template <typename Kind>
void keep_features(const Pass<Kind>& p, int64_t place) {
#pragma omp for schedule(static) nowait
  for (int64_t token = 0; token < p.tokens; token++)
    std::copy_n(p.x + token * p.hidden, p.hidden, p.features + (token * p.taps + place) * p.hidden);
}

template <typename Kind>
void run(const Pass<Kind>& p) {
#pragma omp parallel
  {
    TileShapes shapes;
    for (int64_t index = 0; index < p.num_layers; index++) {
      const Layer<Kind>& l = p.layers[index];
      norm_all(p.x, l.attention_norm, p.epsilon, p.tokens, p.hidden, p.normed);
      multiply(ready_for(p, p.normed, l.qkv), p.tokens, l.qkv, [&](int64_t row, int64_t column, Floats values) {
        store(p.qkv + row * l.qkv.columns + column, values);
      });
#pragma omp barrier
      attend_layer(p, l, index);
      add_product(p, p.attended, l.output);
#pragma omp barrier
      norm_all(p.x, l.mlp_norm, p.epsilon, p.tokens, p.hidden, p.normed);
      multiply_gated(ready_for(p, p.normed, l.gate_up), p.tokens, l.gate_up, p.activated);
#pragma omp barrier
      add_product(p, p.activated, l.down);
#pragma omp barrier
      if (l.tap >= 0) keep_features(p, l.tap);
    }
  }
}

#endif
