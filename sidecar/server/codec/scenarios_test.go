package codec

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
)

// A scenario forces one order of calls and says what went wrong, if anything did. In the ordinary build every
// scenario must hold; with the tag edamodel mutants_test.go takes one guard away at a time, and the scenario named
// for it must fail.
var scenarios = map[string]func() error{
	"handOff":  handOff,
	"blocked":  blocked,
	"together": together,
}

func TestScenarios(t *testing.T) {
	for name, run := range scenarios {
		t.Run(name, func(t *testing.T) {
			if err := run(); err != nil {
				t.Error(err)
			}
		})
	}
}

// phases returns the bounds of the scenarios and a gate in the first phase.
func phases() (g *Gate, catalog, tool *Bounds) {
	g, catalog, tool = &Gate{}, &Bounds{Catalog, 64, 4096}, &Bounds{Tool, 1024, 2048}
	g.Enter(catalog)
	return g, catalog, tool
}

// call returns a message of size bytes and its newline.
func call(size int) string {
	const head, tail = `{"id":7,"pad":"`, `"}`
	return head + strings.Repeat("x", size-len(head)-len(tail)) + tail + "\n"
}

// ioFunc is a reader or writer.
type ioFunc func([]byte) (int, error)

func (f ioFunc) Read(p []byte) (int, error)  { return f(p) }
func (f ioFunc) Write(p []byte) (int, error) { return f(p) }

// wantFrame reads one frame and wants it accepted, or refused by bounds.
func wantFrame(d *Decoder, size int, refused *Bounds) error {
	frame, err := d.Next()
	if err != nil {
		return err
	}
	large, ok := frame.(*TooLarge)
	switch {
	case refused == nil && ok:
		return fmt.Errorf("a message of %d bytes was refused by %+v", size, large.Bounds)
	case refused != nil && (!ok || large.Bounds != *refused || large.Size != int64(size) || string(large.ID) != "7"):
		return fmt.Errorf("got %+v, want %d bytes refused by %+v", frame, size, *refused)
	}
	return nil
}

// handOff: the peer answers with a large call while the write of the answer that ends the phase has not even returned.
func handOff() error {
	g, catalog, tool := phases()
	var input strings.Reader
	d := NewDecoder(&input, g)
	send := func(size int, refused *Bounds) error {
		input.Reset(call(size))
		d.err = nil // the input went on
		return wantFrame(d, size, refused)
	}
	var seen error
	e := NewEncoder(ioFunc(func(p []byte) (int, error) {
		seen = errors.Join(send(1024, nil), send(1025, tool))
		return len(p), nil
	}), g)
	before := errors.Join(send(64, nil), send(65, catalog))
	g.Enter(tool)
	err := e.Write([]byte(`{"id":1,"result":{}}`))
	return errors.Join(before, err, seen)
}

// blocked: the phase ends while the decoder waits for the first byte.
func blocked() error {
	g, _, tool := phases()
	input := strings.NewReader(call(1024) + call(1025))
	d := NewDecoder(ioFunc(func(p []byte) (int, error) {
		g.Enter(tool)
		return input.Read(p)
	}), g)
	if err := errors.Join(wantFrame(d, 1024, nil), wantFrame(d, 1025, tool)); err != nil {
		return err
	}
	if _, err := d.Next(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("got %w, want the end of input", err)
	}
	return nil
}

// together: bounds in a reader's hand stay those of one phase.
func together() error {
	g, _, tool := phases()
	held, _ := g.Admit(1)
	want := *held
	g.Enter(tool)
	if now, ok := g.Admit(1024); *held != want || now != tool || !ok {
		return fmt.Errorf("held %+v, want %+v; now %+v", *held, want, *now)
	}
	return nil
}
