// Tests of hostmetal itself, through Metal's API and hostmetal.h.
#import <Metal/Metal.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../hostmetal.h"

static int failures, checks;

#define CHECK(COND, ...)                                          \
  do {                                                            \
    checks++;                                                     \
    if (!(COND)) {                                                \
      failures++;                                                 \
      fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, #COND);  \
      fprintf(stderr, __VA_ARGS__);                               \
      fputc('\n', stderr);                                        \
    }                                                             \
  } while (0)

static const char *const kPrologue =
    "#include <metal_stdlib>\n"
    "using namespace metal;\n"
    "#pragma METAL fp math_mode(safe)\n"
    "#pragma METAL fp contract(off)\n"
    "#pragma clang fp contract(off)\n";

static MTLCompileOptions *safe(void) {
  MTLCompileOptions *o = [[[MTLCompileOptions alloc] init] autorelease];
  [o setMathMode:MTLMathModeSafe];
  [o setMathFloatingPointFunctions:MTLMathFloatingPointFunctionsPrecise];
  return o;
}

typedef struct {
  id<MTLDevice> device;
  id<MTLCommandQueue> queue;
  id<MTLLibrary> library;
} GPU;

static GPU open_source(const char *source, MTLCompileOptions *options) {
  GPU g = {MTLCreateSystemDefaultDevice(), nil, nil};
  g.queue = [g.device newCommandQueue];
  NSError *error = nil;
  g.library = [g.device newLibraryWithSource:[NSString stringWithUTF8String:source] options:options error:&error];
  if (!g.library) {
    fprintf(stderr, "%s\n", [[error localizedDescription] UTF8String]);
    exit(1);
  }
  return g;
}

static GPU open_kernels(const char *body) {
  char *source = malloc(strlen(kPrologue) + strlen(body) + 1);
  strcpy(source, kPrologue);
  strcat(source, body);
  GPU g = open_source(source, safe());
  free(source);
  return g;
}

static void close_gpu(GPU g) {
  [g.library release];
  [g.queue release];
  [g.device release];
}

static id<MTLComputePipelineState> pipeline(GPU g, const char *name) {
  id<MTLFunction> f = [g.library newFunctionWithName:[NSString stringWithUTF8String:name]];
  if (!f) {
    fprintf(stderr, "no function %s\n", name);
    exit(1);
  }
  id<MTLComputePipelineState> p = [g.device newComputePipelineStateWithFunction:f error:NULL];
  [f release];
  return [p autorelease];
}

// run dispatches a kernel over buffers 0..n-1 with one int as buffer n, and waits.
static id<MTLCommandBuffer> run(GPU g, const char *name, int n, id<MTLBuffer> *buffers, unsigned argument, NSUInteger groups,
                                NSUInteger size, NSUInteger shared) {
  id<MTLCommandBuffer> cb = [g.queue commandBuffer];
  id<MTLComputeCommandEncoder> e = [cb computeCommandEncoder];
  [e setComputePipelineState:pipeline(g, name)];
  for (int i = 0; i < n; i++) [e setBuffer:buffers[i] offset:0 atIndex:i];
  [e setBytes:&argument length:sizeof argument atIndex:n];
  if (shared) [e setThreadgroupMemoryLength:shared atIndex:0];
  [e dispatchThreadgroups:MTLSizeMake(groups, 1, 1) threadsPerThreadgroup:MTLSizeMake(size, 1, 1)];
  [e endEncoding];
  [cb commit];
  [cb waitUntilCompleted];
  return cb;
}

static void test_smoke(void) {
  FILE *f = fopen("test/smoke.metal", "r");
  char source[8192];
  source[fread(source, 1, sizeof source - 1, f)] = 0;
  fclose(f);
  GPU g = open_source(source, safe());
  CHECK([[g.library functionNames] count] == 6, "%lu functions", (unsigned long)[[g.library functionNames] count]);

  enum { kN = 1000 };
  id<MTLBuffer> x = [g.device newBufferWithLength:kN * 4 options:0], y = [g.device newBufferWithLength:kN * 4 options:0];
  float *xs = [x contents], *ys = [y contents];
  for (int i = 0; i < kN; i++) xs[i] = i;
  struct { unsigned n; float scale; } args = {kN, 3};
  id<MTLCommandBuffer> cb = [g.queue commandBuffer];
  CHECK([cb status] == MTLCommandBufferStatusNotEnqueued, "status %lu", (unsigned long)[cb status]);
  id<MTLComputeCommandEncoder> e = [cb computeCommandEncoder];
  [e setComputePipelineState:pipeline(g, "scale")];
  [e setBuffer:x offset:0 atIndex:0];
  [e setBuffer:y offset:0 atIndex:1];
  [e setBytes:&args length:sizeof args atIndex:2];
  [e dispatchThreads:MTLSizeMake(kN, 1, 1) threadsPerThreadgroup:MTLSizeMake(256, 1, 1)];
  [e endEncoding];
  [cb commit];
  CHECK(ys[7] == 0, "work ran before anybody waited");
  [cb waitUntilCompleted];
  CHECK([cb status] == MTLCommandBufferStatusCompleted && [cb error] == nil, "status %lu", (unsigned long)[cb status]);
  CHECK([cb GPUEndTime] > [cb GPUStartTime] && [cb GPUStartTime] > 0, "times");
  for (int i = 0; i < kN; i++) CHECK(ys[i] == i * 3.0f + 0.5f + (i & 3), "y[%d] = %g", i, ys[i]);

  unsigned *xu = [x contents], *yu = [y contents];
  const char *names[2] = {"reverse_64", "reverse_128"};
  for (int k = 0; k < 2; k++) {
    int d = 64 << k;
    for (int i = 0; i < 640; i++) xu[i] = i;
    run(g, names[k], 2, (id<MTLBuffer>[]){x, y}, 0, 640 / d, d, d * 4);
    for (int i = 0; i < 640; i++) CHECK(yu[i] == (unsigned)(i / d * d + d - 1 - i % d), "%s: y[%d] = %u", names[k], i, yu[i]);
  }
  for (int i = 0; i < 96; i++) xu[i] = i * i;
  run(g, "tree_uint", 1, &x, 0, 1, 96, 0);
  for (int i = 0; i < 96; i++) {
    unsigned want = 0;
    for (int j = i / 32 * 32; j < i / 32 * 32 + 32; j++) want += j * j;
    CHECK(xu[i] == want, "tree[%d] = %u, not %u", i, xu[i], want);
  }
  [x release];
  [y release];
  close_gpu(g);
}

// ---- helpers for what must fail ----

static const char *error_text(id<MTLCommandBuffer> cb) {
  return [cb status] == MTLCommandBufferStatusError ? [[[cb error] localizedDescription] UTF8String] : "";
}

// aborts runs f in a child and reports whether it aborted with text in its message.
static int aborts(void (*f)(void), const char *text) {
  int out[2];
  char message[4096];
  size_t n = 0;
  if (pipe(out) != 0) return 0;
  fflush(NULL);
  pid_t pid = fork();
  if (pid == 0) {
    dup2(out[1], 2);
    close(out[0]);
    close(out[1]);
    NSAutoreleasePool *pool = [[NSAutoreleasePool alloc] init];
    f();
    [pool drain];
    _exit(0);
  }
  close(out[1]);
  for (ssize_t r; (r = read(out[0], message + n, sizeof message - 1 - n)) > 0;) n += r;
  message[n] = 0;
  close(out[0]);
  int status = 0;
  waitpid(pid, &status, 0);
  if (WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT && strstr(message, text)) return 1;
  fprintf(stderr, "want an abort saying \"%s\"; status %x, said: %s\n", text, status, message);
  return 0;
}

static unsigned bits(float x) {
  unsigned u;
  memcpy(&u, &x, 4);
  return u;
}
static float from_bits(unsigned u) {
  float x;
  memcpy(&x, &u, 4);
  return x;
}

static id<MTLBuffer> words(GPU g, unsigned n) { return [[g.device newBufferWithLength:n * 4 options:0] autorelease]; }

// ---- kernels that break the rules ----

