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

	"github.com/eda-sidecar/eda-sidecar/cgroup"
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
	rowsAtOnce   = 500              // closed together: their transactions share syncs
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
	If         string         `json:"if,omitempty"`     // of a dry run: on what all this depends
}

// Recovery brings the jobs of an earlier process to their end. Open runs it on its own parts; a test that loses power
// runs it on a volume and a ledger in memory.
type Recovery struct {
	Files  *txn.Workspace
	Root   string // absolute path of the workspace
	Ledger Rows
	Groups EarlierGroups
	Table  *lock.Table   // gets the keys of what is quarantined
	Keep   time.Duration // how long the backups of a committed job are kept

	Recovered []Recovered // what Run did
}

// Rows is what recovery asks of the ledger. Its methods are those of ledger.Ledger.
type Rows interface {
	rows
	OpenJobs(ctx context.Context) ([]ledger.Job, error)
	Unretired(ctx context.Context) ([]ledger.Job, error)
	Session(ctx context.Context, id string) (ledger.Session, error)
	Opening() ledger.Opening
	Settled(job string, events ...audit.Event) (*ledger.Ticket, error)
	RolledBack(job string, events ...audit.Event) (*ledger.Ticket, error)
	Retired(job string) (*ledger.Ticket, error)
	Record(events ...audit.Event) (*ledger.Ticket, error)
}

// EarlierGroups is what recovery asks of the groups. Its methods are those of cgroup.Parent.
type EarlierGroups interface {
	Leftovers(ctx context.Context, earlier string) ([]cgroup.Ref, error)
	Adopt(ctx context.Context, ref cgroup.Ref) (cgroup.Adopted, error)
	Sweep(g *cgroup.Group, proved func(cgroup.Empty))
}

func (s *Sidecar) recovery() *Recovery {
	return &Recovery{Files: s.files, Root: s.cfg.Workspace, Ledger: s.Ledger, Groups: s.groups, Table: s.table, Keep: s.cfg.BackupRetention}
}

// Run decides every job that is open: all its groups are killed and proven empty first, within adopt. earlier is the
// directory of an earlier process's groups, if it is known. It may be cut short anywhere, and run again.
func (s *Recovery) Run(ctx context.Context, earlier string, adopt time.Duration) error {
	open, err := s.Ledger.OpenJobs(ctx)
	if err != nil {
		return err
	}
	found, err := s.adoptAll(ctx, open, earlier, adopt)
	if err != nil {
		return err
	}
	restored, err := restored(ctx, s.Ledger)
	if err != nil {
		return err
	}
	for some := range slices.Chunk(open, rowsAtOnce) {
		var all []recovering
		files := s.Files.NewUndo()
		for _, row := range some {
			o, err := look(row, s.Files, found, row.FirstSeq < restored, s.Ledger.Opening().Disagree)
			if err != nil {
				return errors.Join(err, files.Sync())
			}
			all = append(all, s.recoverJob(o, found, files))
		}
		if err := files.Sync(); err != nil {
			return err
		}
		for i := range all {
			all[i].put()
		}
		for _, one := range all {
			r, err := s.recovered(one)
			if err != nil {
				return err
			}
			s.Recovered = append(s.Recovered, r)
		}
	}
	if err := s.reads(ctx, found); err != nil {
		return err
	}
	if err := s.orphans(ctx); err != nil {
		return err
	}
	kept, err := s.retire(ctx, 0)
	s.Recovered = append(s.Recovered, kept...)
	return err
}

// restored returns the number of the event that says that an older ledger was put back, the last one; 0: none. What is
// open from before it is not what the files say, however often we start.
func restored(ctx context.Context, l rows) (seq int64, err error) {
	err = l.Events(ctx, ledger.Query{Kind: audit.LedgerRestored}, func(r ledger.Record) error {
		seq = r.Seq
		return nil
	})
	return seq, err
}

// openJob is what is known of an open job when its end is decided.
type openJob struct {
	row        ledger.Job
	journal    *txn.Journal
	unreadable error // why journal is not the row's, but holds its name alone
	seen       txn.Seen
	proof      string // of its groups; empty: it names none
	unproven   error  // a group is not known to be empty
	restored   bool   // an older ledger was put back since it began
	disagree   bool   // its phase is not what its events say
}

// look gathers what is known of an open job, and changes nothing.
func look(row ledger.Job, files *txn.Workspace, f *fates, restored bool, disagree []string) (o openJob, err error) {
	o = openJob{row: row, restored: restored, disagree: slices.Contains(disagree, row.ID)}
	if o.journal, o.unreadable = txn.DecodeJournal(row.Doc); o.unreadable != nil {
		o.journal = &txn.Journal{Version: 1, Job: row.ID} // enough to see whether an operator has decided
	}
	if o.seen, err = files.Observe(o.journal); err != nil {
		return o, fmt.Errorf("job %q: %w", row.ID, err)
	}
	o.proof, o.unproven = f.of(o.journal)
	return o, nil
}

