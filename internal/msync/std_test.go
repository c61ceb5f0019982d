//go:build !edamodel

package msync

import "testing"

func TestChannels(t *testing.T) {
	open, over := make(chan struct{}), make(chan struct{})
	Close(over)
	Recv(over)
	if i := First(over, open); i != 0 {
		t.Errorf("got %d", i)
	}
	if i := First(open, over); i != 1 {
		t.Errorf("got %d", i)
	}
	defer func() {
		if recover() == nil {
			t.Error("a channel was closed twice")
		}
	}()
	Close(over)
}

// TestInline calls what test/house wants to be inlined in the cores.
func TestInline(t *testing.T) {
	var w Uint32
	var m Mutex
	InlineLock(&m)
	if !InlineUint32(&w) || InlineUint32(&w) || m.TryLock() {
		t.Error("want one swap, and m held")
	}
	InlineUnlock(&m)
}
