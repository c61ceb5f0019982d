//go:build !edamodel

package outcome

import (
	"sync"
	"sync/atomic"
	"testing"
)

// TestRace shows the race detector what models cannot: that plain fields are under the mutex.
func TestRace(t *testing.T) {
	for range 500 {
		var c Cell
		var caller Caller
		var gate Gate
		var threads sync.WaitGroup
		var released, won atomic.Int32
		begin := make(chan struct{})
		thread := func(f func()) { threads.Go(func() { <-begin; f() }) }
		gate.Enter()
		thread(func() {
			defer gate.Leave()
			c.Hold(func() { released.Add(1) })
			registered := c.Register(func() {})
			c.Unregister()
			if registered && c.BeginPublish() {
				c.Finish(Committed)
			} else {
				c.Finish(RolledBack)
			}
		})
		for _, cause := range []Cause{Cancelled, Deadline, Destroyed} {
			thread(func() {
				if c.Abort(cause) {
					won.Add(1)
				}
			})
		}
		thread(func() { c.Finish(Unproven) })
		thread(func() { caller.Abandon(&c, Quota) })
		thread(func() { caller.Detach() })
		close(begin)
		<-gate.Drain()
		threads.Wait()
		if end := c.End(); !end.final() || released.Load() != 1 || won.Load() > 1 || c.Aborted() != None && end == Committed {
			t.Fatalf("ended as %d, %d aborts won, released %d times", end, won.Load(), released.Load())
		}
	}
}
