package job

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/eda-sidecar/eda-sidecar/cgroup"
	"github.com/eda-sidecar/eda-sidecar/sidecar/audit"
	"github.com/eda-sidecar/eda-sidecar/sidecar/job/outcome"
	"github.com/eda-sidecar/eda-sidecar/sidecar/ledger"
	"github.com/eda-sidecar/eda-sidecar/sidecar/txn"
)

// settle ends the call: what was not committed is undone, then the keys are released. The first error is the call's,
// whatever the undo meets.
func (c *call) settle(err error) error {
	defer func() {
		for i := len(c.stop) - 1; i >= 0; i-- {
			c.stop[i]()
		}
	}()
	unproven := c.prove() // also of groups that no step came to; nothing to do for those proven before
	if err == nil {
		err = unproven
	}
	c.readLog()
	switch {
	case c.stage == unknown: // nothing was started
		_ = c.ledger.Deny(c.event(audit.Deny, reason(err))) // a ledger that takes none takes no commit either
		c.cell.Finish(outcome.RolledBack)
	case c.survived != nil:
		return c.leaveUnproven(err)
	case errors.Is(err, errDoubt):
		c.cell.Finish(outcome.InDoubt)
		return err
	case err == nil && c.mutates:
		_ = c.tx.Shed()               // else it stays until the backup expires
		_, _ = c.ledger.Settled(c.id) // rides; recovery settles what it finds unsettled
		c.cell.Finish(outcome.Committed)
	case !c.mutates:
		c.endRead(err)
	default:
		c.diagnose()
		c.undone = append(c.causes(err), c.event(audit.Rollback, reason(err)))
		if undo := c.undo(); undo != nil {
			c.cell.Finish(outcome.Undecided)
			c.behind.Go(func() { c.undoLater(undo) })
			return err
		}
		c.cell.Finish(outcome.RolledBack)
	}
	c.tidy()
	return err
}

// tidy lets go of groups and files once the end is final.
func (c *call) tidy() {
	for _, g := range c.groups {
		for _, e := range c.proofs {
			if e.Proves(g.Ref()) {
				g.Remove(e)
			}
		}
		if !c.proven(g) { // of a denied call: nothing was started in it
			c.Runner.groups.Sweep(g, g.Remove)
		}
	}
	if c.tx != nil {
		_ = c.tx.Close() // all that matters in it was synced and said
	}
}

// causes are the events between start and rollback: why the job ends, and that its processes are dead.
func (c *call) causes(err error) []audit.Event {
	events := []audit.Event{c.event(causeOf(asError(err).Code), reason(err))}
	if c.running {
		events = append(events, c.event(audit.WorkerTerminated, map[string]any{
			"proof": string(c.proofs[0].How()), "descendants_killed": c.res.DescendantsKilled, "usage": object(c.res.Usage),
		}))
	}
	return events
}

func causeOf(code Code) audit.Kind {
	switch {
	case code == ToolTimeout:
		return audit.Timeout
	case code == CodeCancelled, code == SessionDestroyed, code == ShuttingDown:
		return audit.Cancel
	}
	return audit.Error
}

// reason is what an event says of an error: the code, and the first KiB of its text.
func reason(err error) map[string]any {
	e := asError(err)
	text := e.Error()
	if len(text) > 1024 {
		text = text[:1024]
	}
	return map[string]any{"code": string(e.Code), "reason": strings.ToValidUTF8(text, "?")}
}

func (c *call) endRead(err error) {
	if err == nil {
		_, _ = c.ledger.RecordLast(c.event(audit.Finish, map[string]any{"verdict": string(c.report.Verdict)})) // a read's evidence may be lost with the ledger
	} else {
		c.diagnose()
		_, _ = c.ledger.RecordLast(c.causes(err)...) // as above
	}
	if c.tx != nil {
		_ = c.tx.Discard(c.proofs) // scratch: start-up removes what is left of it
	}
	c.cell.Finish(outcome.Read)
}

