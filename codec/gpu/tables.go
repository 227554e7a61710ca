package gpu

import (
	"encoding/binary"
	"math"
	"sync"

	"github.com/turbotrellis/turbotrellis/gpu"
	"github.com/turbotrellis/turbotrellis/hadamard"
	"github.com/turbotrellis/turbotrellis/lloydmax"
	"github.com/turbotrellis/turbotrellis/trellis"
)

// tableBytes bounds the constant tables kept on the device. The largest, 2^16
// code values, is 256 KiB.
const tableBytes = 4 << 20

// tables keeps constants on the device and drops the least recently used.
type tables struct {
	dev   gpu.Device
	limit int

	mu      sync.Mutex
	entries map[tableKey]*table
	bytes   int
	clock   int
}

type tableKey struct {
	kind tableKind
	a, b int
}

type tableKind uint8

const (
	signTable  tableKind = iota // a: dimension; bit j set where the sign of element j is −1
	levelTable                  // a: bits; centroids, then boundaries
	codeTable                   // a: trellis.Code, b: L; f(s)
	rowTable                    // a: bits; f(s) of row codes
)

type table struct {
	buf  gpu.Buffer
	uses int // calls that are using it
	last int
}

// reset forgets every table: there are none yet, or the device has lost them.
func (t *tables) reset() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.entries, t.bytes = map[tableKey]*table{}, 0
}

// get returns a table for one use, which put ends.
func (t *tables) get(k tableKey) (*table, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e, ok := t.entries[k]
	if !ok {
		data, err := k.data()
		if err != nil {
			return nil, err
		}
		t.evict(t.limit - len(data))
		buf, err := t.dev.NewBuffer(len(data))
		if err != nil {
			return nil, err
		}
		if err := buf.Upload(0, data); err != nil {
			buf.Release()
			return nil, err
		}
		e = &table{buf: buf}
		t.entries[k] = e
		t.bytes += len(data)
	}
	t.clock++
	e.last = t.clock
	e.uses++
	return e, nil
}

func (t *tables) put(e *table) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e.uses--
}

// evict drops tables that are not in use, oldest first, until limit bytes are left.
func (t *tables) evict(limit int) {
	for t.bytes > limit {
		var oldest tableKey
		var found *table
		for k, e := range t.entries {
			if e.uses == 0 && (found == nil || e.last < found.last) {
				oldest, found = k, e
			}
		}
		if found == nil {
			return
		}
		delete(t.entries, oldest)
		t.bytes -= found.buf.Len()
		found.buf.Release()
	}
}

// data returns the bytes of a table.
func (k tableKey) data() ([]byte, error) {
	var values []float32
	switch k.kind {
	case signTable:
		words := make([]byte, (k.a+31)/32*4)
		for i, s := range hadamard.AppendSigns(nil, k.a) {
			if s < 0 {
				words[i/8] |= 1 << (i % 8)
			}
		}
		return words, nil
	case levelTable:
		table, err := lloydmax.Lookup(k.a)
		if err != nil {
			return nil, err
		}
		values = table.AppendBoundaries(table.AppendCentroids(nil))
	case rowTable:
		var err error
		if values, err = trellis.RowValues(k.a); err != nil {
			return nil, err
		}
	case codeTable:
		var err error
		if values, err = trellis.AppendValues(nil, trellis.Code(k.a), k.b); err != nil {
			return nil, err
		}
	}
	var data []byte
	for _, v := range values {
		data = binary.LittleEndian.AppendUint32(data, math.Float32bits(v))
	}
	return data, nil
}
