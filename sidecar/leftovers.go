package sidecar

import (
	"context"
	"errors"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/eda-sidecar/eda-sidecar/sidecar/audit"
	"github.com/eda-sidecar/eda-sidecar/sidecar/ledger"
	"github.com/eda-sidecar/eda-sidecar/sidecar/txn"
)

// reads ends the trail of every call that left a group and no row: a read, which has changed nothing.
func (s *Sidecar) reads(ctx context.Context, f *fates) error {
	dirs, err := s.files.Orphans()
	if err != nil {
		return err
	}
	seen := map[string]bool{}
	for _, e := range f.empty {
		id := strings.TrimSuffix(path.Base(e.Group().Path), path.Ext(e.Group().Path))
		_, err := s.Ledger.Job(ctx, id)
		if seen[id] || err == nil {
			continue
		}
		if !errors.Is(err, ledger.ErrNotFound) {
			return err
		}
		seen[id] = true
		var event audit.Event
		var order audit.Order
		err = s.Ledger.Events(ctx, ledger.Query{Job: id}, func(r ledger.Record) error {
			entry, err := audit.Decode(r.Body)
			if err == nil {
				event = entry.Event
				order, err = order.Next(event.Kind)
			}
			return err
		})
		if err != nil {
			return err
		}
		if order.State == audit.New && slices.Contains(dirs, "r-"+id) { // killed before its first events were durable
			event.Job, event.Tool, order.State = id, "unknown", audit.Allowed
		}
		switch order.State {
		case audit.Allowed, audit.Started, audit.TimedOut, audit.Stopped, audit.Unproven:
			event.Kind, event.At, event.Data = audit.Recovered, time.Time{}, map[string]any{"resolution": string(txn.Discarded), "proof": string(e.How())}
			if err := durably(s.Ledger.Record(event)); err != nil {
				return err
			}
			s.Recovered = append(s.Recovered, Recovered{Job: id, Tool: event.Tool, Resolution: txn.Discarded, Proof: string(e.How())})
		case audit.New, audit.Finished, audit.Terminated, audit.Found, audit.Denied, audit.Committed, audit.RolledBack, audit.Closed:
		}
	}
	return nil
}

// orphans ends directories in jobs/ that no row knows.
func (s *Sidecar) orphans(ctx context.Context) error {
	names, err := s.files.Orphans()
	if err != nil {
		return err
	}
	for _, name := range names {
		_, err := s.Ledger.Job(ctx, name)
		if err == nil {
			continue
		}
		if !errors.Is(err, ledger.ErrNotFound) {
			return err
		}
		r := Recovered{Job: name, Resolution: txn.Conflicted, Reason: "the ledger does not know this job directory: it was moved to conflicts/"}
		kept, err := s.files.KeepOrphan(name)
		if err != nil { // it is in nobody's way
			r.Resolution, r.Reason = txn.Quarantined, "the ledger does not know this job directory, and it cannot be moved to conflicts/: "+err.Error()
		}
		if kept || err != nil {
			s.Recovered = append(s.Recovered, r)
		}
	}
	return nil
}

// keptBackups is how many committed jobs' displaced originals are kept at most.
const keptBackups = 1000

// retire lets the backups of settled jobs expire: those that are old, and the oldest beyond the number that is kept. What
// cannot be retired or deleted now is tried again by the next start. Jobs that ended within the last settling are left
// alone: their own goroutines may still be at it.
func (s *Sidecar) retire(ctx context.Context, settling time.Duration) error {
	rows, err := s.Ledger.Unretired(ctx)
	if err != nil {
		return err
	}
	for i, row := range rows {
		age := time.Since(row.UpdatedAt)
		if row.Phase == txn.Committed && age < s.cfg.BackupRetention && len(rows)-i <= keptBackups || age < settling && row.Phase != txn.Committed {
			continue
		}
		j, err := txn.DecodeJournal(row.Doc)
		if err != nil { // its final row says all; the directory waits for an operator
			seen, err := s.files.Observe(&txn.Journal{Version: 1, Job: row.ID})
			if err == nil && seen.Job != txn.InJobs {
				_, _ = s.Ledger.Retired(row.ID) // rides
			}
			continue
		}
		if s.files.Retire(j, fateOf(row.Phase)) == nil {
			_, _ = s.Ledger.Retired(row.ID) // rides
		}
	}
	_ = s.files.EmptyTrash() // as above
	return nil
}
