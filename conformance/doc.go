// Package conformance holds every backend to the same bits.
//
// It generates cases for each operation of a codec.Backend, runs the backend
// and codec/ref on the same input, and compares every bit of every output, the
// class, operand and index of every error, the bytes around every buffer, and
// the input afterwards. NaN equals NaN; nothing else is relaxed. It does not
// import testing, so a program can run it where it is deployed; package
// conftest is the adapter for go test.
//
// # Testing a backend
//
//	func TestConformance(t *testing.T) {
//		conftest.Run(t, "mine", func() (codec.Backend, error) { return mine.New(), nil })
//	}
//
// or, outside a test, conformance.Run(ctx, mine.New(), conformance.Options{}).Err().
//
// # Reading a failure
//
// Every case is named op(param=value,…); that string as Options.Filter, or in
// turbotrellis verify --filter, runs it alone. A Failure names the first
// differing element and its group, both words, and the first stage whose output
// differs, and lists what the reference has for that group at every stage.
//
// # What is not asked
//
// Decoders are compared on packed data that an encoder wrote or whose scales
// are normal numbers (docs/numerics.md §1).
package conformance
