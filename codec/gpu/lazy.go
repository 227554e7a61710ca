package gpu

import (
	"sync"
	"sync/atomic"
)

// lazy holds what is made when it is first asked for, once for each key. Making one value makes nobody wait who
// asks for another. What fails is tried again by the next who asks.
type lazy[T any] struct{ entries sync.Map } // of *made[T]

type made[T any] struct {
	mu    sync.Mutex // held while the value is made
	ready atomic.Bool
	value T // if ready
}

func (l *lazy[T]) get(key string, make func() (T, error)) (T, error) {
	v, ok := l.entries.Load(key)
	if !ok {
		v, _ = l.entries.LoadOrStore(key, &made[T]{})
	}
	m := v.(*made[T])
	if m.ready.Load() {
		return m.value, nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ready.Load() {
		return m.value, nil
	}
	value, err := make()
	if err != nil {
		return value, err
	}
	m.value = value
	m.ready.Store(true)
	return value, nil
}

// reset forgets every value.
func (l *lazy[T]) reset() { l.entries.Clear() }
