package codec

import (
	"fmt"
	"io"

	"github.com/eda-sidecar/eda-sidecar/internal/msync"
)

// Encoder writes messages that end with a newline.
type Encoder struct {
	w    io.Writer
	gate *Gate

	mu msync.Mutex // held while w writes: that is what keeps messages whole
	// guarded by mu
	buf []byte
	err error // of the first write that failed: what follows could begin in the midst of a message
}

// NewEncoder returns an encoder to w that asks gate how large a message may be.
func NewEncoder(w io.Writer, gate *Gate) *Encoder { return &Encoder{w: w, gate: gate} }

// Write writes one JSON message and its newline by one Write of the writer beneath. A message over the bound is our bug:
// its receiver gets an internal error with the same id instead (nothing, if it has none), and the caller a *TooLarge;
// the encoder goes on. Any other error is the writer's, and final.
func (e *Encoder) Write(message []byte) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.err != nil {
		return e.err
	}
	large := e.tooLarge(message)
	if large != nil {
		if large.ID == nil {
			return large
		}
		message = large.Answer()
	}
	e.buf = append(append(e.buf[:0], message...), '\n')
	for i := range message { // a newline in JSON is white space
		if e.buf[i] == '\n' {
			e.buf[i] = ' '
		}
	}
	if _, err := e.w.Write(e.buf); err != nil {
		e.err = fmt.Errorf("write message: %w", err)
		return e.err
	}
	if publishBoundLate && e.gate.late != nil {
		e.gate.cur.Store(e.gate.late)
	}
	if large != nil {
		return large
	}
	return nil
}

func (e *Encoder) tooLarge(message []byte) *TooLarge {
	size := int64(len(message))
	bounds, _ := e.gate.Admit(size)
	if size <= bounds.Out {
		return nil
	}
	var id idFinder
	id.scan(message)
	return &TooLarge{ID: id.found(), Size: size, Bounds: *bounds, Out: true}
}
