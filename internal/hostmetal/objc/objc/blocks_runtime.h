// GNUstep asks for this where clang has blocks; GCC's runtime does not bring it.
#ifndef HOSTMETAL_BLOCKS_RUNTIME_H
#define HOSTMETAL_BLOCKS_RUNTIME_H
#ifdef __cplusplus
extern "C" {
#endif
void *_Block_copy(const void *);
void _Block_release(const void *);
#ifdef __cplusplus
}
#endif
#endif
