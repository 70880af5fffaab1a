// Attention of short chunks of rows over their own slots of the cache, and the writing of the cache.
//
// A task is one chunk and one key head: it stores the chunk's keys and values, then reads the slot once for all
// queries that share the head, in blocks of keys with a running softmax. Nothing depends on other rows.

#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "vectors.h"

constexpr int kBlock = 64;    // keys at a time: their scores stay in the nearest cache
constexpr int kTogether = 3;  // queries that share each load of a value

struct Strides {
  int64_t token, head;
};

struct Attention {
  const void *query, *key, *value;
  Strides query_strides, key_strides, value_strides;
  void *keys, *values;          // the layer's cache: [slots, kv_heads, positions, dim]
  void* output;                 // [tokens, heads, value_dim]
  const int64_t* chunks;        // [num_chunks, 4]: slot, start, offset of its first token in the pass, length
  int64_t num_chunks, kv_heads, group, positions, key_dim, value_dim;
  int64_t window;  // how many keys a query sees, itself included; 0: all before it
  int64_t whole;   // not 0: and as well those after it in its chunk
  float scale;
};

// Scores of one query with sixteen keys, which lie `dim` apart. D is dim where it is known, else 0: with it the
// keys' addresses are constants beside one register.
template <int D>
inline Floats scores16(const float* query, const float* keys, int64_t dim) {
  if (D) dim = D;
  Floats sum[kLanes] = {};
  for (int64_t d = 0; d < dim; d += kLanes) {
    Floats q = load(query + d);
    for (int j = 0; j < kLanes; j++) sum[j] += q * load(keys + j * dim + d);
  }
  return sums(sum);
}

template <int D>
inline Floats scores16(const Bfloat16* query, const Bfloat16* keys, int64_t dim) {
  if (D) dim = D;
  Floats sum[kLanes] = {};
  int64_t d = 0;
#if defined(__AVX512BF16__) && defined(__AVX512BW__)
  for (; d + 2 * kLanes <= dim; d += 2 * kLanes) {
    __m512bh q = (__m512bh)_mm512_loadu_si512(query + d);
    for (int j = 0; j < kLanes; j++)
      sum[j] = (Floats)_mm512_dpbf16_ps((__m512)sum[j], q, (__m512bh)_mm512_loadu_si512(keys + j * dim + d));
  }
#endif
  for (; d < dim; d += kLanes) {
    Floats q = load(query + d);
    for (int j = 0; j < kLanes; j++) sum[j] += q * load(keys + j * dim + d);
  }
  return sums(sum);
}

// Ask for what is read next: between slots, and at each new block, the CPU does not foresee it.
inline void fetch(const void* from, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch((const char*)from + i);
}

// sums[q] += weights[q] * values, for Q queries and Z vectors of the value. `next` is as long as the values.
template <int Q, int Z, typename T>
inline void add_values(const float* weights, const T* values, int64_t dim, int64_t num_keys, float* sums,
                       const T* next) {
  Floats total[Q][Z];
  for (int q = 0; q < Q; q++)
    for (int z = 0; z < Z; z++) total[q][z] = load(sums + q * dim + z * kLanes);
  for (int64_t j = 0; j < num_keys; j++) {
    Floats v[Z];
    for (int z = 0; z < Z; z++) v[z] = load(values + j * dim + z * kLanes);
    if (next) fetch(next + j * dim, Z * kLanes * sizeof(T));
    for (int q = 0; q < Q; q++)
      for (int z = 0; z < Z; z++) total[q][z] += v[z] * weights[q * kBlock + j];
  }
  for (int q = 0; q < Q; q++)
    for (int z = 0; z < Z; z++) store(sums + q * dim + z * kLanes, total[q][z]);
}

template <int Q, typename T>
void add_all_values(const float* weights, const T* values, int64_t dim, int64_t num_keys, float* sums,
                    const T* next) {
  int64_t d = 0;
  for (; d + 4 * kLanes <= dim; d += 4 * kLanes)
    add_values<Q, 4>(weights, values + d, dim, num_keys, sums + d, next ? next + d : next);
  for (; d < dim; d += kLanes) add_values<Q, 1>(weights, values + d, dim, num_keys, sums + d, (const T*)nullptr);
}

