package sidecar

import (
	"context"
	"errors"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/eda-sidecar/eda-sidecar/cgroup"
	"github.com/eda-sidecar/eda-sidecar/sidecar/audit"
	"github.com/eda-sidecar/eda-sidecar/sidecar/ledger"
	"github.com/eda-sidecar/eda-sidecar/sidecar/txn"
)

// reads ends the trail of every call that left a group and no row: a read, which has changed nothing.
func (s *Recovery) reads(ctx context.Context, f *fates) error {
	events, err := f.reads(ctx, s.Ledger, s.Files)
	if err != nil {
		return err
	}
	for _, event := range events {
		if err := durably(s.Ledger.Record(event)); err != nil {
			return err
		}
		s.Recovered = append(s.Recovered, ofRead(event))
	}
	return nil
}

// rows is what a look at leftovers asks of the ledger, or of its reader.
type rows interface {
	Job(ctx context.Context, id string) (ledger.Job, error)
	Events(ctx context.Context, q ledger.Query, fn func(ledger.Record) error) error
}

// reads returns the last event of every such call, in order of their ids.
func (f *fates) reads(ctx context.Context, l rows, files *txn.Workspace) (events []audit.Event, err error) {
	dirs, err := files.Orphans()
	if err != nil {
		return nil, err
	}
	proofs := map[string]string{} // by job
	for _, e := range f.empty {
		proofs[jobOf(e.Group())] = string(e.How())
	}
	for _, ref := range f.asked {
		proofs[jobOf(ref)] = "read"
	}
	for _, id := range slices.Sorted(maps.Keys(proofs)) {
		_, err := l.Job(ctx, id)
		if err == nil {
			continue
		}
		if !errors.Is(err, ledger.ErrNotFound) {
			return nil, err
		}
		var event audit.Event
		var order audit.Order
		err = l.Events(ctx, ledger.Query{Job: id}, func(r ledger.Record) error {
			entry, err := audit.Decode(r.Body)
			if err == nil {
				event = entry.Event
				order, err = order.Next(event.Kind)
			}
			return err
		})
		if err != nil {
			return nil, err
		}
		if order.State == audit.New && slices.Contains(dirs, "r-"+id) { // killed before its first events were durable
			event.Job, event.Tool, order.State = id, "unknown", audit.Allowed
		}
		switch order.State {
		case audit.Allowed, audit.Started, audit.TimedOut, audit.Stopped, audit.Unproven:
			event.Kind, event.At, event.Data = audit.Recovered, time.Time{}, map[string]any{"resolution": string(txn.Discarded), "proof": proofs[id]}
			events = append(events, event)
		case audit.New, audit.Finished, audit.Terminated, audit.Found, audit.Denied, audit.Committed, audit.RolledBack, audit.Closed:
		}
	}
	return events, nil
}

// jobOf is the job whose group this is, by its name: <job>.<step>.
func jobOf(g cgroup.Ref) string { return strings.TrimSuffix(path.Base(g.Path), path.Ext(g.Path)) }

func ofRead(e audit.Event) Recovered {
	proof, _ := e.Data["proof"].(string) // set above
	return Recovered{Job: e.Job, Tool: e.Tool, Resolution: txn.Discarded, Proof: proof}
}

// orphans ends directories in jobs/ that no row knows, or whose row says that they are gone: that they were moved to the
// trash was not durable when the power was lost.
func (s *Recovery) orphans(ctx context.Context) error {
	names, err := s.Files.Orphans()
	if err != nil {
		return err
	}
	for _, name := range names {
		row, err := s.Ledger.Job(ctx, name)
		if err == nil {
			if j, err := txn.DecodeJournal(row.Doc); err == nil && !row.RetiredAt.IsZero() {
				_, _ = s.Files.Retire(j, fateOf(row.Phase)) // the next start tries again
			}
			continue
		}
		if !errors.Is(err, ledger.ErrNotFound) {
			return err
		}
		r, found := orphan(s.Files, name)
		if err := s.Files.EndOrphan(name); err != nil { // it is in nobody's way
			r.Resolution, r.Reason, found = txn.Quarantined, "the ledger does not know it, and it cannot be moved away: "+err.Error(), true
		}
		if found {
			s.Recovered = append(s.Recovered, r)
		}
	}
	return nil
}

// orphan says what becomes of a directory in jobs/ that no row knows; found is false for the scratch of a read.
func orphan(files *txn.Workspace, name string) (r Recovered, found bool) {
	r = Recovered{Job: name, Resolution: files.Orphan(name), Reason: "the ledger does not know it: it goes to conflicts/"}
	if r.Resolution == txn.Discarded {
		r.Reason = "the ledger does not know it, and it holds no file"
	}
	return r, r.Resolution != ""
}

// keptBackups is how many committed jobs' displaced originals are kept at most.
const keptBackups = 1000

// retire lets the backups of settled jobs expire: those that are old, and the oldest beyond the number that is kept. What
// cannot be retired or deleted now is tried again by the next start. Jobs that ended within the last settling are left
// alone: their own goroutines may still be at it. kept are those whose backups hold somebody's bytes.
func (s *Recovery) retire(ctx context.Context, settling time.Duration) (kept []Recovered, err error) {
	rows, err := s.Ledger.Unretired(ctx)
	if err != nil {
		return nil, err
	}
	for _, row := range due(rows, s.Keep, settling) {
		j, err := txn.DecodeJournal(row.Doc)
		if err != nil { // its final row says all; the directory waits for an operator
			seen, err := s.Files.Observe(&txn.Journal{Version: 1, Job: row.ID})
			if err == nil && seen.Job != txn.InJobs {
				_, _ = s.Ledger.Retired(row.ID) // rides
			}
			continue
		}
		foreign, err := s.Files.Retire(j, fateOf(row.Phase))
		if len(foreign) > 0 {
			kept = append(kept, lateBytes(row, foreign))
		}
		if err == nil {
			_, _ = s.Ledger.Retired(row.ID) // rides
		}
	}
	_ = s.Files.EmptyTrash() // as above
	return kept, nil
}

// due returns the settled jobs whose backups are to expire now. rows are in order of their age.
func due(rows []ledger.Job, keep, settling time.Duration) (all []ledger.Job) {
	for i, row := range rows {
		age := time.Since(row.UpdatedAt)
		if row.Phase == txn.Committed && age < keep && len(rows)-i <= keptBackups || age < settling && row.Phase != txn.Committed {
			continue
		}
		all = append(all, row)
	}
	return all
}

// lateBytes says that somebody wrote to a settled job's displaced original, or to the outputs that an undo took back.
func lateBytes(row ledger.Job, foreign []txn.Action) Recovered {
	return Recovered{
		Job: row.ID, Tool: row.Tool, Phase: row.Phase, Resolution: txn.Conflicted, Actions: foreign,
		Reason: "somebody wrote to what it had displaced: those bytes go to conflicts/" + row.ID,
	}
}
