// What Apple's compiler and headers have for granted.
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <objc/runtime.h>
