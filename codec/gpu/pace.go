package gpu

import (
	"sync"
	"time"

	"github.com/turbotrellis/turbotrellis/trellis"
)

// bufferTime is how long one command buffer of a search should run. A system ends buffers that run for seconds,
// the screen that a device also draws stands still meanwhile, and contexts are looked at between buffers. Much
// shorter ones would spend their time on starting and waiting.
const bufferTime = 60 * time.Millisecond

// pace remembers how fast the device searches, to size command buffers.
type pace struct {
	mu   sync.Mutex
	rate map[trellis.Params]float64 // blocks a second
}

// blocks returns how many blocks the next command buffer should have: whole waves of slots threadgroups, the
// first time one.
func (p *pace) blocks(of trellis.Params, slots int) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	waves := p.rate[of] * bufferTime.Seconds() / float64(slots)
	return slots * int(max(1, min(waves, maxSlab)))
}

// learn takes in how long n blocks took.
func (p *pace) learn(of trellis.Params, n int, took time.Duration) {
	if took <= 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.rate == nil {
		p.rate = map[trellis.Params]float64{}
	}
	p.rate[of] = float64(n) / took.Seconds()
}