// decide says what becomes of an open job, by its phase, its groups and the identities of its files: for recovery and for
// its dry run. It is pure. A job with a reason is quarantined.
func (o openJob) decide() (r Recovered, d txn.Decision) {
	d = txn.Plan(o.journal, o.seen, fateOf(o.row.Phase))
	r = Recovered{Job: o.row.ID, Tool: o.row.Tool, Phase: o.row.Phase, Resolution: d.Resolution, Proof: o.proof}
	running := o.row.Phase == txn.WorkerRunning
	if !running {
		r.Proof = "earlier"
	}
	switch {
	case o.disagree:
		r.Reason = "its phase is not what its events say: somebody edited the ledger"
	case o.unproven != nil:
		r.Reason = o.unproven.Error()
	case d.Resolution == txn.ByOperator:
	case o.unreadable != nil:
		r.Reason = o.unreadable.Error()
	case o.restored && o.row.Phase != txn.Committed:
		r.Reason = "an older ledger was restored"
	case running && o.proof == "":
		r.Reason = "its journal names no group"
	case running && o.proof == "confined" && o.journal.LandlockABI < minLandlock:
		r.Reason = "its processes cannot be seen and were not confined"
	case d.Resolution == txn.Quarantined:
		r.Reason = d.Actions[0].Why
	}
	if r.Reason != "" {
		r.Resolution = txn.Quarantined
		return r, txn.Decision{Resolution: txn.Quarantined}
	}
	r.Actions = d.Actions
	return r, d
}

// recovering is one open job on its way: its files are at their decided end, its row is not closed yet.
type recovering struct {
	Recovered
	openJob
	row    func() (*ledger.Ticket, error) // closes it; nil: there is a reason not to
	ticket *ledger.Ticket
	err    error // the first one
}

// put queues the close of the row.
func (r *recovering) put() {
	if r.row != nil && r.err == nil {
		r.ticket, r.err = r.row()
	}
}

// recoverJob brings the files of one open job to their decided end, durably once files are synced. What may not be decided
// is left as it is.
func (s *Recovery) recoverJob(o openJob, f *fates, files *txn.Undo) recovering {
	r, d := o.decide()
	one := recovering{Recovered: r, openJob: o}
	if r.Reason == "" {
		one.row, one.err = s.carryOut(o, d, f, r.Proof, files)
	}
	return one
}

// recovered waits for the row of a job and says what became of it. One with a reason keeps its keys.
func (s *Recovery) recovered(one recovering) (Recovered, error) {
	r, o, err := one.Recovered, one.openJob, one.err
	if r.Reason != "" {
		return s.quarantine(r, o, r.Reason), nil
	}
	if err == nil {
		err = durably(one.ticket, nil)
	}
	switch {
	case errors.Is(err, ledger.ErrRefused):
		return s.quarantine(r, o, err.Error()), nil
	case errors.Is(err, txn.ErrSync):
		return r, fmt.Errorf("job %q: %w", o.row.ID, err)
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return s.quarantine(r, o, fmt.Sprintf("undecided, it waits for room on the volume: %v", err)), nil
	case err != nil:
		return r, fmt.Errorf("job %q: %w", o.row.ID, err)
	}
	return r, nil
}

