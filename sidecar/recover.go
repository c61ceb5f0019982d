package sidecar

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/eda-sidecar/eda-sidecar/sidecar/audit"
	"github.com/eda-sidecar/eda-sidecar/sidecar/durable"
	"github.com/eda-sidecar/eda-sidecar/sidecar/job"
	"github.com/eda-sidecar/eda-sidecar/sidecar/ledger"
	"github.com/eda-sidecar/eda-sidecar/sidecar/lock"
	"github.com/eda-sidecar/eda-sidecar/sidecar/txn"
)

const (
	adoptTimeout = 10 * time.Second // for all groups together
	minLandlock  = 3                // a process born below it is not confined
)

// Recovered is what became of one job of an earlier process.
type Recovered struct {
	Job        string         `json:"job_id"`
	Tool       string         `json:"tool"`
	Phase      txn.Phase      `json:"phase"` // in which it was found
	Resolution txn.Resolution `json:"resolution"`
	Proof      string         `json:"proof,omitempty"` // read, removed, gone, reboot, confined or earlier
	Actions    []txn.Action   `json:"actions,omitempty"`
	Reason     string         `json:"reason,omitempty"` // why it is not decided: its keys stay held
}

// recover brings every job of an earlier process to its end: all its groups are killed and proven empty first.
func (s *Sidecar) recover(ctx context.Context, earlier string, adopt time.Duration) error {
	open, err := s.Ledger.OpenJobs(ctx)
	if err != nil {
		return err
	}
	found, err := s.adoptAll(ctx, open, earlier, adopt)
	if err != nil {
		return err
	}
	restored, err := s.restored(ctx)
	if err != nil {
		return err
	}
	for _, row := range open {
		r, err := s.recoverJob(row, found, row.FirstSeq < restored)
		if err != nil {
			return err
		}
		s.Recovered = append(s.Recovered, r)
	}
	if err := s.reads(ctx, found); err != nil {
		return err
	}
	if err := s.orphans(ctx); err != nil {
		return err
	}
	return s.retire(ctx, 0)
}

// restored returns the number of the event that says that an older ledger was put back, the last one; 0: none. What is
// open from before it is not what the files say, however often we start.
func (s *Sidecar) restored(ctx context.Context) (seq int64, err error) {
	err = s.Ledger.Events(ctx, ledger.Query{Kind: audit.LedgerRestored}, func(r ledger.Record) error {
		seq = r.Seq
		return nil
	})
	return seq, err
}

// recoverJob decides one open job, by its phase and by the identities of its files, and closes its row. What it may
// not decide it leaves as it is, with its keys held.
func (s *Sidecar) recoverJob(row ledger.Job, f *fates, restored bool) (Recovered, error) {
	r := Recovered{Job: row.ID, Tool: row.Tool, Phase: row.Phase}
	j, unreadable := txn.DecodeJournal(row.Doc)
	if unreadable != nil {
		j = &txn.Journal{Version: 1, Job: row.ID} // enough to see whether an operator has decided
	}
	seen, err := s.files.Observe(j)
	if err != nil {
		return r, fmt.Errorf("job %q: %w", row.ID, err)
	}
	d := txn.Plan(j, seen, fateOf(row.Phase))
	var unproven error
	r.Proof, unproven = f.of(j)
	switch running := row.Phase == txn.WorkerRunning; {
	case slices.Contains(s.Ledger.Opening().Disagree, row.ID):
		return s.quarantine(r, row, j, "its phase is not what its events say: somebody edited the ledger"), nil
	case unproven != nil:
		return s.quarantine(r, row, j, unproven.Error()), nil
	case d.Resolution == txn.ByOperator:
	case unreadable != nil:
		return s.quarantine(r, row, j, unreadable.Error()), nil
	case restored && row.Phase != txn.Committed:
		return s.quarantine(r, row, j, "an older ledger was restored"), nil
	case running && r.Proof == "":
		return s.quarantine(r, row, j, "its journal names no group"), nil
	case running && r.Proof == "confined" && j.LandlockABI < minLandlock:
		return s.quarantine(r, row, j, "its processes cannot be seen and were not confined"), nil
	}
	r.Resolution, r.Actions = d.Resolution, d.Actions
	err = s.carryOut(row, j, d, f, &r)
	switch {
	case errors.Is(err, txn.ErrQuarantine), errors.Is(err, ledger.ErrRefused):
		return s.quarantine(r, row, j, err.Error()), nil
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return s.quarantine(r, row, j, fmt.Sprintf("undecided, it waits for room on the volume: %v", err)), nil
	case err != nil:
		return r, fmt.Errorf("job %q: %w", row.ID, err)
	}
	return r, nil
}

