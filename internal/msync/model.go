//go:build edamodel

package msync

import "github.com/eda-sidecar/eda-sidecar/internal/explore"

// The primitives as steps of an exploration: explore.Do says where else they may be used.
type (
	// Bool is an atomic boolean.
	Bool struct{ word[bool] }
	// Uint32 is an atomic 32-bit word.
	Uint32 struct{ number[uint32] }
	// Int64 is an atomic 64-bit integer.
	Int64 struct{ number[int64] }
	// Pointer is an atomic pointer.
	Pointer[T any] struct{ word[*T] }
	// Mutex is a mutual exclusion lock.
	Mutex struct{ locked bool }
)

// word is what all atomics can do.
type word[T comparable] struct{ v T }

func (w *word[T]) step(name string, do func() (result any, order explore.Order)) {
	explore.Do(&explore.Op{Name: name, On: [2]any{w}, Read: name == "Load", Do: func(int) (any, explore.Order) { return do() }})
}

// Load returns the value.
func (w *word[T]) Load() (v T) {
	w.step("Load", func() (any, explore.Order) { v = w.v; return v, explore.Acquire })
	return v
}

// Store sets the value.
func (w *word[T]) Store(v T) {
	w.step("Store", func() (any, explore.Order) { w.v = v; return v, explore.Release })
}

// Swap sets the value and returns the one before.
func (w *word[T]) Swap(v T) (old T) {
	w.step("Swap", func() (any, explore.Order) { old, w.v = w.v, v; return old, explore.Acquire | explore.Release })
	return old
}

// CompareAndSwap sets the value if it is old. If it is not, that is a load.
func (w *word[T]) CompareAndSwap(old, v T) (swapped bool) {
	w.step("CompareAndSwap", func() (any, explore.Order) {
		if w.v != old {
			return false, explore.Acquire
		}
		w.v, swapped = v, true
		return true, explore.Acquire | explore.Release
	})
	return swapped
}

type number[T uint32 | int64] struct{ word[T] }

// Add adds to the value and returns the sum.
func (n *number[T]) Add(delta T) (sum T) {
	n.step("Add", func() (any, explore.Order) { n.v += delta; sum = n.v; return sum, explore.Acquire | explore.Release })
	return sum
}

func (m *Mutex) step(name string, ready func(int) bool, do func() (result any, order explore.Order)) {
	explore.Do(&explore.Op{
		Name: name, On: [2]any{m}, Ready: ready, Blocked: func() bool { return m.locked },
		Do: func(int) (any, explore.Order) { return do() },
	})
}

// Lock waits until nobody holds m, and takes it.
func (m *Mutex) Lock() {
	m.step("Lock", func(int) bool { return !m.locked }, func() (any, explore.Order) { m.locked = true; return nil, explore.Acquire })
}

// TryLock takes m if nobody holds it. If somebody does, that orders nothing.
func (m *Mutex) TryLock() (ok bool) {
	m.step("TryLock", nil, func() (any, explore.Order) {
		if m.locked {
			return false, 0
		}
		m.locked, ok = true, true
		return true, explore.Acquire
	})
	return ok
}

// Unlock lets m go.
func (m *Mutex) Unlock() {
	m.step("Unlock", nil, func() (any, explore.Order) {
		if !m.locked {
			panic("unlock of a mutex that nobody holds")
		}
		m.locked = false
		return nil, explore.Release
	})
}

// Close closes ch, a channel that is only ever closed.
func Close(ch chan struct{}) {
	explore.Do(&explore.Op{
		Name: "Close", On: [2]any{(<-chan struct{})(ch)}, Blocked: func() bool { return !closed(ch) },
		Do: func(int) (any, explore.Order) { close(ch); return nil, explore.Release },
	})
}

// Recv waits until ch is closed.
func Recv(ch <-chan struct{}) {
	explore.Do(&explore.Op{
		Name: "Recv", On: [2]any{ch}, Read: true, Ready: func(int) bool { return closed(ch) },
		Do: func(int) (any, explore.Order) { return nil, explore.Acquire },
	})
}

// First waits until a or b is closed and says which: 0 for a, 1 for b. If both are, either answer is possible.
func First(a, b <-chan struct{}) (i int) {
	both := [2]<-chan struct{}{a, b}
	explore.Do(&explore.Op{
		Name: "First", On: [2]any{a, b}, Read: true, Cases: 2, Ready: func(c int) bool { return closed(both[c]) },
		Do: func(c int) (any, explore.Order) { i = c; return c, explore.Acquire },
	})
	return i
}

func closed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}
