// What sampling looks at of each row of logits: its largest ones, and the weight of all others together.

#include "vectors.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

namespace {

constexpr int64_t kBlock = 64;  // vectors whose weights are added up in single precision

// A score and its place, the largest first; of equals the one that comes first.
struct Candidate {
  float score;
  int64_t place;
  bool operator<(const Candidate& other) const {
    return score > other.score || (score == other.score && place < other.place);
  }
};

// The row's largest, in order; fewer where others are not above -inf.
template <typename T>
void find_largest(const T* x, int64_t columns, int64_t count, std::vector<Candidate>& found) {
  float least = -INFINITY;  // what comes now must be above it
  found.clear();
  auto keep_largest = [&] {
    if ((int64_t)found.size() <= count) return;
    std::nth_element(found.begin(), found.begin() + count - 1, found.end());
    found.resize(count);
    least = found[count - 1].score;
  };
  int64_t column = 0;
  for (; column + kLanes <= columns; column += kLanes) {
    Floats v = load(x + column);
    Ints above = v > least;
    bool any = false;
    for (int i = 0; i < kLanes; i++) any |= above[i] != 0;
    if (!any) continue;
    for (int i = 0; i < kLanes; i++)
      if (v[i] > least) found.push_back({v[i], column + i});
    if ((int64_t)found.size() >= 4 * count + kLanes) keep_largest();
  }
  for (; column < columns; column++) {
    T lane[kLanes] = {x[column]};
    float v = load(lane)[0];
    if (v > least) found.push_back({v, column});
  }
  keep_largest();
  std::sort(found.begin(), found.end());
}

inline Floats weights(Floats x, float highest, float temperature) {
  return exponential((x - highest) / temperature);
}

// Of all that are not among the candidates: nothing is taken away from a sum, which would leave rounding errors.
template <typename T>
double weight_of_others(const T* x, int64_t columns, float highest, float temperature, const Candidate& last) {
  double total = 0;
  for (int64_t first = 0; first < columns; first += kBlock * kLanes) {
    int64_t end = std::min(first + kBlock * kLanes, columns), column = first;
    Floats sums = {};
    for (; column + kLanes <= end; column += kLanes) {
      Floats v = load(x + column);
      Ints is_other = v < last.score;
      Ints is_tie = v == last.score;
      Ints place = Ints{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15} + (int32_t)column;
      is_other |= is_tie & (place > (int32_t)last.place);
      sums += is_other ? weights(v, highest, temperature) : Floats{};
    }
    total += sum(sums);
    for (; column < end; column++) {
      T lane[kLanes] = {x[column]};
      Floats v = load(lane);
      if (last < Candidate{v[0], column}) total += weights(v, highest, temperature)[0];
    }
  }
  return total;
}

template <typename T>
void candidates(const T* x, int64_t rows, int64_t columns, const float* highest, const float* temperatures,
                int64_t count, float* scores, int64_t* places, double* others) {
#pragma omp parallel
  {
    std::vector<Candidate> found;
#pragma omp for schedule(static)
    for (int64_t row = 0; row < rows; row++) {
      const T* from = x + row * columns;
      find_largest(from, columns, count, found);
      bool has_others = (int64_t)found.size() == count && count < columns;
      others[row] =
          has_others ? weight_of_others(from, columns, highest[row], temperatures[row], found.back()) : 0.0;
      found.resize(count, {-INFINITY, 0});
      for (int64_t i = 0; i < count; i++) {
        scores[row * count + i] = (found[i].score - highest[row]) / temperatures[row];
        places[row * count + i] = found[i].place;
      }
    }
  }
}

}  // namespace

#define EXPORT(T, name)                                                                                         \
  extern "C" void candidates_##name(const T* x, int64_t rows, int64_t columns, const float* highest,            \
                                    const float* temperatures, int64_t count, float* scores, int64_t* places,   \
                                    double* others) {                                                           \
    candidates(x, rows, columns, highest, temperatures, count, scores, places, others);                         \
  }
EXPORT(float, float32)
EXPORT(Bfloat16, bfloat16)
