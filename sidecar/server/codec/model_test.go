//go:build edamodel

package codec

import (
	"testing"

	"github.com/eda-sidecar/eda-sidecar/internal/explore"
	"github.com/eda-sidecar/eda-sidecar/internal/explore/modeltest"
	"github.com/eda-sidecar/eda-sidecar/internal/msync"
)

// handOff is a writer that ends a phase and a decoder whose peer sends a large call as soon as it has seen the answer. What
// came before is judged by the bounds of one of the two phases, whole.
func handOff(m *explore.M) {
	catalog, tool := Bounds{Catalog, 64, 4096}, Bounds{Tool, 1024, 2048}
	var g Gate
	old, next := catalog, tool
	g.Enter(&old)
	seen := make(chan struct{})
	m.Go("writer", func() {
		g.Enter(&next)
		peer := ioFunc(func(p []byte) (int, error) { msync.Close(seen); return len(p), nil }) // has it before Write returns
		if err := NewEncoder(peer, &g).Write([]byte(`{"id":1,"result":{}}`)); err != nil {
			m.Failf("write: %v", err)
		}
	})
	m.Go("reader", func() {
		calls := []string{call(65), call(1024) + call(1025)}
		var d *Decoder
		d = NewDecoder(ioFunc(func(p []byte) (n int, err error) {
			if d.Partial() {
				m.Failf("more is read in the midst of a message")
			}
			if len(calls) == 1 {
				msync.Recv(seen)
			}
			n, calls = copy(p, calls[0]), calls[1:]
			return n, nil
		}), &g)
		for i, size := range []int64{65, 1024, 1025} {
			frame, err := d.Next()
			if err != nil {
				m.Failf("%d bytes: %v", size, err)
			}
			large, refused := frame.(*TooLarge)
			raw, _ := frame.(Raw)
			switch {
			case !refused && int64(len(raw)) != size:
				m.Failf("%d bytes became %T of %d", size, frame, len(raw))
			case refused && large.Bounds != tool && (i > 0 || large.Bounds != catalog):
				m.Failf("%d bytes were refused by %+v", size, large.Bounds)
			case refused != (size > large.bound(tool)):
				m.Failf("%d bytes: refused = %t", size, refused)
			case refused && (large.Size != size || string(large.ID) != "7" || d.kept != nil):
				m.Failf("%d bytes became %+v, %d were kept", size, large, len(d.kept))
			}
		}
	})
}

// bound is the limit that t was refused by, and that of b for what was not.
func (t *TooLarge) bound(b Bounds) int64 {
	if t != nil {
		return t.Bounds.In
	}
	return b.In
}

func TestHandOff(t *testing.T) { modeltest.Holds(t, handOff) }

func TestSkipBoundPublication(t *testing.T) {
	modeltest.Caught(t, &skipBoundPublication, explore.Invariant, "1024 bytes were refused by {Phase:catalog", handOff)
}

func TestPublishBoundLate(t *testing.T) {
	modeltest.Caught(t, &publishBoundLate, explore.Invariant, "1024 bytes were refused by {Phase:catalog", handOff)
}

func TestLoadBeforeFirstByte(t *testing.T) {
	modeltest.Caught(t, &loadBeforeFirstByte, explore.Invariant, "1024 bytes were refused by {Phase:catalog", handOff)
}

func TestTwoStores(t *testing.T) {
	modeltest.Caught(t, &twoStores, explore.Invariant, "65 bytes were refused by {Phase:tool In:64", handOff)
}
