package crash

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/eda-sidecar/eda-sidecar/sidecar/audit"
	"github.com/eda-sidecar/eda-sidecar/sidecar/durable/durabletest"
	"github.com/eda-sidecar/eda-sidecar/sidecar/ledger"
	"github.com/eda-sidecar/eda-sidecar/sidecar/ledger/batch"
	"github.com/eda-sidecar/eda-sidecar/sidecar/txn"
)

// book is what a ledger holds after some transaction, read from the real one. Recovery may go on writing in a copy: through
// the real queue, with its orders of events.
type book struct {
	jobs     map[string]ledger.Job
	orders   map[string]audit.Order
	sessions map[string]ledger.Session

	queue *batch.Queue
	vol   *durabletest.Strict // gets the marks of what is written; may be nil
	wrote int
}

func newBook() *book {
	return &book{jobs: map[string]ledger.Job{}, orders: map[string]audit.Order{}, sessions: map[string]ledger.Session{}}
}

// snapshot reads the whole ledger.
func snapshot(t testing.TB, l *ledger.Ledger) *book {
	b := newBook()
	if err := b.read(context.Background(), l, ledger.Query{}); err != nil {
		t.Errorf("read the ledger: %v", err) // not Fatal: this is the ledger's goroutine
	}
	return b
}

// read adds what the ledger holds of the jobs and sessions of some events.
func (b *book) read(ctx context.Context, l *ledger.Ledger, q ledger.Query) error {
	return l.Events(ctx, q, func(r ledger.Record) (err error) {
		if r.Job != "" {
			if b.orders[r.Job], err = b.orders[r.Job].Next(audit.Kind(r.Kind)); err != nil {
				return err
			}
		}
		if r.HasJob && b.jobs[r.Job].ID == "" {
			b.jobs[r.Job], err = l.Job(ctx, r.Job)
		}
		if err == nil && r.HasSession {
			b.sessions[r.Session], err = l.Session(ctx, r.Session)
		}
		return err
	})
}

// copy is a book of its own, for one recovery.
func (b *book) copy(vol *durabletest.Strict) *book {
	return &book{
		jobs: maps.Clone(b.jobs), orders: maps.Clone(b.orders), sessions: maps.Clone(b.sessions), queue: batch.New(), vol: vol,
	}
}

// The methods of sidecar.Rows.

func (b *book) list(is func(ledger.Job) bool) (rows []ledger.Job, err error) {
	for _, id := range slices.Sorted(maps.Keys(b.jobs)) {
		if is(b.jobs[id]) {
			rows = append(rows, b.jobs[id])
		}
	}
	return rows, nil
}

func (b *book) OpenJobs(context.Context) ([]ledger.Job, error) {
	return b.list(func(j ledger.Job) bool { return j.SettledAt.IsZero() })
}

func (b *book) Unretired(context.Context) ([]ledger.Job, error) {
	return b.list(func(j ledger.Job) bool { return !j.SettledAt.IsZero() && j.RetiredAt.IsZero() })
}

func (b *book) Job(_ context.Context, id string) (ledger.Job, error) {
	if j, ok := b.jobs[id]; ok {
		return j, nil
	}
	return ledger.Job{}, ledger.ErrNotFound
}

func (b *book) Session(_ context.Context, id string) (ledger.Session, error) {
	if s, ok := b.sessions[id]; ok {
		return s, nil
	}
	return ledger.Session{}, ledger.ErrNotFound
}

// Events has none: recovery asks for restorings and for reads, and there were neither.
func (b *book) Events(context.Context, ledger.Query, func(ledger.Record) error) error { return nil }

func (b *book) Opening() ledger.Opening { return ledger.Opening{} }

func (b *book) Settled(id string, events ...audit.Event) (*ledger.Ticket, error) {
	return b.put(id, func(j *ledger.Job) bool {
		was := j.SettledAt.IsZero()
		j.SettledAt = time.Now()
		return was && j.Phase == txn.Committed
	}, events)
}

func (b *book) RolledBack(id string, events ...audit.Event) (*ledger.Ticket, error) {
	return b.put(id, func(j *ledger.Job) bool {
		was := j.Phase
		j.Phase, j.SettledAt = txn.RolledBack, time.Now()
		return was == txn.WorkerRunning || was == txn.PublishingOutputs
	}, events)
}

func (b *book) Retired(id string) (*ledger.Ticket, error) {
	return b.put(id, func(j *ledger.Job) bool {
		was := j.RetiredAt.IsZero()
		j.RetiredAt = time.Now()
		return was && !j.SettledAt.IsZero()
	}, nil)
}

func (b *book) Record(events ...audit.Event) (*ledger.Ticket, error) {
	return b.put("", func(*ledger.Job) bool { return true }, events)
}

// change is an operation on a row; it says whether it was legal.
type change struct {
	id string
	do func(*ledger.Job) bool
}

func (b *book) put(id string, do func(*ledger.Job) bool, events []audit.Event) (*ledger.Ticket, error) {
	t, err := b.queue.Put(batch.Op{Events: events, Payload: change{id, do}, Known: map[string]audit.Order{id: b.orders[id]}})
	b.queue.Round(b)
	return t, err
}

// The methods of batch.Store.

func (b *book) Begin() error { return nil }

func (b *book) Apply(op batch.Op) (err error) {
	c := op.Payload.(change)
	row := b.jobs[c.id]
	if !c.do(&row) {
		return fmt.Errorf("job %q is %s: %w", c.id, row.Phase, batch.ErrRefused)
	}
	for _, e := range op.Events {
		if b.orders[e.Job], err = b.orders[e.Job].Next(e.Kind); err != nil {
			return err
		}
	}
	b.jobs[c.id] = row
	b.wrote++
	return nil
}

func (b *book) Commit() error {
	if b.vol != nil {
		b.vol.Mark(begun{})
		b.vol.Mark(done{b.copy(nil)})
	}
	return nil
}

func (b *book) Rollback() {}
