package ledger

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/eda-sidecar/eda-sidecar/sidecar/audit"
	"github.com/eda-sidecar/eda-sidecar/sidecar/ledger/batch"
	"github.com/eda-sidecar/eda-sidecar/sidecar/session"
	"github.com/eda-sidecar/eda-sidecar/sidecar/txn"
)

// Ticket is the promise of an answer to one operation.
type Ticket = batch.Ticket

// The answers of a ticket.
const (
	Durable = batch.Durable
	Refused = batch.Refused
	Absent  = batch.Absent
	Unknown = batch.Unknown
)

// Options of [Open]. Dir alone is required.
type Options struct {
	Dir       string // absolute; made 0700 if absent; on a local file system (the caller checks with durable)
	Workspace string // workspace_id of owner.lock; empty: take the ledger's, or mint one
	BootID    string // of the kernel, kept for diagnosis
	LockEpoch int64  // epoch of owner.lock; 0: a new lock file
	Used      bool   // the workspace has had a ledger, so a fresh one is refused

	Sinks           []func(audit.Event) // get every durable event, in order, from the writer: must not block
	Now             func() time.Time    // nil: time.Now
	Retention       time.Duration       // of events; 0: 90 days
	RetentionEvents int64               // beyond which the oldest go earlier; 0: 1 Mi, about 1 GiB

	// Fault is for tests: it is called before and after each statement of the writer ("before COMMIT"), and its
	// error takes the place of SQLite's.
	Fault func(point string) error
}

// Ledger is the open ledger of a workspace: one writer, and the reads of [Reader].
type Ledger struct {
	*Reader
	o       Options
	queue   *batch.Queue
	store   *store
	opening Opening
	ended   chan struct{} // the writer has ended
	closed  func() error  // closes the files, once
	denials denials
}

// Begin makes a job's intent durable before it has any effect: its row in phase worker_running, and event allow.
func (l *Ledger) Begin(j *txn.Journal, allow audit.Event) (*Ticket, error) {
	doc, err := j.Encode()
	if err != nil {
		return nil, err
	}
	session, tool, principal, job, now := j.Session, j.Tool, j.Principal, j.Job, l.now()
	return l.put(job, batch.Op{Events: []audit.Event{allow}, Bytes: len(doc), Payload: change(func(s *store, first int64) error {
		_, err := s.exec(sqlBegin, job, session, tool, principal, string(txn.WorkerRunning), string(doc), first, now, now)
		return err
	})})
}

// Publishing makes durable what the job is about to change: phase publishing_outputs and the journal with every
// identity. events ride with it.
func (l *Ledger) Publishing(j *txn.Journal, events ...audit.Event) (*Ticket, error) {
	doc, err := j.Encode()
	if err != nil {
		return nil, err
	}
	return l.put(j.Job, batch.Op{Events: events, Bytes: len(doc), Payload: update(ErrPhase, sqlPhase, string(doc), l.now(), j.Job)})
}

// Commit is the commit point: phase committed, the session's new state and event commit in one transaction. s is the
// session as the job cloned it, with the new state; a session of generation 0 is inserted. base_gen, new_gen and
// state_sha256 of the event are set here. Refused with ErrStale: the session changed or was destroyed.
func (l *Ledger) Commit(job string, s Session, commit audit.Event) (*Ticket, error) {
	state, commit, err := stamp(s, commit)
	if err != nil {
		return nil, err
	}
	now := l.now()
	return l.put(job, batch.Op{Events: []audit.Event{commit}, Bytes: len(state), Payload: change(func(st *store, _ int64) error {
		if err := st.one(ErrPhase, sqlCommit, now, job); err != nil {
			return err
		}
		return st.saveSession(s, job, state, now)
	})})
}

// RolledBack closes a job that changed nothing, or nothing any more: phase rolled_back, settled.
// events are its outstanding ones and end with rollback.
func (l *Ledger) RolledBack(job string, events ...audit.Event) (*Ticket, error) {
	now := l.now()
	return l.put(job, batch.Op{Events: events, Payload: update(ErrPhase, sqlUndone, now, now, job)})
}

// SessionOp creates a session (generation 0) or destroys one (DestroyedAt set): its state is emptied and never changes
// again. No process, no journal.
func (l *Ledger) SessionOp(s Session, allow, commit audit.Event) (*Ticket, error) {
	if !s.DestroyedAt.IsZero() {
		s.State = session.State{}
	}
	state, commit, err := stamp(s, commit)
	if err != nil {
		return nil, err
	}
	allow.Session = s.ID
	now := l.now()
	return l.put(commit.Job, batch.Op{Events: []audit.Event{allow, commit}, Bytes: len(state), Payload: change(func(st *store, _ int64) error {
		return st.saveSession(s, commit.Job, state, now)
	})})
}

// Settled says that nothing of a committed job is left to do but to let its backups expire. It rides.
func (l *Ledger) Settled(job string, events ...audit.Event) (*Ticket, error) {
	return l.put(job, batch.Op{Events: events, Ride: true, Payload: update(ErrPhase, sqlSettle, l.now(), job)})
}

// Retired says that a settled job's directory is gone. It rides.
func (l *Ledger) Retired(job string) (*Ticket, error) {
	return l.put("", batch.Op{Ride: true, Payload: update(ErrPhase, sqlRetire, l.now(), job)})
}

// Record adds events that change no row. They ride, but for termination_unproven and recovered.
func (l *Ledger) Record(events ...audit.Event) (*Ticket, error) {
	return l.put("", batch.Op{Events: events, Ride: true})
}

// RecordLast is Record for the last events of a read.
func (l *Ledger) RecordLast(events ...audit.Event) (*Ticket, error) {
	return l.put("", batch.Op{Events: events, Ride: true, Last: true})
}