static const char *const kBad =
    "kernel void returns_early(device uint *x [[buffer(0)]], constant uint &n [[buffer(1)]], uint t [[thread_index_in_threadgroup]]) {\n"
    "  if (t >= n) return;\n"
    "  threadgroup_barrier(mem_flags::mem_device);\n"
    "  x[t] = t;\n"
    "}\n"
    "kernel void two_barriers(device uint *x [[buffer(0)]], constant uint &n [[buffer(1)]], uint t [[thread_index_in_threadgroup]]) {\n"
    "  if (t < n) threadgroup_barrier(mem_flags::mem_device);\n"
    "  else\n"
    "    threadgroup_barrier(mem_flags::mem_none);\n"
    "  x[t] = t;\n"
    "}\n"
    "kernel void missing_lane(device uint *x [[buffer(0)]], constant uint &n [[buffer(1)]], uint t [[thread_index_in_threadgroup]]) {\n"
    "  if (t < n) x[t] = simd_shuffle_xor(t, 1);\n"
    "}\n"
    "kernel void mixed(device uint *x [[buffer(0)]], constant uint &n [[buffer(1)]], uint t [[thread_index_in_threadgroup]]) {\n"
    "  if (t < n) x[t] = simd_max(t);\n"
    "  else threadgroup_barrier(mem_flags::mem_device);\n"
    "}\n"
    "kernel void two_shuffles(device uint *x [[buffer(0)]], constant uint &n [[buffer(1)]], uint t [[thread_index_in_threadgroup]]) {\n"
    "  if (t < n) x[t] = simd_shuffle_xor(t, 1);\n"
    "  else\n"
    "    x[t] = simd_shuffle_xor(t, 2);\n"
    "}\n"
    "kernel void full(device uint *x [[buffer(0)]], constant uint &n [[buffer(1)]], uint t [[thread_index_in_threadgroup]]) {\n"
    "  x[t] = simd_shuffle(t, n);\n"
    "}\n"
    "kernel void loops(device uint *x [[buffer(0)]], constant uint &n [[buffer(1)]], uint t [[thread_index_in_threadgroup]]) {\n"
    "  for (uint i = 0; i < n + (t == 5); i++) threadgroup_barrier(mem_flags::mem_device);\n"
    "  x[t] = t;\n"
    "}\n"
    "kernel void past(device uint *x [[buffer(0)]], constant uint &n [[buffer(1)]], uint t [[thread_index_in_threadgroup]]) {\n"
    "  if (t == 0) x[int(n)] = 7;\n"
    "}\n"
    "kernel void shared_past(device uint *x [[buffer(0)]], constant uint &n [[buffer(1)]], threadgroup uint *s [[threadgroup(0)]],\n"
    "                        uint t [[thread_index_in_threadgroup]]) {\n"
    "  s[n + t] = t;\n"
    "  threadgroup_barrier(mem_flags::mem_threadgroup);\n"
    "  x[t] = s[n];\n"
    "}\n"
    "kernel void reads_past(device uint *x [[buffer(0)]], constant uint &n [[buffer(1)]], uint t [[thread_index_in_threadgroup]]) {\n"
    "  x[t] = x[t + n];\n"
    "}\n"
    "kernel void shifts(device uint *x [[buffer(0)]], constant uint &n [[buffer(1)]], uint t [[thread_index_in_threadgroup]]) {\n"
    "  x[t] = 1 << n;\n"
    "}\n";

static const struct {
  const char *kernel, *text;
  unsigned n, size, shared;
} bad_cases[] = {
    {"returns_early", "kernel 'returns_early', threadgroup (0, 0, 0): threads diverge: 63 threads wait at threadgroup_barrier (program_source:8) (thread 0, ...), 1 thread returned (thread 63)", 63, 64, 0},
    {"two_barriers", "32 threads wait at threadgroup_barrier (program_source:12) (thread 0, ...), 32 threads wait at threadgroup_barrier (program_source:14)", 32, 64, 0},
    {"missing_lane", "31 threads wait at simd_shuffle_xor (program_source:18) (thread 0, ...), 1 thread returned (thread 31)", 31, 32, 0},
    {"mixed", "kernel 'mixed'", 20, 32, 0},
    {"two_shuffles", "simd_shuffle_xor (program_source:27)", 16, 32, 0},
    {"full", "simd_shuffle (program_source:30) in a SIMD-group that has 16 of 32 threads", 0, 48, 0},
    {"full", "simd_shuffle (program_source:30) reads lane 40, which does not exist", 40, 32, 0},
    {"loops", "1 thread waits at threadgroup_barrier (program_source:33) (thread 5), 63 threads returned (thread 0, ...)", 3, 64, 0},
    {"past", "kernel 'past' wrote past its end of buffer 0 (256 bytes)", 64, 64, 0},
    {"past", "kernel 'past' wrote before its start of buffer 0 (256 bytes)", -1u, 64, 0},
    {"shared_past", "wrote past its end of threadgroup memory 0", 8, 64, 256},
};
static int bad_index;

static void run_bad(void) {
  GPU g = open_kernels(kBad);
  id<MTLBuffer> x = words(g, 64);
  unsigned i = bad_index;
  unsigned n = bad_cases[i].n;
  id<MTLCommandBuffer> cb = run(g, bad_cases[i].kernel, 1, &x, n, 2, bad_cases[i].size, bad_cases[i].shared);
  const char *text = error_text(cb);
  CHECK(strstr(text, bad_cases[i].text) != NULL, "%s: %s", bad_cases[i].kernel, text);
  CHECK([cb error] == nil || ([[cb error] code] == MTLCommandBufferErrorInternal && [[[cb error] domain] isEqual:MTLCommandBufferErrorDomain]),
        "%s", [[[cb error] description] UTF8String]);
  // The device goes on.
  id<MTLBuffer> y = words(g, 64);
  cb = run(g, "loops", 1, &y, -1u, 1, 64, 0);  // n + 1 is 0 for thread 5 only: it never waits
  CHECK([cb status] == MTLCommandBufferStatusError, "loops that diverge at once");
  close_gpu(g);
}

static void test_kernel_faults(void) {
#if defined(HOSTMETAL_ASAN)
  int guards = 0;  // ASan speaks first
#else
  int guards = 1;
#endif
  for (bad_index = 0; bad_index < (int)(sizeof bad_cases / sizeof *bad_cases); bad_index++) {
    if (!guards && strstr(bad_cases[bad_index].text, "wrote")) continue;
    hostmetal_set_abort(0);
    for (int seed = 0; seed < 4; seed++) {
      hostmetal_set_seed(seed);
      if (seed == 0 || strstr(bad_cases[bad_index].text, "wrote")) run_bad();
    }
    hostmetal_set_seed(0);
    hostmetal_set_abort(1);
    char want[64];
    snprintf(want, sizeof want, "hostmetal: kernel '%s'", bad_cases[bad_index].kernel);
    CHECK(aborts(run_bad, want), "%s", bad_cases[bad_index].kernel);
  }
}

static void read_past(void) {
  GPU g = open_kernels(kBad);
  id<MTLBuffer> x = words(g, 33);
  run(g, "reads_past", 1, &x, 2, 1, 32, 0);
}
static void write_past(void) {
  GPU g = open_kernels(kBad);
  id<MTLBuffer> x = words(g, 64);
  run(g, "past", 1, &x, 64, 1, 64, 0);
}
static void shift_wide(void) {
  GPU g = open_kernels(kBad);
  id<MTLBuffer> x = words(g, 64);
  run(g, "shifts", 1, &x, 33, 1, 64, 0);
}

// What only a sanitizer sees. The sanitizer's own report is its business; the process must not end well.
static void test_sanitizer(void) {
  (void)read_past, (void)write_past, (void)shift_wide;
#if defined(HOSTMETAL_ASAN) || defined(HOSTMETAL_UBSAN)
#if defined(HOSTMETAL_ASAN)
  void (*cases[])(void) = {read_past, write_past};
  const char *texts[] = {"program_source:46", "program_source:37"};
#else
  void (*cases[])(void) = {shift_wide};
  const char *texts[] = {"program_source:49"};
#endif
  for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
    int out[2];
    CHECK(pipe(out) == 0, "pipe");
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
      dup2(out[1], 2);
      cases[i]();
      _exit(0);
    }
    close(out[1]);
    char message[16384];
    size_t n = 0;
    for (ssize_t r; (r = read(out[0], message + n, sizeof message - 1 - n)) > 0;) n += r;
    message[n] = 0;
    close(out[0]);
    int status;
    waitpid(pid, &status, 0);
    CHECK(status != 0 && strstr(message, texts[i]), "case %u: status %x: %s", i, status, message);
  }
#endif
}

// ---- order ----

static const char *const kOrder =
    "kernel void race(device uint *x [[buffer(0)]], constant uint &barrier [[buffer(1)]], threadgroup uint *s [[threadgroup(0)]],\n"
    "                 uint t [[thread_index_in_threadgroup]], uint n [[threads_per_threadgroup]], uint g [[threadgroup_position_in_grid]]) {\n"
    "  s[t] = t + g;\n"
    "  if (barrier) threadgroup_barrier(mem_flags::mem_threadgroup);\n"
    "  uint v = s[(t + 33) % n];\n"
    "  x[g * n + t] = v;\n"
    "}\n"
    "kernel void trace(device atomic_uint *x [[buffer(0)]], constant uint &fibers [[buffer(1)]], uint t [[thread_position_in_grid]]) {\n"
    "  if (fibers) simdgroup_barrier(mem_flags::mem_none);\n"
    "  uint at = atomic_fetch_add_explicit(&x[0], 1u, memory_order_relaxed);\n"
    "  atomic_store_explicit(&x[1 + at], t, memory_order_relaxed);\n"
    "}\n"
    "kernel void trace_plain(device atomic_uint *x [[buffer(0)]], constant uint &unused [[buffer(1)]], uint t [[thread_position_in_grid]]) {\n"
    "  uint at = atomic_fetch_add_explicit(&x[0], 1u, memory_order_relaxed);\n"
    "  atomic_store_explicit(&x[1 + at], t, memory_order_relaxed);\n"
    "}\n"
    "kernel void poison(device uint *x [[buffer(0)]], constant uint &n [[buffer(1)]], threadgroup uint *s [[threadgroup(0)]],\n"
    "                   uint t [[thread_position_in_grid]], uint i [[thread_index_in_threadgroup]]) {\n"
    "  x[t] = s[i];\n"
    "  s[i] = 0;\n"
    "}\n"
    "kernel void variable(device uint *x [[buffer(0)]], constant uint &n [[buffer(1)]], uint t [[thread_position_in_grid]],\n"
    "                     uint i [[thread_index_in_threadgroup]], uint size [[threads_per_threadgroup]]) {\n"
    "  threadgroup uint s[64];\n"
    "  uint before = s[i];\n"
    "  s[i] = i;\n"
    "  threadgroup_barrier(mem_flags::mem_threadgroup);\n"
    "  x[t] = before == 0xffa5ffa5 ? s[size - 1 - i] : 999;\n"
    "}\n";