// Which keys a query sees: [first, end).
struct Span {
  int64_t first, end;
};

// What a thread works with, kept between its tasks.
template <typename T>
struct Scratch {
  std::vector<T> queries;
  std::vector<float> weights, sums, highest, total;
  std::vector<Span> spans;

  void resize(int64_t n, int64_t key_dim, int64_t value_dim) {
    queries.resize(n * key_dim);
    weights.resize(n * kBlock);
    sums.assign(n * value_dim, 0.0f);
    highest.assign(n, -INFINITY);
    total.assign(n, 0.0f);
    spans.resize(n);
  }
};

template <typename T>
void copy_rows(const T* source, Strides strides, int64_t head, int64_t offset, int64_t length, int64_t dim, T* to) {
  for (int64_t i = 0; i < length; i++)
    std::memcpy(to + i * dim, source + (offset + i) * strides.token + head * strides.head, dim * sizeof(T));
}

// Scores of a query with the block's keys become weights e^(score - highest); earlier sums are rescaled.
template <int D, typename T>
void weigh(Scratch<T>& s, int64_t q, const T* keys, int64_t block, int64_t num_keys, const Attention& c, const T* next) {
  float* weights = s.weights.data() + q * kBlock;
  int64_t low = std::max<int64_t>(s.spans[q].first - block, 0);
  int64_t high = std::min(s.spans[q].end - block, num_keys);
  if (low >= high) {
    std::fill(weights, weights + kBlock, 0.0f);
    return;
  }
  const T* query = s.queries.data() + q * c.key_dim;
  T tail[kLanes * 256];  // the last keys of the slot, where sixteen would reach beyond its end
  Ints lane;
  for (int i = 0; i < kLanes; i++) lane[i] = i;
  Floats highest = splat(-INFINITY);
  Floats score[kBlock / kLanes];
  for (int64_t j = 0; j < kBlock; j += kLanes) {
    Floats x = splat(-INFINITY);
    if (next && j < num_keys)
      fetch(next + j * c.value_dim, std::min<int64_t>(kLanes, num_keys - j) * c.value_dim * sizeof(T));
    if (j < high && j + kLanes > low) {
      const T* from = keys + j * c.key_dim;
      if (block + j + kLanes > c.positions) {
        std::memset(tail, 0, sizeof(T) * kLanes * c.key_dim);
        std::memcpy(tail, from, sizeof(T) * (c.positions - block - j) * c.key_dim);
        from = tail;
      }
      Ints index = lane + (int32_t)j;
      x = scores16<D>(query, from, c.key_dim) * c.scale;
      x = (index >= (int32_t)low) & (index < (int32_t)high) ? x : splat(-INFINITY);
    }
    score[j / kLanes] = x;
    highest = larger(x, highest);
  }
  float before = s.highest[q];
  float now = std::max(before, largest(highest));
  if (!(now > -INFINITY)) now = 0.0f;  // all are NaN or -inf: let them through
  Floats total = {};
  for (int64_t j = 0; j < kBlock; j += kLanes) {
    Floats w = exponential(score[j / kLanes] - now);
    store(weights + j, w);
    total += w;
  }
  if (now != before) {
    float factor = before == -INFINITY ? 0.0f : std::exp(before - now);
    s.total[q] *= factor;
    float* sums = s.sums.data() + q * c.value_dim;
    for (int64_t d = 0; d < c.value_dim; d += kLanes) store(sums + d, load(sums + d) * factor);
    s.highest[q] = now;
  }
  s.total[q] += sum(total);
}

