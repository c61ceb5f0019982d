package msync

import (
	"sync"
	"sync/atomic"
)

// The primitives of modelled cores. In ordinary builds they are the standard ones.
type (
	// Mutex is a mutual exclusion lock.
	Mutex = sync.Mutex
	// Bool is an atomic boolean.
	Bool = atomic.Bool
	// Uint32 is an atomic 32-bit word.
	Uint32 = atomic.Uint32
	// Int64 is an atomic 64-bit integer.
	Int64 = atomic.Int64
	// Pointer is an atomic pointer.
	Pointer[T any] = atomic.Pointer[T]
)

// Close closes ch, a channel that is only ever closed.
func Close(ch chan struct{}) { close(ch) }

// First waits until a or b is closed and says which: 0 for a, 1 for b. If both are, either answer is possible.
func First(a, b <-chan struct{}) int {
	select {
	case <-a:
		return 0
	case <-b:
		return 1
	}
}
