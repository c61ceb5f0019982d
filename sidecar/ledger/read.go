package ledger

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/eda-sidecar/eda-sidecar/sidecar/audit"
	"github.com/eda-sidecar/eda-sidecar/sidecar/session"
	"github.com/eda-sidecar/eda-sidecar/sidecar/txn"
)

// pageSize bounds a read transaction: a long reader would stop the checkpoint.
const pageSize = 500

// Reader reads a ledger: beside its writer, or from another process.
type Reader struct{ db *sql.DB }

// Job is a row of jobs. Times that have not come are zero.
type Job struct {
	ID, Session, Tool, Principal               string
	Phase                                      txn.Phase
	Doc                                        []byte // the journal; untrusted
	FirstSeq                                   int64  // of its first event
	CreatedAt, UpdatedAt, SettledAt, RetiredAt time.Time
}

// Session is a row of sessions: state, who owns it, and how often it was committed to.
type Session struct {
	ID, Owner, Name                   string
	Generation                        int64  // 0: not in the ledger yet
	Job                               string // that committed last
	State                             session.State
	CreatedAt, UpdatedAt, DestroyedAt time.Time
}

// Query selects events. Zero fields select all.
type Query struct {
	Job, Session, Principal string
	Kind                    audit.Kind
	Since, Until            time.Time // Since is in, Until is not
	After                   int64     // seq
}

// Record is a stored event and the hash of its predecessor.
type Record struct {
	audit.Row
	Prev               []byte
	HasJob, HasSession bool // there is a row of its job, of its session
}

// Line returns the record as one line of JSON without its end: the body, and members prevhash and hash in hex.
func (r Record) Line() []byte {
	return fmt.Appendf(bytes.TrimSuffix(r.Body, []byte("}")), `,"prevhash":"%x","hash":"%x"}`, r.Prev, r.Hash)
}

// OpenReader opens the ledger in a state directory for reading alone, also while another process owns it.
func OpenReader(dir string) (*Reader, error) {
	r, err := openReader(dir)
	if err != nil {
		return nil, openError(dir, err)
	}
	return r, nil
}

func openReader(dir string) (*Reader, error) {
	path := filepath.Join(dir, fileName)
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
		return nil, ErrEmpty
	} else if err != nil {
		return nil, err
	}
	db, err := sql.Open("sqlite", dsn(path, "ro", readerPragmas()...))
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(4)
	db.SetMaxIdleConns(4)
	version, err := identify(context.Background(), db)
	if err == nil && version == 0 {
		err = ErrEmpty
	}
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	for _, p := range readerPragmas() {
		if err := p.check(context.Background(), db); err != nil {
			return nil, errors.Join(err, db.Close())
		}
	}
	return &Reader{db}, nil
}

// Close ends the reads. It may be called while they run: they fail.
func (r *Reader) Close() error { return r.db.Close() }

// OpenJobs returns the jobs that are not settled, by id: what recovery has to decide.
func (r *Reader) OpenJobs(ctx context.Context) ([]Job, error) {
	return r.jobs(ctx, "retired_at IS NULL AND settled_at IS NULL AND ")
}

// Unretired returns the settled jobs whose directories are still kept, by id.
func (r *Reader) Unretired(ctx context.Context) ([]Job, error) {
	return r.jobs(ctx, "retired_at IS NULL AND settled_at IS NOT NULL AND ")
}

func (r *Reader) jobs(ctx context.Context, where string) (all []Job, err error) {
	_, err = pages(ctx, r, scanJob, sqlJobs+where+"id > ? ORDER BY id LIMIT ?", func(j Job) (string, error) {
		all = append(all, j)
		return j.ID, nil
	})
	return all, err
}

// Job returns one job, or an error that wraps [ErrNotFound].
func (r *Reader) Job(ctx context.Context, id string) (Job, error) {
	return only(query(ctx, r.db, scanJob, sqlJobs+"id = ?", id))
}

// Session returns a session, also a destroyed one, or an error that wraps [ErrNotFound].
func (r *Reader) Session(ctx context.Context, id string) (Session, error) {
	return only(query(ctx, r.db, scanSession, sqlSessions+"id = ?", id))
}

// SessionByName returns an owner's session that is not destroyed, or an error that wraps [ErrNotFound]. Sessions without
// a name are not found by it; an owner may have any number of them.
func (r *Reader) SessionByName(ctx context.Context, owner, name string) (Session, error) {
	return only(query(ctx, r.db, scanSession, sqlSessions+"owner = ? AND name = ? AND name <> '' AND destroyed_at IS NULL", owner, name))
}

// Sessions returns at most limit, and at most 500, of an owner's sessions that are not destroyed, by id, behind after;
// without an owner everybody's.
func (r *Reader) Sessions(ctx context.Context, owner, after string, limit int) ([]Session, error) {
	return query(ctx, r.db, scanSession, sqlSessions+"(owner = ? OR ? = '') AND destroyed_at IS NULL AND id > ? ORDER BY id LIMIT ?",
		owner, owner, after, min(limit, pageSize))
}