static void test_seeds(void) {
  GPU g = open_kernels(kOrder);
  id<MTLBuffer> x = words(g, 1025);
  unsigned *xs = [x contents];
  int differ = 0;
  for (int seed = 0; seed < 64; seed++) {
    hostmetal_set_seed(seed);
    run(g, "race", 1, &x, 1, 4, 256, 1024);
    for (unsigned i = 0; i < 1024; i++) CHECK(xs[i] == (i % 256 + 33) % 256 + i / 256, "seed %d: x[%u] = %u", seed, i, xs[i]);
    run(g, "race", 1, &x, 0, 4, 256, 1024);
    int wrong = 0;
    for (unsigned i = 0; i < 1024; i++) wrong |= xs[i] != (i % 256 + 33) % 256 + i / 256;
    differ += wrong;
  }
  CHECK(differ == 64, "a missing barrier was seen under %d of 64 orders", differ);

  // Every thread runs once, in an order that the seed decides, with and without fibers.
  for (int kind = 0; kind < 2; kind++) {
    const char *name = kind ? "trace" : "trace_plain";
    unsigned first[1024];
    int moved = 0, changed = 0;
    for (int seed = 0; seed < 8; seed++) {
      hostmetal_set_seed(seed);
      char seen[1024] = {0};
      xs[0] = 0;
      run(g, name, 1, &x, 1, 4, 256, 0);
      CHECK(xs[0] == 1024, "%u threads ran", xs[0]);
      for (int i = 0; i < 1024; i++) {
        seen[xs[1 + i]]++;
        if (seed == 1) first[i] = xs[1 + i];
        if (seed == 1) moved += xs[1 + i] != (unsigned)i;
        if (seed == 2) changed += xs[1 + i] != first[i];
      }
      for (int i = 0; i < 1024; i++) CHECK(seen[i] == 1, "thread %d ran %d times", i, seen[i]);
    }
    CHECK(moved > 512 && changed > 512, "%s: seed 1 moved %d threads, seed 2 differs in %d", name, moved, changed);
  }
  hostmetal_set_seed(0);

  run(g, "poison", 1, &x, 0, 4, 256, 1024);
  for (int i = 0; i < 1024; i++) CHECK(xs[i] == 0xffa5ffa5 && from_bits(xs[i]) != from_bits(xs[i]), "threadgroup memory starts as %08x", xs[i]);
  run(g, "variable", 1, &x, 0, 4, 64, 0);
  for (int i = 0; i < 256; i++) CHECK(xs[i] == 63 - (unsigned)i % 64, "threadgroup variable: x[%d] = %u", i, xs[i]);
  CHECK([pipeline(g, "variable") staticThreadgroupMemoryLength] == 256, "%lu bytes of variables", (unsigned long)[pipeline(g, "variable") staticThreadgroupMemoryLength]);
  CHECK([pipeline(g, "poison") staticThreadgroupMemoryLength] == 0, "no variables");

  hostmetal_set_threads(3);
  for (int seed = 0; seed < 4; seed++) {
    hostmetal_set_seed(seed);
    run(g, "race", 1, &x, 1, 4, 256, 1024);
    for (unsigned i = 0; i < 1024; i++) CHECK(xs[i] == (i % 256 + 33) % 256 + i / 256, "threads: x[%u] = %u", i, xs[i]);
  }
  hostmetal_set_threads(1);
  hostmetal_set_seed(0);
  close_gpu(g);
}

// ---- numbers ----

static const char *const kNumbers =
    "kernel void ops(device float *x [[buffer(0)]], device float *y [[buffer(1)]], constant uint &op [[buffer(2)]], uint i [[thread_position_in_grid]]) {\n"
    "  float a = x[2 * i], b = x[2 * i + 1], r = 0;\n"
    "  switch (op) {\n"
    "    case 0: r = a * b; break;\n"
    "    case 1: r = a + b; break;\n"
    "    case 2: r = a / b; break;\n"
    "    case 3: r = sqrt(a); break;\n"
    "    case 4: r = rint(a); break;\n"
    "    case 5: r = round(a); break;\n"
    "    case 6: r = a < b ? 1.0 : a == b ? 2.0 : 3.0; break;\n"
    "    case 7: r = as_type<float>(uint(as_type<ushort>(half(a)))); break;\n"
    "    case 8: r = float(as_type<half>(ushort(as_type<uint>(a)))); break;\n"
    "    case 9: r = float(as_type<half>(ushort(as_type<uint>(a))) * as_type<half>(ushort(as_type<uint>(b)))); break;\n"
    "    case 10: r = fma(a, b, -1.0f); break;\n"
    "    case 11: r = max(a, b); break;\n"
    "    case 12: r = float(fma(half(a), half(b), 0.5h)); break;\n"
    "  }\n"
    "  y[i] = r;\n"
    "}\n";

static unsigned op(GPU g, unsigned which, unsigned a, unsigned b) {
  id<MTLBuffer> buffers[2] = {words(g, 2), words(g, 1)};
  unsigned *x = [buffers[0] contents];
  x[0] = a;
  x[1] = b;
  run(g, "ops", 2, buffers, which, 1, 1, 0);
  return *(unsigned *)[buffers[1] contents];
}

static void test_numbers(void) {
  GPU g = open_kernels(kNumbers);
  static const struct {
    unsigned op, a, b, on, off;  // the result with subnormals flushed, and kept
  } cases[] = {
      {0, 0x00400000, 0x40000000, 0x00000000, 0x00800000},  // input flushed
      {0, 0x80400000, 0x40000000, 0x80000000, 0x80800000},  // sign kept
      {0, 0x00800000, 0x3f000000, 0x00000000, 0x00400000},  // result flushed
      {1, 0x80400000, 0x00800000, 0x00800000, 0x00400000},
      {2, 0x00800000, 0x40000000, 0x00000000, 0x00400000},
      {6, 0x00400000, 0x00000000, 0x40000000, 0x40400000},  // compares as zero
      {1, 0x3f800001, 0x33800000, 0x3f800002, 0x3f800002},  // a tie goes to even
      {1, 0x3f800000, 0x33800000, 0x3f800000, 0x3f800000},
      {2, 0x3f800000, 0x40400000, 0x3eaaaaab, 0x3eaaaaab},
      {3, 0x40000000, 0, 0x3fb504f3, 0x3fb504f3},
      {4, 0x40200000, 0, 0x40000000, 0x40000000},  // rint(2.5) = 2
      {4, 0x40600000, 0, 0x40800000, 0x40800000},  // rint(3.5) = 4
      {4, 0xbf000000, 0, 0x80000000, 0x80000000},  // rint(-0.5) = -0
      {5, 0x40200000, 0, 0x40400000, 0x40400000},  // round(2.5) = 3
      {5, 0x3effffff, 0, 0x00000000, 0x00000000},
      {7, 0x3f801000, 0, 0x3c00, 0x3c00},  // half: ties to even
      {7, 0x3f803000, 0, 0x3c02, 0x3c02},
      {7, 0x477fefff, 0, 0x7bff, 0x7bff},
      {7, 0x477ff000, 0, 0x7c00, 0x7c00},
      {7, 0x33000000, 0, 0x0000, 0x0000},  // half of the least subnormal: tie to zero
      {7, 0x33000001, 0, 0x0001, 0x0001},  // half subnormals are kept
      {7, 0x387fe000, 0, 0x0400, 0x0400},
      {8, 0x0001, 0, 0x33800000, 0x33800000},
      {8, 0x8001, 0, 0xb3800000, 0xb3800000},
      {9, 0x0001, 0x4000, 0x34000000, 0x34000000},  // half arithmetic keeps subnormals
      {9, 0x3555, 0x4200, 0x3f800000, 0x3f800000},  // 0.33325... * 3 = 1 - 2^-12, a tie
      {10, 0x3f800001, 0x3f7ffffe, 0xa8800000, 0xa8800000},  // fma is fused: (1+e)(1-e)-1 = -e^2
      {11, 0x7fc00000, 0x3f800000, 0x3f800000, 0x3f800000},
      {12, 0x3f802000, 0x3f802000, 0x3fc04000, 0x3fc04000},  // (1+2^-10)^2 + 0.5 = 1.501953125 + 2^-20
  };
  for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
    for (int ftz = 0; ftz < 2; ftz++) {
      hostmetal_set_ftz(ftz);
      unsigned got = op(g, cases[i].op, cases[i].a, cases[i].b), want = ftz ? cases[i].on : cases[i].off;
      CHECK(got == want, "case %u, op %u(%08x, %08x), ftz %d: %08x, not %08x", i, cases[i].op, cases[i].a, cases[i].b, ftz, got, want);
    }
  }
  hostmetal_set_ftz(1);
  volatile float tiny = 0x1p-140f;
  CHECK(tiny * 2 == 0x1p-139f, "the caller's floating-point mode is left alone");

  // All halves widen to what their fields say.
  GPU w = open_kernels(
      "kernel void widen(device const ushort *x [[buffer(0)]], device float *y [[buffer(1)]], constant uint &n [[buffer(2)]], uint i [[thread_position_in_grid]]) {\n"
      "  y[i] = float(as_type<half>(x[i]));\n"
      "}\n"
      "kernel void narrow(device const float *x [[buffer(0)]], device ushort *y [[buffer(1)]], constant uint &n [[buffer(2)]], uint i [[thread_position_in_grid]]) {\n"
      "  y[i] = as_type<ushort>(half(x[i]));\n"
      "}\n");
  id<MTLBuffer> h = [[w.device newBufferWithLength:65536 * 2 options:0] autorelease], f = words(w, 65536),
                back = [[w.device newBufferWithLength:65536 * 2 options:0] autorelease];
  unsigned short *hs = [h contents], *bs = [back contents];
  float *fs = [f contents];
  for (int i = 0; i < 65536; i++) hs[i] = i;
  run(w, "widen", 2, (id<MTLBuffer>[]){h, f}, 0, 256, 256, 0);
  run(w, "narrow", 2, (id<MTLBuffer>[]){f, back}, 0, 256, 256, 0);
  for (int i = 0; i < 65536; i++) {
    int e = i >> 10 & 31, m = i & 1023;
    float want = e == 0 ? m * 0x1p-24f : (1024 + m) * from_bits((unsigned)(e - 25 + 127) << 23);
    if (i & 0x8000) want = -want;
    if (e == 31) CHECK(m ? fs[i] != fs[i] : fs[i] == (i & 0x8000 ? -__builtin_inff() : __builtin_inff()), "half %04x", i);
    else CHECK(bits(fs[i]) == bits(want) && bs[i] == i, "half %04x: %g, not %g; back %04x", i, fs[i], want, bs[i]);
  }
  close_gpu(w);
  close_gpu(g);
}

