package job

import (
	"cmp"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/eda-sidecar/eda-sidecar/adapters"
	"github.com/eda-sidecar/eda-sidecar/sidecar/job/outcome"
	"github.com/eda-sidecar/eda-sidecar/sidecar/lock"
)

// Handle is one caller's hold on a job that a Registry has started. Its methods may be called at any time, by anyone.
type Handle struct {
	*run
	caller   outcome.Caller
	replayed bool // the job had its answer before the call
}

// run is one job, that several callers may wait for.
type run struct {
	c      *call
	done   chan struct{}
	result Result // valid after done
	bytes  int    // of result as JSON; the registry's
}

// ID returns the job's id.
func (h *Handle) ID() string { return h.c.id }

// Request returns what was asked for.
func (h *Handle) Request() Request { return h.c.req }

// Session returns the id of the session that the job works in; before its turn what the caller named.
func (h *Handle) Session() string { return cmp.Or(h.c.at.Load().session, h.c.req.Session) }

// Done returns a channel that is closed at the terminal answer.
func (h *Handle) Done() <-chan struct{} { return h.done }

// Result waits for the terminal answer and returns it.
func (h *Handle) Result() Result {
	<-h.done
	r := h.result
	r.Replayed = h.replayed
	return r
}

// Cancel ends the job without a commit. False: its outcome was decided before.
func (h *Handle) Cancel() bool { return h.c.cell.Abort(outcome.Cancelled) }

// CancelBy is Cancel by a principal, whom the events name if it is not the job's own.
func (h *Handle) CancelBy(principal string) bool {
	if principal != h.c.req.Principal {
		h.c.by.CompareAndSwap(nil, &principal)
	}
	return h.Cancel()
}

// Detach hands the job over: it outlives the call from now on. False: the caller had abandoned it.
func (h *Handle) Detach() bool { return h.caller.Detach() }

// Abandon says that the caller is gone: the job is cancelled with its last caller, unless it was handed over. It reports
// whether this did it.
func (h *Handle) Abandon() bool { return h.caller.Abandon(&h.c.cell, outcome.Cancelled) }

// Disown is Abandon for a caller to whom the job was, or may have been, handed over.
func (h *Handle) Disown() bool { return h.caller.Disown(&h.c.cell, outcome.Cancelled) }

// Ended reports whether there is a terminal answer.
func (h *Handle) Ended() bool {
	select {
	case <-h.done:
		return true
	default:
		return false
	}
}

// State is what a job does at the moment.
type State string

// The states, in the order of a job that commits. A job may be stopping at any time between queued and publishing.
const (
	StateQueued     State = "queued"     // waits for its session and targets
	StateRunning    State = "running"    // is prepared, or its tool runs
	StateStopping   State = "stopping"   // was aborted: is killed, proven dead and undone
	StateChecking   State = "checking"   // the tool is proven dead; its outputs are inspected
	StatePublishing State = "publishing" // outputs change places with their targets; no cancel wins any more
	StateDone       State = "done"       // has its answer
)

// Status is what can be said of a job while it runs.
type Status struct {
	State    State         `json:"phase"`   // what it does
	Message  string        `json:"message"` // the same for people: for whom it waits, what the tool says of its progress
	Percent  int           `json:"percent"` // of the running tool, as it says itself; 0: not known
	Elapsed  time.Duration `json:"-"`       // since the call
	LogBytes int64         `json:"-"`       // printed so far
	LogTail  string        `json:"-"`       // the last 2 KiB of it
	Deadline time.Time     `json:"-"`       // of the running tool; zero: it has not started
}

// at is a moment of a call, as others may see it. It is replaced as a whole.
type at struct {
	state    State
	since    time.Time
	deadline time.Time
	dir      string // the job directory, once it is there
	session  string // its id, once it is cloned
	progress adapters.Progress
}

// enter says what the call does from now on.
func (c *call) enter(s State) {
	c.see(func(a *at) { a.state, a.since = s, c.o.Now() })
}

// see changes what others see of the call. The job's goroutine and the copier of its output call it.
func (c *call) see(change func(*at)) {
	for {
		old := c.at.Load()
		next := *old
		change(&next)
		if c.at.CompareAndSwap(old, &next) {
			return
		}
	}
}

