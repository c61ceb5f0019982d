package codec

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
)

const (
	readBytes = 64 << 10 // a pipe's capacity: pipe(7)
	maxBytes  = 64 << 20 // what is skipped of one message before its sender is taken for broken
)

// Decoder reads messages that end with a newline. It belongs to one goroutine.
type Decoder struct {
	r    *bufio.Reader
	gate *Gate
	size int64  // bytes of the current message so far
	kept []byte // of the current message; nil when it is too large
	err  error  // how the input ended
}

// NewDecoder returns a decoder of r that asks gate how large a message may be.
func NewDecoder(r io.Reader, gate *Gate) *Decoder {
	return &Decoder{r: bufio.NewReaderSize(r, readBytes), gate: gate}
}

// Partial reports, to a reader that asks from within its Read, whether a message has begun whose end it is asked for.
// By it the owner of the input bounds the time from the first byte of a message to its last.
func (d *Decoder) Partial() bool { return d.size > 0 || d.r.Buffered() > 0 }

// Next returns the next message; empty lines are none. After an error there is no more input: io.EOF between two
// messages, io.ErrUnexpectedEOF in the midst of one (also when 64 MiB brought no newline), or the reader's error.
func (d *Decoder) Next() (Frame, error) {
	for d.err == nil {
		var large *TooLarge
		d.size, d.kept = 0, nil
		if large, d.err = d.line(); d.err != nil {
			break
		}
		message := bytes.Trim(d.kept, " \t\r")
		if large != nil {
			return large, nil
		}
		if len(message) == 0 {
			continue
		}
		if malformed := Check(message); malformed != nil {
			return malformed, nil
		}
		return Raw(message), nil
	}
	return nil, d.err
}

// line reads to the next newline. It keeps the message while the gate admits it, and then no more than its id.
func (d *Decoder) line() (large *TooLarge, err error) {
	admit := d.gate.Admit
	if loadBeforeFirstByte {
		stale, _ := d.gate.Admit(0)
		admit = func(size int64) (*Bounds, bool) { return stale, size <= stale.In }
	}
	var id idFinder
	for {
		chunk, err := d.r.ReadSlice('\n')
		text, whole := bytes.CutSuffix(chunk, []byte("\n"))
		d.size += int64(len(text))
		switch {
		case err == nil || errors.Is(err, bufio.ErrBufferFull):
		case errors.Is(err, io.EOF) && d.size > 0:
			return nil, fmt.Errorf("message cut after %d bytes: %w", d.size, io.ErrUnexpectedEOF)
		default:
			return nil, err
		}
		if d.size > maxBytes {
			return nil, fmt.Errorf("message of more than %d bytes: %w", maxBytes, io.ErrUnexpectedEOF)
		}
		if large == nil {
			if bounds, ok := admit(d.size); ok {
				d.kept = append(d.kept, text...)
			} else {
				large = &TooLarge{Bounds: *bounds}
				id.scan(d.kept)
				d.kept = nil
			}
		}
		if large != nil {
			id.scan(text)
		}
		if whole {
			if large != nil {
				large.Size, large.ID = d.size, id.found()
			}
			return large, nil
		}
	}
}