// ---- contraction and math modes ----

static const char *const kProbe =
    "kernel void probe(device float *x [[buffer(0)]], constant uint &n [[buffer(1)]]) {\n"
    "  x[0] = x[0] * 1.5f + 1.0f;\n"
    "  float t = x[1] * 1.5f;\n"
    "  x[1] = t + 1.0f;\n"
    "  x[2] = sqrt(x[2]) + 0.0f;\n"
    "}\n";

static void probe(const char *prologue, MTLCompileOptions *o, unsigned one, unsigned two, const char *what) {
  char source[2048];
  snprintf(source, sizeof source, "#include <metal_stdlib>\n%s\nusing namespace metal;\n%s", prologue, kProbe);
  GPU g = open_source(source, o);
  id<MTLBuffer> x = words(g, 3);
  unsigned *xs = [x contents];
  xs[0] = xs[1] = 0x3eb97ef9;
  xs[2] = bits(2);
  run(g, "probe", 1, &x, 0, 1, 1, 0);
  CHECK(xs[0] == one, "%s: one expression gives %08x, not %08x", what, xs[0], one);
  CHECK(xs[1] == two, "%s: two statements give %08x, not %08x", what, xs[1], two);
  CHECK((xs[2] == 0x3fb504f3) == (o && [o mathFloatingPointFunctions] == MTLMathFloatingPointFunctionsPrecise), "%s: sqrt(2) = %08x", what, xs[2]);
  close_gpu(g);
}

static void test_math_modes(void) {
  enum { kSplit = 0x3fc58f9e, kFused = 0x3fc58f9d };
  probe("", safe(), kFused, kSplit, "safe, no pragma");
  probe("#pragma METAL fp contract(off)", safe(), kSplit, kSplit, "METAL contract(off)");
  probe("#pragma clang fp contract(off)", safe(), kSplit, kSplit, "clang contract(off)");
  probe("#pragma STDC FP_CONTRACT OFF", safe(), kSplit, kSplit, "STDC FP_CONTRACT OFF");
  probe("#pragma METAL fp math_mode(safe)", safe(), kFused, kSplit, "math_mode(safe) does not stop contraction");
  probe("#pragma METAL fp math_mode(safe)\n#pragma METAL fp contract(off)", safe(), kSplit, kSplit, "both pragmas");
  probe("", nil, kFused, kFused, "fast, the default");
  MTLCompileOptions *old = [[[MTLCompileOptions alloc] init] autorelease];
  [old setFastMathEnabled:NO];
  CHECK([old mathMode] == MTLMathModeSafe && [old mathFloatingPointFunctions] == MTLMathFloatingPointFunctionsPrecise, "fastMathEnabled");
  probe("", old, kFused, kSplit, "fastMathEnabled = NO");
  MTLCompileOptions *relaxed = safe();
  [relaxed setMathMode:MTLMathModeRelaxed];
  probe("", relaxed, kFused, kFused, "relaxed");

  hostmetal_set_fault("contracts", -1);
  probe("#pragma METAL fp contract(off)\n#pragma clang fp contract(off)", safe(), kFused, kFused, "a device that contracts");
  hostmetal_clear_faults();
  hostmetal_set_fault("rounds-wrongly", -1);
  GPU g = open_kernels(kNumbers);
  CHECK(op(g, 2, 0x3f800000, 0x40400000) == 0x3eaaaaaa, "1/3 toward zero");
  close_gpu(g);
  hostmetal_clear_faults();

  id<MTLDevice> d = MTLCreateSystemDefaultDevice();
  NSError *e = nil;
  NSString *guard = @"#if defined(__FAST_MATH__)\n#error \"no fast math\"\n#endif\nkernel void k(device int *x [[buffer(0)]]) {}\n";
  id l = [d newLibraryWithSource:guard options:nil error:&e];
  CHECK(l == nil && strstr([[e localizedDescription] UTF8String], "no fast math"), "__FAST_MATH__ under fast math");
  l = [d newLibraryWithSource:guard options:safe() error:&e];
  CHECK(l != nil && e == nil, "no __FAST_MATH__ under safe math");
  [l release];
  [d release];
}

// ---- compiling ----

static NSString *compile_error(NSString *source, MTLCompileOptions *o) {
  id<MTLDevice> d = MTLCreateSystemDefaultDevice();
  NSError *e = nil;
  id<MTLLibrary> l = [d newLibraryWithSource:source options:o error:&e];
  NSString *text = l ? @"" : [e localizedDescription];
  if (!l) CHECK([[e domain] isEqual:MTLLibraryErrorDomain] && [e code] == MTLLibraryErrorCompileFailure, "%s", [[e description] UTF8String]);
  [l release];
  [d release];
  return text;
}

static void test_compile(void) {
  static const char *const bad[][2] = {
      {"kernel void k(device int *x [[buffer(0)]]) {\n  x[0] = y;\n}\n", "program_source:2:10: error: use of undeclared identifier 'y'"},
      {"\n\nkernel void k(device float *x [[buffer(0)]]) { double d = x[0]; }\n", "program_source:3: error: 'double' is not supported in Metal"},
      {"kernel void k(device long *x [[buffer(0)]]) { long long d = x[0]; }\n", "'long long' is not supported in Metal"},
      {"kernel void k(device int *x) {}\n", "program_source:1: error: kernel argument without [[buffer(n)]]"},
      {"kernel void k(device int *x [[buffer(31)]]) {}\n", "buffer index must be 0 to 30"},
      {"#include <vector>\n", "program_source:1:10: fatal error: 'vector' file not found"},
      {"constant float t[2] = {1, 2};\nkernel void k(device int *x [[buffer(0)]]) { t[0] = 3; }\n", "program_source:2"},
      {"struct A { uint n; };\nkernel void k(constant A &a [[buffer(0)]]) { a.n = 3; }\n", "program_source:2"},
      {"#include <metal_stdlib>\nusing namespace metal;\nkernel void k(device float *x [[buffer(0)]]) { x[0] = simd_sum(x[0]); }\n", "no defined order"},
      {"#include <metal_stdlib>\nusing namespace metal;\nkernel void k(device ulong *x [[buffer(0)]]) { x[0] = simd_shuffle(x[0], 1); }\n", "SIMD-group functions take"},
      {"#line 40 \"keys.metal\"\nkernel void k(device int *x [[buffer(0)]]) {\n  x[0] = y;\n}\n", "keys.metal:41:10: error"},
      {"kernel void k(device int *x [[buffer(0)]]) { auto f = [=] {}; goto a; a:; }\n", "'goto' is not supported"},
      {"template <int N> kernel void k(device int *x [[buffer(0)]]) {}\ntemplate [[host_name(\"a\")]] [[kernel]] decltype(j<1>) j<1>;\n", "program_source:2: error: no kernel template named 'j'"},
  };
  for (unsigned i = 0; i < sizeof bad / sizeof *bad; i++) {
    NSString *text = compile_error([NSString stringWithUTF8String:bad[i][0]], safe());
    CHECK(strstr([text UTF8String], bad[i][1]), "case %u: %s", i, [text UTF8String]);
  }

  MTLCompileOptions *o = safe();
  [o setPreprocessorMacros:[NSDictionary dictionaryWithObjectsAndKeys:@"12", @"WIDTH", [NSNumber numberWithInt:5], @"DEPTH", nil]];
  [o setLanguageVersion:MTLLanguageVersion3_1];
  CHECK([compile_error(@"#if WIDTH != 12 || DEPTH != 5 || __METAL_VERSION__ != 310\n#error \"macros\"\n#endif\n", o) length] == 0, "macros");

  GPU g = open_kernels("template <uint A, typename T> kernel void t(device T *x [[buffer(0)]], constant uint &n [[buffer(1)]]) { x[0] = T(A); }\n"
                       "template [[host_name(\"t_7_half\")]] [[kernel]] decltype(t<7, half>) t<7, half>;\n"
                       "template [[host_name(\"t_8_uint\")]] kernel void t<8, uint>(device uint *x [[buffer(0)]], constant uint &n [[buffer(1)]]);\n"
                       "namespace inner { [[kernel]] [[max_total_threads_per_threadgroup(64)]] void n(device uint *x [[buffer(0)]], constant uint &n [[buffer(1)]]) { x[0] = n; } }\n");
  id<MTLBuffer> x = words(g, 1);
  run(g, "t_7_half", 1, &x, 0, 1, 1, 0);
  CHECK(*(unsigned short *)[x contents] == 0x4700, "t_7_half");
  run(g, "t_8_uint", 1, &x, 0, 1, 1, 0);
  CHECK(*(unsigned *)[x contents] == 8, "t_8_uint");
  run(g, "n", 1, &x, 9, 1, 1, 0);
  CHECK(*(unsigned *)[x contents] == 9, "n");
  CHECK([pipeline(g, "n") maxTotalThreadsPerThreadgroup] == 64, "max_total_threads_per_threadgroup");
  CHECK([[g.library functionNames] count] == 3, "functionNames");
  CHECK([g.library newFunctionWithName:@"t"] == nil && [g.library newFunctionWithName:@"absent"] == nil, "absent functions");
  close_gpu(g);
}

