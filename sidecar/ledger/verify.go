package ledger

import (
	"context"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"github.com/eda-sidecar/eda-sidecar/sidecar/audit"
	"github.com/eda-sidecar/eda-sidecar/sidecar/session"
	"github.com/eda-sidecar/eda-sidecar/sidecar/txn"
)

// last returns the number of the newest event, 0 if there is none.
func (r *Reader) last(ctx context.Context) (int64, error) {
	seq, err := query(ctx, r.db, scanInt64, `SELECT seq FROM events ORDER BY seq DESC LIMIT 1`)
	if err != nil || len(seq) == 0 {
		return 0, err
	}
	return seq[0], nil
}

// verifier returns one that starts behind event from, which pruning may have removed.
func (r *Reader) verifier(ctx context.Context, from int64) (*audit.Verifier, error) {
	pruned, err := r.pruned(ctx)
	if err != nil {
		return nil, err
	}
	head := audit.Head{Seq: max(from, 0)}
	switch {
	case head.Seq <= pruned.Seq:
		head = pruned
	default:
		if head.Hash, err = only(query(ctx, r.db, scanBytes, `SELECT hash FROM events WHERE seq = ?`, head.Seq)); err != nil {
			return nil, fmt.Errorf("event %d: %w", head.Seq, err)
		}
	}
	return audit.NewVerifier(head, func(e audit.Entry) (audit.Order, error) { return r.order(ctx, e) }), nil
}

// order replays the order of an entry's job up to that entry. If its first events were pruned it is unknown.
func (r *Reader) order(ctx context.Context, e audit.Entry) (audit.Order, error) {
	kinds, err := query(ctx, r.db, scanText, `SELECT kind FROM events WHERE job = ? AND seq < ? ORDER BY seq`, e.Job, e.Seq)
	if err != nil {
		return audit.Order{}, err
	}
	pruned, err := r.pruned(ctx)
	if err != nil {
		return audit.Order{}, err
	}
	if pruned.Seq > 0 && len(kinds) != e.N-1 {
		return audit.Unknown(e.N - 1), nil
	}
	o := audit.Order{}
	for _, k := range kinds {
		if o, err = o.Next(audit.Kind(k)); err != nil {
			return o, err
		}
	}
	return o, nil
}

func (r *Reader) pruned(ctx context.Context) (audit.Head, error) {
	seq, err := r.meta(ctx, "pruned_seq")
	if err != nil {
		return audit.Head{}, err
	}
	hash, err := r.meta(ctx, "pruned_hash")
	if err != nil {
		return audit.Head{}, err
	}
	var head audit.Head
	if head.Seq, err = strconv.ParseInt(seq, 10, 64); err != nil {
		return head, fmt.Errorf("pruned_seq: %w", err)
	}
	if head.Hash, err = hex.DecodeString(hash); err != nil {
		return head, fmt.Errorf("pruned_hash: %w", err)
	}
	return head, nil
}
func scanInt64(rows *sql.Rows, n *int64) error  { return rows.Scan(n) }
func scanBytes(rows *sql.Rows, b *[]byte) error { return rows.Scan(b) }

// backup writes a consistent copy to path, which must not exist; it is complete when nil is returned.
func backup(ctx context.Context, db interface {
	ExecContext(context.Context, string, ...any) (sql.Result, error)
}, path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600) // SQLite would make it readable by all
	if err != nil {
		return fmt.Errorf("backup: %w", err)
	}
	_, err = db.ExecContext(ctx, "VACUUM INTO ?", path)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("backup to %q: %w", path, err)
	}
	return syncDir(filepath.Dir(path))
}

var _ = session.Digest
var _ txn.Phase
