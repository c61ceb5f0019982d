package codec

import "github.com/eda-sidecar/eda-sidecar/internal/msync"

// Phase is how far a connection has come.
type Phase string

// The phases of a connection.
const (
	Catalog Phase = "catalog" // until the first answer that lists tools is about to be given
	Tool    Phase = "tool"    // from then on
)

// Bounds are the limits of one phase, in bytes of a message without its newline. They do not change once entered.
type Bounds struct {
	Phase   Phase
	In, Out int64
}

// Gate holds the bounds of one connection. The zero value admits nothing until the first Enter.
type Gate struct {
	cur  msync.Pointer[Bounds] // one pointer: phase and bounds can only be seen together
	late *Bounds               // what publishBoundLate holds back
}

// Enter publishes b. Call it before the answer that ends a phase is written: the peer may use the new bounds as soon as
// it has read that answer.
func (g *Gate) Enter(b *Bounds) {
	if skipBoundPublication && g.cur.Load() != nil {
		return
	}
	if publishBoundLate && g.cur.Load() != nil {
		g.late = b
		return
	}
	if twoStores && g.cur.Load() != nil {
		half := g.cur.Load()
		half.Phase = b.Phase
		g.cur.Store(half)
	}
	g.cur.Store(b)
}

// Admit returns the bounds of this moment, and whether a message of size bytes may come in. Ask with at least one byte
// of the message in hand: bounds that were read before the wait for it are stale.
func (g *Gate) Admit(size int64) (*Bounds, bool) {
	b := g.cur.Load()
	if b == nil {
		b = &Bounds{}
	}
	return b, size <= b.In
}