static void open_unique(void) {
  uint64_t compiled = hostmetal_counter("compiles"), hits = hostmetal_counter("cache-hits");
  char source[256];
  snprintf(source, sizeof source, "kernel void k(device int *x [[buffer(0)]]) { x[0] = %d; }\n", (int)getppid());
  for (int i = 0; i < 2; i++) close_gpu(open_source(source, safe()));
  fprintf(stderr, "compiled %d, found %d\n", (int)(hostmetal_counter("compiles") - compiled), (int)(hostmetal_counter("cache-hits") - hits));
  abort();
}

static void test_cache(void) {
  char old[512] = "", dir[] = "/tmp/hostmetal-cache.XXXXXX", command[64];
  if (getenv("HOSTMETAL_CACHE")) snprintf(old, sizeof old, "%s", getenv("HOSTMETAL_CACHE"));
  CHECK(mkdtemp(dir) != NULL, "mkdtemp");
  setenv("HOSTMETAL_CACHE", dir, 1);
  CHECK(aborts(open_unique, "compiled 1, found 1"), "the first process compiles once");
  CHECK(aborts(open_unique, "compiled 0, found 2"), "the second process finds it");
  snprintf(command, sizeof command, "rm -rf %s", dir);
  CHECK(system(command) == 0, "%s", command);
  if (*old) setenv("HOSTMETAL_CACHE", old, 1);
  else unsetenv("HOSTMETAL_CACHE");
}

// ---- grids ----

static void test_grids(void) {
  GPU g = open_kernels(
      "struct Out { uint v[32]; };\n"
      "kernel void grid(device Out *x [[buffer(0)]], uint3 p [[thread_position_in_grid]], uint3 g [[threads_per_grid]],\n"
      "    uint3 tp [[thread_position_in_threadgroup]], uint3 gp [[threadgroup_position_in_grid]], uint3 size [[threads_per_threadgroup]],\n"
      "    uint3 groups [[threadgroups_per_grid]], uint i [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]],\n"
      "    uint sg [[simdgroup_index_in_threadgroup]], uint sgs [[simdgroups_per_threadgroup]], ushort3 p16 [[thread_position_in_grid]],\n"
      "    uint width [[threads_per_simdgroup]], uint3 full [[dispatch_threads_per_threadgroup]], ushort2 p2 [[thread_position_in_grid]]) {\n"
      "  device Out &o = x[(p.z * g.y + p.y) * g.x + p.x];\n"
      "  uint all[] = {p.x, p.y, p.z, tp.x, tp.y, tp.z, gp.x, gp.y, gp.z, size.x, size.y, size.z, groups.x, groups.y, groups.z,\n"
      "                i, lane, sg, sgs, p16.x, p16.y, p16.z, width, full.x, p2.y};\n"
      "  for (uint k = 0; k < 25; k++) o.v[k] = all[k];\n"
      "}\n");
  NSUInteger grid[3] = {7, 5, 3}, size[3] = {4, 3, 2};
  id<MTLBuffer> x = words(g, 7 * 5 * 3 * 32);
  for (int seed = 0; seed < 2; seed++) {
    hostmetal_set_seed(seed);
    memset([x contents], 0xff, [x length]);
    id<MTLCommandBuffer> cb = [g.queue commandBuffer];
    id<MTLComputeCommandEncoder> e = [cb computeCommandEncoder];
    [e setComputePipelineState:pipeline(g, "grid")];
    [e setBuffer:x offset:0 atIndex:0];
    [e dispatchThreads:MTLSizeMake(7, 5, 3) threadsPerThreadgroup:MTLSizeMake(4, 3, 2)];
    [e endEncoding];
    [cb commit];
    [cb waitUntilCompleted];
    unsigned *v = [x contents];
    for (unsigned z = 0; z < 3; z++)
      for (unsigned y = 0; y < 5; y++)
        for (unsigned xx = 0; xx < 7; xx++, v += 32) {
          unsigned p[3] = {xx, y, z}, s[3], t[3], gp[3];
          for (int k = 0; k < 3; k++) {
            gp[k] = p[k] / size[k];
            t[k] = p[k] % size[k];
            s[k] = grid[k] - gp[k] * size[k] < size[k] ? grid[k] - gp[k] * size[k] : size[k];
          }
          unsigned i = (t[2] * s[1] + t[1]) * s[0] + t[0], n = s[0] * s[1] * s[2];
          unsigned want[] = {p[0], p[1], p[2], t[0], t[1], t[2], gp[0], gp[1], gp[2], s[0], s[1], s[2], 2, 2, 2,
                             i, i % 32, i / 32, (n + 31) / 32, p[0], p[1], p[2], 32, 4, p[1]};
          CHECK(memcmp(v, want, sizeof want) == 0, "thread (%u, %u, %u)", xx, y, z);
        }
  }
  hostmetal_set_seed(0);
  close_gpu(g);
}

// ---- SIMD-group functions, integers, vectors, atomics ----

static void test_library(void) {
  GPU g = open_kernels(
      "#define F(NAME, EXPR) kernel void NAME(device uint *x [[buffer(0)]], constant uint &n [[buffer(1)]], uint t [[thread_position_in_grid]], \\\n"
      "    uint lane [[thread_index_in_simdgroup]]) { uint v = t * 2654435761u; x[t] = (EXPR); }\n"
      "F(shuffle, simd_shuffle(v, ushort(lane ^ 5)))\n"
      "F(shuffle_xor, simd_shuffle_xor(v, 9))\n"
      "F(shuffle_up, simd_shuffle_up(v, 3))\n"
      "F(shuffle_down, simd_shuffle_down(v, 3))\n"
      "F(rotate_up, simd_shuffle_rotate_up(v, 3))\n"
      "F(rotate_down, simd_shuffle_rotate_down(v, 3))\n"
      "F(broadcast, simd_broadcast(v, 17))\n"
      "F(broadcast_first, simd_broadcast_first(v))\n"
      "F(sum, simd_sum(v))\n"
      "F(smax, simd_max(v))\n"
      "F(smin, simd_min(v))\n"
      "F(sor, simd_or(v))\n"
      "F(prefix, simd_prefix_exclusive_sum(v))\n"
      "F(ballot, uint(simd_vote::vote_t(simd_ballot(lane % 3 == 0))))\n"
      "F(votes, uint(simd_any(lane == 31)) + 2 * uint(simd_all(lane < 31)))\n"
      "F(vectors, simd_shuffle_xor(float4(float2(1, 2), float(t), half(3)), 1).z == float(t ^ 1) ? 1 : 0)\n"
      "F(integers, popcount(v) | clz(v | 1) << 8 | ctz(v | 0x80000000) << 16 | extract_bits(v, 3, 5) << 24)\n"
      "F(insert, insert_bits(v, 0xffffffffu, 4, 9))\n"
      "F(bytes, as_type<uint>(uchar4(as_type<uchar4>(v).wzyx)))\n"
      "F(extracted, uint(extract_bits(int(v), 27, 5)))\n"
      "F(mixed, min(v, 77u) + uint(max(int(v), -5)) + clamp(v, 3u, 9u) + select(1u, 2u, v > 0x80000000u) + rotate(v, 7u))\n"
      "kernel void atomics(device atomic_uint *x [[buffer(0)]], constant uint &n [[buffer(1)]], threadgroup atomic_uint *s [[threadgroup(0)]],\n"
      "    uint t [[thread_position_in_grid]], uint i [[thread_index_in_threadgroup]]) {\n"
      "  if (i == 0) atomic_store_explicit(s, 0u, memory_order_relaxed);\n"
      "  threadgroup_barrier(mem_flags::mem_threadgroup);\n"
      "  atomic_fetch_max_explicit(s, t, memory_order_relaxed);\n"
      "  atomic_fetch_add_explicit(&x[0], t, memory_order_relaxed);\n"
      "  atomic_fetch_min_explicit(&x[1], t, memory_order_relaxed);\n"
      "  uint expected = 5;\n"
      "  atomic_compare_exchange_weak_explicit(&x[2], &expected, t, memory_order_relaxed, memory_order_relaxed);\n"
      "  threadgroup_barrier(mem_flags::mem_threadgroup);\n"
      "  if (i == 0) atomic_fetch_add_explicit(&x[3], atomic_load_explicit(s, memory_order_relaxed), memory_order_relaxed);\n"
      "}\n");
  id<MTLBuffer> x = words(g, 64);
  unsigned *xs = [x contents], v[64];
  for (unsigned t = 0; t < 64; t++) v[t] = t * 2654435761u;
  for (int seed = 0; seed < 3; seed++) {
    hostmetal_set_seed(seed);
#define EACH(NAME, WANT)                                               \
  run(g, NAME, 1, &x, 0, 1, 64, 0);                                    \
  for (unsigned t = 0; t < 64; t++) {                                  \
    unsigned lane = t % 32, base = t - lane;                           \
    (void)lane, (void)base;                                            \
    unsigned want = (WANT);                                            \
    CHECK(xs[t] == want, "%s: x[%u] = %08x, not %08x", NAME, t, xs[t], want); \
  }
    unsigned sum[2] = {0}, most[2] = {0}, least[2] = {-1u, -1u}, or[2] = {0}, prefix[64];
    for (int t = 0; t < 64; t++) {
      prefix[t] = sum[t / 32];
      sum[t / 32] += v[t];
      or[t / 32] |= v[t];
      if (v[t] > most[t / 32]) most[t / 32] = v[t];
      if (v[t] < least[t / 32]) least[t / 32] = v[t];
    }
    EACH("shuffle", v[t ^ 5])
    EACH("shuffle_xor", v[t ^ 9])
    EACH("shuffle_up", lane < 3 ? v[t] : v[t - 3])
    EACH("shuffle_down", lane > 28 ? v[t] : v[t + 3])
    EACH("rotate_up", v[base + (lane + 29) % 32])
    EACH("rotate_down", v[base + (lane + 3) % 32])
    EACH("broadcast", v[base + 17])
    EACH("broadcast_first", v[base])
    EACH("sum", sum[t / 32])
    EACH("smax", most[t / 32])
    EACH("smin", least[t / 32])
    EACH("sor", or[t / 32])
    EACH("prefix", prefix[t])
    EACH("ballot", 0x49249249u)
    EACH("votes", 1)
    EACH("vectors", 1)
    EACH("integers", (unsigned)__builtin_popcount(v[t]) | (unsigned)__builtin_clz(v[t] | 1) << 8 |
                         (unsigned)__builtin_ctz(v[t] | 0x80000000) << 16 | (v[t] >> 3 & 31) << 24)
    EACH("insert", v[t] | 0x1ff0)
    EACH("bytes", __builtin_bswap32(v[t]))
    EACH("extracted", (unsigned)((int)v[t] >> 27))
    EACH("mixed", (v[t] < 77 ? v[t] : 77) + (unsigned)((int)v[t] > -5 ? (int)v[t] : -5) + (v[t] < 3 ? 3 : v[t] > 9 ? 9 : v[t]) +
                      (v[t] > 0x80000000u ? 2 : 1) + (v[t] << 7 | v[t] >> 25))
    xs[0] = xs[3] = 0;
    xs[1] = 100;
    xs[2] = 5;
    run(g, "atomics", 1, &x, 0, 2, 32, 16);
    CHECK(xs[0] == 2016 && xs[1] == 0 && xs[2] != 5 && xs[3] == 31 + 63, "atomics: %u %u %u %u", xs[0], xs[1], xs[2], xs[3]);
  }
  hostmetal_set_seed(0);
  close_gpu(g);
}

