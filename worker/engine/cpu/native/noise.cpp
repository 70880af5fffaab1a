// Philox4x32-10 (Salmon et al., 2011): two draws in (0, 1) of each key and token.

#include <cstdint>

namespace {

struct Words {
  uint32_t c0, c1, c2, c3;
};

Words philox(Words c, uint32_t k0, uint32_t k1) {
  for (int round = 0; round < 10; round++) {
    uint64_t first = (uint64_t)c.c0 * 0xD2511F53u, second = (uint64_t)c.c2 * 0xCD9E8D57u;
    c = {(uint32_t)(second >> 32) ^ c.c1 ^ k0, (uint32_t)second, (uint32_t)(first >> 32) ^ c.c3 ^ k1,
         (uint32_t)first};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return c;
}

// 52 random bits, in the middle of their interval.
double to_unit(uint32_t high, uint32_t low) {
  uint64_t bits = (uint64_t)(high >> 6) << 26 | low >> 6;
  return ((double)bits + 0.5) / 4503599627370496.0;
}

}  // namespace

// `keys` [rows, 3]: seed, sample, position; of all tokens [rows, columns].
extern "C" void uniforms(const int64_t* keys, const int64_t* tokens, int64_t rows, int64_t columns, int64_t stream,
                         double* first, double* second) {
  for (int64_t row = 0; row < rows; row++) {
    const int64_t* key = keys + row * 3;
    uint64_t seed = (uint64_t)key[0];
    for (int64_t i = row * columns; i < (row + 1) * columns; i++) {
      Words counter = {(uint32_t)tokens[i], (uint32_t)key[2], (uint32_t)key[1], (uint32_t)stream};
      Words drawn = philox(counter, (uint32_t)seed, (uint32_t)(seed >> 32));
      first[i] = to_unit(drawn.c0, drawn.c1);
      second[i] = to_unit(drawn.c2, drawn.c3);
    }
  }
}
