// Choosing tokens: the largest logit of each row, and a drafted block's tokens one after the other.

#include "choosing.h"
#include "panels.h"

#include <vector>

extern "C" int omp_get_thread_num();
extern "C" int omp_get_num_threads();

namespace {

constexpr int64_t kPart = 1 << 13;  // elements that one thread looks through

template <typename T>
void largest_of_rows(const T* x, int64_t rows, int64_t columns, float* values, int64_t* places) {
  int64_t parts = (columns + kPart - 1) / kPart;
  std::vector<Largest> found(rows * parts);
#pragma omp parallel for collapse(2) schedule(static)
  for (int64_t row = 0; row < rows; row++)
    for (int64_t part = 0; part < parts; part++) {
      const T* from = x + row * columns;
      int64_t first = part * kPart, end = first + kPart < columns ? first + kPart : columns, column = first;
      LargestLanes lanes;
      for (; column + kLanes <= end; column += kLanes) lanes.add(load(from + column), column);
      if (column < end) {
        T tail[kLanes];
        for (int64_t i = 0; i < kLanes; i++) tail[i] = from[column + i < end ? column + i : column];
        lanes.add(load(tail), column);
      }
      found[row * parts + part] = lanes.all();
    }
  for (int64_t row = 0; row < rows; row++) {
    Largest all;
    for (int64_t part = 0; part < parts; part++) all.add(found[row * parts + part]);
    values[row] = all.value;
    places[row] = all.place;
  }
}

#if defined(__AVX512F__)

// A vanilla Markov head: what a position's logits are for, and what the token before it makes likely.
template <typename Kind>
struct Walk {
  typedef typename Kind::Element T;
  const T* logits;  // [rows, positions, columns]
  int64_t rows, positions;
  const T* embeddings;  // [vocabulary, rank]
  Weights<Kind> weights;
  const int64_t* token_ids;  // of columns
  const int64_t* anchors;    // [rows]
  int64_t* tokens;           // [rows, positions]; -1 where the largest is not finite
  T* embedded;               // [positions, rows, rank]: of the token before each
  Scratch16 scratch;         // for a position's rows
};

template <typename Kind>
void walk(const Walk<Kind>& w) {
  typedef typename Kind::Element T;
  int64_t columns = w.weights.columns, rank = w.weights.depth;
  std::vector<Largest> found;
#pragma omp parallel
  {
    TileShapes shapes;
    std::vector<LargestLanes> lanes;
#pragma omp single
    found.resize(omp_get_num_threads() * w.rows);
    for (int64_t position = 0; position < w.positions; position++) {
      T* before = w.embedded + position * w.rows * rank;
#pragma omp for schedule(static)
      for (int64_t row = 0; row < w.rows; row++) {
        int64_t token = position ? w.tokens[row * w.positions + position - 1] : w.anchors[row];
        std::memcpy(before + row * rank, w.embeddings + (token < 0 ? 0 : token) * rank, rank * sizeof(T));
      }
      lanes.assign(w.rows, {});
      auto x = ready(before, w.rows, rank, (const typename Kind::Input*)nullptr, w.scratch);
      multiply(x, w.rows, w.weights, [&](int64_t row, int64_t column, Floats bias) {
        const T* logits = w.logits + (row * w.positions + position) * columns + column;
        lanes[row].add(rounded<T>(load(logits) + rounded<T>(bias)), column);
      });
      for (int64_t row = 0; row < w.rows; row++) found[omp_get_thread_num() * w.rows + row] = lanes[row].all();
#pragma omp barrier
#pragma omp for schedule(static)
      for (int64_t row = 0; row < w.rows; row++) {
        Largest all;
        for (int64_t part = row; part < (int64_t)found.size(); part += w.rows) all.add(found[part]);
        w.tokens[row * w.positions + position] = std::isfinite(all.value) ? w.token_ids[all.place] : -1;
      }
    }
  }
}

#endif

}  // namespace

extern "C" void largest_float32(const float* x, int64_t rows, int64_t columns, float* values, int64_t* places) {
  largest_of_rows(x, rows, columns, values, places);
}
extern "C" void largest_bfloat16(const Bfloat16* x, int64_t rows, int64_t columns, float* values, int64_t* places) {
  largest_of_rows(x, rows, columns, values, places);
}

#if defined(__AVX512F__)
extern "C" void walk_float32(const Walk<Float32>* call) { walk(*call); }
#if defined(__AVX512BF16__)
extern "C" void walk_bfloat16(const Walk<Pairs>* call) { walk(*call); }
#endif
#if defined(HAS_INT8)
extern "C" void walk_int8_float32(const Walk<Int8<float>>* call) { walk(*call); }
extern "C" void walk_int8_bfloat16(const Walk<Int8<Bfloat16>>* call) { walk(*call); }
#endif
#endif