// ---- misuse of the API ----

static GPU plain(void) {
  return open_kernels(
      "kernel void k(device uint *x [[buffer(0)]], constant uint &n [[buffer(1)]], uint t [[thread_position_in_grid]]) { if (t < 4) x[t] = n; }\n"
      "kernel void shared(device uint4 *x [[buffer(0)]], constant uint4 &n [[buffer(1)]], threadgroup uint *s [[threadgroup(2)]]) { s[0] = 1; x[0] = n; }\n");
}
#define ENCODER(G)                                             \
  GPU g = (G);                                                 \
  id<MTLCommandBuffer> cb = [g.queue commandBuffer];           \
  id<MTLComputeCommandEncoder> e = [cb computeCommandEncoder]; \
  id<MTLBuffer> x = words(g, 4);                               \
  unsigned n = 1;                                              \
  (void)cb, (void)x, (void)n
#define SETUP                                                  \
  ENCODER(plain());                                            \
  [e setComputePipelineState:pipeline(g, "k")];                \
  [e setBuffer:x offset:0 atIndex:0];                          \
  [e setBytes:&n length:4 atIndex:1]
#define ONE MTLSizeMake(1, 1, 1)

static void m_nil_pipeline(void) { ENCODER(plain()); [e setComputePipelineState:nil]; }
static void m_no_pipeline(void) { ENCODER(plain()); [e dispatchThreadgroups:ONE threadsPerThreadgroup:ONE]; }
static void m_no_buffer(void) { SETUP; [e setBuffer:nil offset:0 atIndex:0]; [e dispatchThreadgroups:ONE threadsPerThreadgroup:ONE]; }
static void m_wrong_object(void) { SETUP; [e setBuffer:(id)g.queue offset:0 atIndex:0]; }
static void m_offset(void) { SETUP; [e setBuffer:x offset:16 atIndex:0]; }
static void m_rebind(void) { SETUP; [e setBufferOffset:4 atIndex:5]; }
static void m_index(void) { SETUP; [e setBuffer:x offset:0 atIndex:31]; }
static void m_align(void) { SETUP; [e setBuffer:x offset:2 atIndex:0]; [e dispatchThreadgroups:ONE threadsPerThreadgroup:ONE]; }
static void m_short(void) { SETUP; [e setComputePipelineState:pipeline(g, "shared")]; [e setThreadgroupMemoryLength:16 atIndex:2]; [e dispatchThreadgroups:ONE threadsPerThreadgroup:ONE]; }
static void m_no_shared(void) { SETUP; [e setBuffer:x offset:0 atIndex:1]; [e setComputePipelineState:pipeline(g, "shared")]; [e dispatchThreadgroups:ONE threadsPerThreadgroup:ONE]; }
static void m_shared_15(void) { SETUP; [e setThreadgroupMemoryLength:15 atIndex:0]; }
static void m_shared_33k(void) { SETUP; [e setThreadgroupMemoryLength:32784 atIndex:0]; [e dispatchThreadgroups:ONE threadsPerThreadgroup:ONE]; }
static void m_bytes_long(void) { SETUP; static char big[4097]; [e setBytes:big length:4097 atIndex:1]; }
static void m_bytes_none(void) { SETUP; [e setBytes:&n length:0 atIndex:1]; }
static void m_threads(void) { SETUP; [e dispatchThreadgroups:ONE threadsPerThreadgroup:MTLSizeMake(33, 32, 1)]; }
static void m_zero(void) { SETUP; [e dispatchThreadgroups:MTLSizeMake(0, 1, 1) threadsPerThreadgroup:ONE]; }
static void m_zero_size(void) { SETUP; [e dispatchThreads:ONE threadsPerThreadgroup:MTLSizeMake(1, 0, 1)]; }
static void m_end_twice(void) { SETUP; [e endEncoding]; [e endEncoding]; }
static void m_after_end(void) { SETUP; [e endEncoding]; [e dispatchThreadgroups:ONE threadsPerThreadgroup:ONE]; }
static void m_commit_open(void) { SETUP; [cb commit]; }
static void m_commit_twice(void) { SETUP; [e endEncoding]; [cb commit]; [cb commit]; }
static void m_encode_committed(void) { SETUP; [e endEncoding]; [cb commit]; [cb computeCommandEncoder]; }
static void m_two_encoders(void) { SETUP; [cb computeCommandEncoder]; }
static void m_wait(void) { SETUP; [e endEncoding]; [cb waitUntilCompleted]; }
static void m_not_ended(void) {
  NSAutoreleasePool *pool = [[NSAutoreleasePool alloc] init];
  { SETUP; (void)e; }
  [pool drain];
}
static void m_empty_buffer(void) { ENCODER(plain()); [g.device newBufferWithLength:0 options:0]; (void)e; }
static void m_nil_source(void) { ENCODER(plain()); [g.device newLibraryWithSource:nil options:nil error:NULL]; (void)e; }
static void m_nil_name(void) { ENCODER(plain()); [g.library newFunctionWithName:nil]; (void)e; }
static void m_nil_function(void) { ENCODER(plain()); [g.device newComputePipelineStateWithFunction:nil error:NULL]; (void)e; }
static void m_no_pages(void) { ENCODER(plain()); [g.device newBufferWithBytesNoCopy:&n length:4 options:0 deallocator:NULL]; (void)e; }

static const struct {
  void (*f)(void);
  const char *text;
} misuse_cases[] = {
    {m_nil_pipeline, "setComputePipelineState:] with nil"},
    {m_no_pipeline, "dispatchThreadgroups:threadsPerThreadgroup:] without a pipeline state"},
    {m_no_buffer, "of kernel 'k': no buffer bound at index 0"},
    {m_wrong_object, "setBuffer:offset:atIndex:] with an object that is no buffer"},
    {m_offset, "offset 16 in a buffer of 16 bytes"},
    {m_rebind, "setBufferOffset:atIndex:] where no buffer is bound"},
    {m_index, "index 31 is not below 31"},
    {m_align, "offset 2 of buffer 0 is not a multiple of 4"},
    {m_short, "buffer 1 has 4 bytes, the argument needs 16"},
    {m_no_shared, "no length set for threadgroup memory 2"},
    {m_shared_15, "length 15 is not a multiple of 16"},
    {m_shared_33k, "threadgroup memory of 32784 bytes is more than 32768"},
    {m_bytes_long, "setBytes:length:atIndex:] with more than 4096 bytes"},
    {m_bytes_none, "setBytes:length:atIndex:] with no bytes"},
    {m_threads, "1056 threads a threadgroup are more than the pipeline's 1024"},
    {m_zero, "with a size of 0"},
    {m_zero_size, "with a size of 0"},
    {m_end_twice, "-[MTLComputeCommandEncoder endEncoding] after endEncoding"},
    {m_after_end, "dispatchThreadgroups:threadsPerThreadgroup:] after endEncoding"},
    {m_commit_open, "-[MTLCommandBuffer commit] before its encoder's endEncoding"},
    {m_commit_twice, "-[MTLCommandBuffer commit] twice"},
    {m_encode_committed, "computeCommandEncoder] after commit"},
    {m_two_encoders, "computeCommandEncoder] before the previous encoder's endEncoding"},
    {m_wait, "waitUntilCompleted] before commit"},
    {m_not_ended, "released without endEncoding"},
    {m_empty_buffer, "newBufferWithLength:options:] with length 0"},
    {m_nil_source, "with a nil source"},
    {m_nil_name, "with a nil name"},
    {m_nil_function, "newComputePipelineStateWithFunction:error:] without a function"},
    {m_no_pages, "needs whole pages"},
};