// forget drops what the answer holds once more, and what nobody asks for after it. An undo that goes on needs the rest.
func (c *call) forget() {
	c.res.Log, c.res.Diagnostics, c.res.Data = Log{}, nil, nil
	c.report, c.log, c.inspected, c.inputs = adapters.Report{}, transcript{}, nil, nil
}

const statusTail = 2 << 10 // bytes of the log in a Status

// Status returns what the job does now.
func (h *Handle) Status() Status {
	a, now := h.c.at.Load(), h.c.o.Now()
	s := Status{State: a.state, Percent: a.progress.Percent, Elapsed: now.Sub(h.c.asked), Deadline: a.deadline}
	switch cause := h.c.cell.Aborted(); {
	case h.Ended():
		s.State, s.Percent = StateDone, 0
	case cause != outcome.None:
		s.State = StateStopping
	}
	s.Message = h.message(s, now.Sub(a.since).Round(100*time.Millisecond))
	if p, err := h.Log(-statusTail, statusTail); err == nil {
		s.LogBytes, s.LogTail = p.Size, string(p.Bytes)
	}
	return s
}

func (h *Handle) message(s Status, in time.Duration) string {
	switch a := h.c.at.Load(); s.State {
	case StateQueued:
		holder, ahead := h.c.table.Waiting(h.c.id)
		if holder == (lock.Owner{}) {
			return fmt.Sprintf("queued, %d ahead", ahead)
		}
		return fmt.Sprintf("queued behind %s, %d ahead", h.c.holder(holder), ahead)
	case StateStopping:
		return fmt.Sprintf("stopping (%s): waiting for proof", asError(h.c.aborted()).Code)
	case StateRunning:
		text := "running " + h.c.req.Tool.Name
		if a.progress.Message != "" {
			text += ": " + a.progress.Message
		}
		if s.Percent > 0 {
			text += fmt.Sprintf(", %d %%", s.Percent)
		}
		return fmt.Sprintf("%s (%v)", text, in)
	case StateChecking:
		return "checking the outputs"
	case StatePublishing:
		return "publishing the outputs"
	case StateDone:
		return "done: " + string(h.result.Code)
	}
	return string(s.State)
}

// Part is a part of a log or an output.
type Part struct {
	Bytes []byte
	Size  int64 // of the whole, bytes
	Gone  bool  // the whole is there no more: of a log, Bytes come from both ends that the result holds; an output is no longer what the job committed
}

// Log returns at most limit bytes of what the tool printed, from offset on; a negative offset counts from the end.
func (h *Handle) Log(offset, limit int64) (p Part, err error) {
	if dir := h.c.at.Load().dir; dir != "" {
		f, err := os.Open(filepath.Join(dir, "log"))
		if err == nil {
			defer func() { _ = f.Close() }() // opened for reading
			return part(f, offset, limit)
		}
	}
	if !h.Ended() {
		return Part{}, nil
	}
	ends := h.result.Log.Head + h.result.Log.Tail
	p, err = section(strings.NewReader(ends), int64(len(ends)), offset, limit)
	p.Gone = true
	return p, err
}

// Output returns at most limit bytes of a committed output, from offset on. The error wraps fs.ErrNotExist if the job has
// no such output, or if nothing is at its target.
func (h *Handle) Output(name string, offset, limit int64) (p Part, err error) {
	if !h.Ended() || h.result.Code != OK || h.c.journal == nil || !h.c.mutates {
		return p, fmt.Errorf("output %q of a job that has not committed: %w", name, fs.ErrNotExist)
	}
	f, current, err := h.c.files.OpenOutput(h.c.journal, name)
	if err != nil {
		return p, err
	}
	defer func() { _ = f.Close() }() // opened for reading
	p, err = part(f, offset, limit)
	p.Gone = !current
	return p, err
}

func part(f *os.File, offset, limit int64) (Part, error) {
	info, err := f.Stat()
	if err != nil {
		return Part{}, err
	}
	return section(f, info.Size(), offset, limit)
}

func section(r io.ReaderAt, size, offset, limit int64) (Part, error) {
	if offset < 0 {
		offset = max(0, size+offset)
	}
	b, err := io.ReadAll(io.NewSectionReader(r, offset, max(0, min(limit, size-offset))))
	return Part{Bytes: b, Size: size}, err
}
