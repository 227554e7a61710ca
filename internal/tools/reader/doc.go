// Package reader holds reader.py, an independent reader of both file formats,
// written from docs/numerics.md and docs/format.md alone, and the tests that
// hold the pages to the code: that docs/tables.json has the code's constants
// and that what numerics.md names exists. "make reader-check" runs the reader
// against the command.
package reader