static void test_misuse(void) {
  for (unsigned i = 0; i < sizeof misuse_cases / sizeof *misuse_cases; i++) CHECK(aborts(misuse_cases[i].f, misuse_cases[i].text), "case %u", i);
  hostmetal_set_abort(0);
  unsigned long before = hostmetal_misuses();
  {
    SETUP;
    [e endEncoding];
    [e endEncoding];
    CHECK(hostmetal_misuses() == before + 1 && strstr(hostmetal_last_misuse(), "endEncoding"), "recorded: %s", hostmetal_last_misuse());
    [cb commit];
    [cb waitUntilCompleted];
    close_gpu(g);
  }
  hostmetal_set_abort(1);
}

// ---- ownership ----

extern void msgSend(void) __asm__("objc_msgSend");
#if defined(__x86_64__)
extern void msgSendStret(void) __asm__("objc_msgSend_stret");
#endif
#define SEND ((id(*)(id, SEL))msgSend)
static void release_twice(void) {
  ENCODER(plain());
  (void)e;
  id<MTLBuffer> b = [g.device newBufferWithLength:4 options:0];
  [b release];
  [b release];
}
static void use_after_release(void) {
  ENCODER(plain());
  (void)e;
  id<MTLBuffer> b = [g.device newBufferWithLength:4 options:0];
  [b release];
  ((NSUInteger(*)(id, SEL))msgSend)(b, @selector(length));
}
static void use_after_release_directly(void) {
  ENCODER(plain());
  (void)e;
  id<MTLBuffer> b = [g.device newBufferWithLength:4 options:0];
  [b release];
  [b contents];
}
static void pool_releases_twice(void) {
  NSAutoreleasePool *pool = [[NSAutoreleasePool alloc] init];
  GPU g = plain();
  id<MTLCommandBuffer> cb = [g.queue commandBuffer];
  [cb release];
  [pool drain];
}

// A block without captures, as the compiler lays it out; no blocks runtime is linked.
struct block {
  void *isa;
  int flags, reserved;
  void (*invoke)(struct block *, void *, NSUInteger);
};
static int freed;
static void free_pages(struct block *b, void *p, NSUInteger length) {
  freed += length;
  free(p);
}
static struct block free_block = {NULL, 1 << 28, 0, free_pages};

static void test_ownership(void) {
  CHECK(aborts(release_twice, "-[MTLBuffer release] sent to a deallocated object: released once too often"), "release twice");
  CHECK(aborts(use_after_release, "-[MTLBuffer length] sent to a deallocated object: used after its release"), "use after release");
  CHECK(aborts(use_after_release_directly, "-[MTLBuffer contents] sent to a deallocated object"), "use after release");
  CHECK(aborts(pool_releases_twice, "-[MTLCommandBuffer release] sent to a deallocated object"), "autoreleased and released");

  GPU g = plain();
  CHECK(hostmetal_live_count("MTLDevice") == 1 && hostmetal_live_count("MTLLibrary") == 1 && hostmetal_live_count("MTLCommandQueue") == 1, "live");
  CHECK(hostmetal_live_count("Absent") == -1, "unknown class");
  size_t before = [g.device currentAllocatedSize];
  id<MTLBuffer> b = [g.device newBufferWithLength:100 options:0];
  CHECK(hostmetal_live_count("MTLBuffer") == 1 && [g.device currentAllocatedSize] == before + 100 && [b length] == 100, "one buffer");
  // A buffer that was released after encoding serves until the work is done.
  id<MTLBuffer> y = [g.device newBufferWithLength:16 options:0];
  id<MTLCommandBuffer> cb = [g.queue commandBuffer];
  id<MTLComputeCommandEncoder> e = [cb computeCommandEncoder];
  unsigned n = 42;
  [e setComputePipelineState:pipeline(g, "k")];
  [e setBuffer:y offset:0 atIndex:0];
  [e setBytes:&n length:4 atIndex:1];
  n = 43;
  [e dispatchThreadgroups:ONE threadsPerThreadgroup:MTLSizeMake(4, 1, 1)];
  [e endEncoding];
  unsigned *ys = [y contents];
  [cb commit];
  CHECK([cb status] == MTLCommandBufferStatusCommitted && [cb status] == MTLCommandBufferStatusCompleted, "polling completes");
  CHECK(ys[3] == 42, "setBytes copies: %u", ys[3]);
  [y release];
  [b release];
  CHECK(hostmetal_live_count("MTLBuffer") == 0 && [g.device currentAllocatedSize] == before, "no buffer");

  b = [g.device newBufferWithBytes:"abc" length:3 options:0];
  CHECK(memcmp([b contents], "abc", 3) == 0 && [b length] == 3, "newBufferWithBytes");
  [b release];
  b = [g.device newBufferWithLength:16 options:MTLResourceStorageModePrivate];
  CHECK([b contents] == NULL, "private contents");
  [b release];
  void *page = aligned_alloc(16384, 16384);
  b = [g.device newBufferWithBytesNoCopy:page length:16384 options:0 deallocator:(void (^)(void *, NSUInteger))(void *)&free_block];
  CHECK([b contents] == page && freed == 0, "no copy");
  [b release];
  CHECK(freed == 16384, "deallocator");

  // Nothing grows.
  for (int i = 0; i < 3000; i++) {
    NSAutoreleasePool *pool = [[NSAutoreleasePool alloc] init];
    id<MTLBuffer> z = words(g, 4);
    run(g, "k", 1, &z, 1, 1, 32, 0);
    [pool drain];
    CHECK(hostmetal_live_count("MTLCommandBuffer") == 1, "command buffers: %ld", hostmetal_live_count("MTLCommandBuffer"));
  }
  close_gpu(g);
}

// ---- messages ----

static void test_messages(void) {
  GPU g = plain();
  SEL size = @selector(maxThreadsPerThreadgroup);
  MTLSize s = {0, 0, 0};
#if defined(__x86_64__)
  ((void (*)(MTLSize *, id, SEL))msgSendStret)(&s, g.device, size);
#else
  s = ((MTLSize(*)(id, SEL))msgSend)(g.device, size);
#endif
  CHECK(s.width == 1024 && s.height == 1024 && s.depth == 1024, "structure return");
  CHECK(((double (*)(id, SEL))msgSend)(nil, @selector(GPUStartTime)) == 0 && SEND(nil, @selector(name)) == nil, "nil");
  id<MTLCommandBuffer> cb = [g.queue commandBuffer];
  id<MTLComputeCommandEncoder> e = SEND(cb, @selector(computeCommandEncoder));
  id<MTLBuffer> x = words(g, 4);
  unsigned n = 9;
  ((void (*)(id, SEL, id))msgSend)(e, @selector(setComputePipelineState:), pipeline(g, "k"));
  ((void (*)(id, SEL, id, NSUInteger, NSUInteger))msgSend)(e, @selector(setBuffer:offset:atIndex:), x, 0, 0);
  ((void (*)(id, SEL, void *, NSUInteger, NSUInteger))msgSend)(e, @selector(setBytes:length:atIndex:), &n, 4, 1);
  ((void (*)(id, SEL, MTLSize, MTLSize))msgSend)(e, @selector(dispatchThreads:threadsPerThreadgroup:), MTLSizeMake(4, 1, 1), MTLSizeMake(2, 1, 1));
  SEND(e, @selector(endEncoding));
  SEND(cb, @selector(commit));
  SEND(cb, @selector(waitUntilCompleted));
  CHECK(((unsigned *)[x contents])[3] == 9, "dispatched by messages");
  CHECK(((double (*)(id, SEL))msgSend)(cb, @selector(GPUEndTime)) == [cb GPUEndTime] && [cb GPUEndTime] > 0, "double return");
  CHECK([g.device respondsToSelector:@selector(newCommandQueue)] && ![g.device respondsToSelector:@selector(newEvent)], "respondsToSelector");
  CHECK([[g.device name] length] > 0 && [[[g.device architecture] name] hasPrefix:@"hostmetal"] && [g.device registryID] != 0, "device");
  CHECK([g.device hasUnifiedMemory] && [g.device supportsFamily:MTLGPUFamilyApple7] && ![g.device supportsFamily:1009], "device");
  CHECK([g.device maxThreadgroupMemoryLength] == 32768 && [g.device maxBufferLength] > 1 << 28 && [g.device recommendedMaxWorkingSetSize] > 1 << 28, "device");
  NSArray *all = MTLCopyAllDevices();
  CHECK([all count] == 1 && [[all objectAtIndex:0] registryID] == [g.device registryID], "all devices");
  [all release];
  close_gpu(g);
}

// ---- injected faults ----

