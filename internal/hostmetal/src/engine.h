// Runs kernels: memory with guard words, fibers, dispatches.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "compile.h"

namespace hostmetal {

// Memory is a buffer's storage, at its exact length between guard words.
class Memory {
 public:
  // allocate returns null when there is no memory. The contents are zero.
  static std::shared_ptr<Memory> allocate(size_t length);
  static std::shared_ptr<Memory> wrap(void *data, size_t length);
  ~Memory();
  void *data() const { return data_; }
  size_t length() const { return length_; }
  // damage says where a guard word was overwritten: "before its start", "past its end", or null.
  const char *damage() const;
  void repair();  // the guard words
  void fill_poison();

 private:
  Memory() = default;
  void *block_ = nullptr, *data_ = nullptr;
  size_t length_ = 0;
};

struct Dispatch {
  std::string name;
  const Module::Function *function = nullptr;
  struct Binding {
    std::shared_ptr<Memory> memory;
    size_t offset = 0;
    bool bytes = false;  // from setBytes
  } buffers[31];
  size_t shared[31] = {};
  unsigned size[3], groups[3], grid[3];
  unsigned width = 32;
  bool rounds_wrongly = false;
};

struct Settings {
  std::atomic<uint64_t> seed{0};
  std::atomic<int> ftz{1}, threads{1}, abort{1};
};
extern Settings settings;

// run executes a dispatch. It returns an empty string, or what went wrong.
std::string run(const Dispatch &d);

extern std::atomic<uint64_t> dispatches, threadgroups, switches;

// random is xorshift64*.
struct Random {
  uint64_t s;
  explicit Random(uint64_t seed) : s(seed * 0x9e3779b97f4a7c15ull + 0x2545f4914f6cdd1dull) { if (!s) s = 1; }
  uint64_t next() {
    s ^= s >> 12;
    s ^= s << 25;
    s ^= s >> 27;
    return s * 0x2545f4914f6cdd1dull;
  }
  uint32_t below(uint32_t n) { return uint32_t((next() >> 32) * n >> 32); }
};

}  // namespace hostmetal
