// Package reader holds reader.py, an independent reader of both file formats,
// written from docs/numerics.md and docs/format.md alone, and feedback.py, an
// encoder written from §6.6. "make reader-check" runs them against the command.
//
// The package's tests hold the pages to the code: docs/tables.json has the
// code's constants, and what the map of numerics.md names exists.
package reader