static void test_faults(void) {
  CHECK(hostmetal_set_fault("absent", 1) == -1, "an unknown fault");
  hostmetal_set_fault("no-device", 1);
  CHECK(MTLCreateSystemDefaultDevice() == nil, "no device");
  hostmetal_set_fault("no-device", -1);
  NSArray *none = MTLCopyAllDevices();
  CHECK(MTLCreateSystemDefaultDevice() == nil && [none count] == 0, "no device");
  [none release];
  hostmetal_clear_faults();
  GPU g = plain();
  NSError *e = nil;
  NSString *source = @"kernel void k(device int *x [[buffer(0)]]) {}";

  hostmetal_set_fault("no-queue", 1);
  CHECK([g.device newCommandQueue] == nil, "no queue");
  hostmetal_set_fault("no-library", 2);
  id l = [g.device newLibraryWithSource:source options:safe() error:&e];
  CHECK(l != nil && e == nil, "the second library only");
  [l release];
  CHECK([g.device newLibraryWithSource:source options:safe() error:&e] == nil && e != nil, "no library");
  hostmetal_set_fault("no-function", 1);
  CHECK([g.library newFunctionWithName:@"k"] == nil, "no function");
  id<MTLFunction> f = [g.library newFunctionWithName:@"k"];
  hostmetal_set_fault("no-pipeline", 1);
  e = nil;
  CHECK([g.device newComputePipelineStateWithFunction:f error:&e] == nil && e != nil, "no pipeline");
  [f release];
  hostmetal_set_fault("no-buffer", 1);
  CHECK([g.device newBufferWithLength:4 options:0] == nil, "no buffer");
  hostmetal_set_fault("no-command-buffer", 1);
  CHECK([g.queue commandBuffer] == nil, "no command buffer");
  hostmetal_set_fault("no-encoder", 1);
  CHECK([[g.queue commandBuffer] computeCommandEncoder] == nil, "no encoder");
  static const struct {
    const char *name;
    NSInteger code;
  } commands[] = {{"command-out-of-memory", 8}, {"command-timeout", 2}, {"command-page-fault", 3}};
  id<MTLBuffer> x = words(g, 4);
  for (int i = 0; i < 3; i++) {
    memset([x contents], 0, 16);
    hostmetal_set_fault(commands[i].name, 1);
    id<MTLCommandBuffer> cb = run(g, "k", 1, &x, 5, 1, 32, 0);
    CHECK([cb status] == MTLCommandBufferStatusError && [[cb error] code] == commands[i].code, "%s", commands[i].name);
    CHECK([[[cb error] domain] isEqual:MTLCommandBufferErrorDomain] && [[[cb error] localizedDescription] length] > 0, "%s", commands[i].name);
    CHECK(((unsigned *)[x contents])[0] == 0, "%s: the kernel ran", commands[i].name);
    cb = run(g, "k", 1, &x, 5, 1, 32, 0);
    CHECK([cb status] == MTLCommandBufferStatusCompleted && ((unsigned *)[x contents])[0] == 5, "after %s", commands[i].name);
  }
  hostmetal_set_fault("command-ignored", 1);
  for (int i = 0; i < 2; i++) {
    id<MTLCommandBuffer> cb = run(g, "k", 1, &x, 5, 1, 32, 0);
    CHECK([cb status] == MTLCommandBufferStatusError && [[cb error] code] == 4, "command-ignored, %d", i);
  }
  [g.queue release];
  g.queue = [g.device newCommandQueue];
  CHECK([run(g, "k", 1, &x, 5, 1, 32, 0) status] == MTLCommandBufferStatusCompleted, "a new queue after command-ignored");
  close_gpu(g);

  hostmetal_set_fault("width-16", -1);
  hostmetal_set_fault("threads-256", -1);
  hostmetal_set_fault("little-memory", -1);
  g = open_kernels("kernel void w(device uint *x [[buffer(0)]], constant uint &n [[buffer(1)]], uint t [[thread_position_in_grid]],\n"
                   "              uint s [[simdgroup_index_in_threadgroup]]) { x[t] = simd_max(t) * 100 + s; }\n");
  hostmetal_clear_faults();
  CHECK([pipeline(g, "w") threadExecutionWidth] == 16 && [pipeline(g, "w") maxTotalThreadsPerThreadgroup] == 256, "width 16, 256 threads");
  CHECK([g.device maxThreadsPerThreadgroup].width == 256, "256 threads");
  CHECK([g.device recommendedMaxWorkingSetSize] == 1 << 20, "little memory");
  x = words(g, 32);
  run(g, "w", 1, &x, 0, 1, 32, 0);
  CHECK(((unsigned *)[x contents])[0] == 1500 && ((unsigned *)[x contents])[16] == 3101, "16 lanes");
  id<MTLBuffer> half = [g.device newBufferWithLength:1 << 19 options:0];
  CHECK(half != nil && [g.device newBufferWithLength:1 << 19 options:0] == nil, "little memory");
  [half release];
  close_gpu(g);
}

// ---- several command buffers, passes and threads ----

static void test_queue(void) {
  GPU g = open_kernels("kernel void append(device uint *x [[buffer(0)]], constant uint &n [[buffer(1)]]) { uint at = ++x[0]; x[at] = n; }\n");
  id<MTLBuffer> x = words(g, 65);
  unsigned *xs = [x contents];
  id<MTLComputePipelineState> p = pipeline(g, "append");
  int reordered = 0;
  for (int type = 0; type < 2; type++) {
    for (int seed = 0; seed < 4; seed++) {
      hostmetal_set_seed(seed);
      memset(xs, 0, 65 * 4);
      id<MTLCommandBuffer> last = nil;
      unsigned n = 0;
      for (int c = 0; c < 4; c++) {
        last = [g.queue commandBuffer];
        for (int q = 0; q < 2; q++) {
          id<MTLComputeCommandEncoder> e = [last computeCommandEncoderWithDispatchType:type];
          [e setComputePipelineState:p];
          [e setBuffer:x offset:0 atIndex:0];
          for (int i = 0; i < 8; i++, n++) {
            if (i % 4 == 0) [e memoryBarrierWithScope:MTLBarrierScopeBuffers];
            [e setBytes:&n length:4 atIndex:1];
            [e dispatchThreadgroups:ONE threadsPerThreadgroup:ONE];
          }
          [e endEncoding];
        }
        [last commit];
      }
      CHECK(xs[0] == 0, "nothing ran yet");
      [last waitUntilCompleted];
      CHECK(xs[0] == 64, "%u ran", xs[0]);
      for (unsigned i = 0; i < 64; i++) {
        if (type == 0 || seed == 0) CHECK(xs[1 + i] == i, "serial: x[%u] = %u", i, xs[1 + i]);
        CHECK(xs[1 + i] / 4 == i / 4, "barriers hold: x[%u] = %u", i, xs[1 + i]);
        reordered += xs[1 + i] != i;
      }
    }
  }
  CHECK(reordered > 0, "concurrent dispatches keep their order");
  hostmetal_set_seed(0);
  close_gpu(g);
}

// ---- the environment, in a process of its own ----

static int env_child(void) {
  NSAutoreleasePool *pool = [[NSAutoreleasePool alloc] init];
  GPU g = open_kernels(kOrder);
  id<MTLCommandQueue> second = [g.device newCommandQueue];
  id<MTLBuffer> x = words(g, 65);
  unsigned *xs = [x contents];
  run(g, "trace_plain", 1, &x, 1, 1, 64, 0);
  int moved = 0;
  for (unsigned i = 0; i < 64; i++) moved += xs[1 + i] != i;
  [[g.queue commandBuffer] waitUntilCompleted];  // a misuse
  GPU n = open_kernels(kNumbers);
  printf("width %lu, second queue %d, moved %d, misuses %lu, ftz %d\n", (unsigned long)[pipeline(g, "trace") threadExecutionWidth],
         second != nil, moved > 0, hostmetal_misuses(), op(n, 0, 0x00400000, 0x40000000) == 0);
  fflush(stdout);
  (void)pool;
  return 0;
}

static void test_environment(void) {
  static const struct {
    const char *variables, *want;
  } cases[] = {
      {"", "width 32, second queue 1, moved 0, misuses 1, ftz 1\n"},
      {"HOSTMETAL_FAULT=width-16,no-queue=2 HOSTMETAL_SEED=9 HOSTMETAL_FTZ=0", "width 16, second queue 0, moved 1, misuses 1, ftz 0\n"},
  };
  char self[512] = "", command[1024], said[256] = "";
  if (readlink("/proc/self/exe", self, sizeof self - 1) < 0) return;
  for (int i = 0; i < 2; i++) {
    const char *runner = getenv("HOSTMETAL_TEST_RUNNER");
    snprintf(command, sizeof command, "%s HOSTMETAL_ABORT=0 %s %s environment-child", cases[i].variables, runner ? runner : "", self);
    FILE *f = popen(command, "r");
    said[fread(said, 1, sizeof said - 1, f)] = 0;
    CHECK(pclose(f) == 0 && strcmp(said, cases[i].want) == 0, "%s: %s", cases[i].variables, said);
  }
}

struct test {
  const char *name;
  void (*f)(void);
};
static const struct test tests[] = {
    {"smoke", test_smoke},         {"kernel faults", test_kernel_faults}, {"sanitizer", test_sanitizer},
    {"seeds", test_seeds},         {"numbers", test_numbers},             {"math modes", test_math_modes},
    {"compile", test_compile},     {"cache", test_cache},                 {"grids", test_grids},
    {"library", test_library},     {"misuse", test_misuse},               {"ownership", test_ownership},
    {"messages", test_messages},   {"faults", test_faults},               {"queue", test_queue},
    {"environment", test_environment},
};

int main(int argc, char **argv) {
  if (argc > 1 && strcmp(argv[1], "environment-child") == 0) return env_child();
  for (unsigned i = 0; i < sizeof tests / sizeof *tests; i++) {
    if (argc > 1 && strcmp(argv[1], tests[i].name) != 0) continue;
    int before = failures, counted = checks;
    NSAutoreleasePool *pool = [[NSAutoreleasePool alloc] init];
    tests[i].f();
    [pool drain];
    CHECK(hostmetal_live_count(NULL) == 0, "%ld objects leaked", hostmetal_live_count(NULL));
    printf("%-24s %s (%d checks)\n", tests[i].name, failures == before ? "ok" : "FAILED", checks - counted);
  }
  if (failures) printf("%d of %d checks failed\n", failures, checks);
  return failures != 0;
}
