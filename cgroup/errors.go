package cgroup

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// Errors of Create.
var (
	// ErrLimits says that a limit is required but missing, or that the kernel did not keep what was written.
	ErrLimits = errors.New("limit is not in force")
)

// Errors of Start.
var (
	// ErrClosed says that the group was killed or adopted: nothing may start in it any more.
	ErrClosed = errors.New("group is closed to starts")
	// ErrFrozen says that somebody froze the group: a clone into it would block for ever.
	ErrFrozen = errors.New("group is frozen")
	// ErrStarted says that the group had its one start already.
	ErrStarted = errors.New("group was used before")
	// ErrSandbox says that a path of the sandbox would open what must stay hidden: a configuration error.
	ErrSandbox = errors.New("path cannot be granted")
)

// Errors of WaitEmpty.
var (
	// ErrOpen says that WaitEmpty was called on a group that Kill has not closed: an error of the caller.
	ErrOpen = errors.New("group is open to starts: kill it first")
	// ErrUnproven is wrapped by every *UnprovenError.
	ErrUnproven = errors.New("termination is unproven")
)

// Reason is one obstacle to containment.
type Reason struct {
	Check string `json:"check"` // the doctor check that fails
	What  string `json:"what"`  // what was found
	Where string `json:"where"` // path or system call; may be empty
	Fix   string `json:"fix"`   // the command or setting that removes the obstacle
}

// UnavailableError says that no tool can run here, with every reason that was found.
type UnavailableError struct{ Reasons []Reason }

// Error lists every reason.
func (e *UnavailableError) Error() string {
	parts := make([]string, len(e.Reasons))
	for i, r := range e.Reasons {
		parts[i] = r.What
		if r.Where != "" {
			parts[i] += " at " + r.Where
		}
		if r.Fix != "" {
			parts[i] += " (" + r.Fix + ")"
		}
	}
	return "containment is unavailable: " + strings.Join(parts, "; ")
}

// StartError says that the tool was not started. The caller still calls Kill and WaitEmpty: a start that ran into
// its deadline may come through later. errors.Is(err, fs.ErrNotExist) means that the program, or its interpreter, is not installed.
type StartError struct {
	Op   string // stat, chdir, start, pipe, landlock, thread, exec; of the shim also shim, join, setuid
	Path string // the program
	Err  error
}

// Error names operation, program and cause.
func (e *StartError) Error() string { return fmt.Sprintf("%s %q: %v", e.Op, e.Path, e.Err) }

// Unwrap returns the cause.
func (e *StartError) Unwrap() error { return e.Err }

// UnprovenReason says why death could not be proven.
type UnprovenReason string

// The reasons of an UnprovenError.
const (
	Uninterruptible UnprovenReason = "uninterruptible" // a survivor is in kernel state D, or held by a cgroup v1 freezer
	KillRefused     UnprovenReason = "kill_refused"    // cgroup.kill could not be written
	StartStuck      UnprovenReason = "start_stuck"     // a start has not returned
	Alive           UnprovenReason = "alive"           // populated 1, nothing more is known
	Unreadable      UnprovenReason = "unreadable"      // cgroup.events could not be read or understood
)

// Survivor is a process that is still in an unproven group.
type Survivor struct {
	PID   int    `json:"pid"`
	Comm  string `json:"comm"`
	State string `json:"state"` // one letter of /proc/PID/stat; D if any thread is in D
	Wchan string `json:"wchan"` // kernel function it sleeps in; may be empty
}

// UnprovenError says that the group is not known to be empty: nothing may be published, deleted or unlocked.
type UnprovenError struct {
	Ref       Ref
	Reason    UnprovenReason
	Survivors []Survivor    // at most eight
	Waited    time.Duration // how long WaitEmpty tried
	Err       error         // last error of reading or killing; may be nil
}

// Error names group, reason and survivors.
func (e *UnprovenError) Error() string {
	s := fmt.Sprintf("prove %q empty: %s after %v, survivors %v", e.Ref.Path, e.Reason, e.Waited.Round(time.Millisecond), e.Survivors)
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

// Unwrap makes every UnprovenError an ErrUnproven, beside its cause.
func (e *UnprovenError) Unwrap() []error { return []error{ErrUnproven, e.Err} }
