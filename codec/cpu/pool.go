package cpu

import (
	"sync"
	"sync/atomic"
)

// task is a call cut into chunks that do not depend on each other.
type task interface {
	chunk(i int)
}

// pool shares chunks out among the goroutine that makes a call and helpers that all calls have in common.
type pool struct {
	size  int // goroutines that work on one call
	start sync.Once
	end   sync.Once
	jobs  chan *job
}

func newPool(size int) *pool {
	return &pool{size: size, jobs: make(chan *job, 4*size)}
}

// stop ends the helpers. No run may follow.
func (p *pool) stop() {
	p.start.Do(func() {}) // none are started from here on
	p.end.Do(func() { close(p.jobs) })
}

// run calls t.chunk for 0 to chunks−1, each once, and returns when all have returned.
func (p *pool) run(t task, chunks int) {
	if p.size == 1 || chunks == 1 {
		for i := range chunks {
			t.chunk(i)
		}
		return
	}
	p.start.Do(func() {
		for range p.size - 1 {
			go help(p.jobs)
		}
	})
	j := jobs.Get().(*job)
	j.task, j.chunks = t, int64(chunks)
	j.next.Store(0)
	j.left.Store(int64(chunks))
	helpers := min(p.size, chunks) - 1
	j.users.Store(int64(helpers) + 1)
	for range helpers {
		select {
		case p.jobs <- j:
		default: // every helper has work waiting
			j.users.Add(-1)
		}
	}
	j.work()
	<-j.done
	j.release()
}

func help(jobs <-chan *job) {
	for j := range jobs {
		j.work()
		j.release()
	}
}

// job is a task that goroutines take chunks of. A helper may come to it when all is done, and even when the
// call has returned: it then touches no task, and the last to leave returns the job for reuse.
type job struct {
	task   task
	chunks int64
	next   atomic.Int64  // chunk to be taken
	left   atomic.Int64  // chunks that have not returned
	users  atomic.Int64  // goroutines that may still look at the job
	done   chan struct{} // receives when left becomes 0
}

var jobs = sync.Pool{New: func() any { return &job{done: make(chan struct{}, 1)} }}

func (j *job) work() {
	for {
		i := j.next.Add(1) - 1
		if i >= j.chunks {
			return
		}
		j.task.chunk(int(i))
		if j.left.Add(-1) == 0 {
			j.done <- struct{}{}
		}
	}
}

func (j *job) release() {
	if j.users.Add(-1) == 0 {
		j.task = nil
		jobs.Put(j)
	}
}
