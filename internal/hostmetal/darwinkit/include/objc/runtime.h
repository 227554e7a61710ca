// GCC's runtime, with what darwinkit names of Apple's and nothing here calls.
#ifndef DARWINKIT_RUNTIME_H
#define DARWINKIT_RUNTIME_H

#include_next <objc/runtime.h>
#include <objc/message.h>
#include <stdint.h>
#include <stdlib.h>

typedef uint8_t Byte;

typedef struct {
  const char *name;
  const char *value;
} objc_property_attribute_t;

#define class_getMethodImplementation_stret class_getMethodImplementation // one method, one implementation

static inline void *imp_implementationWithBlock(id block) { abort(); }
static inline id imp_getBlock(IMP imp) { abort(); }
static inline BOOL imp_removeBlock(IMP imp) { abort(); }
static inline char *property_copyAttributeValue(objc_property_t p, const char *name) { abort(); }
static inline objc_property_attribute_t *property_copyAttributeList(objc_property_t p, unsigned *n) { abort(); }
static inline void objc_setAssociatedObject(id object, const void *key, id value, uintptr_t policy) { abort(); }
static inline id objc_getAssociatedObject(id object, const void *key) { abort(); }
static inline void objc_removeAssociatedObjects(id object) { abort(); }
static inline BOOL class_addProperty(Class c, const char *name, const objc_property_attribute_t *a, unsigned n) { abort(); }
static inline void class_replaceProperty(Class c, const char *name, const objc_property_attribute_t *a, unsigned n) { abort(); }
static inline Protocol *objc_allocateProtocol(const char *name) { abort(); }

#endif