template <int D, typename T>
void attend_chunk(const Attention& c, int64_t index, int64_t kv_head, Scratch<T>& s) {
  const int64_t* chunk = c.chunks + 4 * index;
  int64_t slot = chunk[0], start = chunk[1], offset = chunk[2], length = chunk[3];
  int64_t where = (slot * c.kv_heads + kv_head) * c.positions;
  T* keys = (T*)c.keys + where * c.key_dim;
  T* values = (T*)c.values + where * c.value_dim;
  copy_rows((const T*)c.key, c.key_strides, kv_head, offset, length, c.key_dim, keys + start * c.key_dim);
  copy_rows((const T*)c.value, c.value_strides, kv_head, offset, length, c.value_dim, values + start * c.value_dim);

  int64_t n = length * c.group;
  s.resize(n, c.key_dim, c.value_dim);
  for (int64_t i = 0; i < length; i++) {
    int64_t position = start + i;
    int64_t first = c.window ? std::max<int64_t>(position - c.window + 1, 0) : 0;
    for (int64_t g = 0; g < c.group; g++) {
      int64_t q = i * c.group + g;
      copy_rows((const T*)c.query, c.query_strides, kv_head * c.group + g, offset + i, 1, c.key_dim,
                s.queries.data() + q * c.key_dim);
      s.spans[q] = {first, c.whole ? start + length : position + 1};
    }
  }
  // Blocks start at multiples of their size, so that a query's sums do not depend on its neighbours.
  for (int64_t block = s.spans[0].first / kBlock * kBlock; block < start + length; block += kBlock) {
    int64_t num_keys = std::min<int64_t>(kBlock, start + length - block);
    int64_t q = 0;
    while (q < n && s.spans[q].end <= block) q++;  // earlier queries of a chunk do not see its last keys
    int64_t first = q;
    const T* from = values + block * c.value_dim;
    for (; q < n; q++) weigh<D>(s, q, keys + block * c.key_dim, block, num_keys, c, q == first ? from : nullptr);
    bool last = block + kBlock >= start + length;
    const T* next = last ? (kv_head + 1 < c.kv_heads ? keys + c.positions * c.key_dim : nullptr)
                         : keys + (block + kBlock) * c.key_dim;
    for (q = first; q < n; q += kTogether, next = nullptr) {
      const float* weights = s.weights.data() + q * kBlock;
      float* sums = s.sums.data() + q * c.value_dim;
      switch (std::min<int64_t>(kTogether, n - q)) {
        case 3: add_all_values<3>(weights, from, c.value_dim, num_keys, sums, next); break;
        case 2: add_all_values<2>(weights, from, c.value_dim, num_keys, sums, next); break;
        default: add_all_values<1>(weights, from, c.value_dim, num_keys, sums, next);
      }
    }
  }
  int64_t heads = c.kv_heads * c.group;
  for (int64_t q = 0; q < n; q++) {
    int64_t head = kv_head * c.group + q % c.group;
    T* to = (T*)c.output + ((offset + q / c.group) * heads + head) * c.value_dim;
    const float* sums = s.sums.data() + q * c.value_dim;
    for (int64_t d = 0; d < c.value_dim; d += kLanes) store(to + d, load(sums + d) / s.total[q]);
  }
}

// All tasks of a call, shared among the threads of the parallel region around it; they wait for each other.
// `prepare` makes ready the pass's queries, key and value of a chunk and key head.
template <int D, typename T, typename Prepare>
inline void attend_all(const Attention& c, Prepare prepare) {
  static thread_local Scratch<T> scratch;
  int64_t tasks = c.num_chunks * c.kv_heads;
  int64_t grain = c.num_chunks > 8 ? c.kv_heads : 1;  // heads of a slot lie together
#pragma omp for schedule(dynamic, grain)
  for (int64_t task = 0; task < tasks; task++) {
    prepare(c.chunks + 4 * (task / c.kv_heads), task % c.kv_heads);
    attend_chunk<D>(c, task / c.kv_heads, task % c.kv_heads, scratch);
  }
}

template <typename T, typename Prepare>
inline void attend(const Attention& c, Prepare prepare) {
  switch (c.key_dim) {
    case 64: return attend_all<64, T>(c, prepare);
    case 128: return attend_all<128, T>(c, prepare);
    default: return attend_all<0, T>(c, prepare);
  }
}
