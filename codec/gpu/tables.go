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
	levelTable                  // a: bits; centroids, boundaries, and up to 4 bits cells
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
		values = appendCells(table.AppendBoundaries(table.AppendCentroids(nil)), table)
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

// appendCells appends what level_number of common.metal reads behind the boundaries of a table of up to 4 bits: the
// boundary in each of 32 cells, or +Inf, and 3·2^22 + how many lie in the cells before it.
func appendCells(values []float32, t *lloydmax.Table) []float32 {
	if t.Bits() > 4 {
		return values
	}
	var bounds, before [cells]float32
	for i := range bounds {
		bounds[i], before[i] = float32(math.Inf(1)), 3<<22
	}
	for i := range t.Levels() - 1 {
		at := cellOf(t.Bits(), t.Boundary(i))
		bounds[at] = t.Boundary(i)
		for j := at + 1; j < cells; j++ {
			before[j] = 3<<22 + float32(i+1)
		}
	}
	return append(append(values, bounds[:]...), before[:]...)
}

const cells = 32

// cellOf is the cell of n, as level_number has it.
func cellOf(bits int, n float32) int {
	most, scale := float32(2.75), float32(5.25)
	switch bits {
	case 2:
		most, scale = 1, 1
	case 3:
		most, scale = 1.5, 2
	}
	return 16 + int(math.RoundToEven(float64(max(-most, min(most, n)))*float64(scale)))
}
