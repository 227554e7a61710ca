// Tests of hostmetal itself, through Metal's API and hostmetal.h.
#import <Metal/Metal.h>
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

struct test {
  const char *name;
  void (*f)(void);
};
static const struct test tests[] = {
    {"smoke", test_smoke},
};

int main(int argc, char **argv) {
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
