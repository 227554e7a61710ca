package main

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"
)

// errInterrupted is the cause of a context that a signal has ended.
var errInterrupted = errors.New("interrupted")

// endings are the signals that end a run, and the exit codes that shells give
// to programs that die of them.
var endings = []struct {
	signal os.Signal
	code   int
}{{os.Interrupt, 130}, {syscall.SIGTERM, 143}, {syscall.SIGHUP, 129}}

// grace is how long a run has to stop by itself after a signal. What does not
// in that time waits for a file or a pipe, or cannot be cut short.
const grace = 80 * time.Millisecond

// untilSignal runs work and returns its exit code. The first signal ends work's
// context with errInterrupted, and from then on signals have their default
// action. If work does not return within the grace, untilSignal returns without
// it, after the functions of cleanups. A signal that was ignored when the
// program started, as SIGHUP is under nohup, stays ignored.
func untilSignal(work func(context.Context) int) int {
	signals := make(chan os.Signal, 1)
	for _, e := range endings {
		if !signal.Ignored(e.signal) {
			signal.Notify(signals, e.signal)
		}
	}
	defer signal.Stop(signals)
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	done := make(chan int, 1)
	go func() { done <- work(ctx) }()
	var code int
	select {
	case code = <-done:
		return code
	case s := <-signals:
		signal.Stop(signals)
		cancel(errInterrupted)
		for _, e := range endings {
			if e.signal == s {
				code = e.code
			}
		}
	}
	select {
	case stopped := <-done:
		if stopped != exitInterrupted {
			return stopped
		}
	case <-time.After(grace):
		cleanups.run()
		report(errInterrupted)
	}
	return code
}

// cleanups holds what an exit that does not wait for the work has to do.
var cleanups cleanupList

type cleanupList struct {
	mu   sync.Mutex
	next int
	list map[int]func()
}

// add adds a function and returns one that takes it away again.
func (c *cleanupList) add(f func()) (remove func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.list == nil {
		c.list = map[int]func(){}
	}
	n := c.next
	c.next++
	c.list[n] = f
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.list, n)
	}
}

// run calls the functions. None is added or taken away any more.
func (c *cleanupList) run() {
	c.mu.Lock()
	for _, f := range c.list {
		f()
	}
}
