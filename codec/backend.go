package codec

import "github.com/turbotrellis/turbotrellis/trellis"

// Backend is one implementation of every codec. A Backend is safe for
// concurrent use. Only driver.New implements it; new backends implement the
// interfaces of package driver.
type Backend interface {
	// Name returns the backend's name, as auto.OpenName and --backend take it.
	Name() string
	// Feed says how long work should be cut up for this backend.
	Feed() Feed
	// KV returns the KV cache codec with parameters p. It returns ErrParams if
	// p is invalid, and ErrUnsupported if this backend does not serve it.
	KV(p KVParams) (KV, error)
	// Trellis returns the weight codec with parameters p, with the same errors.
	Trellis(p trellis.Params) (Trellis, error)
	// Close waits for the calls in progress and releases what the backend
	// holds. The backend and the codecs obtained from it return ErrClosed
	// afterwards.
	Close() error
}

// Feed says how a backend likes long work cut up.
type Feed struct {
	Bytes int // of input per call
	Calls int // calls at once
}