// carryOut does what was decided about the files, and returns what closes the row.
func (s *Recovery) carryOut(o openJob, d txn.Decision, f *fates, proof string, files *txn.Undo) (closeRow func() (*ledger.Ticket, error), err error) {
	row, j := o.row, o.journal
	if err := files.Apply(j, d); err != nil {
		return nil, err
	}
	event := func(k audit.Kind, data map[string]any) audit.Event {
		return audit.Event{Kind: k, Job: row.ID, Session: row.Session, Tool: row.Tool, Principal: row.Principal, RequestID: j.RequestID, Data: data}
	}
	recovered := event(audit.Recovered, map[string]any{"resolution": string(d.Resolution), "proof": proof, "phase": string(row.Phase)})
	if row.Phase == txn.Committed {
		return func() (*ledger.Ticket, error) { return s.Ledger.Settled(row.ID, recovered) }, nil
	}
	if row.Phase == txn.WorkerRunning && d.Resolution != txn.ByOperator {
		if err := s.Files.Trash(j, f.empty, f.confined); err != nil {
			return nil, err
		}
	}
	reason := "the engine ended before the job did"
	if d.Resolution == txn.ByOperator {
		reason = "an operator decided the quarantine: nothing was undone, the targets are as he left them"
	}
	if proof == "confined" {
		reason += "; death of its processes was not proven, they cannot reach a target"
	}
	rollback := event(audit.Rollback, map[string]any{"code": string(job.Internal), "reason": reason})
	return func() (*ledger.Ticket, error) { return s.Ledger.RolledBack(row.ID, recovered, rollback) }, nil
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
func (s *Recovery) quarantine(r Recovered, o openJob, reason string) Recovered {
	row := o.row
	r.Resolution, r.Reason, r.Actions = txn.Quarantined, reason, nil
	keys := []lock.Key{lock.Session(row.Session)}
	if session, err := s.Ledger.Session(context.Background(), row.Session); err != nil || session.Name == job.DefaultSession {
		keys = append(keys, job.SessionKey(ledger.Session{Owner: row.Principal, Name: job.DefaultSession}))
	}
	for _, o := range o.journal.Outputs {
		keys = append(keys, job.PathKey(chain(s.Root, o.Target)))
	}
	// Nobody waits yet, and what another quarantined job holds is held for good: the rest is granted at once. None of it is
	// released: a restart decides again.
	keys = slices.DeleteFunc(keys, func(k lock.Key) bool { return len(s.Table.Holders(k)) > 0 })
	_, err := s.Table.Acquire(nil, lock.Request{Owner: lock.Owner{Job: job.QuarantinePrefix + row.ID, Session: row.Session, Tool: row.Tool, Principal: row.Principal, Since: row.CreatedAt.UnixMilli()}, Keys: keys})
	if err != nil {
		r.Reason += "; " + err.Error()
	}
	return r
}

// chain is the way to a target as it is now. Admission would refuse one that is no target at the moment, or on a full
// volume; it may be one again before we start the next time.
func chain(root, target string) (edges []txn.Edge) {
	dir := root
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

// DryRun says what recovery would do about every open job, and changes nothing: what only a kill can tell it takes for
// granted, and says so. It returns a *job.Error with BUSY while the workspace is owned.
func DryRun(ctx context.Context, cfg Config) ([]Recovered, error) {
	if _, err := os.Stat(filepath.Join(cfg.Workspace, ".eda-sidecar", "jobs")); errors.Is(err, os.ErrNotExist) {
		return nil, nil // never used: txn.Open would make what is missing
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
	owner, err := own(ctx, durable.OS(), files.Side())
	if err != nil {
		return nil, ownerError(err)
	}
	defer func() { _ = owner.Release() }() // nothing was written
	options, err := ledgerOptions(cfg, files, owner.Previous)
	if err != nil {
		return nil, err
	}
	if state, err := openMended(cfg.StateDir); err == nil {
		_ = state.Close() // opened for reading
	}
	reader, opening, err := ledger.Look(ctx, options)
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
	last, err := restored(ctx, reader)
	if err != nil {
		return nil, LedgerError("open the ledger", err)
	}
	f := lookAtAll(ctx, cfg.groups(), open, owner.Previous.Groups)
	var all []Recovered
	for _, row := range open {
		o, err := look(row, files, f, opening.Restored || row.FirstSeq < last, opening.Disagree)
		if err != nil {
			return nil, volumeError("look at the jobs", err)
		}
		r, _ := o.decide()
		if slices.ContainsFunc(o.journal.Groups, func(g cgroup.Ref) bool { return slices.Contains(f.asked, g) }) {
			r.If = ifDead
		}
		all = append(all, r)
	}
	more, err := dryLeftovers(ctx, cfg, reader, files, f)
	if err != nil {
		return nil, fail(job.Internal, "look at what is left", err)
	}
	return append(all, more...), nil
}

// ifDead is the condition of a dry run where only a kill can tell.
const ifDead = "its processes can be proven dead"

// dryLeftovers is the part of a dry run that is about no open job.
func dryLeftovers(ctx context.Context, cfg Config, l *ledger.Reader, files *txn.Workspace, f *fates) (all []Recovered, err error) {
	events, err := f.reads(ctx, l, files)
	if err != nil {
		return nil, err
	}
	for _, event := range events {
		r := ofRead(event)
		if slices.ContainsFunc(f.asked, func(g cgroup.Ref) bool { return jobOf(g) == r.Job }) {
			r.If = ifDead
		}
		all = append(all, r)
	}
	names, err := files.Orphans()
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		if _, err := l.Job(ctx, name); err == nil {
			continue
		} else if !errors.Is(err, ledger.ErrNotFound) {
			return nil, err
		}
		if r, found := orphan(files, name); found {
			all = append(all, r)
		}
	}
	settled, err := l.Unretired(ctx)
	if err != nil {
		return nil, err
	}
	for _, row := range due(settled, cfg.BackupRetention, 0) {
		j, err := txn.DecodeJournal(row.Doc)
		if err != nil {
			continue // it waits for an operator
		}
		seen, err := files.Observe(j)
		if err != nil {
			return nil, err
		}
		if foreign := txn.Plan(j, seen, fateOf(row.Phase)).Foreign(); len(foreign) > 0 {
			all = append(all, lateBytes(row, foreign))
		}
	}
	return all, nil
}
