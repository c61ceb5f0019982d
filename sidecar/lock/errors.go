package lock

import (
	"errors"
	"fmt"
)

// Errors of Acquire and Destroy. Nothing is held and nothing is queued after any of them.
var (
	// ErrCancelled: done was closed before the keys were granted.
	ErrCancelled = errors.New("gave up waiting for the keys")
	// ErrDestroyed: the session was destroyed while the request waited.
	ErrDestroyed = errors.New("the session was destroyed")
)

// BusyError says that the queue is full. Holder is one that the request conflicts with; its zero value: none does,
// the queue is full of others.
type BusyError struct {
	Holder Owner
	Queued int // waiters, of the session if its own bound was met, else of the table
}

// Error names the tool that holds the keys and the length of the queue.
func (e *BusyError) Error() string {
	if e.Holder == (Owner{}) {
		return fmt.Sprintf("the queue is full: %d jobs wait", e.Queued)
	}
	return fmt.Sprintf("the queue is full: %d jobs wait behind a run of %q", e.Queued, e.Holder.Tool)
}
