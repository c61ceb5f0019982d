package job

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/eda-sidecar/eda-sidecar/adapters"
	"github.com/eda-sidecar/eda-sidecar/sidecar/audit"
	"github.com/eda-sidecar/eda-sidecar/sidecar/ledger"
	"github.com/eda-sidecar/eda-sidecar/sidecar/session"
	"github.com/eda-sidecar/eda-sidecar/sidecar/txn"
)

// judge inspects what was staged, has it validated and parsed, and makes the session's next state.
func (c *call) judge() error {
	c.enter(StateChecking)
	inspected, invalid := c.tx.Inspect(c.proofs, c.quotas())
	if invalid == nil {
		c.inspected = inspected
		c.res.Undeclared, c.res.UndeclaredTotal = append(c.res.Undeclared, inspected.Undeclared...), inspected.UndeclaredTotal
	}
	faults, err := c.read(false)
	switch {
	case err != nil:
		return err
	case c.full.Load(): // whatever the tool says: it may not have looked at its writes
		return failf(WorkspaceFull, "the volume had no room left while the tool ran: what it wrote may be cut short")
	case c.report.Verdict == adapters.Failed: // before its outputs: that a failed tool wrote none is no news
		return failf(ToolFailed, "%s", c.report.Summary)
	case invalid != nil:
		return invalid
	case len(faults) > 0:
		return faults[0]
	case c.report.Verdict == adapters.Invalid:
		return failf(OutputInvalid, "%s", c.report.Summary)
	}
	c.compareInputs()
	return c.next()
}

// compareInputs warns of inputs that somebody changed while the tool ran: it may have read either.
func (c *call) compareInputs() {
	for _, before := range c.inputs {
		if before.Dir {
			continue
		}
		after, err := c.files.OpenInput(before.Path, 0)
		if err != nil || after.SHA256 != before.SHA256 {
			c.res.Diagnostics = append(c.res.Diagnostics, adapters.Diagnostic{
				Severity: adapters.Warning, File: before.Path, Message: "this input changed while the tool ran",
			})
		}
	}
}

// read lets the adapter see the exits, the log and the staged files. Of a run that was cut it takes the diagnostics alone.
func (c *call) read(cut bool) (faults []adapters.Fault, err error) {
	staged, err := c.tx.StagedFS(c.proofs)
	if err != nil {
		return nil, err
	}
	m := c.mapper()
	run := adapters.Run{
		Exits: c.exits, LogTruncated: c.log.truncated, Cut: cut, Map: m,
		Log: func() (io.ReadCloser, error) { return os.Open(c.logPath()) },
	}
	if err := guard("judge", func() error {
		c.report, faults = c.req.Tool.Judge(c.args, c.inv, run, staged)
		return nil
	}); err != nil {
		return nil, err
	}
	c.res.Diagnostics = append(c.res.Diagnostics, c.report.Diagnostics...)
	if !cut {
		c.res.Verdict, c.res.Summary, c.res.Data = c.report.Verdict, c.report.Summary, c.report.Data
	}
	return faults, nil
}

func (c *call) mapper() *adapters.Mapper { return adapters.NewMapper(c.args, c.tx.Dir(), c.root) }

func (c *call) logPath() string { return filepath.Join(c.tx.Dir(), "log") }

// next makes the session's state after this job. The clone is untouched until the commit.
func (c *call) next() (err error) {
	if !c.mutates {
		return nil
	}
	now := c.o.Now().UTC()
	d := session.Delta{
		Tool: c.req.Tool.Name, Keys: keysOf(c.req.Tool), Artifacts: map[string]session.Artifact{},
		Last: session.Last{Job: c.id, At: now, Code: string(OK), Verdict: string(c.report.Verdict), Data: object(c.report.Data)},
	}
	if len(c.report.State) > 0 {
		if d.Patch, err = session.DecodePatch(c.report.State); err != nil {
			return err
		}
	}
	outs := c.args.Outputs()
	for _, in := range c.inspected.Outputs {
		target := outs[in.Index].Target
		c.res.Outputs = append(c.res.Outputs, Published{Name: in.Name, Path: target, Bytes: in.Bytes, SHA256: in.SHA256, Absent: in.Absent})
		if !in.Absent {
			d.Artifacts[target] = session.Artifact{SHA256: in.SHA256, Bytes: in.Bytes, Kind: string(txn.File), Job: c.id, Tool: d.Tool, At: now}
		}
	}
	c.state, err = c.state.Apply(d)
	return err
}

