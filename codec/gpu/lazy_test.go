package gpu

import (
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/shaders"
)

// Values of different keys are made at the same time, that of one key once; a failure is not kept.
func TestLazy(t *testing.T) {
	var l lazy[int]
	var meet, done sync.WaitGroup
	meet.Add(2)
	for _, key := range []string{"a", "b"} {
		done.Go(func() {
			v, err := l.get(key, func() (int, error) {
				meet.Done()
				meet.Wait() // for the other key's
				return len(key), nil
			})
			if v != 1 || err != nil {
				t.Errorf("%s: %d, %v", key, v, err)
			}
		})
	}
	done.Wait()
	calls := 0
	for range 8 {
		done.Go(func() {
			v, err := l.get("c", func() (int, error) { calls++; return 7, nil })
			if v != 7 || err != nil {
				t.Error(v, err)
			}
		})
	}
	done.Wait()
	if calls != 1 {
		t.Errorf("made %d times", calls)
	}
	fault := errors.New("fault")
	for _, want := range []error{fault, nil} {
		if _, err := l.get("d", func() (int, error) { return 0, want }); err != want {
			t.Errorf("got %v, want %v", err, want)
		}
	}
	l.reset()
	if v, _ := l.get("c", func() (int, error) { return 8, nil }); v != 8 {
		t.Errorf("%d after reset", v)
	}
}

// A kernel is compiled alone and once, whoever needs it.
func TestCompilesOneKernel(t *testing.T) {
	d := newFake()
	b := openFake(t, d)
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			kv, err := b.KV(codec.KVParams{HeadDim: 64, Keys: codec.Q4_0, Values: codec.Q3_0})
			if err != nil {
				t.Error(err)
				return
			}
			x := codec.NewTensor(codec.F32, 2, 64)
			if err := kv.EncodeKeys(new(codec.Keys), x); err != nil {
				t.Error(err)
			}
			if err := kv.EncodeValues(new(codec.Values), x); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	compiled := map[string]int{}
	for _, source := range d.sources {
		for _, v := range shaders.Variants() {
			if strings.Contains(source, "kernel void "+v.Name+"(") {
				compiled[v.Name]++
			}
		}
	}
	if len(compiled) != 3 || compiled["canary"] != 1 || compiled["keys_encode_u4"] != 1 || compiled["values_encode_b3"] != 1 {
		t.Errorf("compiled %v", compiled)
	}
}
