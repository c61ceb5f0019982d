package job

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/eda-sidecar/eda-sidecar/adapters"
	"github.com/eda-sidecar/eda-sidecar/cgroup"
	"github.com/eda-sidecar/eda-sidecar/sidecar/txn"
)

// Result is the answer to every call, in the form that is printed and sent.
type Result struct {
	Code              Code                  `json:"code"`                       // how the call ended: see the table of codes
	Verdict           adapters.Verdict      `json:"verdict,omitempty"`          // what the adapter says of the tool's work: ok; findings (the work was done, and there is something to look at: committed); failed; invalid
	Summary           string                `json:"summary,omitempty"`          // one line, by the adapter
	Message           string                `json:"message,omitempty"`          // what went wrong: operation, object, cause
	Hint              string                `json:"hint,omitempty"`             // what to do about it
	Tool              string                `json:"tool"`                       // what was called
	Job               string                `json:"job_id"`                     // names the job in the audit trail
	Session           string                `json:"session_id,omitempty"`       // where it worked; empty for a read without one
	SessionVersion    int64                 `json:"session_version,omitempty"`  // the session's generation after the call
	Phase             txn.Phase             `json:"phase,omitempty"`            // the journal's; empty for a read
	RolledBack        bool                  `json:"rolled_back"`                // nothing has changed. False beside an error code: the undo is not finished, or not proven durable
	Started           bool                  `json:"started"`                    // a process of the tool was started
	WorkerTerminated  bool                  `json:"worker_terminated"`          // every group that was started is proven empty
	DescendantsKilled int                   `json:"descendants_killed"`         // processes that outlived their step's leader
	Duration          int64                 `json:"duration_ms"`                // from the call to the answer
	Outputs           []Published           `json:"outputs"`                    // what was published, in the order of the slots
	Undeclared        []string              `json:"undeclared_files"`           // what else the tool left, relative to the job directory, at most 100; never published
	UndeclaredTotal   int                   `json:"undeclared_total,omitempty"` // how many there were, if more than are listed
	Diagnostics       []adapters.Diagnostic `json:"diagnostics"`                // severity, file, line, column, code and message of the tool; errors first, 200 at most
	Data              any                   `json:"data,omitempty"`             // the adapter's structured result
	Log               Log                   `json:"log"`                        // what the tool printed
	Holder            *Holder               `json:"holder,omitempty"`           // of BUSY: who holds what the call wanted
	Recalled          bool                  `json:"recalled,omitempty"`         // rebuilt from the audit trail after a restart or a long time: summary, log, diagnostics, data, duration, usage, programs and undeclared files are gone, and of a failure verdict and session_version; no resource shows its files
	Replayed          bool                  `json:"replayed,omitempty"`         // the answer to an earlier call with the same idempotency key: this one ran nothing
	RetryAfter        int64                 `json:"retry_after_ms,omitempty"`   // of BUSY and SHUTTING_DOWN: when a new call is worth a try
	Usage             cgroup.Usage          `json:"usage"`                      // CPU seconds, peaks of memory and processes, I/O, pressure; absent where the kernel does not say. unlimited: limits that could not be set
	Programs          []Program             `json:"programs,omitempty"`         // what ran: name, path, version, and whether it is newer than any that was tested
}

// Holder is a job that has the keys that another call wants. Job is empty unless both are of one principal.
type Holder struct {
	Job  string `json:"job_id,omitempty"` // as in its own result
	Tool string `json:"tool"`             // what it runs
	Age  int64  `json:"age_ms"`           // since it was asked for
}

// String names the job, if it may be named, its tool and its age.
func (h *Holder) String() string {
	who := "a job of somebody else"
	if h.Job != "" {
		who = "job " + h.Job
	}
	return fmt.Sprintf("%s (%s, %v)", who, h.Tool, (time.Duration(h.Age) * time.Millisecond).Round(time.Second))
}

// Published is one output at its target. SHA256 is hex; of a tree the digest of its manifest.
type Published struct {
	Name   string `json:"name"`             // of the parameter, such as netlist
	Path   string `json:"path"`             // relative to the workspace
	Bytes  int64  `json:"bytes"`            // size
	SHA256 string `json:"sha256,omitempty"` // hex; of a tree the digest of its manifest
	Absent bool   `json:"absent,omitempty"` // an optional output that the tool did not write; the target is as it was
}

// Log is what the tool printed: the first and last 64 KiB of it at most. Path is relative to the workspace, empty once the log is gone.
type Log struct {
	Head      string `json:"head"`           // the first 64 KiB
	Tail      string `json:"tail"`           // the last 64 KiB of what is not in head
	Bytes     int64  `json:"bytes"`          // printed in all
	Truncated bool   `json:"truncated"`      // bytes were dropped, of the log file or of what lies between head and tail
	Path      string `json:"path,omitempty"` // of the whole log, relative to the workspace; empty once it is gone
}

// Program is what was run, and its version as it says itself.
type Program struct {
	Name    string `json:"name"`
	Path    string `json:"path"`
	Version string `json:"version,omitempty"`
	Newer   bool   `json:"newer,omitempty"` // than the newest version that the adapter was tested with
}

// Times are the parts of a call that metrics count and results do not print.
type Times struct {
	Queued, Kill, Publish, Commit time.Duration
}

// Error is why a call did not end in OK.
type Error struct {
	Code Code
	Op   string // what was done, and to what: `publish "build/top.json"`
	Err  error
	Hint string // what to do about it; empty: what the code says
}

// Advice returns what a user can do about e: the first hint in its chain, else that of its code.
func (e *Error) Advice() string {
	if errors.Is(e, unix.EMFILE) || errors.Is(e, unix.ENFILE) {
		return "raise the limit of open files, ulimit -n"
	}
	code := e.Code
	for err := error(e); errors.As(err, &e); err = e.Err {
		if e.Hint != "" {
			return e.Hint
		}
	}
	return code.Hint()
}

// Error returns the operation and its cause.
func (e *Error) Error() string {
	switch {
	case e.Err == nil:
		return e.Op
	case e.Op == "":
		return e.Err.Error()
	}
	return e.Op + ": " + e.Err.Error()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

func fail(code Code, op string, err error) error { return &Error{Code: code, Op: op, Err: err} }

func failf(code Code, format string, args ...any) error {
	return &Error{Code: code, Err: fmt.Errorf(format, args...)}
}

// asError is the one mapping from an error to its code.
func asError(err error) *Error {
	var e *Error
	if errors.As(err, &e) {
		if top := err.Error(); top != e.Error() {
			return &Error{Code: e.Code, Err: err}
		}
		return e
	}
	return &Error{Code: codeOf(err), Err: err}
}

// Failed is the answer to a call that ended with err before it became a job: nothing ran, and nothing has changed.
func Failed(tool string, err error) Result {
	e := asError(err)
	return Result{
		Code: e.Code, Message: "cannot complete " + tool + ": " + e.Error(), Hint: e.Advice(), Tool: tool, RolledBack: true,
		WorkerTerminated: true, Outputs: []Published{}, Undeclared: []string{}, Diagnostics: []adapters.Diagnostic{},
	}
}
