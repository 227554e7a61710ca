package main

import (
	"os"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// bar shows progress, with the rate and the time left, on standard error if
// that is a terminal. Otherwise it is silent.
type bar struct {
	what string
	unit string // what is counted; "" is bytes
	bar  *progressbar.ProgressBar
}

// update is a progress callback.
func (b *bar) update(done, total int64) {
	if b.bar == nil {
		units := []progressbar.Option{progressbar.OptionShowBytes(true)}
		if b.unit != "" {
			units = []progressbar.Option{progressbar.OptionShowIts(), progressbar.OptionSetItsString(b.unit)}
		}
		b.bar = progressbar.NewOptions64(total, append(units,
			progressbar.OptionSetWriter(os.Stderr),
			progressbar.OptionSetVisibility(term.IsTerminal(int(os.Stderr.Fd()))),
			progressbar.OptionSetDescription(b.what),
			progressbar.OptionSetPredictTime(true),
			progressbar.OptionThrottle(100*time.Millisecond),
			progressbar.OptionClearOnFinish())...)
		b.bar.RenderBlank() // time begins here, not when it is drawn next
	}
	b.bar.Set64(done) // a bar that cannot be drawn does not stop the work
}

// clear removes the bar until the next update.
func (b *bar) clear() {
	if b.bar != nil {
		b.bar.Clear()
	}
}

// done removes the bar. It may be called more than once.
func (b *bar) done() {
	if b.bar != nil {
		b.bar.Exit()
		b.bar = nil
	}
}
