package main

import (
	"fmt"
	"io"

	"github.com/turbotrellis/turbotrellis/model"
)

// weightBar shows a bar for each stage of a model, and on w a line for each
// matrix that was coded.
type weightBar struct {
	w   io.Writer
	bar bar
}

// update is a progress callback.
func (b *weightBar) update(p model.Progress) {
	if p.Stage != b.bar.what {
		b.bar.done()
		b.bar = bar{what: p.Stage, unit: "weights"}
		if p.Stage == model.Copying {
			b.bar.unit = ""
		}
	}
	if t := p.Finished; t != nil && p.Stage == model.Coding {
		b.bar.clear()
		bits := fmt.Sprintf("k=%d", t.Bits)
		if t.GroupSize > 0 {
			bits = fmt.Sprintf("%d bits", t.Bits)
		}
		fmt.Fprintf(b.w, "%s: %s, error %s%s\n", printable(t.Name), bits, errorText(t.Error), feedbackText(*t))
	}
	b.bar.update(p.Done, p.Total)
}

// done removes the bar. It may be called more than once.
func (b *weightBar) done() { b.bar.done() }

// errorText prints a relative error. Under compat it may be the largest number.
func errorText(e float64) string {
	if e < 1000 {
		return fmt.Sprintf("%.5f", e)
	}
	return fmt.Sprintf("%.3g", e)
}

// feedbackText says what a Hessian was worth.
func feedbackText(t model.TensorResult) string {
	if !t.Hessian {
		return ""
	}
	s := fmt.Sprintf(", proxy loss %+.1f %%", 100*(t.ProxyLoss-1))
	if t.FellBackRows > 0 {
		s += fmt.Sprintf(" (%d rows fell back to coding without feedback)", t.FellBackRows)
	}
	return s
}
