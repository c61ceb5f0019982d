package durable

import (
	"errors"
	"fmt"
)

// Locking.
var (
	// ErrLocked says that another open file description holds the lock.
	ErrLocked = errors.New("locked by another process")
)

// Volumes.
var (
	// ErrVolume says that a volume cannot carry a workspace or a state directory; see [VolumeError].
	ErrVolume = errors.New("volume not usable")
)

// VolumeError says which volume is refused, why, and the way out. It wraps ErrVolume and, after a failed operation, its cause.
type VolumeError struct {
	Use string // workspace | state directory
	FS  string // name of the file system, empty if a probe decided
	Why string
	Fix string
	Err error // may be nil
}

// Error implements error.
func (e *VolumeError) Error() string {
	on := ""
	if e.FS != "" {
		on = " on " + e.FS
	}
	msg := fmt.Sprintf("%s%s: %s; %s", e.Use, on, e.Why, e.Fix)
	if e.Err != nil {
		msg += ": " + e.Err.Error()
	}
	return msg
}

// Unwrap returns ErrVolume and the cause.
func (e *VolumeError) Unwrap() []error {
	if e.Err == nil {
		return []error{ErrVolume}
	}
	return []error{ErrVolume, e.Err}
}

// OwnedError names the live owner of a workspace. It wraps ErrLocked.
type OwnedError struct {
	Owner Owner // zero if its content could not be read
}

// Error implements error.
func (e *OwnedError) Error() string {
	return fmt.Sprintf("workspace is owned by running instance %q (epoch %d, boot %s)", e.Owner.Instance, e.Owner.Epoch, e.Owner.BootID)
}

// Unwrap returns ErrLocked.
func (e *OwnedError) Unwrap() error { return ErrLocked }
