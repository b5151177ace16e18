#include "cc/core/base/fingerprint.h"

#include <cstddef>
#include <cstring>
#include <utility>

// Geoff Pike's FarmHash (https://github.com/google/farmhash), the 64-bit hash of its namespace
// farmhashna: the definition of Fingerprint64. Numbers are read little-endian.

namespace dynemb {
namespace {

constexpr uint64_t kPrime0 = 0xc3a5c85c97cb3127u;
constexpr uint64_t kPrime1 = 0xb492b66fbe98f273u;
constexpr uint64_t kPrime2 = 0x9ae16a3b2f90404fu;

template <typename T = uint64_t>
uint64_t Read(const char* from) {
  T number;
  std::memcpy(&number, from, sizeof(number));
  return number;
}
uint64_t Rotate(uint64_t x, int bits) { return x >> bits | x << (64 - bits); }
uint64_t Shift(uint64_t x) { return x ^ x >> 47; }
uint64_t Mix(uint64_t u, uint64_t v, uint64_t factor) {
  return Shift((v ^ Shift((u ^ v) * factor)) * factor) * factor;
}

uint64_t UpTo16(const char* s, size_t size) {
  const uint64_t factor = kPrime2 + size * 2;
  if (size >= 8) {
    const uint64_t a = Read(s) + kPrime2, b = Read(s + size - 8);
    return Mix(Rotate(b, 37) * factor + a, (Rotate(a, 25) + b) * factor, factor);
  }
  if (size >= 4) {
    return Mix(size + (Read<uint32_t>(s) << 3), Read<uint32_t>(s + size - 4), factor);
  }
  if (size == 0) return kPrime2;
  const uint64_t y = Read<uint8_t>(s) + (Read<uint8_t>(s + size / 2) << 8);
  const uint64_t z = size + (Read<uint8_t>(s + size - 1) << 2);
  return Shift(y * kPrime2 ^ z * kPrime0) * kPrime2;
}

uint64_t UpTo32(const char* s, size_t size) {
  const uint64_t factor = kPrime2 + size * 2;
  const uint64_t a = Read(s) * kPrime1, b = Read(s + 8);
  const uint64_t c = Read(s + size - 8) * factor, d = Read(s + size - 16) * kPrime2;
  return Mix(Rotate(a + b, 43) + Rotate(c, 30) + d, a + Rotate(b + kPrime2, 18) + c, factor);
}

uint64_t UpTo64(const char* s, size_t size) {
  const uint64_t factor = kPrime2 + size * 2;
  const uint64_t a = Read(s) * kPrime2, b = Read(s + 8);
  const uint64_t c = Read(s + size - 8) * factor, d = Read(s + size - 16) * kPrime2;
  const uint64_t y = Rotate(a + b, 43) + Rotate(c, 30) + d;
  const uint64_t z = Mix(y, a + Rotate(b + kPrime2, 18) + c, factor);
  const uint64_t e = Read(s + 16) * factor, f = Read(s + 24);
  const uint64_t g = (y + Read(s + size - 32)) * factor, h = (z + Read(s + size - 24)) * factor;
  return Mix(Rotate(e + f, 43) + Rotate(g, 30) + h, e + Rotate(f + a, 18) + g, factor);
}

// 56 bytes of state, into which 64 bytes at a time are mixed.
struct State {
  using Pair = std::pair<uint64_t, uint64_t>;
  uint64_t x, y, z;
  Pair v{0, 0}, w{0, 0};

  // 32 bytes and two seeds.
  static Pair Weak(const char* s, uint64_t a, uint64_t b) {
    a += Read(s);
    b = Rotate(b + a + Read(s + 24), 21);
    const uint64_t sum = a + Read(s + 8) + Read(s + 16);
    return {sum + Read(s + 24), b + Rotate(sum, 44) + a};
  }

  // `factor` and `weight` differ in the last round.
  void Round(const char* s, uint64_t factor, uint64_t weight) {
    x = Rotate(x + y + v.first + Read(s + 8), 37) * factor;
    y = Rotate(y + v.second + Read(s + 48), 42) * factor;
    x ^= w.second * weight;
    y += v.first * weight + Read(s + 40);
    z = Rotate(z + w.first, 33) * factor;
    v = Weak(s, v.second * factor, x + w.first);
    w = Weak(s + 32, z + w.second, y + Read(s + 16));
    std::swap(z, x);
  }
};

}  // namespace

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "numbers are read as they lie in memory");

uint64_t Fingerprint(std::string_view string) {
  const char* s = string.data();
  const size_t size = string.size();
  if (size <= 16) return UpTo16(s, size);
  if (size <= 32) return UpTo32(s, size);
  if (size <= 64) return UpTo64(s, size);
  constexpr uint64_t kSeed = 81;
  State state;
  state.x = kSeed * kPrime2 + Read(s);
  state.y = kSeed * kPrime1 + 113;
  state.z = Shift(state.y * kPrime2 + 113) * kPrime2;
  const size_t rest = (size - 1) & 63;
  const char* const last = s + size - 64;
  for (const char* const end = s + (size - 1 - rest); s != end; s += 64) {
    state.Round(s, kPrime1, 1);
  }
  const uint64_t factor = kPrime1 + ((state.z & 0xff) << 1);
  state.w.first += rest;
  state.v.first += state.w.first;
  state.w.first += state.v.first;
  state.Round(last, factor, 9);
  const auto& [x, y, z, v, w] = state;
  return Mix(Mix(v.first, w.first, factor) + Shift(y) * kPrime0 + z,
             Mix(v.second, w.second, factor) + x, factor);
}

}  // namespace dynemb
