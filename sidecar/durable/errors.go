package durable

import (
	"errors"
	"fmt"
	"os"
)

// Locking.
var (
	// ErrLocked says that another open file description holds the lock.
	ErrLocked = errors.New("locked by another process")
)

// The owner lock.
var (
	// ErrOwner says that what the owner lock holds cannot be read: a part of what the workspace knows of itself is lost.
	ErrOwner = errors.New("the owner lock is damaged")
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
	where, cause := e.Use, ""
	if e.FS != "" {
		where += " on " + e.FS
	}
	if e.Err != nil {
		cause = ": " + e.Err.Error()
	}
	return fmt.Sprintf("%s: %s; %s%s", where, e.Why, e.Fix, cause)
}

// Unwrap returns ErrVolume and the cause, which may be nil.
func (e *VolumeError) Unwrap() []error { return []error{ErrVolume, e.Err} }

// OwnedError names the live owner of a workspace. It wraps ErrLocked.
type OwnedError struct {
	Owner Owner // zero if its content could not be read
}

// Error implements error.
func (e *OwnedError) Error() string {
	return fmt.Sprintf("workspace is owned by running instance %q (pid %d, epoch %d, boot %s)", e.Owner.Instance, e.Owner.PID, e.Owner.Epoch, e.Owner.BootID)
}

// Alive reports whether the process that the lock file names is seen here. If not, it is in another pid namespace, or
// dead and its lock about to go.
func (e *OwnedError) Alive() bool {
	_, err := os.Stat(fmt.Sprintf("/proc/%d", e.Owner.PID))
	return err == nil
}

// Unwrap returns ErrLocked.
func (e *OwnedError) Unwrap() error { return ErrLocked }
