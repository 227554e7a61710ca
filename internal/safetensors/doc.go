// Package safetensors reads and writes safetensors files lazily: opening
// a file reads its header and nothing else, and writing one holds no tensor.
//
// # The format
//
// A file is the header's length as a little-endian uint64, the header, and
// the payload. The header is a UTF-8 JSON object that begins with '{' and may
// end in white space; it maps each tensor's name to its dtype, shape and
// [begin, end) byte range in the payload, and "__metadata__" to an object of
// strings. Elements are little-endian and in row-major order. The ranges
// cover the payload exactly: no overlap, no hole, nothing after the last.
// Headers are limited to 100,000,000 bytes, as in the public implementation.
//
// Reading is strict where JSON readers are commonly lax. Duplicate keys,
// numbers with a fraction or an exponent, unknown fields of a tensor,
// metadata that is not a string, half of a surrogate pair, and shapes whose
// product leaves 63 bits (zero dimensions left out of the product) are errors.
// Tensors of no elements and scalars (shape []) are valid, and metadata may be
// null. docs/format.md lists what the public implementation accepts and this
// package does not.
//
// # Why not a library
//
// github.com/nlpodyssey/safetensors (bfb01cc25f7c) was judged first. It takes
// the whole file as one []byte (opening a 1 GiB file allocates 1 GiB) and
// serialises from tensors that are all in memory, in an order of its own; it
// accepts duplicate tensor names, fields and metadata keys (the last wins), a
// header of null, invalid UTF-8 in names and dimensions of 2^63; it knows no
// 8-bit floats and cannot build a scalar. Its checks of ranges, overflow,
// header length and number syntax are sound.
package safetensors
