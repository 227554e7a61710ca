#include "engine.h"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>
#include <numeric>
#include <thread>
#include <vector>

#ifdef HOSTMETAL_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#define NO_ASAN __attribute__((no_sanitize("address")))
#else
#define NO_ASAN
#endif
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

// change_stack stores where the caller is at *save and continues where *load was stored. On
// x86-64 the compiler saves what it needs of the registers, which is less than all of them.
#if defined(__x86_64__)
static inline __attribute__((always_inline)) void change_stack(void **save, void *load) {
  __asm__ volatile(
      "pushq %%rbp\n\t"
      "pushq %%rbx\n\t"
      "leaq 1f(%%rip), %%rax\n\t"
      "pushq %%rax\n\t"
      "movq %%rsp, (%0)\n\t"
      "movq %1, %%rsp\n\t"
      "popq %%rax\n\t"
      "jmpq *%%rax\n"
      "1:\n\t"
      "popq %%rbx\n\t"
      "popq %%rbp"
      : "+D"(save), "+S"(load)
      :
      : "rax", "rcx", "rdx", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5",
        "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "memory", "cc");
}
#else
extern "C" void hostmetal_switch(void **save, void *load);
static inline void change_stack(void **save, void *load) { hostmetal_switch(save, load); }
#endif

namespace hostmetal {

Settings settings;
std::atomic<uint64_t> dispatches, threadgroups, switches;

// ---- memory ------------------------------------------------------------------------

namespace {
constexpr size_t kGuard = 256;
// A NaN as f32, as f16 and as bf16, and a huge index.
const unsigned char kPoison[2] = {0xa5, 0xff};

NO_ASAN void poison(unsigned char *p, size_t n) {
  // plain loop: under ASan memset would be checked
  for (size_t i = 0; i < n; i++) p[i] = kPoison[i & 1];
}
NO_ASAN bool poisoned(const unsigned char *p, size_t n) {
  for (size_t i = 0; i < n; i++)
    if (p[i] != kPoison[i & 1]) return false;
  return true;
}
}  // namespace

std::shared_ptr<Memory> Memory::allocate(size_t length) {
  std::shared_ptr<Memory> m(new Memory);
  size_t rounded = (length + 255) & ~size_t(255);
  if (posix_memalign(&m->block_, 256, kGuard + rounded + kGuard) != 0) {
    m->block_ = nullptr;
    return nullptr;
  }
  auto base = static_cast<unsigned char *>(m->block_);
  poison(base, kGuard);
  memset(base + kGuard, 0, length);
  poison(base + kGuard + length, kGuard);
#ifdef HOSTMETAL_ASAN
  __asan_poison_memory_region(base, kGuard);
  __asan_poison_memory_region(base + kGuard + length, rounded - length + kGuard);
#endif
  m->data_ = base + kGuard;
  m->length_ = length;
  return m;
}

std::shared_ptr<Memory> Memory::wrap(void *data, size_t length) {
  std::shared_ptr<Memory> m(new Memory);
  m->data_ = data;
  m->length_ = length;
  return m;
}

Memory::~Memory() {
#ifdef HOSTMETAL_ASAN
  if (block_) __asan_unpoison_memory_region(block_, kGuard + ((length_ + 255) & ~size_t(255)) + kGuard);
#endif
  free(block_);
}

const char *Memory::damage() const {
  if (!block_) return nullptr;
  auto data = static_cast<const unsigned char *>(data_);
  if (!poisoned(data - kGuard, kGuard)) return "before its start";
  if (!poisoned(data + length_, kGuard)) return "past its end";
  return nullptr;
}

void Memory::repair() {
  auto data = static_cast<unsigned char *>(data_);
  poison(data - kGuard, kGuard);
  poison(data + length_, kGuard);
}

void Memory::fill_poison() {
  auto p = static_cast<unsigned char *>(data_);
  uint64_t pattern = 0xffa5ffa5ffa5ffa5ull;
  size_t i = 0;
  for (; i + 8 <= length_; i += 8) memcpy(p + i, &pattern, 8);
  for (; i < length_; i++) p[i] = kPoison[i & 1];
}

// ---- the floating-point environment ----------------------------------------------------

namespace {

class FloatMode {
 public:
  FloatMode(bool ftz, bool toward_zero) {
#if defined(__x86_64__)
    saved_ = _mm_getcsr();
    unsigned mode = 0x1f80;                 // all exceptions masked
    if (ftz) mode |= 0x8040;                // FTZ and DAZ
    if (toward_zero) mode |= 0x6000;
    _mm_setcsr(mode);
#elif defined(__aarch64__)
    __asm__ volatile("mrs %0, fpcr" : "=r"(saved_));
    uint64_t mode = 0;
    if (ftz) mode |= 1 << 24;               // FZ; FZ16 stays off, halves keep their subnormals
    if (toward_zero) mode |= 3 << 22;
    __asm__ volatile("msr fpcr, %0" ::"r"(mode));
#endif
  }
  ~FloatMode() {
#if defined(__x86_64__)
    _mm_setcsr(saved_);
#elif defined(__aarch64__)
    __asm__ volatile("msr fpcr, %0" ::"r"(saved_));
#endif
  }

 private:
#if defined(__x86_64__)
  unsigned saved_;
#else
  uint64_t saved_;
#endif
};

// ---- fibers --------------------------------------------------------------------------

constexpr unsigned kMaxThreads = 1024, kMaxWidth = 32;
#ifdef HOSTMETAL_ASAN
constexpr size_t kStack = 256 << 10;
#else
constexpr size_t kStack = 64 << 10;
#endif
constexpr size_t kPage = 16 << 10;  // the guard below each stack

enum State : unsigned char { kReady, kRunning, kInExchange, kAtBarrier, kDone };

struct Site {
  const char *what, *file;
  unsigned line;
  bool operator==(const Site &o) const {
    return line == o.line && (file == o.file || strcmp(file, o.file) == 0) && (what == o.what || strcmp(what, o.what) == 0);
  }
  std::string text() const { return std::string(what) + " (" + file + ":" + std::to_string(line) + ")"; }
};

const char kSimdBarrier[] = "simdgroup_barrier";

struct SimdGroup {
  alignas(64) char slots[2][kMaxWidth * 16];
  unsigned first, lanes, width;  // linear index of lane 0; threads present, and when full
  unsigned arrived, done;  // at the current exchange; returned from the kernel
  unsigned parity;
  unsigned at, add, mul;   // this round's order of lanes: (position * mul + add) mod 32
  Site site;
};

struct Worker {
  char *stacks = nullptr;
  void *sp[kMaxThreads];
  State state[kMaxThreads];
  Site site[kMaxThreads];
  SimdGroup simd[kMaxThreads / 16];
  void *scheduler = nullptr;
  unsigned current = 0;         // the fiber that runs
  SimdGroup *in = nullptr;      // and its SIMD-group
  unsigned simd_count = 0;
  bool mixed = false;  // seeded: orders vary
  Random random{0};
  const hm::Group *group = nullptr;
  const Dispatch *dispatch = nullptr;
  std::string failure;
  uint64_t switched = 0;
  std::vector<std::pair<void *, size_t>> variables;  // threadgroup variables met in this threadgroup
#ifdef HOSTMETAL_ASAN
  void *fake[kMaxThreads];
  void *scheduler_fake = nullptr;
  const void *scheduler_bottom = nullptr;
  size_t scheduler_size = 0;
#endif

  Worker() {
    size_t all = kMaxThreads * (kStack + kPage);
    void *p = mmap(nullptr, all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) throw std::bad_alloc();
    stacks = static_cast<char *>(p);
    for (unsigned i = 0; i < kMaxThreads; i++) mprotect(stacks + i * (kStack + kPage), kPage, PROT_NONE);
  }
  char *bottom(unsigned i) const { return stacks + i * (kStack + kPage) + kPage; }

  std::string where() const {
    return "kernel '" + dispatch->name + "', threadgroup (" + std::to_string(group->position[0]) + ", " +
           std::to_string(group->position[1]) + ", " + std::to_string(group->position[2]) + ")";
  }

  void prepare(unsigned i);
  void to(unsigned next);
  void to_scheduler();
  void leave();
  [[noreturn]] void fail(const std::string &message);
  void partial(const Site &s);
  [[noreturn]] void elsewhere(const Site &s);
  void shuffle(SimdGroup &s);
  bool run_group();
  std::string divergence() const;
};

__attribute__((tls_model("initial-exec"))) thread_local Worker *worker;

std::mutex pool_mutex;
std::vector<Worker *> pool;

void fiber_main() {
  Worker *w = worker;
#ifdef HOSTMETAL_ASAN
  __sanitizer_finish_switch_fiber(nullptr, nullptr, nullptr);
#endif
  unsigned i = w->current;
  w->dispatch->function->kernel->one(w->group, i);
  w->state[i] = kDone;
  w->in->done++;
  w->leave();
  abort();
}

// prepare lays out fiber i's stack so that switching to it enters fiber_main.
void Worker::prepare(unsigned i) {
  // Tops are spread over a page, or all frames would fall into the same cache sets.
  uintptr_t top = reinterpret_cast<uintptr_t>(bottom(i) + kStack) - (i % 21) * 192;
  top &= ~uintptr_t(63);
#if defined(__x86_64__)
  void **p = reinterpret_cast<void **>(top);
  *--p = nullptr;  // fiber_main's return address: it does not return
  *--p = reinterpret_cast<void *>(fiber_main);
#elif defined(__aarch64__)
  void **p = reinterpret_cast<void **>(top) - 20;
  memset(p, 0, 160);
  p[11] = reinterpret_cast<void *>(fiber_main);  // x30
#endif
  sp[i] = p;
#ifdef HOSTMETAL_ASAN
  fake[i] = nullptr;
#endif
}

// to switches from the current fiber to another of the same SIMD-group.
void Worker::to(unsigned next) {
  unsigned from = current;
  current = next;
  state[next] = kRunning;
  switched++;
#ifdef HOSTMETAL_ASAN
  __sanitizer_start_switch_fiber(state[from] == kDone ? nullptr : &fake[from], bottom(next), kStack);
#endif
  change_stack(&sp[from], sp[next]);
#ifdef HOSTMETAL_ASAN
  __sanitizer_finish_switch_fiber(fake[from], nullptr, nullptr);
#endif
}

void Worker::to_scheduler() {
  unsigned from = current;
#ifdef HOSTMETAL_ASAN
  __sanitizer_start_switch_fiber(state[from] == kDone ? nullptr : &fake[from], scheduler_bottom, scheduler_size);
#endif
  change_stack(&sp[from], scheduler);
#ifdef HOSTMETAL_ASAN
  __sanitizer_finish_switch_fiber(fake[from], nullptr, nullptr);
#endif
}

// leave gives way to the next ready lane in this round's order, or to the scheduler.
void Worker::leave() {
  SimdGroup &s = *in;
  while (s.at < kMaxWidth) {
    unsigned lane = (s.at++ * s.mul + s.add) % kMaxWidth;
    if (lane < s.lanes && state[s.first + lane] == kReady) return to(s.first + lane);
  }
  to_scheduler();
}

void Worker::fail(const std::string &message) {
  failure = where() + ": " + message;
  to_scheduler();
  abort();  // an abandoned fiber is not resumed
}

// The two below are out of line: they would make each fiber's frame larger.
__attribute__((noinline, cold)) void Worker::partial(const Site &s) {
  if (strcmp(s.what, kSimdBarrier) == 0) return;
  fail(s.text() + " in a SIMD-group that has " + std::to_string(in->lanes) + " of " + std::to_string(in->width) + " threads");
}

__attribute__((noinline, cold)) void Worker::elsewhere(const Site &s) {
  state[current] = kAtBarrier;
  site[current] = s;
  fail(divergence());
}

void Worker::shuffle(SimdGroup &s) {
  s.at = 0;
  if (!mixed) return;
  uint64_t r = random.next();
  s.mul = (r >> 8 & 31) | 1;
  s.add = r >> 16 & 31;
}

std::string count_of(unsigned n, const char *what) { return std::to_string(n) + (n == 1 ? " thread " : " threads ") + what; }

// divergence describes why nobody can go on.
std::string Worker::divergence() const {
  std::vector<std::pair<Site, std::vector<unsigned>>> waits;
  std::vector<unsigned> returned;
  for (unsigned i = 0; i < group->threads; i++) {
    if (state[i] == kDone) {
      returned.push_back(i);
      continue;
    }
    Site at = state[i] == kInExchange ? simd[i / group->width].site : site[i];
    auto w = std::find_if(waits.begin(), waits.end(), [&](auto &x) { return x.first == at; });
    if (state[i] == kReady || state[i] == kRunning) continue;
    if (w == waits.end()) waits.push_back({at, {i}});
    else w->second.push_back(i);
  }
  auto first = [](const std::vector<unsigned> &v) { return " (thread " + std::to_string(v[0]) + (v.size() > 1 ? ", ...)" : ")"); };
  std::string s = "threads diverge: ";
  bool comma = false;
  for (auto &w : waits) {
    s += (comma ? ", " : "") + count_of(w.second.size(), w.second.size() == 1 ? "waits at " : "wait at ") + w.first.text() + first(w.second);
    comma = true;
  }
  if (!returned.empty()) s += (comma ? ", " : "") + count_of(returned.size(), "returned") + first(returned);
  return s;
}

// run_group runs one threadgroup as fibers. It returns false after a failure.
bool Worker::run_group() {
  unsigned n = group->threads, width = group->width;
  simd_count = (n + width - 1) / width;
  for (unsigned g = 0; g < simd_count; g++) {
    SimdGroup &s = simd[g];
    s.first = g * width;
    s.width = width;
    s.lanes = std::min(width, n - s.first);
    s.arrived = s.done = s.parity = 0;
    s.at = s.add = 0;
    s.mul = 1;
  }
  for (unsigned i = 0; i < n; i++) {
    prepare(i);
    state[i] = kReady;
  }
  unsigned order[kMaxThreads / 16];
  std::iota(order, order + simd_count, 0);
  bool progress = false;
  while (failure.empty()) {
    if (mixed)
      for (unsigned i = simd_count; i > 1; i--) std::swap(order[i - 1], order[random.below(i)]);
    progress = false;
    for (unsigned o = 0; o < simd_count && failure.empty(); o++) {
      SimdGroup &s = simd[order[o]];
      in = &s;
      shuffle(s);
      while (s.at < kMaxWidth) {
        unsigned lane = (s.at++ * s.mul + s.add) % kMaxWidth, i = s.first + lane;
        if (lane >= s.lanes || state[i] != kReady) continue;
        progress = true;
        state[i] = kRunning;
        current = i;
        switched++;
#ifdef HOSTMETAL_ASAN
        __sanitizer_start_switch_fiber(&scheduler_fake, bottom(i), kStack);
#endif
        change_stack(&scheduler, sp[i]);
#ifdef HOSTMETAL_ASAN
        __sanitizer_finish_switch_fiber(scheduler_fake, nullptr, nullptr);
#endif
        if (!failure.empty()) break;
      }
    }
    if (progress || !failure.empty()) continue;
    // Nobody could run: all returned, all wait at one barrier, or they diverge.
    unsigned done = 0, waiting = 0;
    bool one = true;
    for (unsigned i = 0; i < n; i++) {
      if (state[i] == kDone) done++;
      if (state[i] == kAtBarrier) {
        waiting++;
        one = one && site[i] == site[0];
      }
    }
    if (done == n) return true;
    if (waiting != n || !one) {
      failure = where() + ": " + divergence();
      break;
    }
    for (unsigned i = 0; i < n; i++) state[i] = kReady;
  }
#ifdef HOSTMETAL_ASAN
  for (unsigned i = 0; i < n; i++) __asan_unpoison_memory_region(bottom(i), kStack);
#endif
  return false;
}

Worker *current_worker(const char *what) {
  Worker *w = worker;
  if (w && w->group) return w;
  fprintf(stderr, "hostmetal: %s called outside a kernel that was compiled for it\n", what);
  abort();
}

}  // namespace

extern "C" void hostmetal_threadgroup_barrier(const char *file, unsigned line) {
  Worker *w = current_worker("threadgroup_barrier");
  w->state[w->current] = kAtBarrier;
  w->site[w->current] = {"threadgroup_barrier", file, line};
  w->leave();
}

// The value is 16 bytes, whatever its type.
extern "C" hm::Lanes hostmetal_exchange(const void *value, const char *what, const char *file, unsigned line) {
  Worker *w = current_worker(what);
  SimdGroup &s = *w->in;
  unsigned i = w->current, lane = i - s.first;
  if (s.arrived == 0) {
    if (s.lanes != s.width) w->partial({what, file, line});
    s.site = {what, file, line};
  } else if (s.site.line != line || !(s.site == Site{what, file, line})) {
    w->elsewhere({what, file, line});
  }
  char *slots = s.slots[s.parity];
  memcpy(slots + 16 * lane, value, 16);
  if (++s.arrived < s.lanes) {
    w->state[i] = kInExchange;
    w->leave();
    return {slots, lane, s.width};
  }
  // The last lane: all go on, this one first, unless the seed says to let another SIMD-group run.
  s.arrived = 0;
  s.parity ^= 1;
  memset(w->state + s.first, kReady, s.lanes);
  w->shuffle(s);
  if (w->mixed && w->simd_count > 1 && (w->random.next() >> 32 & 7) == 0) w->to_scheduler();
  else w->state[i] = kRunning;
  return {slots, lane, s.width};
}

extern "C" void hostmetal_simdgroup_barrier(const char *file, unsigned line) {
  static const char nothing[16] = {};
  hostmetal_exchange(nothing, kSimdBarrier, file, line);
}

extern "C" void hostmetal_bad_lane(const char *what, unsigned lane, const char *file, unsigned line) {
  Worker *w = current_worker(what);
  w->fail(Site{what, file, line}.text() + " reads lane " + std::to_string(lane) + ", which does not exist");
}

// A threadgroup variable is poisoned when its threadgroup first meets it.
extern "C" void hostmetal_threadgroup_variable(void *p, size_t size) {
  Worker *w = current_worker("a threadgroup variable");
  for (auto &v : w->variables)
    if (v.first == p) return;
  w->variables.push_back({p, size});
  auto bytes = static_cast<unsigned char *>(p);
  for (size_t i = 0; i < size; i++) bytes[i] = kPoison[i & 1];
}

// ---- dispatches ------------------------------------------------------------------------

namespace {

struct Job {
  explicit Job(const Dispatch &d) : d(d), seed(settings.seed), count(uint64_t(d.groups[0]) * d.groups[1] * d.groups[2]) {}
  const Dispatch &d;
  uint64_t seed, count;
  uint64_t stride = 1, offset = 0;    // order of threadgroups
  std::vector<unsigned> order;        // order of threads in a kernel without barriers
  std::atomic<uint64_t> next{0};
  std::atomic<bool> stop{false};
  std::mutex mutex;
  std::string failure;
};

void work(Job *job) {
  const Dispatch &d = job->d;
  Worker *w;
  {
    std::lock_guard<std::mutex> lock(pool_mutex);
    if (pool.empty()) {
      w = new Worker;
    } else {
      w = pool.back();
      pool.pop_back();
    }
  }
  Worker *outer = worker;
  worker = w;
#ifdef HOSTMETAL_ASAN
  pthread_attr_t attributes;
  void *bottom = nullptr;
  pthread_getattr_np(pthread_self(), &attributes);
  pthread_attr_getstack(&attributes, &bottom, &w->scheduler_size);
  pthread_attr_destroy(&attributes);
  w->scheduler_bottom = bottom;
#endif
  FloatMode mode(settings.ftz, d.rounds_wrongly);
  hm::Group g{};
  std::shared_ptr<Memory> shared[31];
  for (int i = 0; i < 31; i++) {
    if (d.buffers[i].memory) g.buffer[i] = static_cast<char *>(d.buffers[i].memory->data()) + d.buffers[i].offset;
    if (d.shared[i]) {
      shared[i] = Memory::allocate(d.shared[i]);
      g.shared[i] = shared[i]->data();
    }
  }
  for (int k = 0; k < 3; k++) {
    g.full_size[k] = d.size[k];
    g.groups[k] = d.groups[k];
    g.grid[k] = d.grid[k];
  }
  g.width = d.width;
  w->group = &g;
  w->dispatch = &d;
  w->failure.clear();
  w->switched = 0;
  w->mixed = job->seed != 0;
  uint64_t ran = 0;
  for (;;) {
    uint64_t i = job->next++;
    if (i >= job->count || job->stop) break;
    uint64_t index = (i * job->stride + job->offset) % job->count;
    w->random = Random(job->seed + index);
    g.position[0] = index % d.groups[0];
    g.position[1] = index / d.groups[0] % d.groups[1];
    g.position[2] = index / d.groups[0] / d.groups[1];
    g.threads = 1;
    for (int k = 0; k < 3; k++) {
      g.size[k] = std::min(d.size[k], d.grid[k] - g.position[k] * d.size[k]);
      g.threads *= g.size[k];
    }
    for (auto &s : shared)
      if (s) s->fill_poison();
    w->variables.clear();
    if (d.function->needs_fibers) {
      if (!w->run_group()) break;
    } else {
      bool full = g.threads == job->order.size();
      d.function->kernel->every(&g, full ? job->order.data() : nullptr);
    }
    ran++;
    for (int k = 0; k < 31; k++) {
      const char *damage = shared[k] ? shared[k]->damage() : nullptr;
      if (damage) w->failure = w->where() + ": wrote " + damage + " of threadgroup memory " + std::to_string(k);
    }
    if (!w->failure.empty()) break;
  }
  threadgroups += ran;
  switches += w->switched;
  if (!w->failure.empty()) {
    std::lock_guard<std::mutex> lock(job->mutex);
    if (job->failure.empty()) job->failure = w->failure;
    job->stop = true;
  }
  w->group = nullptr;
  w->dispatch = nullptr;
  worker = outer;
  std::lock_guard<std::mutex> lock(pool_mutex);
  pool.push_back(w);
}

}  // namespace

std::string run(const Dispatch &d) {
  Job job(d);
  uint64_t number = dispatches++;
  if (job.seed) {
    job.seed = Random(job.seed + number).next() | 1;
    Random r(job.seed);
    job.offset = r.next() % job.count;
    do job.stride = r.next() % job.count | 1;
    while (std::gcd(job.stride, job.count) != 1);
    if (!d.function->needs_fibers) {
      job.order.resize(size_t(d.size[0]) * d.size[1] * d.size[2]);
      std::iota(job.order.begin(), job.order.end(), 0);
      for (size_t i = job.order.size(); i > 1; i--) std::swap(job.order[i - 1], job.order[r.below(i)]);
    }
  }
  uint64_t helpers = std::min<uint64_t>(settings.threads < 1 ? 1 : int(settings.threads), job.count) - 1;
  std::vector<std::thread> threads;
  for (uint64_t i = 0; i < helpers; i++) threads.emplace_back(work, &job);
  work(&job);
  for (auto &t : threads) t.join();
  if (!job.failure.empty()) return job.failure;
  for (int i = 0; i < 31; i++) {
    const char *damage = d.buffers[i].memory ? d.buffers[i].memory->damage() : nullptr;
    if (!damage) continue;
    d.buffers[i].memory->repair();
    return "kernel '" + d.name + "' wrote " + damage + " of buffer " + std::to_string(i) + " (" +
           std::to_string(d.buffers[i].memory->length()) + " bytes" + (d.buffers[i].bytes ? ", from setBytes)" : ")");
  }
  return "";
}

}  // namespace hostmetal