// publish makes the intent and the staged bytes durable, then lets outputs and targets change places.
func (c *call) publish() error {
	began := c.o.Now()
	defer func() { c.times.Publish = c.o.Now().Sub(began) }()
	sealed, err := c.tx.Seal()
	if err != nil {
		return or(PublishFailed, "seal the outputs", err)
	}
	c.journal = sealed
	ticket, err := c.ledger.Publishing(sealed, c.outstanding()...)
	if err != nil {
		return fail(AuditUnavailable, "record the publication", err)
	}
	c.rides(ticket)
	err = c.tx.SyncStaged(c.proofs, func() error { // B1
		if err := c.await(ticket); err != nil {
			return fail(AuditUnavailable, "record the publication", err)
		}
		return nil
	})
	if err != nil {
		return or(PublishFailed, "make the outputs durable", err)
	}
	if !c.cell.BeginPublish() { // the last point where a cancel or a deadline wins
		return c.aborted()
	}
	c.stage = publishing
	c.enter(StatePublishing)
	if err := c.tx.Exchange(c.proofs); err != nil {
		return or(PublishFailed, "publish the outputs", err)
	}
	if err := c.tx.SyncTargets(); err != nil { // B2
		return or(PublishFailed, "make the targets durable", err)
	}
	return nil
}

// errDoubt says that the commit record may or may not be durable: nothing is touched until a restart knows.
var errDoubt = errors.New("the ledger does not know whether the commit is durable")

// commitState is the commit point: phase, session state and event in one transaction of the ledger.
func (c *call) commitState() error {
	began := c.o.Now()
	defer func() { c.times.Commit = c.o.Now().Sub(began) }()
	outputs := make([]map[string]any, 0, len(c.res.Outputs))
	for _, o := range c.res.Outputs {
		outputs = append(outputs, map[string]any{"name": o.Name, "path": o.Path, "bytes": o.Bytes, "sha256": o.SHA256})
	}
	row := c.row
	row.State = c.state
	ticket, err := c.ledger.Commit(c.id, row, c.event(audit.Commit, map[string]any{
		"outputs": outputs, "verdict": string(c.report.Verdict), "descendants_killed": c.res.DescendantsKilled,
	}))
	if err != nil {
		return or(AuditUnavailable, "commit", err)
	}
	if err := c.await(ticket); err != nil {
		switch ticket.Ack() {
		case ledger.Absent:
			return fail(AuditUnavailable, "commit", err)
		case ledger.Refused:
			return or(Internal, "commit", err)
		case ledger.Unknown, ledger.Durable:
		}
		if ticket.Ack() == "" { // no answer yet: a late one still ends the job
			c.behind.Go(func() { c.late(ticket) })
		}
		return fail(CommitInDoubt, "commit", fmt.Errorf("%w: %w", errDoubt, err))
	}
	c.stage = committed
	c.res.SessionVersion = row.Generation + 1
	return nil
}

// await waits for the ledger's answer to one operation, within its bound.
func (r *Runner) await(t *ledger.Ticket) error {
	timer := time.NewTimer(r.o.LedgerTimeout)
	defer timer.Stop()
	select {
	case <-t.Done():
		return t.Err()
	case <-timer.C:
		return fmt.Errorf("no answer from the ledger in %v", r.o.LedgerTimeout)
	}
}

// keysOf are the vars that a tool may change.
func keysOf(t *adapters.Tool) session.Keys {
	if len(t.State) == 1 && t.State[0] == "*" {
		return session.Keys{Any: true}
	}
	return session.Keys{Names: t.State}
}
