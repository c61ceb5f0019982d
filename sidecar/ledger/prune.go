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

type prunable struct {
	seq, at int64
	hash    []byte
}

func scanPrunable(rows *sql.Rows, p *prunable) error {
	return rows.Scan(&p.seq, &p.at, &p.hash)
}

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

// prunable finds the oldest events that may go: a prefix, so that no wrong clock can take an event from the middle.
func (l *Ledger) prunable(ctx context.Context) (op batch.Op, err error) {
	now := l.o.Now()
	oldest, tombs := now.Add(-l.o.Retention).UnixNano(), now.Add(-tombstones).UnixNano()
	pruned, err := l.pruned(ctx)
	if err != nil {
		return op, err
	}
	rows, err := query(ctx, l.db, scanPrunable, sqlPrunable, pruned.Seq, pruneMax)
	if err != nil {
		return op, err
	}
	head, err := l.Head(ctx)
	if err != nil {
		return op, err
	}
	floor, err := only(query(ctx, l.db, scanInt, sqlFloor)) // the first event of a job that is not retired
	if err != nil {
		return op, err
	}
	to := pruned
	for _, p := range rows {
		if young := p.at >= oldest && p.seq > head.Seq-l.o.RetentionEvents; young || p.seq >= floor || p.seq == head.Seq {
			break
		}
		to = audit.Head{Seq: p.seq, Hash: p.hash}
	}
	due, err := only(query(ctx, l.db, scanInt, sqlTombs, tombs))
	if err != nil || due == 0 && to.Seq == pruned.Seq {
		return op, err
	}
	if to.Seq > pruned.Seq {
		op.Events = []audit.Event{{Kind: audit.LedgerPruned, Data: map[string]any{"pruned_seq": to.Seq, "pruned_hash": hex.EncodeToString(to.Hash)}}}
	}
	op.Payload = change(func(s *store, _ int64) error {
		for _, step := range []struct {
			query string
			args  []any
		}{
			{sqlMeta, []any{strconv.FormatInt(to.Seq, 10), "pruned_seq"}},
			{sqlMeta, []any{hex.EncodeToString(to.Hash), "pruned_hash"}},
			{sqlPruneJobs, []any{to.Seq, to.Seq}},
			{sqlPruneEvents, []any{to.Seq}},
			{sqlPruneTombs, []any{tombs}},
		} {
			if _, err := s.exec(step.query, step.args...); err != nil {
				return err
			}
		}
		return nil
	})
	return op, nil
}