func (s *Sidecar) carryOut(row ledger.Job, j *txn.Journal, d txn.Decision, f *fates, r *Recovered) error {
	if row.Phase != txn.WorkerRunning {
		r.Proof = "earlier"
	}
	if err := s.files.Apply(j, d); err != nil {
		return err
	}
	event := func(k audit.Kind, data map[string]any) audit.Event {
		return audit.Event{Kind: k, Job: row.ID, Session: row.Session, Tool: row.Tool, Principal: row.Principal, RequestID: j.RequestID, Data: data}
	}
	recovered := event(audit.Recovered, map[string]any{"resolution": string(d.Resolution), "proof": r.Proof, "phase": string(row.Phase)})
	if row.Phase == txn.Committed {
		return durably(s.Ledger.Settled(row.ID, recovered))
	}
	if row.Phase == txn.WorkerRunning && d.Resolution != txn.ByOperator {
		if err := s.files.Trash(j, f.empty, f.confined); err != nil {
			return err
		}
	}
	reason := "the engine ended before the job did"
	if d.Resolution == txn.ByOperator {
		reason = "an operator decided the quarantine: the targets are as he left them"
	}
	if r.Proof == "confined" {
		reason += "; death of its processes was not proven, they cannot reach a target"
	}
	return durably(s.Ledger.RolledBack(row.ID, recovered, event(audit.Rollback, map[string]any{"code": string(job.Internal), "reason": reason})))
}

func durably(t *ledger.Ticket, err error) error {
	if err != nil {
		return err
	}
	<-t.Done()
	return t.Err()
}

func fateOf(p txn.Phase) txn.Fate {
	switch p {
	case txn.Committed:
		return txn.FateCommitted
	case txn.RolledBack:
		return txn.FateRolledBack
	case txn.WorkerRunning, txn.PublishingOutputs, txn.CommittingState:
	}
	return txn.FateOpen
}

// quarantine leaves a job as it is and keeps others away from its session and targets.
func (s *Sidecar) quarantine(r Recovered, row ledger.Job, j *txn.Journal, reason string) Recovered {
	r.Resolution, r.Reason, r.Actions = txn.Quarantined, reason, nil
	keys := []lock.Key{lock.Session(row.Session)}
	if session, err := s.Ledger.Session(context.Background(), row.Session); err != nil || session.Name == job.DefaultSession {
		keys = append(keys, job.SessionKey(ledger.Session{Owner: row.Principal, Name: job.DefaultSession}))
	}
	for _, o := range j.Outputs {
		keys = append(keys, job.PathKey(s.chain(o.Target)))
	}
	// Nobody waits yet, and what another quarantined job holds is held for good: the rest is granted at once. None of it is
	// released: a restart decides again.
	keys = slices.DeleteFunc(keys, func(k lock.Key) bool { return len(s.table.Holders(k)) > 0 })
	_, err := s.table.Acquire(nil, lock.Request{Owner: lock.Owner{Job: job.QuarantinePrefix + row.ID, Session: row.Session, Tool: row.Tool, Principal: row.Principal, Since: row.CreatedAt.UnixMilli()}, Keys: keys})
	if err != nil {
		r.Reason += "; " + err.Error()
	}
	return r
}

// chain is the way to a target as it is now. Admission would refuse one that is no target at the moment, or on a full
// volume; it may be one again before we start the next time.
func (s *Sidecar) chain(target string) (edges []txn.Edge) {
	dir := s.cfg.Workspace
	for name := range strings.SplitSeq(target, "/") {
		info, err := os.Lstat(dir)
		if err != nil || !info.IsDir() {
			return edges
		}
		st := info.Sys().(*syscall.Stat_t) // of a file system of Linux
		edges = append(edges, txn.Edge{Dev: st.Dev, Ino: st.Ino, Name: name})
		dir = filepath.Join(dir, name)
	}
	return edges
}

// DryRun says what recovery would do about the files of every open job, and changes nothing. It returns a *job.Error
// with BUSY while the workspace is owned.
func DryRun(ctx context.Context, cfg Config) ([]Recovered, error) {
	for _, need := range []string{filepath.Join(cfg.Workspace, ".eda-sidecar", "jobs"), filepath.Join(cfg.StateDir, "ledger.db")} {
		if _, err := os.Stat(need); errors.Is(err, os.ErrNotExist) {
			return nil, nil // never used: txn.Open would make what is missing
		}
	}
	boot, err := bootID()
	if err != nil {
		return nil, fail(job.Internal, "read the boot id", err)
	}
	files, err := txn.Open(durable.OS(), cfg.Workspace, txn.Options{BootID: boot})
	if err != nil {
		return nil, volumeError("look at the workspace", err)
	}
	defer func() { _ = files.Close() }() // opened for reading
	owner, err := durable.Own(durable.OS(), files.Side())
	if err != nil {
		return nil, ownerError(err)
	}
	defer func() { _ = owner.Release() }() // nothing was written
	reader, err := ledger.OpenReader(cfg.StateDir)
	if errors.Is(err, ledger.ErrEmpty) {
		return nil, nil
	}
	if err != nil {
		return nil, LedgerError("open the ledger", err)
	}
	defer func() { _ = reader.Close() }() // opened for reading
	open, err := reader.OpenJobs(ctx)
	if err != nil {
		return nil, LedgerError("open the ledger", err)
	}
	var all []Recovered
	for _, row := range open {
		r := Recovered{Job: row.ID, Tool: row.Tool, Phase: row.Phase}
		j, err := txn.DecodeJournal(row.Doc)
		if err != nil {
			r.Resolution, r.Reason = txn.Quarantined, err.Error()
			all = append(all, r)
			continue
		}
		seen, err := files.Observe(j)
		if err != nil {
			return nil, volumeError("look at job "+row.ID, err)
		}
		d := txn.Plan(j, seen, fateOf(row.Phase))
		r.Resolution, r.Actions = d.Resolution, d.Actions
		all = append(all, r)
	}
	return all, nil
}