// SetAgent keeps the hash of the agent's secret. It is awaited.
func (l *Ledger) SetAgent(hash string) (*Ticket, error) {
	return l.put("", batch.Op{Payload: update(ErrNotFound, sqlMeta, hash, "agent")})
}

// Deny adds event deny, at most 10 a second for each principal: the next one says how many were left out. It rides.
func (l *Ledger) Deny(deny audit.Event) error {
	suppressed, ok := l.denials.admit(deny.Principal, l.now())
	if !ok {
		return nil
	}
	if suppressed > 0 {
		data := map[string]any{"suppressed": suppressed}
		maps.Copy(data, deny.Data)
		deny.Data = data
	}
	_, err := l.RecordLast(deny)
	return err
}

// put checks and stamps the events and queues the operation. An event that could not be written is refused here, and
// one of another job than the operation's, if it has one.
func (l *Ledger) put(job string, op batch.Op) (*Ticket, error) {
	op.Events = slices.Clone(op.Events)
	for i := range op.Events {
		e := &op.Events[i]
		if job != "" && e.Job != job {
			return nil, fmt.Errorf("event %q of job %q in an operation of %q: %w", e.Kind, e.Job, job, audit.ErrEvent)
		}
		if e.At.IsZero() {
			e.At = l.o.Now().UTC()
		}
		if e.N = 1; e.Kind.Housekeeping() {
			e.N = 0
		}
		body, err := audit.Encode(audit.Entry{Event: *e, Seq: 1, Workspace: l.store.workspace})
		if err != nil {
			return nil, err
		}
		op.Bytes += len(body)
		if e.Kind == audit.TerminationUnproven || e.Kind == audit.Recovered {
			op.Ride = false
		}
		if e.Kind == audit.Recovered { // perhaps of a job that an earlier process ran
			o, err := l.order(context.Background(), e.Job, math.MaxInt64)
			if err != nil {
				return nil, err
			}
			op.Known = map[string]audit.Order{e.Job: o}
		}
	}
	return l.queue.Put(op)
}

func (l *Ledger) now() int64 { return l.o.Now().UnixNano() }

// stamp encodes the session's new state and says in the commit event what it is.
func stamp(s Session, commit audit.Event) ([]byte, audit.Event, error) {
	state, err := s.State.Encode()
	if err != nil {
		return nil, commit, fmt.Errorf("session %q: %w", s.ID, err)
	}
	data := map[string]any{}
	maps.Copy(data, commit.Data)
	maps.Copy(data, map[string]any{"base_gen": s.Generation, "new_gen": s.Generation + 1, "state_sha256": session.Digest(state)})
	commit.Session, commit.Data = s.ID, data
	return state, commit, nil
}

// Opening returns what Open found.
func (l *Ledger) Opening() Opening { return l.opening }

// Poisoned returns why nothing can be written until a restart, or nil.
func (l *Ledger) Poisoned() error { return l.queue.Poisoned() }

// write is the writer: it waits, the queue decides.
func (l *Ledger) write() {
	defer close(l.ended)
	tick := time.NewTicker(time.Second) // what rides waits no longer
	defer tick.Stop()
	for quiet, untilPrune, last := 0, 60, int64(0); ; {
		idle := l.queue.Round(l.store)
		if idle == nil {
			return
		}
		since := l.store.commits - last
		if (since >= 100 || since > 0 && quiet >= 5) && l.Poisoned() == nil {
			last += since
			l.checkpoint()
		}
		select {
		case <-idle:
			quiet = 0
		case <-tick.C:
			quiet++
			l.queue.Flush()
			if untilPrune--; untilPrune == 0 {
				if untilPrune = 60; l.prune() {
					untilPrune = 1
				}
			}
		}
	}
}

// Close records that the ledger was closed, does what waits, and closes the file. A poisoned ledger's connection stays
// open: a statement, or the checkpoint of a close, could bury a transaction that is there. ctx bounds the wait; after
// its end Close may be called again.
func (l *Ledger) Close(ctx context.Context) error {
	_, _ = l.Record(audit.Event{Kind: audit.LedgerClosed}) // poisoned or closed: then there is none
	l.queue.Close()
	select {
	case <-l.ended:
		return l.closed()
	case <-ctx.Done():
		return fmt.Errorf("close the ledger: %w", context.Cause(ctx))
	}
}

func (l *Ledger) closeFiles() error {
	err := l.Reader.Close()
	if poison := l.Poisoned(); poison != nil {
		return errors.Join(poison, err)
	}
	return errors.Join(err, l.store.close())
}

// checkpoint moves the log into the file. It is never cut while the ledger is open: overwriting it beats growing it.
func (l *Ledger) checkpoint() {
	if _, err := l.store.checkpoint("PASSIVE"); err != nil && !errors.Is(err, batch.ErrAbsent) {
		l.queue.Poison(err)
	}
}

// denials counts the refusals of each principal in the running second.
type denials struct {
	mu sync.Mutex
	// guarded by mu
	second     int64
	count      map[string]int64 // in that second
	suppressed map[string]int64 // since the last one that was let in
}

func (d *denials) admit(principal string, now int64) (suppressed int64, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if second := now / int64(time.Second); second != d.second || d.count == nil {
		d.second, d.count = second, map[string]int64{}
	}
	if d.suppressed == nil || len(d.suppressed) >= 1024 { // more principals than any configuration names
		d.suppressed = map[string]int64{}
	}
	if d.count[principal]++; d.count[principal] > 10 {
		d.suppressed[principal]++
		return 0, false
	}
	suppressed = d.suppressed[principal]
	delete(d.suppressed, principal)
	return suppressed, true
}