// diagnose takes the diagnostics of a run that was cut before it could be judged.
func (c *call) diagnose() {
	if c.tx != nil && c.running && c.report.Verdict == "" {
		_, _ = c.read(true) // they help; the code is decided
	}
}

// errFiles says that an undo could not bring the files back, or not make that durable.
var errFiles = errors.New("undo the files")

// undo brings the files back and makes that durable, then closes the job's row. It may be called again after an error.
func (c *call) undo() (err error) {
	if c.closing == nil {
		switch {
		case c.tx == nil: // the job directory could not be made
		case c.stage == publishing:
			_, err = c.tx.Undo()
		default:
			err = c.tx.Discard(c.proofs)
		}
		if err != nil {
			err = fmt.Errorf("%w: %w", errFiles, err)
			if c.final(err) {
				c.unsure.Store(true)
			}
			return err
		}
		if c.full.Load() {
			_ = c.files.EmptyTrash() // the ledger may need the room
		}
		if c.closing, err = c.ledger.RolledBack(c.id, append(c.outstanding(), c.undone...)...); err != nil {
			return err
		}
		c.rides(c.closing)
	}
	if err := c.await(c.closing); err != nil {
		if c.closing.Ack() != "" { // else it is on its way: a second one would be refused
			c.closing = nil
		}
		return err
	}
	if c.stage == publishing {
		if _, err := c.files.Retire(c.journal, txn.FateRolledBack); err != nil {
			return nil // a start retires what is left
		}
	}
	_, _ = c.ledger.Retired(c.id) // rides
	return nil
}

// final reports whether only a restart can finish an undo that ended with err. What a full volume refuses is tried again,
// but for a sync.
func (c *call) final(err error) bool {
	full := errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT)
	return errors.Is(err, errFiles) && c.stage == publishing && (!full || errors.Is(err, txn.ErrSync))
}

// undoLater tries an undo that ended with err again until it succeeds, or until only a restart can decide: after Close,
// with a poisoned ledger, or because of the error.
func (c *call) undoLater(err error) {
	for err != nil {
		if c.final(err) || c.ledger.Poisoned() != nil {
			return
		}
		timer := time.NewTimer(c.undoEvery)
		select {
		case <-timer.C:
		case <-c.alive.Done():
			timer.Stop()
			return
		}
		err = c.undo()
	}
	c.cell.Finish(outcome.RolledBack)
	c.tidy()
}

// leaveUnproven keeps keys, targets and staging as they are, says so durably, and lets a sweep finish the rollback when
// death is proven after all.
func (c *call) leaveUnproven(err error) error {
	cause := c.event(causeOf(asError(err).Code), reason(err))
	said, recErr := c.ledger.Record(append(c.outstanding(), cause, c.event(audit.TerminationUnproven, reason(c.survived)))...)
	if recErr == nil {
		c.rides(said)
		_ = c.await(said) // poisoned or late: the answer is the same
	}
	c.cell.Finish(outcome.Unproven)
	for _, g := range slices.DeleteFunc(slices.Clone(c.groups), c.proven) { // of all before the first sweep adds a proof
		c.Runner.groups.Sweep(g, c.provedLater(g, err))
	}
	return c.survived
}

// provedLater is called by the sweep, once a group, from one goroutine at a time.
func (c *call) provedLater(g Group, cause error) func(cgroup.Empty) {
	return func(e cgroup.Empty) {
		c.sweep.Lock()
		defer c.sweep.Unlock()
		c.proofs = append(c.proofs, e)
		for _, other := range c.groups {
			if !c.proven(other) {
				return
			}
		}
		terminated := c.event(audit.WorkerTerminated, map[string]any{"proof": string(e.How())})
		if !c.mutates {
			_, _ = c.ledger.RecordLast(terminated) // as in endRead
			_ = c.tx.Discard(c.proofs)             // as in endRead
			c.cell.Finish(outcome.Read)
			c.tidy()
			return
		}
		c.undone = []audit.Event{terminated, c.event(audit.Rollback, reason(cause))}
		if err := c.undo(); err != nil {
			c.cell.Finish(outcome.Undecided)
			c.behind.Go(func() { c.undoLater(err) })
			return
		}
		c.cell.Finish(outcome.RolledBack)
		c.tidy()
	}
}

