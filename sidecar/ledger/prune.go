package ledger

import (
	"context"
	"database/sql"
	"encoding/hex"
	"strconv"
	"time"

	"github.com/eda-sidecar/eda-sidecar/sidecar/audit"
	"github.com/eda-sidecar/eda-sidecar/sidecar/ledger/batch"
)

// Retention of what is not an event, and the most that one transaction deletes.
const (
	tombstones = 7 * 24 * time.Hour
	pruneMax   = 1000
)

// prune queues the removal of the oldest events, if any are due, and of the jobs that go with their last event.
// It reports whether it did: there may be more. Errors are left to the next attempt.
func (l *Ledger) prune() bool {
	op, err := l.prunable(context.Background())
	if err != nil || op.Payload == nil {
		return false
	}
	_, err = l.put("", op)
	return err == nil
}

// horizon says how far pruning may come.
type horizon struct {
	young int64 // the first event that is not too old, of those looked at
	floor int64 // the first event of a job that is not retired
	head  int64
	tombs int64 // sessions whose tombstones are due
}

func scanHorizon(rows *sql.Rows, h *horizon) error {
	return rows.Scan(&h.young, &h.floor, &h.head, &h.tombs)
}

// prunable finds the oldest events that may go: a prefix, so that no wrong clock can take an event from the middle.
func (l *Ledger) prunable(ctx context.Context) (op batch.Op, err error) {
	now := l.o.Now()
	oldest, tombs := now.Add(-l.o.Retention).UnixNano(), now.Add(-tombstones).UnixNano()
	pruned, err := l.pruned(ctx)
	if err != nil {
		return op, err
	}
	last := pruned.Seq + pruneMax
	h, err := only(query(ctx, l.db, scanHorizon, sqlHorizon, pruned.Seq, last, oldest, tombs))
	if err != nil {
		return op, err
	}
	to := pruned
	last = min(last, max(h.young, h.head-l.o.RetentionEvents+1)-1, h.floor-1, h.head-1)
	if last > pruned.Seq {
		hash, err := only(query(ctx, l.db, scan[[]byte], sqlHashOf, last))
		if err != nil {
			return op, err
		}
		to = audit.Head{Seq: last, Hash: hash}
	}
	if h.tombs == 0 && to.Seq == pruned.Seq {
		return op, nil
	}
	if to.Seq > pruned.Seq {
		op.Events = []audit.Event{{Kind: audit.LedgerPruned, Data: map[string]any{"pruned_seq": to.Seq, "pruned_hash": hex.EncodeToString(to.Hash)}}}
	}
	op.Payload = change(func(s *store, _ int64) (err error) {
		do := func(query string, args ...any) {
			if err == nil {
				_, err = s.exec(query, args...)
			}
		}
		do(sqlMeta, strconv.FormatInt(to.Seq, 10), "pruned_seq")
		do(sqlMeta, hex.EncodeToString(to.Hash), "pruned_hash")
		do(sqlPruneJobs, to.Seq, to.Seq)
		do(sqlPruneEvents, to.Seq)
		do(sqlPruneTombs, tombs)
		return err
	})
	return op, nil
}
