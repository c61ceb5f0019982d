//go:build !edamodel

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

// Recv waits until ch is closed.
func Recv(ch <-chan struct{}) { <-ch }

// First waits until a or b is closed and says which: 0 for a, 1 for b. If both are, either answer is possible.
func First(a, b <-chan struct{}) int {
	select {
	case <-a:
		return 0
	case <-b:
		return 1
	}
}

// A package that imports this one, but not sync and sync/atomic, can inline only those of their methods whose bodies are in
// the export data of this one. Functions that can be inlined themselves bring there what they call. They have no other use.

// InlineUint32 brings Load and CompareAndSwap.
func InlineUint32(w *Uint32) bool { return w.Load() == 0 && w.CompareAndSwap(0, 1) }

// InlineLock brings Lock.
func InlineLock(m *Mutex) { m.Lock() }

// InlineUnlock brings Unlock.
func InlineUnlock(m *Mutex) { m.Unlock() }