// Head returns the number and hash of the newest event; the zero value: none.
func (r *Reader) Head(ctx context.Context) (audit.Head, error) {
	return only(query(ctx, r.db, scanHead, sqlHead))
}

// Agent returns what SetAgent kept; empty if nothing.
func (r *Reader) Agent(ctx context.Context) (string, error) { return r.meta(ctx, "agent") }

func (r *Reader) meta(ctx context.Context, key string) (string, error) {
	return only(query(ctx, r.db, scan[string], `SELECT v FROM meta WHERE k = ?`, key))
}

// Events calls fn with every event that q selects, in order. It reads pages of 500 in transactions of their own, so fn
// may take its time. It ends with the first error of fn.
func (r *Reader) Events(ctx context.Context, q Query, fn func(Record) error) error {
	for {
		page, err := r.page(ctx, q)
		if err != nil {
			return err
		}
		for _, rec := range page {
			if err := fn(rec); err != nil {
				return err
			}
			q.After = rec.Seq
		}
		if len(page) < pageSize {
			return nil
		}
	}
}

// Follow is Events that goes on: it looks for new events four times a second until ctx ends, and returns its cause.
// No event is ever taken back: what a reader can see has been synced.
func (r *Reader) Follow(ctx context.Context, q Query, fn func(Record) error) error {
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	for {
		if err := r.Events(ctx, q, func(rec Record) error { q.After = rec.Seq; return fn(rec) }); err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (r *Reader) page(ctx context.Context, q Query) ([]Record, error) {
	where, args := "seq > ?", []any{q.After}
	add := func(set bool, cond string, arg any) {
		if set {
			where, args = where+" AND "+cond, append(args, arg)
		}
	}
	add(q.Job != "", "job = ?", q.Job)
	add(q.Session != "", "session = ?", q.Session)
	add(q.Principal != "", "principal = ?", q.Principal)
	add(q.Kind != "", "kind = ?", string(q.Kind))
	add(!q.Since.IsZero(), "at >= ?", q.Since.UnixNano())
	add(!q.Until.IsZero(), "at < ?", q.Until.UnixNano())
	return query(ctx, r.db, scanRecord, sqlEvents+where+" ORDER BY seq LIMIT ?", append(args, pageSize)...)
}

// query collects the rows of one statement.
func query[T any](ctx context.Context, db querier, scan func(*sql.Rows, *T) error, q string, args ...any) (all []T, err error) {
	defer func() {
		if err != nil {
			all, err = nil, fmt.Errorf("read the ledger: %w", err)
		}
	}()
	rows, err := db.QueryContext(ctx, q, args...)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }() // Err below says it
	for rows.Next() {
		var t T
		if err := scan(rows, &t); err != nil {
			return nil, err
		}
		all = append(all, t)
	}
	return all, rows.Err()
}

type querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// only returns the one row of a query for one.
func only[T any](all []T, err error) (T, error) {
	var none T
	if err == nil && len(all) == 0 {
		err = ErrNotFound
	}
	if err != nil {
		return none, err
	}
	return all[0], nil
}

func scanHead(rows *sql.Rows, h *audit.Head) error {
	var epoch int64
	return rows.Scan(&epoch, &h.Seq, &h.Hash)
}

// scan reads rows of one column.
func scan[T int64 | string | []byte](rows *sql.Rows, v *T) error { return rows.Scan(v) }

func scanJob(rows *sql.Rows, j *Job) error {
	return rows.Scan(&j.ID, &j.Session, &j.Tool, &j.Principal, &j.Phase, &j.Doc, &j.FirstSeq,
		stamped{&j.CreatedAt}, stamped{&j.UpdatedAt}, stamped{&j.SettledAt}, stamped{&j.RetiredAt})
}

func scanSession(rows *sql.Rows, s *Session) error {
	var state []byte
	err := rows.Scan(&s.ID, &s.Owner, &s.Name, &s.Generation, &s.Job, &state,
		stamped{&s.CreatedAt}, stamped{&s.UpdatedAt}, stamped{&s.DestroyedAt})
	if err != nil {
		return err
	}
	s.State, err = session.Decode(state)
	return err
}

func scanRecord(rows *sql.Rows, r *Record) error {
	return rows.Scan(&r.Seq, &r.Job, &r.Session, &r.Kind, &r.Tool, &r.Principal, &r.At, &r.Body, &r.Hash, &r.Prev, &r.HasJob, &r.HasSession)
}

// stamped scans nanoseconds since the epoch, or NULL as the zero time.
type stamped struct{ t *time.Time }

// Scan implements sql.Scanner.
func (s stamped) Scan(v any) error {
	switch v := v.(type) {
	case nil:
		*s.t = time.Time{}
	case int64:
		*s.t = time.Unix(0, v).UTC()
	default:
		return fmt.Errorf("a time of type %T", v)
	}
	return nil
}
