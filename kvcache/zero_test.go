package kvcache

import "testing"

// What Trim takes off is zero in memory: nothing of it can come back.
func TestTrimZeroes(t *testing.T) {
	for _, l := range []Layout{{Window: 0}, {Window: 3, Sinks: 2}, {Window: 9, Sinks: 2}} {
		l.Heads, l.Keys, l.Step = 1, Format{Planes: []Plane{{"data", 1}}}, 2
		b, err := New(l, 2)
		if err != nil {
			t.Fatal(err)
		}
		if err := b.Append(Data{5, [][]byte{{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}}}, Data{}); err != nil {
			t.Fatal(err)
		}
		if err := b.Trim(4); err != nil {
			t.Fatal(err)
		}
		left := 0
		for _, x := range b.store.data[0] {
			if x != 0 {
				left++
			}
		}
		if left != 2 {
			t.Errorf("%+v: %d tokens in memory, want one of each sequence", l, left)
		}
	}
}