// late ends a job whose commit was answered after all.
func (c *call) late(t *ledger.Ticket) {
	select {
	case <-t.Done():
	case <-c.alive.Done():
		return
	}
	switch t.Ack() {
	case ledger.Durable:
		_, _ = c.ledger.Settled(c.id) // rides
		c.cell.Finish(outcome.Committed)
		c.tidy()
	case ledger.Absent, ledger.Refused:
		err := failf(AuditUnavailable, "the commit was refused late")
		c.undone = append(c.causes(err), c.event(audit.Rollback, reason(err)))
		c.undoLater(c.undo())
	case ledger.Unknown:
	}
}

// outstanding is the event start if the transaction on which it rode was not done: it rides on the next operation, whose
// ticket rides takes.
func (c *call) outstanding() []audit.Event {
	if !c.running || c.said != nil && (c.said.Ack() == "" || c.said.Ack() == ledger.Durable) {
		return nil
	}
	c.said = nil
	return []audit.Event{c.start}
}

func (c *call) rides(t *ledger.Ticket) {
	if c.said == nil {
		c.said = t
	}
}

func (c *call) event(k audit.Kind, data map[string]any) audit.Event {
	return audit.Event{
		Kind: k, Job: c.id, Session: c.row.ID, Tool: c.req.Tool.Name, Principal: c.req.Principal, RequestID: c.req.RequestID,
		At: c.o.Now().UTC(), Data: data,
	}
}

// readLog takes both ends of the log into the result while the job directory is there.
func (c *call) readLog() {
	if c.tx == nil || !c.running {
		return
	}
	l, err := c.log.ends(c.logPath(), c.mapper())
	if err == nil {
		c.res.Log = l
	}
}

const retryAfter = 5 * time.Second // a guess: jobs of EDA tools end in seconds to hours

// answer completes the result from the error that the call ended with.
func (c *call) answer(err error) Result {
	r := &c.res
	r.Code = OK
	r.WorkerTerminated = c.survived == nil
	r.Programs = c.programs.of(c.req.Tool)
	if err != nil {
		e := asError(err)
		r.Code, r.Message, r.Hint, r.Outputs = e.Code, "cannot complete "+r.Tool+": "+e.Error(), e.Advice(), []Published{}
	}
	switch end := c.cell.End(); {
	case end == outcome.Committed:
		r.Phase = txn.Committed
		if rel, err := filepath.Rel(c.root, c.logPath()); err == nil {
			r.Log.Path = rel
		}
	case end == outcome.RolledBack && c.stage != unknown:
		r.Phase, r.RolledBack = txn.RolledBack, true
	case end == outcome.RolledBack || end == outcome.Read:
		r.RolledBack = err != nil
	case c.stage == publishing:
		r.Phase = txn.PublishingOutputs
	case c.mutates:
		r.Phase = txn.WorkerRunning
	}
	if err != nil && !r.RolledBack {
		r.Hint = "nothing is lost and nothing is half done: the next start finishes it; 'eda-sidecar doctor' says what it waits for"
	}
	if r.Code == Busy || r.Code == ShuttingDown {
		r.RetryAfter = retryAfter.Milliseconds()
	}
	r.Duration = c.o.Now().Sub(c.asked).Milliseconds()
	c.finished(*r, c.times)
	return *r
}

func (r *Runner) finished(res Result, t Times) {
	if r.o.Metrics != nil {
		r.o.Metrics.Finished(res, t)
	}
}

// object is v as a JSON object, or nil if it is none.
func object(v any) map[string]any {
	b, err := json.Marshal(v)
	if err != nil {
		return nil
	}
	var m map[string]any
	if json.Unmarshal(b, &m) != nil {
		return nil
	}
	return m
}
