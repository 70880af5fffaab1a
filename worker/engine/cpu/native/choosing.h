// The largest of many, and where it first is. If any is not a number, NaN, wherever.
#pragma once

#include <cmath>
#include <limits>

#include "vectors.h"

struct Largest {
  float value = -INFINITY;
  int64_t place = 0;

  // Of what comes later in order.
  void add(const Largest& later) {
    if (value != value) return;
    if (later.value > value || later.value != later.value) *this = later;
  }
};

// Lane by lane, of vectors that come in order.
struct LargestLanes {
  Floats values = splat(-INFINITY);
  Ints places = {}, not_numbers = {};

  void add(Floats x, int64_t first) {
    Ints lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    Ints is_larger = x > values;
    places = is_larger ? lane + (int32_t)first : places;
    values = is_larger ? x : values;
    not_numbers |= x != x;
  }

  Largest all() const {
    Largest found;
    found.place = std::numeric_limits<int32_t>::max();
    for (int i = 0; i < kLanes; i++) {
      if (not_numbers[i]) return {NAN, 0};
      if (values[i] > found.value || (values[i] == found.value && places[i] < found.place))
        found = {values[i], places[i]};
    }
    return found;
  }
};
