package outcome

import "github.com/eda-sidecar/eda-sidecar/internal/msync"

// Gate admits calls until it is drained. The zero value is open.
type Gate struct {
	mu msync.Mutex
	// guarded by mu
	inside  int
	drained chan struct{} // set by the first Drain; closed when nobody is inside
}

// Enter admits one call, which must Leave. It returns false once the drain has begun.
func (g *Gate) Enter() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.drained != nil && !gateAddAfterDrain {
		return false
	}
	g.inside++
	return true
}

// Leave ends one admitted call.
func (g *Gate) Leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.inside--
	if g.inside == 0 && g.drained != nil {
		msync.Close(g.drained)
	}
}

// Drain refuses all further calls and returns a channel that is closed when the last admitted one has left.
func (g *Gate) Drain() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.drained == nil {
		g.drained = make(chan struct{})
		if g.inside == 0 {
			msync.Close(g.drained)
		}
	}
	return g.drained
}
