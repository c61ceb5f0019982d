package txn

import (
	"errors"
	"fmt"
)

// Admission and inputs.
var (
	// ErrInvalidPath says that a path, or what lies there, cannot be an input or a target. Nothing was touched.
	ErrInvalidPath = errors.New("path not usable")
	// ErrFull says that the volume has less room than the configured minimum. Nothing was touched.
	ErrFull = errors.New("workspace full")
	// ErrDocument says that a journal is unreadable, or larger than 256 KiB.
	ErrDocument = errors.New("journal not usable")
)

// Inspection.
var (
	// ErrUnproven says that a group of the job has no proof of emptiness. Nothing was touched.
	ErrUnproven = errors.New("no proof that the job's group is empty")
	// ErrOutput says that an output is missing, empty, of the wrong type, linked elsewhere or still open for writing.
	ErrOutput = errors.New("output not usable")
	// ErrQuota says that the job's files exceed a quota.
	ErrQuota = errors.New("output quota exceeded")
)

// Publication and undo.
var (
	// ErrConflict says that somebody else changed a target or its parent since admission. Undo decides what stays.
	ErrConflict = errors.New("target changed by somebody else")
	// ErrSync says that a sync failed: what is on the volume is not known until the next start, and no second try tells.
	ErrSync = errors.New("sync failed")
	// ErrQuarantine says that an undo met what it does not recognise and touched nothing.
	ErrQuarantine = errors.New("quarantined")
)

// Error names the object of a refusal and the way out. It wraps its sentinel and, if there is one, the cause.
type Error struct {
	Op   string // admit, inspect, publish, ...
	Path string // workspace-relative as given
	Why  string
	Fix  string // the way out; may be empty
	Err  error  // sentinel, and cause joined to it
}

// Error implements error.
func (e *Error) Error() string {
	msg := fmt.Sprintf("%s %q: %s", e.Op, e.Path, e.Why)
	if e.Fix != "" {
		msg += " (" + e.Fix + ")"
	}
	return msg
}

// Unwrap returns the sentinel and the cause.
func (e *Error) Unwrap() error { return e.Err }

// because joins the cause of a refusal to its sentinel.
func because(sentinel, cause error) error {
	if cause == nil {
		return sentinel
	}
	return fmt.Errorf("%w: %w", sentinel, cause)
}
